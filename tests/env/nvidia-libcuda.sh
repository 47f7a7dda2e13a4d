#!/bin/sh
# Usage: nvidia-libcuda.sh [535|550|555]: the library of CUDA's clients, libcuda.so.1, unpacked into
# the cache, never installed (nvidia-package.sh).
exec "$(dirname "$0")/nvidia-package.sh" libcuda1 "$@"

#!/bin/sh
# Usage: nvidia-cuda-mps.sh [535|550]: the control program nvidia-cuda-mps-control, unpacked into
# the cache, never installed (nvidia-package.sh).
exec "$(dirname "$0")/nvidia-package.sh" nvidia-cuda-mps "$@"

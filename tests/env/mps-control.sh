#!/usr/bin/env bash
# mps-control.sh: prints the NVIDIA MPS control daemon that tests and demo use: the one installed on
# a machine with a GPU, else 550 (its client socket refuses settings), else 535 (it does not), as
# far as nvidia-cuda-mps.sh can have them. MG_MPS_BRANCH names one. Prints nothing where there is
# none. The client library of that branch is fetched as well: nobody can from within a sandbox.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [[ ${MG_REAL_GPU:-0} == 1 ]]; then
  command -v nvidia-cuda-mps-control
  exit
fi
for major in ${MG_MPS_BRANCH:-550 535}; do
  program=$("$here/nvidia-cuda-mps.sh" "$major" | tail -n 1) || continue
  if [[ -x $program ]]; then
    "$here/nvidia-libcuda.sh" "$major" >/dev/null || true
    echo "$program"
    exit 0
  fi
done

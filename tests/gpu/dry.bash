# dry.bash: fakes of all that a GPU machine has, so that the whole script can be run without one:
# NVML, nvidia-smi and libcuda driven by one file, the fake of the control daemon. Sourced by
# tests/gpu/run where MG_GPU_DRY=1, in a sandbox.
# shellcheck shell=bash

# dry_machine: before anything is looked at. The sandbox's own /usr/bin takes them.
dry_machine() {
  local fakes=$MG_OUT/fakes faked=$MG/fakes
  mkdir -p "$faked" "$MG/nvml"
  install -t "$faked" "$fakes"/nvidia-cuda-mps-{control,server}
  echo 580 >"$faked/fake-mps-version" # the first that the fake knows to be multi-user
  cc -O1 -shared -fPIC -o "$faked/libcuda.so.1" "$here/../fakes/cuda/libcuda.c" || skip "no C compiler for the fake of libcuda"
  install "$here/../fakes/nvidia-smi" /usr/bin/nvidia-smi
  install -t "$MG/nvml" "$fakes/libnvidia-ml.so.1"
  export MG_NVML=$MG/nvml MG_MPS_CONTROL=$faked/nvidia-cuda-mps-control LD_LIBRARY_PATH=$faked${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  jq -n '{driver_version: "580.00.00", cuda_driver_version: "13.0", cards: [{
    uuid: "GPU-00000000-0000-4000-8000-000000000000", index: 0, minor: 0, name: "Simulated H200",
    memory_total_mib: 143771, memory_used_mib: 0, compute_capability: "9.0", mig: "disabled", compute_mode: "DEFAULT",
    pci_bus_id: "00000000:3A:00.0", processes: []}]}' >"$MG_NVML/nvml.json"
}

orphan_wait=1 # that one never ends
library() {
  case $1 in
    libcuda.so.1) echo "$MG/fakes/$1" ;;
    libnvidia-ml.so.1) echo "$MG/nvml/$1" ;;
    *) return 1 ;;
  esac
}

as_seen() { # PID MIB...
  uses "$@"
  jq '.cards[0].memory_used_mib = ([.cards[0].processes[].used_mib] | add // 0)' "$NVML/nvml.json" >"$NVML/nvml.json.next"
  mv "$NVML/nvml.json.next" "$NVML/nvml.json"
}

as_faulted() { # [PID]
  local steer=/run/mpsgate/mps/$gpu/log/fake-fault
  # Renamed into place: the fake must not see the file before it says whom to blame.
  if [[ -n ${1:-} ]]; then echo "$1" >"$MG/fault" && mv "$MG/fault" "$steer"; else rm -f "$steer"; fi
}

# qualify.bash: the set-up for `mpsgate qualify`. Fakes of driver, server and libcuda answer each
# question both ways; what they answer shows nothing about a GPU, and the card says that it is
# simulated.
# shellcheck shell=bash

# shellcheck source=tests/e2e/mpsgate.bash
source "${BASH_SOURCE[0]%/*}/mpsgate.bash"

CARD=GPU-00000000-0000-4000-8000-000000000000

setup_file() {
  local faked=$MG/fakes
  mkdir -p "$faked" "$MG/nvml"
  install -t "$faked" "$MG_OUT"/fakes/nvidia-cuda-mps-{control,server}
  echo 580 >"$faked/fake-mps-version"
  install -t "$faked" "$MG_OUT/fakes/libcuda.so.1"
  install -t "$MG/nvml" "$MG_OUT/fakes/libnvidia-ml.so.1"
  rootfs "$MG/rootfs"
}

setup() {
  export MG_NVML=$MG/nvml MG_MPS_CONTROL=$MG/fakes/nvidia-cuda-mps-control
  jq -n --arg uuid "$CARD" '{driver_version: "580.00.00", cuda_driver_version: "13.0", cards: [{
    uuid: $uuid, index: 0, minor: 0, name: "Simulated H200", memory_total_mib: 143771, memory_used_mib: 0,
    compute_capability: "9.0", mig: "disabled", compute_mode: "DEFAULT", pci_bus_id: "00000000:3A:00.0",
    processes: []}]}' >"$MG_NVML/nvml.json"
  touch /dev/shm/mpsgate-fake-server
  settings 's/^manage.*/manage = []/'
  daemon_start
  assert_contains "enable" "$(mpsgate enable 0 2>&1)" "is managed now" "not asked what holds on it: the GPU is simulated"
}

teardown() {
  explain_failure
  rm -f /usr/bin/fake-libcuda.word /dev/shm/mpsgate-fake-*
  delete_all || true
  mpsgate disable 0 >&2 || true
  daemon_stop || true
  rm -rf /var/lib/mpsgate/qualification
}

# seen_by_nvml: what a driver's NVML says of the client of the question `processes`, which is the
# only one that lives for so long: one that makes its context, an idle one, and then one with 256
# MiB more.
seen_by_nvml() {
  local pid mib=300 i ticks=0 last=''
  for ((i = 0; i < 300; i++)); do
    pid=$(mpsgate status -o json 2>/dev/null | jq -r '[.grants[] | select(.state == "active") | .pid] | first // empty')
    if [[ -n $pid ]]; then
      [[ $pid == "$last" ]] || ticks=0
      last=$pid ticks=$((ticks + 1))
      if ((ticks <= 2)); then mib=14; elif ((ticks <= 10)); then mib=300; else mib=600; fi
      uses "$pid" "$mib" 2>/dev/null
    fi
    sleep 0.5
  done
}

# qualify STATUS [OPTION...]: of the card, with the fakes; its answers are in $stdout.
qualify() {
  local status=$1
  shift
  LIMIT=100 try "$status" mpsgate qualify 0 --library "$MG/fakes/libcuda.so.1" "$@"
}
answer() { jq -r --arg name "$1" '.answers[] | select(.question == $name) | .verdict' <<<"$stdout"; }
seen() { jq -r --arg name "$1" '.answers[] | select(.question == $name) | .seen' <<<"$stdout"; }
level_of() { grant "$1" '"\(.guarantee), \(.proof)"'; }
level_is() { [[ $(level_of "$1") == "$2" ]]; }
status_has() { mpsgate status -o json | grep -qF "$1"; }
fake() { echo "$1" >/usr/bin/fake-libcuda.word; }
nothing_is_left() {
  assert_equal "grants" "$(mpsgate status -o json | jq '.grants | length')" 0
  assert_equal "containers" "$(find /run/mpsgate/qualify -mindepth 1 -maxdepth 1 2>/dev/null)" ""
  assert_equal "bundles" "$(find /run -maxdepth 1 -name 'mpsgate-probe.*')" ""
  assert_contains "the card" "$(card 0 .state)" "${1:-ready}"
}

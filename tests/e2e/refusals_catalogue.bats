#!/usr/bin/env bats
# Rows of SECURITY.md that refusals.bats has not: capabilities with a grant, cards by other drivers,
# what is noted, and the counts of what was stripped. Fixtures of every row:
# src/policy/tests/catalogue.

load suite

setup_file() {
  foreign_drivers
  node_start
}

# foreign_drivers: card 0 has a display node, as NVIDIA's driver and the kernel would show it;
# another vendor's card has one too. By mounts of this sandbox alone.
foreign_drivers() {
  local gpu=0000:3a:00.0 pci=/sys/bus/pci/devices
  [[ -d $pci ]] || skip "no PCI here"
  mkdir -p "$MG/nvidia/gpus/$gpu"
  printf 'Model: \t\t Simulated T4\nDevice Minor: \t 0\n' >"$MG/nvidia/gpus/$gpu/information"
  mount -t tmpfs driver /proc/driver
  mkdir /proc/driver/nvidia
  mount --bind "$MG/nvidia" /proc/driver/nvidia
  mount -t tmpfs pci "$pci"
  mkdir -p "$pci/$gpu/drm/renderD128" "$pci/0000:00:02.0/drm/renderD129"
  echo 226:128 >"$pci/$gpu/drm/renderD128/dev"
  echo 226:129 >"$pci/0000:00:02.0/drm/renderD129/dev"
}

node() { # PATH MAJOR MINOR: a device and its rule as jq text
  printf '.linux.devices += [{path: "%s", type: "c", major: %d, minor: %d, fileMode: 438}]
    | .linux.resources.devices += [{allow: true, type: "c", major: %d, minor: %d, access: "rwm"}]' "$1" "$2" "$3" "$2" "$3"
}
caps() { printf '.process.capabilities |= map_values(. + ["%s"])' "$1"; }
counted() { status_json | jq -r --arg code "$1" '.notes[$code] // 0'; } # CODE
said() { grep -qF -- "$1" "$MG/log/mpsgated.log"; }
WANT=(--ann mpsgate.io/gpu-mem=1Gi)

# bats test_tags=runtime
@test "row 23: capabilities by which no limit holds are refused with a request, and pass without" {
  local capability USUAL=''
  for capability in CAP_SYS_ADMIN CAP_SYS_MODULE CAP_SYS_RAWIO CAP_DAC_READ_SEARCH CAP_BPF CAP_PERFMON \
    CAP_SYS_BOOT CAP_SYS_TIME CAP_CHECKPOINT_RESTORE CAP_IPC_OWNER CAP_MAC_ADMIN CAP_MAC_OVERRIDE; do
    refused x E_CAPABILITY "${WANT[@]}" --jq "$(caps "$capability")"
    assert_contains "the capability" "$stderr" "$capability"
  done
  # crun takes a number for the capability's name, and a newer kernel may have more.
  refused x E_CAPABILITY "${WANT[@]}" --jq "$(caps 21)"
  assert_contains "its name" "$stderr" CAP_SYS_ADMIN
  refused x E_CAPABILITY "${WANT[@]}" --jq "$(caps CAP_OF_TOMORROW)"
  assert_contains "as it is written" "$stderr" CAP_OF_TOMORROW
  allowed y --jq "$(caps CAP_SYS_ADMIN)"
  # What Docker and containerd give, and what training programs ask for.
  for capability in CAP_CHOWN CAP_DAC_OVERRIDE CAP_FSETID CAP_FOWNER CAP_MKNOD CAP_NET_RAW CAP_SETGID CAP_SETUID \
    CAP_SETFCAP CAP_SETPCAP CAP_NET_BIND_SERVICE CAP_SYS_CHROOT CAP_KILL CAP_AUDIT_WRITE CAP_SYS_NICE \
    CAP_IPC_LOCK CAP_SYS_RESOURCE CAP_NET_ADMIN; do
    # Root of this machine may be without it; then runc cannot give it.
    [[ $capability != CAP_SYS_RESOURCE ]] || may_24 || continue
    USUAL+=" | $(caps "$capability")"
  done
  allowed z "${WANT[@]}" --jq "${USUAL# | }"
}

may_24() { ((16#$(sed -n 's/^CapBnd:[[:space:]]*//p' /proc/self/status) >> 24 & 1)); }

# bats test_tags=runtime
@test "row 23: CAP_SYS_PTRACE with the host's pids, by absence or by path; with its own it is allowed" {
  settings '/^\[mps\]/i [policy]\nhost_pid = "warn"'
  refused x E_CAPABILITY "${WANT[@]}" --jq "$(caps CAP_SYS_PTRACE)" --jq '.linux.namespaces |= map(select(.type != "pid"))'
  assert_contains "what it could do" "$stderr" "trace every process"
  refused x E_CAPABILITY "${WANT[@]}" --jq "$(caps CAP_SYS_PTRACE)" \
    --jq "(.linux.namespaces[] | select(.type == \"pid\")).path = \"/proc/$$/ns/pid\""
  allowed y "${WANT[@]}" --jq "$(caps CAP_SYS_PTRACE)"
}

# bats test_tags=runtime
@test "row 27: a managed card's display node by its numbers, and as a rule; another card's is allowed" {
  refused x E_DEVICE_NODE --jq "$(node /dev/dri/renderD128 226 128)"
  refused x E_DEVICE_NODE --jq "$(node /dev/harmless 226 128)"
  refused x E_DEVICE_RULE --jq '.linux.resources.devices += [{allow: true, type: "c", major: 226, access: "rw"}]'
  allowed y --jq "$(node /dev/dri/renderD129 226 129)"
  allowed z --jq '.linux.resources.devices += [{allow: true, type: "c", major: 226, minor: 129, access: "rw"}]'
}

@test "row 27: with a grant the display node is taken away" {
  granted g 1Gi --jq "$(node /dev/dri/renderD128 226 128)"
  try_oci exec g sh -c 'ls /dev/dri 2>/dev/null; true'
  refute_contains "display nodes" "$stdout" renderD128
}

@test "stripped: the display node goes, another card's stays and opens; said once and counted" {
  local before after
  settings '/^\[mps\]/i [policy]\nunallocated = "strip"'
  before=$(counted E_DEVICE_NODE)
  bundle s --jq "$(node /dev/dri/renderD128 226 128)" --jq "$(node /dev/dri/renderD129 226 129)" --args sh -c 'ls /dev/dri; sleep 600'
  create s
  start s
  wait_for 10 "output" grep -q renderD129 "$MG/out/s"
  refute_contains "nodes" "$(<"$MG/out/s")" renderD128
  try_oci any exec s sh -c ': </dev/dri/renderD129'
  refute_contains "open of the other card's node" "$stderr" "not permitted"
  wait_for 10 "the count" more_than E_DEVICE_NODE "$before"
  after=$(counted E_DEVICE_NODE)
  assert_equal "counted" "$after" $((before + 1))
  assert_equal "lines" "$(grep 'container=s ' "$MG/log/mpsgated.log" | grep -c E_DEVICE_NODE)" 1
  # What cannot be taken away is refused.
  refused x E_MPS_MOUNT --jq '.mounts += [{destination: "/x", type: "bind", source: "/run/mpsgate", options: ["rbind"]}]'
  settings
}
more_than() { (($(counted "$1") > $2)); } # CODE COUNT

# bats test_tags=runtime
@test "rows 16 and 22: an engine's socket and a late hook are noted with container and row, and not counted" {
  touch "$MG/docker.sock"
  allowed sock --jq ".mounts += [{destination: \"/s\", type: \"bind\", source: \"$MG/docker.sock\", options: [\"bind\"]}]"
  wait_for 10 "the note" said 'container=sock code=E_ENGINE_SOCKET'
  assert_equal "count" "$(counted E_ENGINE_SOCKET)" 0
  # crun dies of SIGPIPE where a hook ends without reading its state.
  allowed late "${WANT[@]}" --jq '.hooks.poststart = [{path: "/bin/sh", args: ["sh", "-c", "cat >/dev/null"], env: ["PATH=/bin"]}]'
  wait_for 10 "the note" said 'container=late code=E_LATE_HOOK'
  said 'row 16' && said 'row 22'
}

# bats test_tags=runtime
@test "row 12: a bind of /dev shows the nodes, and none of the cards opens" {
  bundle d --jq '.mounts += [{destination: "/host", type: "bind", source: "/dev", options: ["rbind"]}]'
  create d
  start d
  try_oci fail exec d sh -c ': </host/nvidia0'
  assert_contains "open of a card" "$stderr" "not permitted"
  try_oci exec d sh -c ': </host/null'
}

@test "row 20: variables of CUDA MPS are taken away without a grant, and that is counted" {
  local before
  before=$(counted E_MPS_VARIABLES)
  see e --env CUDA_MPS_PIPE_DIRECTORY=/x --env KEPT=1 --args env
  assert_contains "environment" "$stdout" KEPT=1
  refute_contains "environment" "$stdout" CUDA_MPS
  wait_for 10 "the count" more_than E_MPS_VARIABLES "$before"
}

@test "every code is explained" {
  try mpsgate explain E_CAPABILITY
  assert_contains "meaning" "$stdout" "E_CAPABILITY" "CAP_SYS_ADMIN"
  try 64 mpsgate explain E_NO_SUCH_CODE
  assert_contains "error" "$stderr" "E_NO_SUCH_CODE"
}

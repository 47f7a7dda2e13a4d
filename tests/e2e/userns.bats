#!/usr/bin/env bats
# Rootless engines, which get no grants and are otherwise let alone; and user namespaces below a
# rootful engine, where uids are mapped and device nodes bound.

load suite

# The containers of this file have no PID namespace of its own (see below).
# shellcheck disable=SC2016 # sed's
SETTINGS='$a [policy]\nhost_pid = "warn"'

# userns ID [BUNDLE OPTION...]: a bundle whose root file system its root owns.
userns() {
  bundle "$@" --jq "$USERNS"
  userns_rootfs "$1"
}

# bats test_tags=runtime
@test "in a user namespace: the grant is for the host's uid, the nodes are the host's, the channel is there" {
  userns g --ann mpsgate.io/gpu-mem=2Gi --ann mpsgate.io/gpu=0
  create g
  start g
  assert_equal "uid of the grant" "$(grant g .uid)" 100000
  try_oci exec g stat -c %a:%t:%T /dev/nvidia0
  assert_equal "the node" "$stdout" 666:c3:0
  try_oci any exec g sh -c ': </dev/nvidia0'
  refute_contains "open of the granted card" "$stderr" "not permitted" "denied"
  try_oci fail exec g sh -c ': </dev/nvidia1'
  try_oci exec g ls "$(env_in g CUDA_MPS_PIPE_DIRECTORY)"
  assert_contains "client directory" "$stdout" control
}

# bats test_tags=runtime
@test "in a user namespace without a request: passed on, byte for byte" {
  userns g
  local before
  before=$(sha256sum <"$MG/b/g/config.json")
  create g
  start g
  assert_equal "config.json" "$(sha256sum <"$MG/b/g/config.json")" "$before"
}

@test "in a user namespace with the node's /proc: refused where that is covered in part; its own where one is whole, and without a user namespace" {
  daemon_with ''
  # As the sandbox's is, and as it may be on a node: /proc/devices.
  grep -q ' /proc/devices ' /proc/self/mountinfo || fail "the sandbox's /proc is whole"
  userns x --ann mpsgate.io/gpu-mem=2Gi --ann mpsgate.io/gpu=0
  create fail x
  assert_refusal_text x E_HOST_PID
  assert_contains "why, and what to do" "$stderr" "in a user namespace the kernel mounts none" "--userns=host" "findmnt -R /proc"
  granted y 2Gi --jq '(.mounts[] | select(.destination == "/proc")) |= {destination: "/proc", type: "bind", source: "/proc", options: ["rbind"]}'
  assert_equal "its procfs" "$(jq -r '.mounts[] | select(.destination == "/proc") | .type' "$MG/b/y/config.json")" proc
  delete y
  # With one that hides nothing the kernel mounts it, wherever that one is.
  local pid device
  mkdir "$MG/whole"
  mount -t proc proc "$MG/whole"
  userns g --ann mpsgate.io/gpu-mem=2Gi --ann mpsgate.io/gpu=0
  create g
  start g
  assert_equal "the grant and its uid" "$(grant g '"\(.state) \(.uid)"')" "active 100000"
  pid=$(pid_of g)
  [[ $(readlink "/proc/$pid/ns/user") != "$(readlink /proc/self/ns/user)" ]] || fail "it has the node's user namespace"
  [[ $(readlink "/proc/$pid/ns/pid") != "$(readlink /proc/self/ns/pid)" ]] || fail "it has the node's PID namespace"
  assert_equal "its number inside" "$(sed -n 's/^NSpid:.*\t//p' "/proc/$pid/status")" 1
  assert_equal "the spec's namespace" "$(jq -c '[.linux.namespaces[] | select(.type == "pid")]' "$MG/b/g/config.json")" '[{"type":"pid"}]'
  assert_equal "the spec's procfs" "$(jq -r '[.mounts[] | select(.destination == "/proc") | .type] | join(" ")' "$MG/b/g/config.json")" proc
  device=$(awk '$5 == "/proc" { print $3, $4 }' "/proc/$pid/mountinfo")
  [[ $device == *" /" ]] || fail "what it has at /proc: $device"
  [[ -z $(awk -v device="${device% /}" '$3 == device' /proc/self/mountinfo) ]] || fail "its procfs $device is one of the node's"
  try_oci exec g sh -c 'cat /proc/[0-9]*/comm'
  assert_contains "what it sees" "$stdout" sleep
  refute_contains "what it sees" "$stdout" mpsgated
  delete g
  umount "$MG/whole"
  rmdir "$MG/whole"
  daemon_with
}

@test "in a user namespace: a uid that is not mapped, and a node that the host has not" {
  userns x --ann mpsgate.io/gpu-mem=2Gi --ann mpsgate.io/gpu-uid=70000
  create fail x
  assert_refusal_text x E_UID
  daemon_with 's|^mode = .*|mode = "cdi"|;'"$SETTINGS"
  mkdir -p /etc/cdi
  jq -n --arg card "$(uuid 0)" '{cdiVersion: "0.5.0", kind: "nvidia.com/gpu", devices: [{name: $card, containerEdits: {deviceNodes:
    [{path: "/dev/inside-only", type: "c", major: 195, minor: 0}, {path: "/dev/nvidiactl"}, {path: "/dev/nvidia-uvm"}, {path: "/dev/nvidia-uvm-tools"}]}}]}' >/etc/cdi/nvidia.json
  userns y --ann mpsgate.io/gpu-mem=2Gi --ann mpsgate.io/gpu=0
  create fail y
  assert_refusal_text y E_SPEC
  assert_contains "sentence" "$stderr" "/dev/inside-only (195:0)"
  # Without a user namespace the runtime makes it.
  allowed z --ann mpsgate.io/gpu-mem=2Gi --ann mpsgate.io/gpu=0
  rm -r /etc/cdi
  daemon_with
}

@test "a joined user namespace: its map is the kernel's; one that cannot be read is refused" {
  userns other
  create other
  local pid
  pid=$(oci state other | jq .pid)
  # The grant's uid is what counts: runc 1.1.5 itself takes a path only without mappings.
  bundle g --ann mpsgate.io/gpu-mem=2Gi --jq ".linux.namespaces += [{type: \"user\", path: \"/proc/$pid/ns/user\"}]"
  create any g
  grep -q 'uid=100000' "$MG/log/mpsgated.log" || fail "no reservation for uid 100000" "$(tail -5 "$MG/log/mpsgated.log")"
  touch "$MG/pinned"
  mount --bind "/proc/$pid/ns/user" "$MG/pinned"
  refused x E_UID --ann mpsgate.io/gpu-mem=2Gi --jq ".linux.namespaces += [{type: \"user\", path: \"$MG/pinned\"}]"
  umount "$MG/pinned"
  delete_all
}

# rootless CMD...: as uid 1000, root of a user namespace, as rootless engines run their runtime.
rootless() {
  try "${WANT_STATUS:-0}" setpriv --reuid 1000 --regid 1000 --clear-groups unshare --user --map-root-user --mount "$@"
}

@test "a rootless engine: a request is refused by name, everything else is passed on untouched" {
  bundle x --ann mpsgate.io/gpu-mem=2Gi
  bundle y --env NVIDIA_VISIBLE_DEVICES=all
  chmod -R a+rwX "$MG/b" && chmod 711 "$MG"
  mkdir -p "$MG/home" && chmod 777 "$MG/home"
  cat >"$MG/home/runtime" <<'SH'
#!/bin/sh
echo "reached: $*"
SH
  chmod 755 "$MG/home/runtime"
  daemon_with "s|^path = .*|path = \"$MG/home/runtime\"|"
  local before
  before=$(cat "$MG/b/x/config.json" "$MG/b/y/config.json" | sha256sum)
  WANT_STATUS=1 rootless mpsgate-runtime --root "$MG/home/r" --log "$MG/home/log" --log-format json create --bundle "$MG/b/x" x
  assert_contains "stderr" "$stderr" "[E_ROOTLESS]" "hint: " sudo
  assert_contains "log" "$(jq -r .msg "$MG/home/log")" "[E_ROOTLESS]"
  rootless mpsgate-runtime --root "$MG/home/r" create --bundle "$MG/b/y" y
  assert_equal "the runtime" "$stdout" "reached: --root $MG/home/r create --bundle $MG/b/y y"
  rootless mpsgate-runtime --root "$MG/home/r" exec y true
  assert_equal "exec" "$stdout" "reached: --root $MG/home/r exec y true"
  rootless mpsgate-runtime --root "$MG/home/r" --log "$MG/home/log2" kill y KILL
  assert_equal "kill" "$stdout" "reached: --root $MG/home/r --log $MG/home/log2 kill y KILL"
  [[ ! -s $MG/home/log2 ]] || fail "a word about a kill that is none of ours: $(<"$MG/home/log2")"
  assert_equal "documents" "$(cat "$MG/b/x/config.json" "$MG/b/y/config.json" | sha256sum)" "$before"
  # Without a daemon: the same, by the settings' runtime.
  daemon_stop
  rm -rf /run/mpsgate
  WANT_STATUS=1 rootless mpsgate-runtime --root "$MG/home/r" create --bundle "$MG/b/x" x
  assert_contains "stderr" "$stderr" "[E_ROOTLESS]"
  rootless mpsgate-runtime --root "$MG/home/r" create --bundle "$MG/b/y" y
  assert_contains "the runtime" "$stdout" "reached: "
  settings
  daemon_start
}

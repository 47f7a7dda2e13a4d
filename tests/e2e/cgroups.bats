#!/usr/bin/env bats
# The node's cgroups in a container's reach: mounts by which it leaves its device rules, cgroups
# that lie in each other, and trees of its own that are deep.

load mpsgate

setup() { node_anew; }

teardown() {
  explain_failure
  node_stop
}

# bind SOURCE OPTION...: a filter for `bundle --jq`.
bind() {
  local source=$1
  shift
  echo ".mounts += [{\"destination\": \"/cg\", \"type\": \"bind\", \"source\": \"$source\", \"options\": $(json_list "$@")}]"
}
MKNOD='.process.capabilities |= map_values(. + ["CAP_MKNOD"])'
WANT=(--ann mpsgate.io/gpu-mem=1Gi)

# DEVICES: whose cgroups decide on devices, a hierarchy of v1 or the only one of v2. ABOVE: what is
# no cgroup, and has them below it. WAY: how a writable bind of ABOVE reaches them.
DEVICES=/sys/fs/cgroup/devices ABOVE=/sys/fs/cgroup WAY=by
[[ -d $DEVICES ]] || DEVICES=/sys/fs/cgroup ABOVE=/sys/fs WAY=below
logged() { grep -q "$1" "$MG/log/mpsgated.log"; }

@test "what a writable bind of the cgroups can do is refused with a request: nothing but the rules of another cgroup opens a card" {
  # What it would be good for: without a request it starts, leaves its device rules, and the card
  # opens.
  # shellcheck disable=SC2016 # for the container's shell
  see out --jq "$MKNOD | $(bind "$ABOVE" rbind rw)" --args sh -c \
    'busybox mknod /tmp/n c 195 1; cat /tmp/n; echo $$ >/cg$0/cgroup.procs; cat /tmp/n; true' "${DEVICES#"$ABOVE"}"
  assert_contains "before and after" "$stdout$stderr" "not permitted" "No such device or address"
  delete out
  wait_for 10 "it is noted" logged "can write the node's cgroups $WAY its mount of $ABOVE,"
  refused bad E_CGROUP "${WANT[@]}" --jq "$MKNOD | $(bind "$ABOVE" rbind rw)"
}

@test "every writable way to the hierarchies is refused with a request" {
  local source
  mkdir -p "$MG/deep/er"
  ln -sfn "$DEVICES" "$MG/deep/er/link"
  for source in /sys/fs/cgroup /sys/fs /sys "$DEVICES" /sys/fs/cgroup/memory /sys/fs/cgroup/freezer \
    "$DEVICES$MG_CGROUP" "$MG/deep/er/link" "$DEVICES/cgroup.procs" /proc/1/root/sys/fs/cgroup; do
    [[ -e $source ]] || continue
    refused bad E_CGROUP "${WANT[@]}" --jq "$(bind "$source" rbind rw)"
  done
  # Read-only without what is mounted below it: that stays writable (mount(8)).
  refused bad E_CGROUP "${WANT[@]}" --jq "$(bind "$ABOVE" rbind ro)"
  # The node's processes are said first.
  refused bad E_HOST_PID "${WANT[@]}" --jq "$(bind / rbind rw)"
  refused bad E_HOST_PID "${WANT[@]}" --jq "$(bind / rbind ro)"
  refused bad E_CGROUP "${WANT[@]}" --jq "$(bind "$DEVICES" bind)"
}

@test "read-only below a read-only bind is writable, which is why that is refused" {
  # shellcheck disable=SC2016
  see out --jq "$MKNOD | $(bind "$ABOVE" rbind ro)" --args sh -c \
    'busybox mknod /tmp/n c 195 1; echo $$ >/cg$0/cgroup.procs; cat /tmp/n; true' "${DEVICES#"$ABOVE"}"
  assert_contains "after" "$stdout$stderr" "No such device or address"
  delete out
}

@test "allowed with a request: the container's own cgroups, read-only ones, systemd's, directories without what is mounted below" {
  granted own 1Gi
  delete own
  granted plain 1Gi --jq "$(bind /etc/hostname bind ro)"
  delete plain
  granted sys 1Gi --jq "$(bind /sys/fs bind)"
  delete sys
  # As Podman's --systemd has it on v1.
  if [[ -d /sys/fs/cgroup/systemd ]]; then
    granted systemd 1Gi --jq ".mounts += [{\"destination\": \"/sys/fs/cgroup/systemd\", \"type\": \"bind\", \"source\": \"/sys/fs/cgroup/systemd\", \"options\": [\"bind\", \"rprivate\", \"rw\"]}]"
    delete systemd
  fi
  granted ro 1Gi --jq "$(bind "$DEVICES" bind ro)"
  delete ro
  if [[ -d /sys/fs/cgroup/devices ]]; then
    # On v1 runtimes show a container its own part, writable or not.
    granted writable 1Gi --jq '(.mounts[] | select(.type == "cgroup")).options |= map(select(. != "ro"))'
    delete writable
  fi
}

@test "allowed without a request: every such mount, byte for byte; it is noted" {
  local source
  for source in /sys/fs/cgroup /sys /; do
    bundle agent --jq "$(bind "$source" rbind rslave)"
    before=$(sha256sum <"$MG/b/agent/config.json")
    create agent
    assert_equal "config.json with $source" "$(sha256sum <"$MG/b/agent/config.json")" "$before"
    delete agent
    wait_for 10 "it is noted" logged "by its mount of $source\|below its mount of $source"
  done
}

@test "policy.privileged = close: a writable mount is refused without a request too, a privileged container is not" {
  runtime_below
  node_anew '/^\[mps\]/i [policy]\nprivileged = "close"'
  refused bad E_CGROUP --jq "$(bind /sys/fs/cgroup rbind rw)"
  refused bad E_CGROUP --jq "$(bind /sys rbind rw)"
  [[ ! -d /sys/bus/pci ]] || refused bad E_DEVICE_NODE --jq "$(bind /sys/bus bind)"
  # Agents that look at the node have it so.
  allowed agent --jq "$(bind / rbind ro rslave)"
  allowed read --jq "$(bind "$DEVICES" bind ro)"
  allowed read --jq "$(bind /sys/bus bind ro)"
  allowed driver --caps-all --jq "$(bind /sys/fs/cgroup rbind rw)"
}

# mover: a hook that puts the container's init into a child of its cgroup.
mover() {
  cat >"$MG/move" <<'SH'
#!/bin/bash
pid=$(jq .pid) dir=/sys/fs/cgroup
path=$(sed -n 's/^0:://p' "/proc/$pid/cgroup")
if [[ -d $dir/devices ]]; then
  dir+=/devices
  path=$(grep -E '^[0-9]+:([^:]*,)?devices[,:]' "/proc/$pid/cgroup" | cut -d: -f3-)
fi
mkdir "$dir$path/inner" && echo "$pid" >"$dir$path/inner/cgroup.procs"
SH
  chmod +x "$MG/move"
}
# before PROGRAM: a hook before mpsgate's, in a container with a cgroup namespace of its own.
before() {
  printf '.hooks.createRuntime = [{path: "%s", env: ["PATH=/usr/bin:/bin"]}]
    | .linux.namespaces |= (map(select(.type != "cgroup")) + [{type: "cgroup"}])' "$1"
}

@test "an init below the root of its cgroup namespace is refused with a grant, whoever has moved it" {
  mover
  bundle moved "${WANT[@]}" --jq "$(before "$MG/move")"
  create fail moved
  assert_contains "stderr" "$stderr" "[E_CGROUP]" "not at the root of its cgroup namespace"
  try_oci any delete --force moved
  remove_bundles "$MG/b/moved"
  assert_free
  # Without a request it is nobody's business.
  allowed other --jq "$(before "$MG/move")"
  granted still 1Gi --jq "$(before /bin/true)"
  delete still
  # The node's own namespace: mounts are looked at by themselves.
  granted node 1Gi --jq '.linux.namespaces |= map(select(.type != "cgroup"))'
  delete node
}

@test "a cgroup that is or lies in another grant's is refused, and the other's grant ends with its own" {
  granted v 1Gi --ann mpsgate.io/gpu=0
  local id path own
  own=$(jq -r .linux.cgroupsPath "$MG/b/v/config.json")
  for path in "$own/w" "$own/w/deep/er" "$own"; do
    id=w$((++n))
    bundle "$id" "${WANT[@]}" --jq ".linux.cgroupsPath = \"$path\""
    create fail "$id"
    assert_contains "stderr for $path" "$stderr" "[E_CGROUP]" "of container v, which has a grant too"
    rm -rf "${MG:?}/b/$id"
    [[ $path == "$own" ]] || assert_equal "v beside $path" "$(state_of v)" running
  done
  granted beside 1Gi --ann mpsgate.io/gpu=0
  # What crun clears away of the one that the hook refused is all that the same cgroup holds.
  if [[ $REAL == *crun ]]; then
    wait_for 10 "v is ended, whose own cgroup the last one was given" stopped v
  else
    assert_equal "v" "$(state_of v)" running
  fi
  delete v
  wait_for 10 "v's grant has ended" not_granted v
}

@test "a container of many cgroups below each other is held to its grant" {
  granted bad 1Gi --ann mpsgate.io/gpu=0 --jq '(.mounts[] | select(.type == "cgroup")).options |= map(select(. != "ro"))'
  try_oci exec bad sh -c "cd $DEVICES && for n in \$(busybox seq 40); do mkdir d && cd d || exit 1; done"
  "$RUNTIME" --root "$RUNC_ROOT" exec -d --pid-file "$MG/second" bad sh -c \
    "cd $DEVICES; for n in \$(busybox seq 40); do cd d; done; echo \$\$ >cgroup.procs; exec sleep 600" 3>&-
  deep() { grep -q 'd/d/d/d' "/proc/$(<"$MG/second")/cgroup"; }
  wait_for 10 "it is below" deep
  uses "$(<"$MG/second")" 12000
  wait_for 20 "it is noted" acted
  assert_equal "actions" "$(actions)" "bad killed"
  wait_for 20 "bad is ended" stopped bad
  wait_for 20 "its second process is ended" gone "$(<"$MG/second")"
  wait_for 10 "its memory is free" not_granted bad
}

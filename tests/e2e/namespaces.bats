#!/usr/bin/env bats
# Whose processes and whose devices a container shares: the host's PID namespace, another
# container's, its own pod's; a procfs of the node; no device cgroup at all; and a runtime that
# leaves open what no rule closes.

load suite

WANT=(--ann mpsgate.io/gpu-mem=1Gi)
HOST_PIDS='.linux.namespaces |= map(select(.type != "pid"))'
PLAIN='.process.capabilities |= map_values([]) | .process.user = {uid: 1000, gid: 0} | .process.noNewPrivileges = true'

pids_of() { printf '(.linux.namespaces[] | select(.type == "pid")).path = "/proc/%s/ns/pid"' "$1"; } # PID

# bind SOURCE OPTION...: a filter for a mount at /host; PROC_BIND: of the node's procfs at /proc.
bind() {
  jq -nr --arg source "$1" '".mounts += [{destination: \"/host\", type: \"bind\", source: \($source | tojson), options: \($ARGS.positional | tojson)}]"' --args "${@:2}"
}
PROC_BIND='(.mounts[] | select(.destination == "/proc")) |= {destination: "/proc", type: "bind", source: "/proc", options: ["rbind", "nosuid", "noexec", "nodev"]}'

# nodes_process: a process of the node, known by its name. sees ID: names of the processes that a
# command in a container sees, as $stdout.
nodes_process() {
  cp "$(command -v sleep)" "$MG/of-the-node"
  "$MG/of-the-node" 600 3>&- &
  marker=$!
}
sees() {
  try_oci exec "$1" sh -c 'cat /proc/[0-9]*/comm'
  assert_contains "what $1 sees" "$stdout" sleep
}
namespace_of() { readlink "/proc/$1/ns/pid"; } # PID

# bats test_tags=runtime
@test "a request in the host's PID namespace gets one of its own, for every uid, by absence and by path, with exec" {
  local filter pid
  nodes_process
  for filter in "$HOST_PIDS" "$HOST_PIDS | $PLAIN" "$(pids_of $$) | $PLAIN" "$HOST_PIDS | $PROC_BIND" "$PROC_BIND"; do
    granted own 1Gi --jq "$filter"
    pid=$(pid_of own)
    [[ $(namespace_of "$pid") != "$(namespace_of self)" ]] || fail "it has the node's: $filter"
    assert_equal "its number inside" "$(sed -n 's/^NSpid:.*\t//p' "/proc/$pid/status")" 1
    assert_equal "the spec's namespace" "$(jq -c '[.linux.namespaces[] | select(.type == "pid")]' "$MG/b/own/config.json")" '[{"type":"pid"}]'
    assert_equal "the spec's procfs" "$(jq -r '[.mounts[] | select(.destination == "/proc") | .type] | join(" ")' "$MG/b/own/config.json")" proc
    sees own
    refute_contains "what it sees with $filter" "$stdout" of-the-node
    delete own
  done
  kill "$marker"
  grep -q 'E_HOST_PID.*docker stop' "$MG/log/mpsgated.log" || fail "nothing was said"
}

# bats test_tags=runtime
@test "without a request the host's PID namespace and its /proc stay as they are asked for" {
  nodes_process
  bundle y --jq "$HOST_PIDS | $PROC_BIND"
  local before
  before=$(sha256sum <"$MG/b/y/config.json")
  create y
  start y
  assert_equal "config.json" "$(sha256sum <"$MG/b/y/config.json")" "$before"
  sees y
  assert_contains "what it sees" "$stdout" of-the-node
  delete y
  kill "$marker"
  allowed z "${WANT[@]}" --jq "$PLAIN"
}

# bats test_tags=runtime
@test "a mount that shows the node's processes is refused with a request, under every name, and its neighbour starts" {
  local source
  mkdir -p "$MG/deep/a/proc" "$MG/deep/b" "$MG/deep/c/d" "$MG/hidden" "$MG/beside/proc"
  ln -sfn /proc "$MG/named-otherwise"
  mount --bind /proc "$MG/deep/a/proc"
  mount --rbind "$MG/deep/a" "$MG/deep/b"
  mount --rbind "$MG/deep/b" "$MG/deep/c/d"
  mount -t proc -o hidepid=2 proc "$MG/hidden"
  for source in /proc /proc/1 /proc/self/root/proc "$MG/named-otherwise" "$MG/hidden" "$MG/deep/c/d/proc"; do
    refused x E_HOST_PID "${WANT[@]}" --jq "$PLAIN" --jq "$(bind "$source" bind ro)"
    assert_contains "which" "$stderr" "mount of $source" "policy.host_pid"
  done
  for source in / /proc/self/root "$MG/deep" "$MG/deep/c" "$MG/deep/c/d"; do
    refused x E_HOST_PID "${WANT[@]}" --jq "$PLAIN" --jq "$(bind "$source" rbind rro)"
  done
  refused x E_HOST_PID "${WANT[@]}" --jq "$HOST_PIDS" --jq "$(bind /proc rbind)"
  # What is above without the mounts below, and a directory of that name.
  allowed y "${WANT[@]}" --jq "$PLAIN" --jq "$(bind "$MG/deep/c" bind)"
  allowed y "${WANT[@]}" --jq "$PLAIN" --jq "$(bind "$MG/beside" rbind)"
  allowed y --jq "$(bind /proc rbind ro)"
  umount "$MG/hidden"
  umount -R "$MG/deep/c/d" "$MG/deep/b"
  umount "$MG/deep/a/proc"
}

@test "policy.host_pid = refuse refuses what is replaced by default" {
  daemon_with '/^\[mps\]/i [policy]\nhost_pid = "refuse"'
  refused x E_HOST_PID "${WANT[@]}" --jq "$HOST_PIDS"
  assert_contains "what it could do" "$stderr" "MPS server" "policy.host_pid"
  refused x E_HOST_PID "${WANT[@]}" --jq "$PLAIN" --jq "$(pids_of $$)"
  refused x E_HOST_PID "${WANT[@]}" --jq "$PROC_BIND"
  refused x E_CAPABILITY "${WANT[@]}" --jq "$HOST_PIDS" --jq '.process.capabilities |= map_values(. + ["CAP_SYS_PTRACE"])'
  allowed y --jq "$HOST_PIDS"
  allowed z "${WANT[@]}" --jq "$PLAIN"
  daemon_with
}

@test "another container's PID namespace is refused with a request, and joined without" {
  granted v 1Gi
  local pid
  pid=$(pid_of v)
  refused x E_HOST_PID "${WANT[@]}" --jq "$(pids_of "$pid")"
  assert_contains "which" "$stderr" "/proc/$pid/ns/pid"
  refused x E_CAPABILITY "${WANT[@]}" --jq "$(pids_of "$pid")" \
    --jq '.process.capabilities |= map_values(. + ["CAP_SYS_PTRACE"])'
  # The name of v's own pod, written by hand: here nobody's engine is kubelet's.
  refused x E_HOST_PID "${WANT[@]}" --jq "$(pids_of "$pid")" --ann io.kubernetes.cri.sandbox-id=vvvvvvvvvvvv
  allowed y --jq "$(pids_of "$pid")"
  delete v
}

# as_containerd ID: created as kubelet's containerd does it, by bundle and --root.
as_containerd() {
  mkdir -p "$MG/k8s.io"
  mv "$MG/b/$1" "$MG/k8s.io/$1"
  rm -f "$MG/log/oci.json"
  try any "$RUNTIME" --root "$MG/runc/k8s.io" --log "$MG/log/oci.json" --log-format json create --bundle "$MG/k8s.io/$1" "$1"
}

# bats test_tags=runtime
@test "a pod's own PID namespace is allowed, another pod's is not" {
  daemon_with '/^\[mps\]/i [trust]\nlocal = "on"'
  local pause=0123456789abcdef0123456789abcdef other=fedcba9876543210fedcba9876543210 pid
  bundle "$pause"
  as_containerd "$pause"
  assert_equal "the pause container" "$status" 0
  pid=$("$REAL" --root "$MG/runc/k8s.io" state "$pause" | jq .pid)
  bundle own "${WANT[@]}" --ann "io.kubernetes.cri.sandbox-id=$pause" --ann io.kubernetes.cri.container-type=container --jq "$(pids_of "$pid")"
  as_containerd own
  [[ $status == 0 ]] || fail "of its own pod:" "$stderr"
  assert_equal "its grant" "$(grant own .state)" active
  assert_equal "its PID namespace" "$(namespace_of "$("$REAL" --root "$MG/runc/k8s.io" state own | jq .pid)")" "$(namespace_of "$pid")"
  bundle foreign "${WANT[@]}" --ann "io.kubernetes.cri.sandbox-id=$other" --ann io.kubernetes.cri.container-type=container --jq "$(pids_of "$pid")"
  as_containerd foreign
  [[ $status != 0 ]] || fail "of another pod: it was created"
  assert_contains "of another pod" "$stderr" E_HOST_PID
  local id
  for id in own foreign "$pause"; do
    "$RUNTIME" --root "$MG/runc/k8s.io" delete --force "$id" || true
    remove_bundles "$MG/k8s.io/$id"
  done
  daemon_with
}

@test "policy.host_pid = warn lets all of it through, and says so" {
  daemon_with '/^\[mps\]/i [policy]\nhost_pid = "warn"'
  granted x 1Gi --jq "$HOST_PIDS" --jq "$PLAIN" --jq "$(bind /proc rbind ro)"
  grep -q 'E_HOST_PID.*policy.host_pid' "$MG/log/mpsgated.log"
  assert_equal "its PID namespace" "$(namespace_of "$(pid_of x)")" "$(namespace_of self)"
  refused y E_CAPABILITY "${WANT[@]}" --jq "$HOST_PIDS" --jq '.process.capabilities |= map_values(. + ["CAP_SYS_PTRACE"])'
  delete x
  daemon_with
}

@test "a tenant reaches no MPS server by signal or trace, whatever its uid and gid" {
  # As an MPS server: a process of the host with the grant's uid and root's gid. Without the host's
  # PID namespace there is no number by which it could be named.
  setpriv --reuid 1000 --regid 0 --clear-groups sleep 600 3>&- &
  local server=$! attempt
  install -m 755 "$MG_OUT/fakes/escape-try" /usr/bin
  [[ -d $MG/rootfs ]] || rootfs "$MG/rootfs"
  install -m 755 "$MG_OUT/fakes/escape-try" "$MG/rootfs/escape-try"
  granted t 1Gi --jq "$PLAIN"
  try_oci any exec t sh -c "kill -9 $server; ls -d /proc/$server/root; for p in /proc/[0-9]*; do readlink \$p/exe; done"
  [[ -d /proc/$server ]] || fail "the server is gone"
  refute_contains "its /proc" "$stdout" "/bin/sleep /proc" "/proc/$server"
  for attempt in kill ptrace; do
    try_oci exec t /escape-try "$attempt" "$server"
    assert_contains "$attempt" "$stdout" "blocked: " "(ESRCH)"
    # On the node nothing keeps that user from it, but Yama from tracing it.
    if [[ $attempt == kill || $(cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null || echo 0) == 0 ]]; then
      try setpriv --reuid 1000 --regid 0 --clear-groups escape-try "$attempt" "$server"
      assert_contains "$attempt on the node" "$stdout" "open: "
    fi
  done
  kill "$server"
  delete t
}

# --- crun, on cgroup v2: in a mount namespace of its own, as this machine may have v1 -------------

crun_on() {
  command -v crun >/dev/null || skip "crun is not installed"
  unshare -m mount -t cgroup2 none /sys/fs/cgroup || skip "no cgroup v2 here"
  daemon_with "s|^path = .*|path = \"$(command -v crun)\"|"
}
crun_off() {
  daemon_with
}
# by_crun PROGRAM ID ARG...: run to its end; what it said is $stdout and $stderr.
by_crun() {
  local program=$1 id=$2
  shift 2
  # shellcheck disable=SC2016 # for the inner shell
  try any unshare -m bash -c 'mount -t cgroup2 none /sys/fs/cgroup && exec "$@"' - "$program" --root "$MG/crun" "$@" run --bundle "$MG/b/$id" "$id"
  local out=$stdout err=$stderr
  crun --root "$MG/crun" delete --force "$id" >/dev/null 2>&1 || true
  remove_bundles "$MG/b/$id"
  stdout=$out stderr=$err
}
BIND='.mounts += [{destination: "/x", type: "bind", source: "/dev/nvidia1", options: ["bind", "rw"]}]'
UNPRIVILEGED='.process.capabilities |= map_values([])'

@test "without a device cgroup a managed card's node is refused, and who has none starts" {
  crun_on
  local dev
  mkdir -p "$MG/nodes"
  rm -f "$MG/nodes/n"
  mknod "$MG/nodes/n" c 195 1
  for dev in /dev/nvidia1 "$MG/nodes" "$MG/nodes/n" /dev; do
    bundle x --jq "$UNPRIVILEGED" --jq ".mounts += [{destination: \"/x\", type: \"bind\", source: \"$dev\", options: [\"rbind\", \"rw\"]}]" --args true
    by_crun "$RUNTIME" x --cgroup-manager=disabled
    assert_contains "bind of $dev" "$stderr" E_DEVICE_RULE "cgroups=disabled"
  done
  # crun's abbreviations of the option count as it does.
  local word
  for word in --c=disabled "--c disabled" --cgroup=disabled; do
    bundle x --jq "$UNPRIVILEGED" --jq "$BIND" --args true
    # shellcheck disable=SC2086 # one word or two
    by_crun "$RUNTIME" x $word
    assert_contains "a bind under $word" "$stderr" E_DEVICE_RULE
  done
  # So do the layers of an overlay, and what is not looked into.
  local mount
  for mount in '"overlay", source: "overlay", options: ["lowerdir=/dev:/tmp"]' \
    '"overlay", source: "overlay", options: ["lowerdir=/tmp::'"$MG/nodes"'"]' '"ext4", source: "/dev/sda1"'; do
    bundle x --jq "$UNPRIVILEGED" --jq ".mounts += [{destination: \"/x\", type: $mount}]" --args true
    by_crun "$RUNTIME" x --cgroup-manager=disabled
    assert_contains "$mount" "$stderr" E_DEVICE_RULE
  done
  bundle x --jq '.process.capabilities |= map_values(["CAP_MKNOD"])' --args true
  by_crun "$RUNTIME" x --cgroup-manager disabled
  assert_contains "one that makes nodes" "$stderr" E_DEVICE_RULE CAP_MKNOD
  bundle x --jq '.process.capabilities |= map_values(["27"])' --args true
  by_crun "$RUNTIME" x --cgroup-manager disabled
  assert_contains "one that makes nodes, by number" "$stderr" E_DEVICE_RULE CAP_MKNOD
  bundle x "${WANT[@]}" --jq "$UNPRIVILEGED" --args true
  by_crun "$RUNTIME" x --cgroup-manager=disabled
  assert_contains "one that asks" "$stderr" E_DEVICE_RULE
  for arg in --cgroup-manager=disabled --c=disabled --cgroup-manager=cgroupfs; do
    bundle y --jq "$UNPRIVILEGED" --args echo here
    by_crun crun y "$arg"
    local plain=$stdout
    bundle y --jq "$UNPRIVILEGED" --args echo here
    by_crun "$RUNTIME" y "$arg"
    assert_equal "a plain container, $arg" "$stdout" "$plain"
    refute_contains "a plain container, $arg" "$stderr" mpsgate
  done
  bundle y --jq "$BIND" --jq "$UNPRIVILEGED" --args true
  by_crun "$RUNTIME" y
  refute_contains "a bind that the rules keep shut" "$stderr" mpsgate
  crun_off
}

@test "crun's delegated cgroup is refused with a request, and the runtime's own without" {
  crun_on
  bundle x "${WANT[@]}" --ann run.oci.delegate-cgroup=inner --args true
  by_crun "$RUNTIME" x
  assert_contains "with a request" "$stderr" E_ANNOTATION run.oci.delegate-cgroup
  bundle y --ann run.oci.delegate-cgroup=inner --args true
  by_crun "$RUNTIME" y
  refute_contains "without" "$stderr" mpsgate
  crun_off
}

# fake_runtime NAME: a runtime of this name that keeps the resources of `update` and its last
# argument.
fake_runtime() {
  mkdir -p "$MG/fake"
  cat >"$MG/fake/$1" <<EOF
#!/bin/sh
case \$3 in -) cat ;; *) cat "\$3" ;; esac >"$MG/fake/got"
EOF
  chmod 755 "$MG/fake/$1"
  daemon_stop
  settings "s|^path = .*|path = \"$MG/fake/$1\"|"
  daemon_start
}

@test "an update brings no device rules to crun, from a file or standard input, and is runc's as it is" {
  local file=$MG/fake/resources.json
  local rule='{"allow":true,"type":"c","major":195,"access":"rwm"}'
  fake_runtime crun
  printf '{"cpu":{"shares":512},"devices":[%s]}' "$rule" >"$file"
  "$RUNTIME" update --resources "$file" c
  assert_equal "a file" "$(<"$MG/fake/got")" '{"cpu":{"shares":512}}'
  assert_equal "the file itself" "$(<"$file")" '{"cpu":{"shares":512},"devices":['"$rule"']}'
  "$RUNTIME" update --res "$file" c
  assert_equal "a file, by an abbreviation" "$(<"$MG/fake/got")" '{"cpu":{"shares":512}}'
  "$RUNTIME" update --resources - c <"$file"
  assert_equal "standard input" "$(<"$MG/fake/got")" '{"cpu":{"shares":512}}'
  printf '{ "cpu": {"shares": 512} }' >"$file"
  "$RUNTIME" update --resources "$file" c
  assert_equal "one without devices" "$(<"$MG/fake/got")" '{ "cpu": {"shares": 512} }'
  printf '{"devices":[],"devices":[%s]}' "$rule" >"$file"
  try fail "$RUNTIME" update --resources "$file" c
  assert_contains "one that cannot be evaluated" "$stderr" E_BUNDLE
  fake_runtime runc
  "$RUNTIME" update --resources "$file" c
  assert_equal "runc" "$(<"$MG/fake/got")" "$(<"$file")"
  crun_off
}

@test "under crun a list without rules opens everything and is refused; one that denies first is not" {
  crun_on
  bundle x --jq '.linux.resources.devices = []' --args true
  by_crun "$RUNTIME" x
  assert_contains "an empty list" "$stderr" E_DEVICE_RULE "no device-cgroup rule"
  bundle x --jq 'del(.linux.resources)' --args true
  by_crun "$RUNTIME" x
  assert_contains "no list" "$stderr" E_DEVICE_RULE
  bundle y --args true
  by_crun "$RUNTIME" y
  refute_contains "the usual list" "$stderr" mpsgate
  crun_off
}

@test "under runc a list without rules opens nothing, and passes" {
  allowed y --jq '.linux.resources.devices = []'
  allowed z --jq 'del(.linux.resources)'
}

#!/usr/bin/env bats
# The README's sections on engines as a new user follows them: `mpsgate configure ENGINE --write` on
# the settings as they are, the engine started by hand (there is no systemd here), one container
# with a grant, --check, --undo.

load suite
load token

setup_file() {
  runtime_below
  node_start
}

setup() {
  mkdir -p /etc/docker # dockerd makes it for its key where it is not there
  cp -a /etc "$MG/etc.before"
}

teardown() {
  explain_failure
  docker_stop
  containerd_stop
  rm -rf "$MG/etc.before"
  node_reset
}

CONTAINERD_SOCK=/run/containerd/containerd.sock
containerd_start() {
  mkdir -p "$MG/log"
  # The kernel tells a process's start in hundredths of a second: one in the same hundredth as the
  # last change of its settings counts as older.
  sleep 0.02
  containerd >>"$MG/log/containerd.log" 2>&1 3>&- &
  echo $! >"$MG/containerd.pid"
  wait_for 60 "containerd's CRI answers" cri_answers || { tail -20 "$MG/log/containerd.log" >&2; return 1; }
}
cri_answers() { ctr --address "$CONTAINERD_SOCK" plugins ls | awk '$2 == "cri" { print $NF }' | grep -qx ok; }
containerd_stop() {
  local pid
  [[ -f $MG/containerd.pid ]] || return 0
  pid=$(<"$MG/containerd.pid")
  rm "$MG/containerd.pid"
  kill "$pid" && wait_for 30 "containerd ends" gone "$pid"
}

rootfs_once() { [[ -d $MG/rootfs ]] || rootfs "$MG/rootfs"; }

# as_before: /etc is what it was, but for what the engines make there for themselves when they first
# run.
as_before() { diff -r --no-dereference -x key.json -x cni.lock "$MG/etc.before" /etc; }

@test "Docker: configure, start, run; undo puts everything back" {
  try 0 mpsgate configure docker
  assert_contains "the diff" "$stdout" '+  "default-runtime": "mpsgate"' "Nothing was written"
  as_before
  try 1 mpsgate configure docker --check
  try 0 mpsgate configure docker --write
  docker_start
  try_docker run --rm --network none --ipc host --env MPSGATE_GPU_MEM=7Gi bb env
  assert_contains "environment" "$stdout" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M"
  try 0 mpsgate configure docker --check
  assert_contains "the ways round" "$stdout" "ok     default runtime mpsgate" "note   runtime runc"
  docker_stop
  try 0 mpsgate configure docker --undo
  as_before
}

@test "Docker takes it at SIGHUP, as the hint says, and gives it back" {
  docker_start
  assert_equal "default runtime" "$(docker info -f '{{.DefaultRuntime}}')" runc
  try 0 mpsgate configure docker --write
  kill -HUP "$(<"$MG/docker.pid")"
  wait_for 30 "dockerd has taken it" default_runtime_is mpsgate
  try_docker run --rm --network none --ipc host --env MPSGATE_GPU_MEM=7Gi bb env
  assert_contains "environment" "$stdout" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M"
  try 0 mpsgate configure docker --undo
  as_before
}
default_runtime_is() { [[ $(docker info -f '{{.DefaultRuntime}}') == "$1" ]]; }

@test "Docker with the flag on its command line: refused before dockerd is broken" {
  docker_start --default-runtime runc
  try 78 mpsgate configure docker --write
  assert_contains "stderr" "$stderr" "dockerd is started with --default-runtime"
  as_before
}

@test "containerd: configure, start, a pod through CRI; undo puts everything back" {
  # Debian's file, and what this machine needs: no overlayfs on overlayfs, no CNI, no lower
  # oom_score_adj.
  cat >/etc/containerd/config.toml <<'TOML'
version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = "docker.io/library/bb:latest" # the only image here
    restrict_oom_score_adj = true
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"
      conf_dir = "/etc/cni/net.d"
    [plugins."io.containerd.grpc.v1.cri".containerd]
      snapshotter = "native"
TOML
  cp /etc/containerd/config.toml "$MG/etc.before/containerd/config.toml"
  try 0 mpsgate configure containerd --write
  containerd_start
  try 0 mpsgate configure containerd --check
  assert_contains "--check" "$stdout" "ok     default handler mpsgate" "ok     handler runc"
  try 0 mpsgate configure containerd --write
  assert_contains "a second --write" "$stdout" "Nothing to change"
  if command -v protoc >/dev/null; then
    # The annotation crosses the slash, and comes with the pod.
    rootfs_once
    # shellcheck source=tests/engines/containerd.bash
    source "$MG_REPO/tests/engines/containerd.bash"
    import_image k8s.io
    # There is no kubelet: who speaks CRI here is root.
    settings '$a [trust]\nlocal = "on"'
    mpsgate reload
    CRI_SOCKET=$CONTAINERD_SOCK CRI_PODS=$MG/pods CRI_CGROUP=$(cgroup_parent)
    export CRI_SOCKET CRI_PODS CRI_CGROUP
    try 0 "$MG_REPO/tests/engines/cri" once got --ipc --ann aliyun.com/gpu-mem=7 -- env
    assert_contains "environment" "$stdout" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M"
    settings
    mpsgate reload
  fi
  containerd_stop
  try 0 mpsgate configure containerd --undo
  as_before
}

@test "containerd that was started before --write: --check says so" {
  containerd_start
  try 0 mpsgate configure containerd --write
  try 1 mpsgate configure containerd --check
  assert_contains "--check" "$stdout" "was started before /etc/containerd/config.toml was last changed: systemctl restart containerd"
  try 0 mpsgate configure containerd --undo
  as_before
}

# bears_crios_name COMMAND... -- [WORD...]: a process that COMMAND starts and that waits under
# CRI-O's name, with these words; its pid is in $named.
bears_crios_name() {
  local by=() program=$MG/names/crio
  while [[ $1 != -- ]]; do by+=("$1"); shift; done
  [[ -x $program ]] || install -D -m 755 "$(readlink -f /bin/sh)" "$program"
  "${by[@]}" "$program" -c 'while :; do read x; done' "${@:2}" <>"$MG/names/wait" 3>&- &
  named=$!
  wait_for 10 "a process is called crio" is_crio "$named"
}
is_crio() { [[ $(cat "/proc/$1/comm") == crio ]]; }

@test "who only bears an engine's name leads root nowhere, and of two engines one has to be named" {
  mkdir -p "$MG/theirs" "$MG/names"
  mkfifo "$MG/names/wait"
  local pids=()
  bears_crios_name setpriv --reuid 65534 --regid 65534 --clear-groups -- --config-dir "$MG/theirs"
  pids+=("$named")
  bears_crios_name unshare --mount -- --config-dir "$MG/theirs"
  pids+=("$named")
  try 0 mpsgate configure crio --write
  assert_contains "what was written" "$stdout" "Written: /etc/crio/crio.conf.d/zz-mpsgate.conf"
  assert_equal "the directory of others" "$(ls -A "$MG/theirs")" ""
  try 0 mpsgate configure crio --undo
  as_before
  try 2 mpsgate configure crio --engine-pid "$named"
  assert_contains "stderr" "$stderr" "has another mount namespace than the node's first process"

  # Root's own, on the node: engines, as far as anybody can tell.
  bears_crios_name env -- --config-dir "$MG/theirs"
  pids+=("$named")
  bears_crios_name env --
  pids+=("$named")
  try 2 mpsgate configure crio
  assert_contains "stderr" "$stderr" "2 processes are crio: pid " "--config-dir $MG/theirs" "--engine-pid PID"
  kill "${pids[@]}"
  rm -r "$MG/theirs" "$MG/names"
}

@test "on a node with a kubelet mpsgated starts and reads nothing of a user's whose set-user-ID program is called containerd" {
  local program=$MG/names/containerd theirs=$MG/theirs/config.toml log=$MG/log/mpsgated.log user doctor
  mkdir -p "$MG/theirs" "$MG/names"
  mkfifo "$MG/names/wait"
  install -m 4755 "$(readlink -f /bin/sh)" "$program"
  install -o 65534 /dev/null "$theirs"
  chown 65534 "$MG/theirs"
  setpriv --reuid 65534 --regid 65534 --clear-groups "$program" -p -s -- --config "$theirs" <>"$MG/names/wait" 3>&- &
  user=$!
  wait_for 10 "it is root by its effective user" has_uids "$user" "65534 0 0 0"
  # Whoever starts or reads them from now on leaves the time.
  touch -a -d @0 "$program" "$theirs"
  kubelet_appears
  try any mpsgate doctor -o json
  doctor=$stdout
  assert_equal "containerd in doctor" "$(jq -r '.checks[] | select(.name == "engine" and .subject == "containerd") | .result' <<<"$doctor")" skip
  # Root's own beside it is an engine, and the only one.
  bears_crios_name env --
  try 0 mpsgate reload
  wait_for 20 "mpsgated has looked" grep -q "handlers of the engine engine=crio " "$log"
  refute_contains "status, doctor and log" "$(mpsgate status)$doctor$(<"$log")" "$MG/theirs" "$program"
  assert_equal "when both were last read" "$(stat -c %X "$program" "$theirs" | xargs)" "0 0"
  "$program" -c :
  [[ $(stat -c %X "$program") != 0 ]] || fail "a start leaves no time here: nothing is shown by this"
  kill "$user" "$named"
  kubelet_goes
  rm -r "$MG/theirs" "$MG/names"
}
has_uids() { [[ $(awk '/^Uid:/ { print $2, $3, $4, $5 }' "/proc/$1/status") == "$2" ]]; } # PID UIDS

@test "a settings file on a read-only file system: refused with the reason" {
  mkdir -p "$MG/ro" /etc/docker
  mount -t tmpfs tmpfs "$MG/ro"
  echo '{}' >"$MG/ro/daemon.json"
  mount -o remount,ro "$MG/ro"
  try 2 mpsgate configure docker --config "$MG/ro/daemon.json" --write
  assert_contains "stderr" "$stderr" "cannot write $MG/ro/daemon.json" "file system is read-only"
  umount "$MG/ro"
}

PODMAN=(/usr/bin/podman --root "$MG/p" --runroot "$MG/p.run" --storage-driver vfs --cgroup-manager cgroupfs --events-backend file)
RUN=(run --rm --network host --cgroup-parent "$MG_CGROUP" --ulimit nofile=1024:1024 --ulimit nproc=1000:1000 --ipc host
  --annotation aliyun.com/gpu-mem=7)
image() {
  rootfs_once
  tar -C "$MG/rootfs" -c . | "${PODMAN[@]}" import - bb >/dev/null
}

@test "Podman: configure, run; undo puts everything back" {
  command -v podman >/dev/null || skip "no podman"
  try 1 mpsgate configure podman --check
  try 0 mpsgate configure podman --write
  try 0 mpsgate configure podman --check
  assert_equal "podman's own reading" "$("${PODMAN[@]}" info -f '{{.Host.OCIRuntime.Name}} {{.Host.OCIRuntime.Path}}')" "mpsgate /usr/bin/mpsgate-runtime"
  image
  try 0 "${PODMAN[@]}" "${RUN[@]}" bb env
  assert_contains "environment" "$stdout" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M"
  try 0 mpsgate configure podman --undo
  as_before
}

@test "Podman with the hook only: configure, run; undo puts everything back" {
  command -v podman >/dev/null || skip "no podman"
  try 0 mpsgate configure podman --hooks-only --write
  cmp "$MG_REPO/hooks/podman-precreate.json" /etc/containers/oci/hooks.d/mpsgate.json
  try 0 mpsgate configure podman --check
  image
  try 0 "${PODMAN[@]}" --runtime "$REAL" "${RUN[@]}" bb env
  assert_contains "environment" "$stdout" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M"
  try 0 mpsgate configure podman --undo
  as_before
}

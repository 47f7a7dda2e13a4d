# helpers.bash: what the .bats files share. Every file runs inside tests/env/sandbox.sh.
#
# Words: `try` runs one command under a limit and checks its exit status; `assert_*` print what was
# expected and what came; `wait_for` polls a condition with a limit. Containers are bundles below
# $MG/b, made by `bundle`; their output goes to $MG/out/ID. $REAL is the real runtime
# (MG_REAL_RUNTIME, else runc), $RUNTIME the one under test: $REAL itself in plain.bats,
# mpsgate-runtime everywhere else. For an emulated machine MG_PATIENCE=N makes every limit N times
# as long, and MG_POLL=SECONDS the time between two looks. Tests tagged `runtime` are those whose
# outcome the runtime has a part in.
# shellcheck shell=bash disable=SC2034 # status, stdout and stderr are read by the tests

bats_require_minimum_version 1.5.0

[[ ${MG_IN_SANDBOX:-} == 1 ]] || {
  echo "these tests change /etc, /run and cgroups: start them with tests/e2e/run FILE" >&2
  exit 1
}

REAL=${MG_REAL_RUNTIME:-/usr/sbin/runc}
RUNTIME=${RUNTIME:-/usr/bin/mpsgate-runtime}
RUNC_ROOT=$MG/runc
FLAGS=()
[[ ${MG_SYSTEMD:-0} != 1 ]] || FLAGS=(--systemd-cgroup)

# --- running and comparing ------------------------------------------------------------------------

fail() {
  printf '%s\n' "$@" >&2
  return 1
}

# try [STATUS|any] CMD...: sets $status, $stdout, $stderr; fails unless CMD ended with STATUS (0).
# Output goes through files: a container that lives on keeps its stdout open, and a pipe would wait.
try() {
  local want=0
  if [[ $1 =~ ^([0-9]+|any|fail)$ ]]; then want=$1; shift; fi
  local o=${TRY_OUT:-$BATS_TEST_TMPDIR/try.out} e=$BATS_TEST_TMPDIR/try.err
  status=0
  timeout --kill-after=5 $((${LIMIT:-60} * ${MG_PATIENCE:-1})) "$@" >"$o" 2>"$e" </dev/null 3>&- || status=$?
  stdout=$(<"$o") stderr=$(<"$e")
  case $want in
    any) return 0 ;;
    # Neither out of time nor ended by a signal. crun fails with 255.
    fail) [[ $status != 0 && $status != 124 && ($status -lt 128 || $status == 255) ]] && return 0 ;;
    *) [[ $status == "$want" ]] && return 0 ;;
  esac
  fail "command:  $*" "expected: exit status $want" "got:      $status" "stdout:   $stdout" "stderr:   $stderr"
}

assert_equal() { # WHAT GOT WANT
  [[ $2 == "$3" ]] || fail "$1" "expected: $3" "got:      $2"
}

assert_contains() { # WHAT TEXT PART...
  local what=$1 text=$2 part
  shift 2
  for part; do
    [[ $text == *"$part"* ]] || { fail "$what" "expected: text with '$part'" "got:      $text"; return 1; }
  done
}

refute_contains() { # WHAT TEXT PART...
  local what=$1 text=$2 part
  shift 2
  for part; do
    [[ $text != *"$part"* ]] || { fail "$what" "expected: text without '$part'" "got:      $text"; return 1; }
  done
}

# wait_for SECONDS WHAT CMD...: until CMD succeeds.
wait_for() {
  local limit=$(($1 * ${MG_PATIENCE:-1})) what=$2 end
  shift 2
  end=$((SECONDS + limit))
  until "$@" >"$BATS_TEST_TMPDIR/wait.out" 2>&1 3>&-; do
    ((SECONDS < end)) || { fail "waited $limit s for: $what" "command:  $*" "last:     $(<"$BATS_TEST_TMPDIR/wait.out")"; return 1; }
    sleep "${MG_POLL:-0.05}"
  done
}

# environment_of PID: of a container's init, a variable a line, as the kernel has it. A runtime's
# `start` returns before its init has become the program.
environment_of() {
  wait_for 10 "process $1 is its container's program" runs_its_own "$1" || return 1
  tr '\0' '\n' <"/proc/$1/environ"
}
# runs_its_own PID: and no runtime any more, whose copies of themselves are files without a name, or
# (runc's bind mount that it detaches) the root of nothing. The kernel names the program a moment
# before its environment is there.
runs_its_own() {
  local program
  program=$(readlink "/proc/$1/exe") && [[ $program == */?* && ! ${program##*/} =~ runc|crun|\(deleted\) ]] &&
    [[ -n $(tr -d '\0' <"/proc/$1/environ") ]]
}

gone() { [[ ! -e /proc/$1 ]]; } # PID

# begin NAME CMD...: in the background; its pid in $BEGUN/NAME.pid, its words in
# $BEGUN/log/NAME.log. A file that has such programs says where that is.
begin() {
  local name=$1
  shift
  mkdir -p "$BEGUN/log"
  "$@" >>"$BEGUN/log/$name.log" 2>&1 </dev/null 3>&- &
  echo $! >"$BEGUN/$name.pid"
  disown # a shell reports the end of its children
}

# end NAME [SIGNAL]: until it is gone; by SIGKILL where it does not go.
end() {
  local pid
  [[ -f $BEGUN/$1.pid ]] || return 0
  pid=$(<"$BEGUN/$1.pid")
  rm "$BEGUN/$1.pid"
  kill "-${2:-TERM}" "$pid" 2>/dev/null || return 0
  wait_for 30 "$1 ends" gone "$pid" || { kill -KILL "$pid"; return 1; }
}

# stranger CMD...: a process of the host, listed in $MG/strangers; its pid is $stranger.
stranger() {
  "$@" >/dev/null 2>&1 </dev/null 3>&- &
  stranger=$!
  echo "$stranger" >>"$MG/strangers"
}

# kill_listed FILE: the processes whose pids a test has written there.
kill_listed() {
  [[ ! -f $1 ]] || xargs -r kill -KILL <"$1" 2>/dev/null || true
  rm -f "$1"
}

# --- containers -----------------------------------------------------------------------------------

# rootfs DIR: busybox and the folders that a runtime mounts on.
rootfs() {
  mkdir -p "$1"/{bin,dev,etc,proc,sys,tmp,run,var,usr/bin,root}
  cp "$(command -v busybox)" "$1/bin/busybox"
  local applet
  for applet in sh cat echo env find grep head hostname id ls mkdir mount nc ps rm sleep sort stat touch tr true umount wc; do
    ln -sf busybox "$1/bin/$applet"
  done
  echo 'root:x:0:0:root:/root:/bin/sh' >"$1/etc/passwd"
}

# rootfs_program DIR FILE: FILE and the libraries that it needs, at their own paths.
rootfs_program() {
  local file
  install -D "$2" "$1/usr/bin/$(basename "$2")"
  while read -r file; do
    [[ -e $1$file ]] || install -D "$file" "$1$file"
  done < <(ldd "$2" | grep -oE '/[^ ]+' | sort -u)
}

# bundle ID [OPTION...]: a bundle at $MG/b/ID, with its cgroup below the sandbox's own. Options:
#   --ann K=V  --env K=V  --args CMD...(last)  --jq FILTER  --private-ipc  --caps-all
# Without --private-ipc the container shares the caller's IPC namespace, and with it the host's
# /dev/shm, as engines do.
bundle() {
  local id=$1 dir=$MG/b/$1 filter='.' own='' args='[]' ipc=' | .linux.namespaces |= map(select(.type != "ipc"))
    | (.mounts[] | select(.destination == "/dev/shm")) |= {destination, type: "bind", source: "/dev/shm", options: ["rbind", "rw"]}'
  shift
  [[ -d $MG/rootfs ]] || rootfs "$MG/rootfs"
  mkdir -p "$dir" "$MG/out" "$MG/log"
  [[ -d $dir/rootfs ]] || cp -al "$MG/rootfs" "$dir/rootfs"
  [[ -f $MG/spec.json ]] || (cd "$MG" && "$REAL" spec && mv config.json spec.json)
  filter+=' | .process.terminal = false | .root.readonly = false | .hostname = $id
    | .process.args = ["sleep", "600"] | .linux.cgroupsPath = $cgroup
    | .linux.namespaces |= map(select(.type != "network"))'
  while (($#)); do
    case $1 in
      --ann) own+=" | .annotations[$(jq -n --arg s "${2%%=*}" '$s')] = $(jq -n --arg s "${2#*=}" '$s')"; shift 2 ;;
      --env) own+=" | .process.env += [$(jq -n --arg s "$2" '$s')]"; shift 2 ;;
      --jq) own+=" | $2"; shift 2 ;;
      --private-ipc) ipc=''; shift ;;
      --caps-all) own+=" | .process.capabilities |= map_values($(caps_all))
        | .linux.resources.devices = [{\"allow\": true, \"access\": \"rwm\"}]"; shift ;;
      --args) shift; own+=' | .process.args = $args'; args=$(json_list "$@"); break ;;
      *) fail "bundle: unknown option $1"; return 1 ;;
    esac
  done
  jq --arg id "$id" --arg cgroup "$(cgroup_of "$id")" --argjson args "$args" "$filter$ipc$own" "$MG/spec.json" >"$dir/config.json"
}

# cgroup_of ID: as config.json names it: a path, or slice:prefix:name for systemd.
cgroup_of() {
  if [[ ${MG_SYSTEMD:-0} == 1 ]]; then echo "${MG_CGROUP#/}:mg:$1"; else echo "$MG_CGROUP/$1"; fi
}

# As engines want it: a path, or the name of a slice.
cgroup_parent() {
  if [[ ${MG_SYSTEMD:-0} == 1 ]]; then echo "${MG_CGROUP#/}"; else echo "$MG_CGROUP"; fi
}

# json_list STRING...: a JSON array. One jq each: its --args takes a leading dash for an option.
json_list() {
  local string
  for string; do jq -n --arg s "$string" '$s'; done | jq -sc .
}

caps_all() {
  printf '['
  printf '"CAP_%s",' CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE NET_RAW \
    SYS_CHROOT MKNOD AUDIT_WRITE SETFCAP SYS_ADMIN
  printf '"CAP_SYS_PTRACE"]'
}

# oci ARG...: the runtime under test, as an engine calls it: own root, JSON log.
oci() {
  "$RUNTIME" --root "$RUNC_ROOT" --log "${OCI_LOG:-$MG/log/oci.json}" --log-format json "${FLAGS[@]}" "$@"
}

# try_oci [STATUS] ARG...: `try oci`, in a form that timeout can run; logs to $MG/log/oci.json anew.
try_oci() {
  local want=0
  if [[ $1 =~ ^([0-9]+|any|fail)$ ]]; then want=$1; shift; fi
  mkdir -p "$MG/log"
  rm -f "$MG/log/oci.json"
  try "$want" "$RUNTIME" --root "$RUNC_ROOT" --log "$MG/log/oci.json" --log-format json "${FLAGS[@]}" "$@"
}

# create [STATUS] ID: from its bundle, with the container's output in $MG/out/ID.
create() {
  local want=0
  if [[ $1 =~ ^([0-9]+|any|fail)$ ]]; then want=$1; shift; fi
  TRY_OUT=$MG/out/$1 try_oci "$want" create --bundle "$MG/b/$1" --pid-file "$MG/b/$1/pid" "$1"
}

start() { try_oci start "$1"; }
state_of() { oci state "$1" | jq -r .status; }

# see ID [BUNDLE OPTION...] --args CMD...: runs CMD in a new container to its end; its output is
# $stdout.
see() {
  local id=$1
  bundle "$@"
  try_oci run --bundle "$MG/b/$id" "$id"
}

delete() { # ID: whatever state it is in
  try_oci delete --force "$1"
  remove_bundles "${MG:?}/b/$1"
}

# remove_bundles DIR: without walking into what a container without a mount namespace left mounted
# there.
remove_bundles() {
  local mount
  while read -r mount; do umount -l "$mount"; done < <(awk -v dir="$1/" 'index($5, dir) == 1 { print $5 }' /proc/self/mountinfo | tac)
  rm -rf --one-file-system "${1:?}"
}

delete_all() {
  local id
  for id in $("$REAL" --root "$RUNC_ROOT" list -q 2>/dev/null); do
    "$RUNTIME" --root "$RUNC_ROOT" delete --force "$id" >/dev/null 2>&1 || "$REAL" --root "$RUNC_ROOT" delete --force "$id" || true
  done
  remove_bundles "${MG:?}/b"
}

container_ids() { "$REAL" --root "$RUNC_ROOT" list -q | sort | tr '\n' ' '; }

# cgroups_live: the IDs below the sandbox's cgroup that hold a process, one a line.
cgroups_live() {
  local dir root name
  # v2 and the v1 freezer hierarchy name every container; one of them is there.
  for root in /sys/fs/cgroup/freezer /sys/fs/cgroup; do [[ -d $root$MG_CGROUP ]] && break; done
  for dir in "$root$MG_CGROUP"/*/; do
    # v2 answers for the whole tree: crun puts the processes of a systemd scope into a child of it.
    if [[ -f $dir/cgroup.events ]]; then
      grep -qx 'populated 1' "$dir/cgroup.events" 2>/dev/null || continue
    else
      [[ -n $(cat "$dir/cgroup.procs" 2>/dev/null) ]] || continue
    fi
    name=$(basename "$dir" .scope)
    if [[ ${MG_SYSTEMD:-0} == 1 ]]; then echo "${name#mg-}"; else echo "$name"; fi
  done
}

# lifecycle ID: create, start, exec, kill, delete, each checked. What every container must be able
# to do.
lifecycle() {
  local id=$1
  # shellcheck disable=SC2016 # for the container's shell
  bundle "$id" --env SEEN=yes --args sh -c 'echo "out: $SEEN"; sleep 600'
  create "$id"
  assert_equal "state after create" "$(state_of "$id")" created
  start "$id"
  assert_equal "state after start" "$(state_of "$id")" running
  wait_for 10 "the container's output" grep -q 'out: yes' "$MG/out/$id"
  # shellcheck disable=SC2016
  # PATH, because a --env replaces all of the container's environment for crun before 1.29.
  try_oci exec --env X=1 --env PATH=/bin "$id" sh -c 'echo "exec: $X $1 $(hostname)"' x arg
  assert_equal "output of exec" "$stdout" "exec: 1 arg $id"
  try_oci 7 exec "$id" sh -c 'exit 7'
  try_oci kill "$id" KILL
  wait_for 10 "state stopped" state_is "$id" stopped
  try_oci delete "$id"
  try_oci fail state "$id"
  # crun says the one where its state directory is there, the other where it is not.
  [[ $stderr$(<"$MG/log/oci.json") == *@('does not exist'|'No such file')* ]] || fail "state of what is gone: $stderr"
}

state_is() { [[ $(state_of "$1") == "$2" ]]; }
stopped() { state_is "$1" stopped; }

# --- Docker 20.10 ---------------------------------------------------------------------------------

DOCKER_SOCK=$MG/docker.sock

# Debian's client of the same version, not one that happens to come first in PATH.
docker() { /usr/bin/docker --host "unix://$DOCKER_SOCK" "$@"; }

# try_docker [STATUS] ARG...
try_docker() {
  local want=0
  if [[ $1 =~ ^([0-9]+|any|fail)$ ]]; then want=$1; shift; fi
  try "$want" /usr/bin/docker --host "unix://$DOCKER_SOCK" "$@"
}

# docker_start [DOCKERD OPTION...]: a dockerd with nothing but its own directories, and the image
# bb.
docker_start() {
  mkdir -p "$MG/log"
  # Only root with CAP_SYS_RESOURCE may have a lower one. Docker 26 no longer sets any.
  local oom=(--oom-score-adjust 0)
  dockerd --help | grep -q -- --oom-score-adjust || oom=()
  dockerd --host "unix://$DOCKER_SOCK" --data-root "$MG/docker" --exec-root "$MG/docker.exec" \
    --pidfile "$MG/docker.pid" --iptables=false --ip6tables=false --bridge=none --storage-driver vfs \
    --userland-proxy=false "${oom[@]}" --cgroup-parent "$(cgroup_parent)" "$@" >"$MG/log/dockerd.log" 2>&1 3>&- &
  wait_for 60 "dockerd answers" docker version || { tail -20 "$MG/log/dockerd.log" >&2; return 1; }
  [[ -d $MG/rootfs ]] || rootfs "$MG/rootfs"
  tar -C "$MG/rootfs" -c . | docker import - bb >/dev/null
}

docker_clear() { docker ps -aq | xargs -r /usr/bin/docker --host "unix://$DOCKER_SOCK" rm -f >/dev/null; }

docker_stop() {
  local pid
  [[ -f $MG/docker.pid ]] || return 0
  pid=$(<"$MG/docker.pid")
  docker_clear || true
  kill "$pid" && wait_for 30 "dockerd ends" gone "$pid"
  # Left behind by one that was ended while it started. The next test would take it for its own.
  pkill -f "$DOCKERS_CONTAINERD" || return 0
  wait_for 30 "dockerd's containerd ends" no_containerd_of_docker
}
DOCKERS_CONTAINERD='containerd --config .*/containerd/containerd\.toml'
no_containerd_of_docker() { ! pgrep -f "$DOCKERS_CONTAINERD" >/dev/null; }

# docker_life NAME: run, exec, restart, rm, each checked.
docker_life() {
  local name=$1 before after
  # shellcheck disable=SC2016
  try_docker run --rm --network none --env SEEN=yes bb sh -c 'echo "out: $SEEN"'
  assert_equal "output of docker run" "$stdout" "out: yes"
  try_docker 7 run --rm --network none bb sh -c 'exit 7'
  try_docker run -d --network none --name "$name" bb sleep 600
  try_docker exec "$name" hostname
  before=$(docker inspect -f '{{.State.Pid}} {{.State.Running}}' "$name")
  assert_contains "docker inspect" "$before" " true"
  try_docker restart -t 0 "$name"
  after=$(docker inspect -f '{{.State.Pid}} {{.State.Running}}' "$name")
  assert_contains "docker inspect after restart" "$after" " true"
  [[ $before != "$after" ]] || fail "restart kept the process: $before"
  try_docker exec "$name" true
  try_docker rm -f "$name"
}

# ctr.bash: containerd as root uses it, through ctr. Requests are annotations.
# shellcheck shell=bash disable=SC2154 # want and rest come from want

# shellcheck source=tests/engines/containerd.bash
source "$here/containerd.bash"
CTR=("$(type -P ctr)" --address "$CONTAINERD_SOCK")
IPC_HINT=--with-ns
[[ $("${CTR[@]}" run --help) == *--user* ]] || NO_UID="this ctr's run has no --user"

engine_start() {
  engine_back
  import_image default
}

# words OPTION... -- CMD...: sets words to the options of ctr run, and cmd.
words() {
  local runtime=/usr/bin/mpsgate-runtime
  [[ $UNDER == mpsgate ]] || runtime=$REAL
  words=(--snapshotter native --runc-binary "$runtime" --cgroup "$(cgroup_of "$name")")
  [[ ${MG_SYSTEMD:-0} != 1 ]] || words+=(--runc-systemd-cgroup)
  while [[ $1 != -- ]]; do
    case $1 in
      --gpu) words+=(--annotation "mpsgate.io/gpu-mem=$2"); shift ;;
      --ipc) words+=(--with-ns ipc:/proc/1/ns/ipc) ;;
      --ann) words+=(--annotation "$2"); shift ;;
      --env) words+=(--env "$2"); shift ;;
      --uid) words+=(--user "$2"); shift ;;
      --device) words+=(--device "$2"); shift ;;
      --mount) words+=(--mount "type=bind,src=$2,dst=/mnt,options=rbind:ro"); shift ;;
      *) words+=("$1") ;; # ctr's own
    esac
    shift
  done
  shift
  cmd=("$@")
}
engine_up() {
  local want rest words cmd name
  want "$@"
  name=${rest[0]}
  words "${rest[@]:1}"
  try "$want" "${CTR[@]}" run --detach --null-io "${words[@]}" docker.io/library/bb:latest "$name" "${cmd[@]}"
}
engine_once() {
  local want rest words cmd name
  want "$@"
  name=${rest[0]}
  words "${rest[@]:1}"
  try "$want" "${CTR[@]}" run --rm "${words[@]}" docker.io/library/bb:latest "$name" "${cmd[@]}"
}
engine_exec() {
  local want rest
  want "$@"
  try "$want" "${CTR[@]}" task exec --exec-id "x$RANDOM$RANDOM" "${rest[@]}"
}
engine_halt() {
  try "${CTR[@]}" task kill --signal KILL "$1"
  wait_for 10 "the task has stopped" task_is "$1" STOPPED
  try "${CTR[@]}" task delete "$1"
}
task_is() { [[ $(ctr task ls | awk -v id="$1" '$1 == id { print $3 }') == "$2" ]]; } # NAME STATUS
engine_again() { try "${CTR[@]}" task start --detach --null-io "$1"; }
engine_remove() {
  local want rest
  want "$@"
  try any "${CTR[@]}" task delete --force "${rest[0]}"
  try "$want" "${CTR[@]}" container delete "${rest[0]}"
}
engine_clear() {
  local id
  for id in $(ctr container ls -q); do engine_remove any "$id"; done
}
engine_id() { echo "$1"; }
engine_pid() { ctr task ls | awk -v id="$1" '$1 == id { print $2 }'; }
engine_spec() { echo "/run/containerd/io.containerd.runtime.v2.task/default/$1/config.json"; }

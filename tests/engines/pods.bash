# pods.bash: the verbs of an engine that speaks CRI, for cri.bash and crio.bash. Requests are
# annotations of pod and container. They define $CRI_SOCKET, $HOST_IPC_AT (how the path begins by
# which a pod's namespaces are named) and spec_at ID, the path of a container's config.json.
# shellcheck shell=bash disable=SC2034,SC2154 # read by the suite; want and rest come from want

IPC_HINT="hostIPC: true"
# There is no kubelet: who speaks CRI here is root.
SETTINGS='$a [trust]\nlocal = "on"'
CRI=$here/cri
CRI_PODS=$MG/pods CRI_CGROUP=$(cgroup_parent)
export CRI_PODS CRI_CGROUP

# words NAME OPTION... -- CMD...: sets words.
words() {
  words=("$1" --handler "$UNDER")
  shift
  while (($#)); do
    case $1 in
      --gpu) words+=(--ann "mpsgate.io/gpu-mem=$2"); shift ;;
      --) words+=("$@"); break ;;
      *) words+=("$1") ;;
    esac
    shift
  done
}
engine_up() {
  local want rest words
  want "$@"
  words "${rest[@]}"
  try "$want" "$CRI" up "${words[@]}"
}
engine_once() {
  local want rest words
  want "$@"
  words "${rest[@]}"
  try "$want" "$CRI" once "${words[@]}"
}
engine_exec() {
  local want rest
  want "$@"
  try "$want" "$CRI" exec "${rest[@]}"
}
engine_halt() { try "$CRI" halt "$1"; }
engine_again() { try "$CRI" again "$1"; }
# As kubelet, which tries until it is done: containerd 2.1 fails at first where its shim was killed.
engine_remove() {
  local want rest
  want "$@"
  wait_for 30 "pod ${rest[0]} is removed" "$CRI" down "${rest[0]}"
}
engine_clear() {
  local name
  for name in $("$CRI" list); do engine_remove "$name"; done
}
engine_id() { "$CRI" id "$1"; }
engine_pid() { "$CRI" pid "$1"; }
engine_spec() { spec_at "$(engine_id "$1")"; }

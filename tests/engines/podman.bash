# podman.bash: Podman's verbs. Requests are annotations. It has no daemon: what is killed as
# `the engine` is a client in the middle of an exec.
# shellcheck shell=bash disable=SC2154 # want and rest come from want

IPC_HINT=--ipc=host
SHIM_ENDS=no
PODMAN_RUNTIME=/usr/bin/mpsgate-runtime # podman-hook.bash has another
PODMAN=(podman --root "$MG/podman" --runroot "$MG/podman.run" --tmpdir "$MG/podman.tmp" --storage-driver vfs --events-backend file)
PODMAN+=(--cgroup-manager "$([[ ${MG_SYSTEMD:-0} == 1 ]] && echo systemd || echo cgroupfs)")
CLI=("${PODMAN[@]}")
ROOT_PROPAGATIONS="private rprivate shared rshared slave rslave"
# No network plugins are needed; and root without CAP_SYS_RESOURCE may not raise limits.
PODMAN_RUN=(--network host --cgroup-parent "$(cgroup_parent)")
(((0x$(sed -n 's/^CapBnd:\t//p' /proc/self/status) >> 24) & 1)) || PODMAN_RUN+=(--ulimit nofile=1024:1024 --ulimit nproc=1000:1000)

engine_start() {
  mkdir -p "$MG/podman" /etc/containers
  # As the package containers-common has it; that only some machines install.
  [[ -f /etc/containers/policy.json ]] || echo '{"default": [{"type": "insecureAcceptAnything"}]}' >/etc/containers/policy.json
  tar -C "$MG/rootfs" -c . | "${PODMAN[@]}" import - bb >/dev/null 2>&1
}
engine_stop() { true; }
engine_kill() {
  local pid
  "${PODMAN[@]}" exec "$1" sleep 600 >/dev/null 2>&1 3>&- &
  pid=$!
  disown # a shell reports the end of its children
  wait_for 20 "the exec'd process runs" runs_twice "$1"
  kill -KILL "$pid"
  wait_for 10 "the client ends" gone "$pid"
}
runs_twice() { (($("${PODMAN[@]}" top "$1" args | grep -c '^sleep 600') == 2)); } # NAME
engine_back() { true; }
engine_log() { cat /dev/null; }
engine_version() { "${PODMAN[@]}" version -f '{{.Client.Version}}'; }

gpu_words() { words+=(--annotation "mpsgate.io/gpu-mem=$1"); } # SIZE

# words OPTION... -- CMD...: sets words to what podman run takes, and options to those of podman
# itself.
words() {
  words=("${PODMAN_RUN[@]}") options=(--runtime "$PODMAN_RUNTIME")
  [[ $UNDER == mpsgate ]] || options=(--runtime "$REAL")
  run_words "$@"
}
engine_up() {
  local want rest words options
  want "$@"
  words "${rest[@]:1}"
  try "$want" "${PODMAN[@]}" "${options[@]}" run -d --name "${rest[0]}" "${words[@]}"
}
engine_once() {
  local want rest words options
  want "$@"
  words "${rest[@]:1}"
  try "$want" "${PODMAN[@]}" "${options[@]}" run --rm --name "${rest[0]}" "${words[@]}"
}
# The runtime of a container is remembered.
engine_exec() {
  local want rest
  want "$@"
  try "$want" "${PODMAN[@]}" exec "${rest[@]}"
}
engine_halt() { try "${PODMAN[@]}" stop -t 0 "$1"; }
engine_again() { try "${PODMAN[@]}" start "$1"; }
engine_remove() {
  local want rest
  want "$@"
  try "$want" "${PODMAN[@]}" rm -f -t 0 "${rest[0]}"
}
engine_clear() { "${PODMAN[@]}" rm -af -t 0 >/dev/null; }
engine_id() { "${PODMAN[@]}" inspect -f '{{.Id}}' "$1"; }
engine_pid() { "${PODMAN[@]}" inspect -f '{{.State.Pid}}' "$1"; }
engine_spec() { "${PODMAN[@]}" inspect -f '{{.OCIConfigPath}}' "$1"; }

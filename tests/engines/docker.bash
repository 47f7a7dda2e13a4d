# docker.bash: Docker's verbs. Requests are annotations where the client has --annotation (24 on),
# env where not.
# shellcheck shell=bash disable=SC2154 # want and rest come from want

IPC_HINT=--ipc=host
DOCKER=("$(type -P docker)" --host "unix://$DOCKER_SOCK")
CLI=("${DOCKER[@]}")
ROOT_PROPAGATIONS="rshared rslave" # dockerd refuses the others where its own folder is inside
export DOCKER_CONFIG=$MG/docker.config
docker() { "${DOCKER[@]}" "$@"; }

engine_start() {
  mkdir -p "$MG/log" "$MG/docker.config/cli-plugins"
  local buildx
  if buildx=$(command -v docker-buildx); then ln -sf "$buildx" "$MG/docker.config/cli-plugins/"; fi
  # dockerd offers --gpus where it finds this program.
  install -m 755 /bin/true /usr/bin/nvidia-container-runtime-hook
  engine_back
  tar -C "$MG/rootfs" -c . | docker import - bb >/dev/null
}
engine_back() {
  # Only root with CAP_SYS_RESOURCE may have a lower one. Docker 26 no longer sets any.
  local oom=(--oom-score-adjust 0)
  dockerd --help | grep -q -- --oom-score-adjust || oom=()
  [[ ${MG_SYSTEMD:-0} != 1 ]] || oom+=(--exec-opt native.cgroupdriver=systemd)
  # The variable is BuildKit's.
  DOCKER_BUILDKIT_RUNC_COMMAND=/usr/bin/mpsgate-runtime dockerd --host "unix://$DOCKER_SOCK" --data-root /var/lib/docker-mg \
    --exec-root "$MG/docker.exec" --pidfile "$MG/docker.pid" --iptables=false --ip6tables=false --bridge=none \
    --storage-driver vfs --userland-proxy=false --live-restore "${oom[@]}" --cgroup-parent "$(cgroup_parent)" \
    --add-runtime mpsgate=/usr/bin/mpsgate-runtime --default-runtime mpsgate >>"$MG/log/dockerd.log" 2>&1 3>&- &
  disown # a shell reports the end of its children
  wait_for 60 "dockerd answers" docker version || { engine_log | tail -20 >&2; return 1; }
}
engine_stop() {
  local pid
  [[ -f $MG/docker.pid ]] || return 0
  pid=$(<"$MG/docker.pid")
  kill "$pid" && wait_for 30 "dockerd ends" gone "$pid"
}
engine_kill() {
  local pid
  pid=$(<"$MG/docker.pid")
  kill -KILL "$pid"
  wait_for 10 "dockerd ends" gone "$pid"
}
engine_log() { cat "$MG/log/dockerd.log"; }
engine_version() { docker version -f '{{.Server.Version}}'; }

has_annotations() { docker run --help | grep -q -- --annotation; }

gpu_words() { # SIZE
  if has_annotations; then words+=(--annotation "mpsgate.io/gpu-mem=$1"); else words+=(--env "MPSGATE_GPU_MEM=$1"); fi
}

# words OPTION... -- CMD...: sets words to what docker run takes.
words() {
  words=(--network none)
  [[ $UNDER == mpsgate ]] || words+=(--runtime runc)
  run_words "$@"
}
engine_up() {
  local want rest words
  want "$@"
  words "${rest[@]:1}"
  try "$want" "${DOCKER[@]}" run -d --name "${rest[0]}" "${words[@]}"
}
engine_once() {
  local want rest words
  want "$@"
  words "${rest[@]:1}"
  try "$want" "${DOCKER[@]}" run --rm --name "${rest[0]}" "${words[@]}"
}
engine_exec() {
  local want rest
  want "$@"
  try "$want" "${DOCKER[@]}" exec "${rest[@]}"
}
engine_halt() { try "${DOCKER[@]}" stop -t 0 "$1"; }
engine_again() { try "${DOCKER[@]}" start "$1"; }
engine_remove() {
  local want rest
  want "$@"
  try "$want" "${DOCKER[@]}" rm -f "${rest[0]}"
}
engine_clear() { docker ps -aq | xargs -r "${DOCKER[@]}" rm -f >/dev/null; }
engine_id() { docker inspect -f '{{.Id}}' "$1"; }
engine_pid() { docker inspect -f '{{.State.Pid}}' "$1"; }
engine_spec() { echo "$MG/docker.exec/containerd/daemon/io.containerd.runtime.v2.task/moby/$(engine_id "$1")/config.json"; }

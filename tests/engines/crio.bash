# crio.bash: CRI-O as kubelet uses it (the program cri). $CRIO_BIN holds crio and pinns.
# shellcheck shell=bash disable=SC2034,SC2154 # read by the suite; MG is the sandbox's

CRIO_BIN=${CRIO_BIN:?the folder of crio and pinns}
# shellcheck source=tests/engines/pods.bash
source "$here/pods.bash"
export CRI_SOCKET=/run/crio/crio.sock
# As kubelet asks for a pod. Without a kubelet CRI-O is not trusted to say whose pod a shared
# namespace is; containerd is, and ends such a container with its shim, as the suite wants it.
export CRI_PIDS=CONTAINER
HOST_IPC_AT=/var/run/ipcns/ # CRI-O pins namespaces
# A container without its conmon goes on (1.37).
SHIM_ENDS=no
RUNTIME_ROOT=/run/runc # crio-crun.bash has another
SPEC_NAMES="s#/((ipc|uts|net|user)ns)/[0-9a-f-]{36}#/\\1/UUID#g; $SPEC_NAMES"
CRIO_ROOT=/var/lib/containers/storage CRIO_RUN=/run/containers/storage
STORAGE=(podman --root "$CRIO_ROOT" --runroot "$CRIO_RUN" --storage-driver vfs --cgroup-manager cgroupfs --events-backend none)

# below FILE PROGRAM JQ: FILE as a runtime that changes the bundle's config.json by JQ and goes on
# as PROGRAM.
below() {
  cat >"$1" <<SH
#!/bin/bash
program=$2 less='$3'
SH
  cat >>"$1" <<'SH'
before='' bundle=''
for word; do
  [[ $before != --bundle ]] || bundle=$word
  before=$word
done
if [[ -n $bundle && -f $bundle/config.json ]]; then
  changed=$(jq "$less" "$bundle/config.json")
  echo "$changed" >"$bundle/config.json"
fi
exec "$program" "$@"
SH
  chmod +x "$1"
}
# What no runtime can do on every machine: raise limits and lower an oom_score_adj, as CRI-O does
# for pause containers, where root may not; limits of huge pages, which CRI-O gives all containers,
# where hierarchies have no hugetlb.
LESS='(if .process.capabilities then .process.capabilities |= map_values(. - ["CAP_SYS_RESOURCE"]) else . end)
  | (if (.process.oomScoreAdj // 0) < 0 then del(.process.oomScoreAdj) else . end) | del(.linux.resources.hugepageLimits)'
runtime_below() {
  mkdir -p "$MG/below"
  below "$MG/below/runc" /usr/sbin/runc "$LESS"
  export MG_REAL_RUNTIME=$MG/below/runc
  REAL=$MG_REAL_RUNTIME # what `settings` writes
}

# crio_node: crio.conf without handlers. MKNOD, which Docker and containerd give and CRI-O does not:
# the suite makes a node of the other card, which must not open.
crio_node() {
  cat <<TOML
[crio]
root = "$CRIO_ROOT"
runroot = "$CRIO_RUN"
storage_driver = "vfs"
log_dir = "$MG/log/pods"
version_file = "/run/crio/version"
clean_shutdown_file = "/var/lib/crio/clean.shutdown"
[crio.api]
listen = "$CRI_SOCKET"
[crio.image]
pause_image = "docker.io/library/bb:latest"
pause_command = ""
[crio.network]
network_dir = "/etc/cni/net.d"
plugin_dirs = ["/usr/lib/cni"]
[crio.nri]
enable_nri = false
[crio.runtime]
cgroup_manager = "$([[ ${MG_SYSTEMD:-0} == 1 ]] && echo systemd || echo cgroupfs)"
pinns_path = "$CRIO_BIN/pinns"
default_capabilities = ["CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "SETGID", "SETUID", "SETPCAP", "NET_BIND_SERVICE", "KILL", "MKNOD"]
hooks_dir = []
TOML
}
# crio_settings: with the suite's two handlers, as both keep their state below one root.
crio_settings() {
  local handler program
  crio_node
  echo 'default_runtime = "mpsgate"'
  for handler in mpsgate plain; do
    program=/usr/bin/mpsgate-runtime
    [[ $handler == mpsgate ]] || program=$REAL
    printf '[crio.runtime.runtimes.%s]\nruntime_path = "%s"\nruntime_root = "%s"\n' "$handler" "$program" "$RUNTIME_ROOT"
  done
}

engine_start() {
  # Where mpsgate looks for an engine's program; the sandbox's own folder.
  [[ -x /usr/bin/crio ]] || cp "$CRIO_BIN/crio" /usr/bin/crio
  tar -C "$MG/rootfs" -c . | "${STORAGE[@]}" import --change 'ENV PATH=/bin:/usr/bin' --change 'CMD ["sleep","2147483647"]' \
    --change 'STOPSIGNAL SIGKILL' - docker.io/library/bb:latest >/dev/null
  mkdir -p /etc/crio/crio.conf.d
  crio_settings >/etc/crio/crio.conf
  engine_back
}
engine_back() { # [FLAG...]
  mkdir -p "$MG/log"
  /usr/bin/crio --log-level info "$@" >>"$MG/log/crio.log" 2>&1 </dev/null 3>&- &
  echo $! >"$MG/crio.pid"
  disown # a shell reports the end of its children
  wait_for 60 "CRI-O answers" "$CRI" version || { engine_log | tail -20 >&2; return 1; }
}
engine_stop() { crio_end TERM; }
engine_kill() { crio_end KILL; }
crio_end() { # SIGNAL
  local pid
  [[ -f $MG/crio.pid ]] || return 0
  pid=$(<"$MG/crio.pid")
  rm "$MG/crio.pid"
  kill "-$1" "$pid"
  wait_for 30 "CRI-O ends" gone "$pid"
}
engine_log() { cat "$MG/log/crio.log"; }
engine_version() { "$CRI" version | sed -n 's/^runtime_version: "\(.*\)"/\1/p'; }
spec_at() { echo "$CRIO_RUN/vfs-containers/$1/userdata/config.json"; }
image_id() { "${STORAGE[@]}" images --no-trunc --format '{{.ID}}' docker.io/library/bb | sed 's/sha256://'; }

# What its own tests share. user NAME: settings of a user's own, the drop-in NAME from stdin; CRI-O
# runs by them. users_gone: by the suite's again, once its pods have gone by the handlers that made
# them.
D=/etc/crio/crio.conf.d
restart() { engine_stop; engine_back "$@"; }
user() {
  touch "$MG/users"
  crio_node >/etc/crio/crio.conf
  mkdir -p "$(dirname "$D/$1")"
  cat >"$D/$1"
  restart
}
users_gone() {
  engine_clear || true
  [[ -f $MG/users ]] || return 0
  mpsgate configure crio --undo >/dev/null || true
  rm -rf "$D" "$MG/users"
  mkdir "$D"
  crio_settings >/etc/crio/crio.conf
  restart
}
state_of() { "$CRI" call ContainerStatus "container_id: \"$(engine_id "$1")\"" | grep -o 'CONTAINER_[A-Z]*'; }
# free_port: that nobody listens on.
free_port() {
  local port
  until port=$((20000 + RANDOM % 10000)) && ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
  echo "$port"
}

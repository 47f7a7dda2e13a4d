# crio.bash: CRI-O as kubelet uses it (the program cri). $CRIO_BIN holds crio and pinns.
# shellcheck shell=bash disable=SC2034,SC2154 # read by the suite; MG is the sandbox's

CRIO_BIN=${CRIO_BIN:?the folder of crio and pinns}
# shellcheck source=tests/engines/pods.bash
source "$here/pods.bash"
export CRI_SOCKET=/run/crio/crio.sock
HOST_IPC_AT=/var/run/ipcns/ # CRI-O pins namespaces
# A container without its conmon goes on (1.37).
SHIM_ENDS=no
SPEC_NAMES="s#/((ipc|uts|net|user)ns)/[0-9a-f-]{36}#/\\1/UUID#g; $SPEC_NAMES"
CRIO_ROOT=/var/lib/containers/storage CRIO_RUN=/run/containers/storage
STORAGE=(podman --root "$CRIO_ROOT" --runroot "$CRIO_RUN" --storage-driver vfs --cgroup-manager cgroupfs --events-backend none)

# runtime_below: as in mpsgate.bash. CRI-O also gives pause containers a lower oom_score_adj, and all containers limits of huge
# pages; root here may not, and hierarchies without hugetlb cannot.
runtime_below() {
  mkdir -p "$MG/below"
  cat >"$MG/below/runc" <<'SH'
#!/bin/bash
before='' bundle=''
for word; do
  [[ $before != --bundle ]] || bundle=$word
  before=$word
done
if [[ -n $bundle && -f $bundle/config.json ]]; then
  less=$(jq '(if .process.capabilities then .process.capabilities |= map_values(. - ["CAP_SYS_RESOURCE"]) else . end)
    | (if (.process.oomScoreAdj // 0) < 0 then del(.process.oomScoreAdj) else . end) | del(.linux.resources.hugepageLimits)' "$bundle/config.json")
  echo "$less" >"$bundle/config.json"
fi
exec /usr/sbin/runc "$@"
SH
  chmod +x "$MG/below/runc"
  export MG_REAL_RUNTIME=$MG/below/runc
  REAL=$MG_REAL_RUNTIME # what `settings` writes
}

# crio_node: crio.conf without handlers. MKNOD, which Docker and containerd give and CRI-O does not: the suite makes a
# node of the other card, which must not open.
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
# crio_settings: with the suite's two handlers.
crio_settings() {
  local handler program
  crio_node
  echo 'default_runtime = "mpsgate"'
  for handler in mpsgate plain; do
    program=/usr/bin/mpsgate-runtime
    [[ $handler == mpsgate ]] || program=$REAL
    printf '[crio.runtime.runtimes.%s]\nruntime_path = "%s"\nruntime_root = "/run/runc"\n' "$handler" "$program"
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

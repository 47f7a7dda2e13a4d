# containerd.bash: containerd with its default folders (the sandbox's own), for ctr.bash and
# cri.bash.
# shellcheck shell=bash

CONTAINERD_SOCK=/run/containerd/containerd.sock
ctr() { command ctr --address "$CONTAINERD_SOCK" "$@"; }

# containerd_settings: one form that 1.6, 1.7 and 2.1 read. Root here may not lower oom_score_adj;
# there is no CNI, as pods share the host's network.
containerd_settings() {
  local cri='plugins."io.containerd.grpc.v1.cri"' handler program
  cat <<EOF
version = 2
[$cri]
  sandbox_image = "docker.io/library/bb:latest"
  restrict_oom_score_adj = true
[$cri.containerd]
  snapshotter = "native"
  default_runtime_name = "mpsgate"
EOF
  for handler in mpsgate plain; do
    program=/usr/bin/mpsgate-runtime
    [[ $handler == mpsgate ]] || program=$REAL
    cat <<EOF
[$cri.containerd.runtimes.$handler]
  runtime_type = "io.containerd.runc.v2"
  pod_annotations = ["*/*"]
  container_annotations = ["*/*"]
  [$cri.containerd.runtimes.$handler.options]
    BinaryName = "$program"
    SystemdCgroup = $([[ ${MG_SYSTEMD:-0} == 1 ]] && echo true || echo false)
EOF
  done
}

engine_back() {
  mkdir -p "$MG/log" /etc/containerd
  containerd_settings >/etc/containerd/config.toml
  containerd >>"$MG/log/containerd.log" 2>&1 3>&- &
  echo $! >"$MG/containerd.pid"
  disown # a shell reports the end of its children
  wait_for 60 "containerd answers" containerd_answers || { engine_log | tail -20 >&2; return 1; }
}
# CRI comes up after the rest.
containerd_answers() { ctr version && ctr plugins ls | awk '$2 == "cri" { print $NF }' | grep -qx ok; }
engine_stop() { containerd_end TERM; }
engine_kill() { containerd_end KILL; }
containerd_end() { # SIGNAL
  local pid
  [[ -f $MG/containerd.pid ]] || return 0
  pid=$(<"$MG/containerd.pid")
  rm "$MG/containerd.pid"
  kill "-$1" "$pid"
  wait_for 30 "containerd ends" gone "$pid"
}
engine_log() { cat "$MG/log/containerd.log"; }
engine_version() { ctr version | awk '/^Server:/ { seen = 1 } seen && /Version:/ { sub(/^v/, "", $2); print $2; exit }'; }

# import_image NAMESPACE: $MG/rootfs as docker.io/library/bb, in the form of `docker save`.
import_image() {
  local dir=$MG/image digest local=()
  mkdir -p "$dir/layer"
  tar -C "$MG/rootfs" -cf "$dir/layer/layer.tar" .
  digest=$(sha256sum <"$dir/layer/layer.tar" | cut -c1-64)
  jq -n --arg digest "sha256:$digest" '{architecture: "amd64", os: "linux", created: "2026-01-01T00:00:00Z",
    config: {Env: ["PATH=/bin:/usr/bin"], Cmd: ["sleep", "2147483647"]}, rootfs: {type: "layers", diff_ids: [$digest]},
    history: [{created: "2026-01-01T00:00:00Z"}]}' >"$dir/config.json"
  echo '[{"Config": "config.json", "RepoTags": ["bb:latest"], "Layers": ["layer/layer.tar"]}]' >"$dir/manifest.json"
  tar -C "$dir" -cf "$MG/image.tar" manifest.json config.json layer/layer.tar
  # containerd 2 would have its own service unpack it, which knows no snapshotter but the default
  # one.
  ctr images import --help | grep -q -- --local && local=(--local)
  ctr -n "$1" images import "${local[@]}" --snapshotter native "$MG/image.tar" >/dev/null
  rm -rf "$dir" "$MG/image.tar"
}

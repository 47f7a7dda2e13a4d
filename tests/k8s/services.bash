# services.bash: what the pods of a chart need besides the cluster of cluster.bash: Services with an
# address and a name, accounts with their tokens, NVIDIA's runtime, a systemctl, and the images. It
# stands for kube-proxy, a DNS server and NVIDIA's toolkit.
# shellcheck shell=bash

# shellcheck source=tests/k8s/cluster.bash
source "${BASH_SOURCE[0]%/*}/cluster.bash"

SERVICE_NET=10.96.0.0/16

# services_before: to be called before cluster_start.
services_before() {
  # Accounts' tokens in pods, and what makes the objects that a chart installs.
  API_SERVER_OPTIONS=(--disable-admission-plugins=DefaultStorageClass)
  CONTROLLERS='*'
  CONTROLLER_OPTIONS=(--root-ca-file "$K8S/pki/apiserver.crt")
  KUBELET_LINES=$(printf 'clusterDNS: ["%s"]\nclusterDomain: cluster.local' "$NODE_IP")
  POD_ROUTES="[{\"dst\": \"$SERVICE_NET\"}]"
  nvidia_toolkit
}

services_start() {
  : >"$K8S/services.names"
  begin names "$MG_REPO/tests/k8s/names" "$NODE_IP" "$K8S/services.names"
  begin services services_follow
}
services_stop() {
  end systemd
  end services
  end service-proxy
  pkill -KILL -x haproxy || true # workers of before a reload
  end names
}

# services_follow: each Service's address on this node, and a proxy there that leads to its ready
# pods; anew when they change.
services_follow() {
  local seen='' now address
  while :; do
    now=$(kubectl get services,endpointslices.discovery.k8s.io -A -o json 2>/dev/null | jq -r --arg server "127.0.0.1:$(<"$K8S/port")" '
      [.items[] | select(.kind == "EndpointSlice")] as $slices
      | .items[] | select(.kind == "Service" and .spec.clusterIP != "None" and .spec.clusterIP != null)
      | . as $service | .spec.ports[] | . as $port
      | [$slices[] | select(.metadata.namespace == $service.metadata.namespace and .metadata.labels["kubernetes.io/service-name"] == $service.metadata.name)
          | ([.ports[]? | select((.name // "") == ($port.name // "")).port][0]) as $to
          | .endpoints[]? | select(.conditions.ready != false) | "\(.addresses[0]):\($to)"] as $pods
      | "\($service.metadata.name).\($service.metadata.namespace) \($service.spec.clusterIP) \($port.port) \(if $service.metadata.name == "kubernetes" then $server else $pods | join(" ") end)"' | sort)
    if [[ -n $now && $now != "$seen" ]]; then
      seen=$now
      awk '{ print $1, $2 }' <<<"$now" | sort -u >"$K8S/services.names"
      while read -r address; do ip addr add "$address/32" dev lo 2>/dev/null || true; done < <(awk '{ print $2 }' <<<"$now" | sort -u)
      {
        printf 'global\n  hard-stop-after 1s\ndefaults\n  mode tcp\n  timeout connect 2s\n  timeout client 1h\n  timeout server 1h\n'
        awk '{ printf "listen %s-%s\n  bind %s:%s\n", $1, $3, $2, $3; for (i = 4; i <= NF; i++) printf "  server s%d %s\n", i, $i }' <<<"$now"
      } >"$K8S/services.cfg"
      if [[ -f $K8S/service-proxy.pid ]]; then
        kill -USR2 "$(<"$K8S/service-proxy.pid")"
      else
        begin service-proxy haproxy -W -f "$K8S/services.cfg"
      fi
    fi
    sleep 0.5
  done
}

# nvidia_toolkit: the handler's program, which brings in what NVIDIA's does for the variables of a
# container: the driver's libraries, MPS' programs (the server's where MPS_SERVER is one), the nodes
# of cards.
# tests/e2e/toolkit_chains.bats says whose source that is.
nvidia_toolkit() {
  cat >/usr/bin/nvidia-container-runtime <<SH
#!/bin/bash
nvml=$NVML control=$(control_program) server=${MPS_SERVER:-} uvm=$MG_UVM_MAJOR low=${MG_REAL_RUNTIME:-runc}
SH
  cat >>/usr/bin/nvidia-container-runtime <<'SH'
bundle=. create='' before=''
for word; do
  case $before in -b | --bundle) bundle=$word ;; *) [[ $word != create ]] || create=1 ;; esac
  before=$word
done
if [[ -n $create ]]; then
  spec=$bundle/config.json
  names=$(jq -r '[.process.env[]? | select(startswith("NVIDIA_VISIBLE_DEVICES="))][-1] // "" | sub("^[^=]*="; "")' "$spec")
  if [[ -n $names && $names != *void* && $names != none ]]; then
    if [[ $names == all ]]; then minors=(0 1); else minors=("${names: -1}"); fi
    edited=$(jq --arg nvml "$nvml" --arg control "$control" --arg server "$server" --argjson uvm "$uvm" '
      def bind($from; $to): {destination: $to, source: $from, type: "bind", options: ["rw", "nosuid", "nodev", "rbind", "rprivate"]};
      [($ARGS.positional[] | tonumber | {path: "/dev/nvidia\(.)", major: 195, minor: .}),
       {path: "/dev/nvidiactl", major: 195, minor: 255}, {path: "/dev/nvidia-uvm", major: $uvm, minor: 0}] as $nodes
      | ([.linux.devices[]?.path]) as $there
      | .linux.devices += [$nodes[] | select(.path | IN($there[]) | not) | . + {type: "c"}]
      | .linux.resources.devices += [$nodes[] | {allow: true, type: "c", major, minor, access: "rwm"}]
      | .mounts += [bind($nvml; "/nvml"), bind("\($nvml)/libnvidia-ml.so.1"; "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"), bind($control; "/usr/bin/nvidia-cuda-mps-control"),
         if $server == "" then empty else bind($server; "/usr/bin/nvidia-cuda-mps-server") end]
      | .process.env += ["MPSGATE_FAKE_NVML=/nvml/nvml.json"]' "$spec" --args "${minors[@]}")
    echo "$edited" >"$spec"
  fi
fi
exec "$low" "$@"
SH
  chmod 755 /usr/bin/nvidia-container-runtime
}

# systemctl of a node: `restart containerd`, written down in $K8S/systemctl.log. Who asks waits;
# what starts the daemon is the file's own, as systemd is nobody's child.
node_systemctl() {
  cat >/usr/bin/systemctl <<SH
#!/bin/bash
echo "\$@" >>"$K8S/systemctl.log"
[[ "\$*" == "restart containerd" ]] || exit 0
touch "$K8S/systemctl.ask"
for ((i = 0; i < 600; i++)); do [[ -e "$K8S/systemctl.ask" ]] || exit 0; sleep 0.1; done
exit 1
SH
  chmod 755 /usr/bin/systemctl
  : >"$K8S/systemctl.log"
  begin systemd systemctl_serve
}
systemctl_serve() {
  while :; do
    if [[ -e $K8S/systemctl.ask ]]; then
      containerd_stop
      containerd_start
      rm "$K8S/systemctl.ask"
    fi
    sleep 0.1
  done
}

# chart_images: mpsgate's, of packaging/container/Containerfile on this machine's C library, in the
# node's store as $1; and what the chart takes from registry.k8s.io, in the registry.
chart_images() {
  local base=$MG/base store=(--root "$MG/podman" --runroot "$MG/podman-run" --storage-driver vfs --cgroup-manager cgroupfs --events-backend file) local=()
  mkdir -p "$base"
  ldd "$MG_OUT"/{mpsgated,mpsgate,mpsgate-scheduler} "$(control_program)" | grep -oE '/[^ ]+\.so[^ ]*' | sort -u | xargs -I{} cp -L --parents {} "$base"
  tar -C "$base" -cf "$MG/base.tar" .
  podman "${store[@]}" import -q "$MG/base.tar" localhost/base >/dev/null
  podman "${store[@]}" build -q --build-arg BASE=localhost/base -f "$MG_REPO/packaging/container/Containerfile" -t "$1" "$MG_OUT" >/dev/null
  podman "${store[@]}" save -q --format docker-archive -o "$MG/mpsgate.tar" "$1"
  ctr images import --help | grep -q -- --local && local=(--local)
  ctr --address "$CONTAINERD_SOCK" -n k8s.io images import "${local[@]}" --snapshotter native "$MG/mpsgate.tar" >/dev/null
  rm -rf "$base" "$MG/base.tar" "$MG/mpsgate.tar"
  umount "$MG/podman/vfs" 2>/dev/null || true
  rm -rf "$MG/podman"
  mkdir -p "$MG/kube-scheduler/usr/bin"
  cp "$(command -v kube-scheduler)" "$MG/kube-scheduler/usr/bin/"
  # What a program needs that was not linked statically.
  { ldd "$(command -v kube-scheduler)" || true; } 2>/dev/null | { grep -oE '/[^ ]+\.so[^ ]*' || true; } | xargs -r -I{} cp -L --parents {} "$MG/kube-scheduler"
  image "kube-scheduler:$(kube-scheduler --version | awk '{ print $2 }')" "$MG/kube-scheduler"
  rm -rf "$MG/kube-scheduler"
}

# helm_ ARG...: Helm, with what it keeps in $K8S.
helm_() {
  HELM_CACHE_HOME=$K8S/helm HELM_CONFIG_HOME=$K8S/helm HELM_DATA_HOME=$K8S/helm "$MG_HELM" "$@"
}

# from_readme WORDS: README's one line that begins so, for this node and its registry.
from_readme() {
  local line
  line=$(grep -- "^$1" "$MG_REPO/README.md" | sed "s|REGISTRY/|$REGISTRY/|g; s|\bNODE\b|$NODE_NAME|g; s|  *#.*||")
  [[ $(wc -l <<<"$line") == 1 && -n $line ]] || fail "README has no one line that begins with $1"
  echo "$line"
}

# cluster.bash: a Kubernetes of one node in the sandbox: etcd, API server, scheduler, controller
# manager, containerd with mpsgate-runtime as its default handler (as `mpsgate configure containerd`
# makes it), kubelet; mpsgated with simulated cards. tests/k8s/run says where the programs are
# ($MG_K8S_PATH).
#
# Each part has its own verb, as tests take one of them away: api_start, api_stop; control_start,
# control_stop (scheduler and controller manager); containerd_start, containerd_stop; kubelet_start,
# kubelet_stop [SIGNAL]. cluster_start, cluster_stop: all. Pods have a network of their own, a
# bridge in the file's network namespace (run makes it). Their image is `bb`, busybox; other names
# come from a registry on loopback (`image`).
# shellcheck shell=bash

# shellcheck source=tests/e2e/mpsgate.bash
source "${BASH_SOURCE[0]%/*}/../e2e/mpsgate.bash"

K8S=$MG/k8s
BEGUN=$K8S
NODE_NAME=node1
NODE_IP=10.88.0.1
REGISTRY=127.0.0.1:5000
CONTAINERD_SOCK=/run/containerd/containerd.sock
export KUBECONFIG=$K8S/admin.kubeconfig
# Those of the cluster's version, before what the machine may have.
PATH=$MG_K8S_PATH:$PATH

# takes PROGRAM WORD: whether its command line has this option.
takes() { [[ $("$1" --help 2>&1) == *" $2"[\ =,]* ]]; }
# knows PROGRAM WORD: whether its settings may have this key. A Go program has the names of all its
# fields in it.
knows() { grep -qE "\"$2[\",]" "$(command -v "$1")"; }
# offers PATH [JQ]: whether the API server answers there, and what it answers passes the filter.
offers() { kubectl get --raw "$1" 2>/dev/null | jq -e "${2:-.}" >/dev/null; }
# has_field TYPE FIELD: whether objects of this type of the core group have it, by the API server's
# own description.
has_field() { offers /openapi/v2 ".definitions[\"io.k8s.api.core.v1.$1\"].properties | has(\"$2\")"; }

api_start() {
  mkdir -p "$K8S/log"
  : >"$K8S/log/api.log"
  begin api "$MG_REPO/tests/k8s/api-server" "$K8S" "${API_SERVER_OPTIONS[@]}"
  wait_for 180 "the API server is ready" grep -qx ready "$K8S/log/api.log" || { tail -n 20 "$K8S"/log/*.log >&2; return 1; }
  K8S_PORT=$(<"$K8S/port")
}
api_stop() { end api; }
# What a file may add before cluster_start: options of API server and controllers, lines of the
# kubelet's settings, routes of pods.
API_SERVER_OPTIONS=() CONTROLLER_OPTIONS=() KUBELET_LINES='' POD_ROUTES='[]'

control_start() {
  local port=() written=$K8S/scheduler.default
  K8S_PORT=$(<"$K8S/port")
  rm -f "$written"
  kube-scheduler --kubeconfig "$KUBECONFIG" --write-config-to "$written" >/dev/null 2>&1 || true
  takes kube-scheduler --port && port=(--port 0)
  cat >"$K8S/scheduler.yaml" <<YAML
$(grep ^apiVersion: "$written")
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: $KUBECONFIG}
leaderElection: {leaderElect: false}
$(cat "$K8S/extenders.yaml" 2>/dev/null || true)
YAML
  begin scheduler kube-scheduler --config "$K8S/scheduler.yaml" --authentication-skip-lookup --bind-address 127.0.0.1 \
    "${port[@]}" --secure-port $((K8S_PORT + 3)) --cert-dir "$K8S/pki/scheduler"
  # Only what pods and jobs need, unless a file says otherwise.
  begin controllers kube-controller-manager --kubeconfig "$KUBECONFIG" --leader-elect=false --bind-address 127.0.0.1 \
    "${port[@]}" --secure-port $((K8S_PORT + 4)) --cert-dir "$K8S/pki/controllers" --authentication-skip-lookup \
    --service-account-private-key-file "$K8S/pki/sa.key" --controllers "${CONTROLLERS:-job,namespace,serviceaccount,nodelifecycle,podgc,daemonset,statefulset,garbagecollector}" "${CONTROLLER_OPTIONS[@]}"
}
control_stop() {
  end scheduler
  end controllers
}

# Debian's file, and what this machine needs: no overlayfs on overlayfs, no lower oom_score_adj, no
# registry but ours.
containerd_settings() {
  mkdir -p /etc/containerd/certs.d/_default
  cat >/etc/containerd/config.toml <<'TOML'
version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = "docker.io/library/bb:latest"
    restrict_oom_score_adj = true
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"
    [plugins."io.containerd.grpc.v1.cri".registry]
      config_path = "/etc/containerd/certs.d"
    [plugins."io.containerd.grpc.v1.cri".containerd]
      snapshotter = "native"
TOML
  # Those that pull by their own service have it unpack, which knows no snapshotter but the default
  # one.
  [[ $(containerd config default) != *use_local_image_pull* ]] ||
    printf '  [plugins."io.containerd.cri.v1.images"]\n    use_local_image_pull = true\n' >>/etc/containerd/config.toml
  printf '[host."http://%s"]\n  capabilities = ["pull", "resolve"]\n' "$REGISTRY" >/etc/containerd/certs.d/_default/hosts.toml
}

# A bridge of Debian's CNI plugins. It is there before the first pod, as its address is the node's.
network_start() {
  ip link add cni0 type bridge
  ip addr add "$NODE_IP/24" dev cni0
  ip link set cni0 up
  echo "$NODE_IP $NODE_NAME" >>/etc/hosts
  mkdir -p /etc/cni/net.d
  rm -f /etc/cni/net.d/*
  jq -n --arg subnet "${NODE_IP%.*}.0/24" --argjson routes "$POD_ROUTES" '{cniVersion: "0.4.0", name: "pods", plugins: [
    {type: "bridge", bridge: "cni0", isGateway: true, ipam: {type: "host-local", subnet: $subnet, routes: $routes}}]}' >/etc/cni/net.d/10-pods.conflist
}

# image NAME:TAG [LAYER...]: into the registry, of the rootfs and what directories add to it.
image() {
  local name=${1%:*} tag=${1##*:} dir=$K8S/registry layers='[]' layer digest
  shift
  mkdir -p "$dir/blobs" "$dir/$name/manifests"
  for layer in "$MG/rootfs" "$@"; do
    tar -C "$layer" --sort=name --mtime=@0 -cf "$K8S/layer.tar" .
    digest=$(blob "$K8S/layer.tar")
    layers=$(jq -c --arg digest "$digest" --argjson size "$(stat -c %s "$dir/blobs/$digest")" \
      '. + [{mediaType: "application/vnd.oci.image.layer.v1.tar", digest: $digest, size: $size}]' <<<"$layers")
  done
  jq -n --argjson layers "$layers" '{architecture: "amd64", os: "linux", config: {Env: ["PATH=/bin:/usr/bin"], Cmd: ["sleep", "600"]},
    rootfs: {type: "layers", diff_ids: [$layers[].digest]}}' >"$K8S/config.json"
  digest=$(blob "$K8S/config.json")
  jq -n --argjson layers "$layers" --arg digest "$digest" --argjson size "$(stat -c %s "$dir/blobs/$digest")" '{schemaVersion: 2,
    mediaType: "application/vnd.oci.image.manifest.v1+json",
    config: {mediaType: "application/vnd.oci.image.config.v1+json", digest: $digest, size: $size}, layers: $layers}' >"$K8S/manifest.json"
  digest=sha256:$(sha256sum <"$K8S/manifest.json" | cut -c1-64)
  mv "$K8S/manifest.json" "$dir/$name/manifests/$digest"
  ln -sfn "$digest" "$dir/$name/manifests/$tag"
}
blob() { # FILE: moves it there; prints its digest
  local digest
  digest=sha256:$(sha256sum <"$1" | cut -c1-64)
  mv "$1" "$K8S/registry/blobs/$digest"
  echo "$digest"
}

containerd_start() {
  begin containerd containerd
  wait_for 60 "containerd's CRI answers" cri_answers || { tail -n 20 "$K8S/log/containerd.log" >&2; return 1; }
}
cri_answers() { ctr --address "$CONTAINERD_SOCK" plugins ls | awk '$2 == "cri" { print $NF }' | grep -qx ok; }
containerd_stop() { end containerd "$@"; }

kubelet_start() {
  local runtime=()
  K8S_PORT=$(<"$K8S/port")
  ! takes kubelet --container-runtime || runtime+=(--container-runtime remote)
  ! takes kubelet --container-runtime-endpoint || runtime+=(--container-runtime-endpoint "unix://$CONTAINERD_SOCK")
  cat >"$K8S/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
address: 0.0.0.0
port: $((K8S_PORT + 5))
healthzPort: $((K8S_PORT + 6))
readOnlyPort: 0
staticPodPath: $K8S/manifests
cgroupDriver: cgroupfs
cgroupRoot: $MG_CGROUP
enforceNodeAllocatable: []
failSwapOn: false
evictionHard: {}
imageGCHighThresholdPercent: 100
syncFrequency: 5s
nodeStatusUpdateFrequency: 2s
$(! knows kubelet containerRuntimeEndpoint || echo "containerRuntimeEndpoint: unix://$CONTAINERD_SOCK")
$(! knows kubelet failCgroupV1 || echo "failCgroupV1: false")
$KUBELET_LINES
YAML
  mkdir -p "$K8S/manifests"
  cgroup_root
  date +%s%3N >"$K8S/kubelet.since"
  begin kubelet kubelet --config "$K8S/kubelet.yaml" --kubeconfig "$KUBECONFIG" --root-dir /var/lib/kubelet --cert-dir "$K8S/pki/kubelet" \
    "${runtime[@]}" --hostname-override "$NODE_NAME" --v 2
}
# Below the sandbox's own, which is removed with it: pods as kubelets have them, in
# kubepods/QOS/pod<uid>.
cgroup_root() {
  local root roots=(/sys/fs/cgroup/*/)
  [[ ! -f /sys/fs/cgroup/cgroup.controllers ]] || roots=(/sys/fs/cgroup)
  for root in "${roots[@]}"; do mkdir -p "$root$MG_CGROUP"; done
}
# A kubelet that was started again has no devices until the plugin registers, and fails for good the
# pods that come before (UnexpectedAdmissionError), while the node still shows what the last one
# wrote.
has_devices() {
  status_json | jq -se --argjson since "$(<"$K8S/kubelet.since")" '.[0].device_plugin | length > 0 and all(.[]; (.registered_ms // 0) > $since)'
}
kubelet_stop() { end kubelet "$@"; }

# A kubelet that finds containerd or the API server too slow gives up; systemd would start it again.
node_ready() {
  ! gone "$(<"$K8S/kubelet.pid")" || kubelet_start
  [[ $(kubectl get node "$NODE_NAME" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}') == True ]]
}
node_untainted() { [[ -z $(kubectl get node "$NODE_NAME" -o 'jsonpath={.spec.taints}') ]]; }

# cluster_start: all, until the node takes pods.
cluster_start() {
  local begin=$SECONDS api
  mkdir -p "$K8S"
  mount -t tmpfs log /var/log # the kubelet's place for pods' output is built in
  network_start
  runtime_below
  node_start
  containerd_settings
  mpsgate configure containerd --write >"$K8S/configure.out"
  api_start & # beside containerd
  api=$! # not the last one of those that come below
  begin registry "$MG_REPO/tests/k8s/registry" "$K8S/registry" "${REGISTRY#*:}"
  containerd_start
  [[ -d $MG/rootfs ]] || rootfs "$MG/rootfs"
  import_image k8s.io
  wait "$api"
  control_start
  kubelet_start
  wait_for 180 "the node is ready" node_ready || { cluster_log; return 1; }
  wait_for 180 "the node takes pods" node_untainted || { cluster_log; return 1; }
  echo "# the cluster came up in $((SECONDS - begin)) s" >&3
}

# cluster_stop: pods first, while there is who ends them.
cluster_stop() {
  pods_clear
  kubelet_stop
  control_stop
  containerd_stop
  end registry
  api_stop
  node_stop
  # Of pods that could not be cleared: they hold what bats waits for the end of. The sandbox has its
  # own processes alone.
  pkill -KILL containerd-shim || true
}

# The default set-up: one cluster for the file, whose API server mpsgated follows; each test leaves
# it without pods and with all memory free. A file defines after `load cluster` what it does
# otherwise.
setup_file() {
  cluster_start
  cluster_follow
}
teardown_file() { cluster_stop; }
teardown() {
  explain_cluster
  cluster_reset
}
explain_cluster() {
  explain_failure
  [[ ${BATS_TEST_COMPLETED:-} == 1 ]] || cluster_log
}
# After an outage of the API server mpsgated hears of a pod's end when its watch is back.
cluster_reset() {
  pods_clear
  wait_for 60 "all memory free" is_free || { status_json >&2; return 1; }
}

cluster_log() {
  kubectl get pods,events -A >&2 || true
  local name
  for name in apiserver scheduler controllers containerd kubelet; do
    echo "--- $name"
    # Of Go's programs the errors, and what one died of, which it may say without a mark.
    grep -hE '^[EF][0-9]{4} |^panic|level=(error|fatal)' "$K8S/log/$name.log" | tail -n 12 | cut -c1-500
    tail -n 2 "$K8S/log/$name.log" | cut -c1-300
  done >&2
}

# image of tests/engines: $MG/rootfs as docker.io/library/bb.
import_image() { (
  # shellcheck source=/dev/null
  source "$MG_REPO/tests/engines/containerd.bash"
  import_image "$@"
); }

# The node after a power cut: all that ran on it is gone, /run is empty of it, disks and control
# plane are as they were.
node_crash() {
  local pid mount
  kubelet_stop KILL
  for pid in $(ctr --address "$CONTAINERD_SOCK" -n k8s.io tasks ls | awk 'NR > 1 { print $2 }') $(pgrep -f '/containerd-shim'); do
    kill -KILL "$pid" 2>/dev/null || true
  done
  containerd_stop KILL
  daemon_stop KILL
  mps_kill
  while read -r mount; do umount -l "$mount"; done < <(awk '$5 ~ "^/(run/(containerd|netns)|var/lib/kubelet)/" { print $5 }' /proc/self/mountinfo | tac)
  rm -rf /run/containerd /run/netns /run/mpsgate
}
node_boot() {
  containerd_start
  daemon_start
  kubelet_start
}

# --- access for mpsgated --------------------------------------------------------------------------

# cluster_api_access [CONFIG LINE...]: a service account with the rights of the chart's, and its
# kubeconfig in /etc/mpsgate/kubeconfig; the lines go into the [kubernetes] section of mpsgated's
# settings.
cluster_api_access() {
  cluster_role mpsgated mpsgate
  (umask 077 && service_account_kubeconfig mpsgated >/etc/mpsgate/kubeconfig)
  (($# == 0)) || { echo '[kubernetes]'; printf '%s\n' "$@"; } >>/etc/mpsgate/config.toml
}
# cluster_role NAME ROLE: a service account with the rights of one ClusterRole of the chart.
cluster_role() {
  kubectl create serviceaccount -n kube-system "$1" >/dev/null
  jq -n --arg name "$1" --argjson rules "$(rules_of ClusterRole "$2")" '{apiVersion: "rbac.authorization.k8s.io/v1", kind: "ClusterRole", metadata: {name: $name}, rules: $rules}' |
    kubectl create -f - >/dev/null
  kubectl create clusterrolebinding "$1" --clusterrole "$1" --serviceaccount "kube-system:$1" >/dev/null
}
service_account_kubeconfig() { # NAME [SPEC of the TokenRequest]
  local token spec=${2:-}
  token=$(kubectl create -f - --raw "/api/v1/namespaces/kube-system/serviceaccounts/$1/token" \
    <<<"{\"apiVersion\": \"authentication.k8s.io/v1\", \"kind\": \"TokenRequest\", \"spec\": ${spec:-null}}" | jq -r .status.token)
  sed "s|user: {token: .*}}|user: {token: $token}}|" "$KUBECONFIG"
}
# chart_object KIND NAME: one that the chart has for claims alone, as tests/chart renders it.
chart_object() {
  awk -v RS='---\n' -v kind="\nkind: $1\n" -v name="\n  name: $2\n" 'index($0, kind) && index($0, name)' "$MG_REPO/tests/chart/golden/dra.diff"
}
# rules_of KIND NAME: of a role of the chart, as tests/chart renders it.
rules_of() {
  awk -v RS='---\n' -v kind="\nkind: $1\n" -v name="\n  name: $2\n" 'index($0, kind) && index($0, name) { print; exit }' \
    "$MG_REPO"/tests/chart/golden/{cluster.yaml,dra.diff} |
    kubectl create --dry-run=client -o json -f - | jq -ce .rules
}

# cluster_follow [LABEL...]: mpsgated follows the API server from here on, and the node is mpsgate's
# by its label.
cluster_follow() {
  cluster_api_access 'kubeconfig = "/etc/mpsgate/kubeconfig"' "node_name = \"$NODE_NAME\""
  label ack.node.gpu.schedule=mps "$@"
  daemon_stop
  daemon_start
  wait_for 60 "the API server is followed" is_followed
}
is_followed() { status_json | jq -se '.[0].api_server | . != null and .problem == null'; }
label() { kubectl label --overwrite node "$NODE_NAME" "$@" >/dev/null; } # NAME=VALUE... | NAME-

# --- pods -----------------------------------------------------------------------------------------

# pod NAME [JQ [ARG...]]: makes a pod that sleeps, never restarted; changed by a filter that sees
# ARG... as $ARGS.
pod() {
  local name=$1 filter=${2:-.}
  shift $(($# < 2 ? $# : 2))
  jq -n --arg name "$name" '{apiVersion: "v1", kind: "Pod", metadata: {name: $name}, spec: {
      restartPolicy: "Never", terminationGracePeriodSeconds: 1, enableServiceLinks: false, automountServiceAccountToken: false,
      containers: [{name: "main", image: "bb", imagePullPolicy: "Never", command: ["sleep", "600"]}]}}' |
    jq "$filter" --args "$@" | "${POD_TO[@]}"
}
POD_TO=(kubectl create -o name -f -) # or cat, to have it as text
pod_is() { [[ $(kubectl get pod "$2" -o 'jsonpath={.status.phase}') == "$1" ]]; } # PHASE NAME
# pod_says NAME TEXT: as its user reads it.
pod_says() { kubectl describe pod "$1" | grep -F -- "$2"; }
# pod_refused NAME CODE: `kubectl describe pod` shows the runtime's refusal. Its container's state
# and mpsgated's event come in either order.
pod_refused() { pod_says "$1" "mpsgate: refused container" && pod_says "$1" "[$2]"; }
# sample NAME: a page's sample as it is shipped, for this node.
sample() {
  sed "s/<NODE_NAME>/$NODE_NAME/" "$MG_REPO/packaging/kubernetes/samples/$1.yaml"
}

# asks NAME GIB [JQ [ARG...]]: a pod that asks for GPU memory as users do.
asks() {
  local name=$1 filter=${3:-.} gib=$2
  shift $(($# < 3 ? $# : 3))
  pod "$name" ".spec.hostIPC = true | .spec.containers[0].resources.limits[\"aliyun.com/gpu-mem\"] = \"$gib\" | $filter" "$@"
}
# stateful_set NAME REPLICAS GIB: NAME-0 and so on, made again when they are deleted.
stateful_set() {
  local POD_TO=(cat)
  asks x "$3" 'del(.spec.restartPolicy)' | jq --arg name "$1" --argjson replicas "$2" '{apiVersion: "apps/v1", kind: "StatefulSet", metadata: {name: $name},
    spec: {serviceName: $name, replicas: $replicas, podManagementPolicy: "Parallel", selector: {matchLabels: {app: $name}},
      template: {metadata: {labels: {app: $name}}, spec}}}' | kubectl create -f - >/dev/null
}
allocatable() { kubectl get node "$NODE_NAME" -o json | jq -r --arg name "${1:-aliyun.com/gpu-mem}" '.status.allocatable[$name]'; } # [RESOURCE]
has_allocatable() { [[ $(allocatable "${2:-}") == "$1" ]]; }                                                                    # N [RESOURCE]
memory_of_grants() { status_json | jq -c '[.grants[].memory_mib] | sort'; }
grants_are() { [[ $(memory_of_grants) == "$1" ]]; }
# the_init: pid of the only container with a grant; a reservation has its runtime's.
the_init() { status_json | jq '.grants[] | select(.state == "active").pid'; }
another_init() { local pid; pid=$(the_init); [[ $pid =~ ^[0-9]+$ && $pid != "$1" ]]; } # THAN
# container_of POD [CONTAINER]: its id, as the runtime has it.
container_of() {
  kubectl get pod "$1" -o json | jq -r --arg name "${2:-main}" '.status | .initContainerStatuses[]?, .containerStatuses[]? | select(.name == $name).containerID | sub(".*/"; "")'
}
grant_of() { grant "$(container_of "$1" "${3:-main}")" "$2"; } # POD FIELD [CONTAINER]
uid_of() { kubectl get pod "$1" -o 'jsonpath={.metadata.uid}'; }
# token_of POD: what the device plugin gave its container, which only root can read.
token_of() { jq -r '.annotations["mpsgate.io/grant"]' "/run/containerd/io.containerd.runtime.v2.task/k8s.io/$(container_of "$1")/config.json"; }
# pod_env POD [CONTAINER]: of its program.
pod_env() { kubectl exec "$1" -c "${2:-main}" -- cat /proc/1/environ | tr '\0' '\n'; }

# What ended stays in containerd's list until the kubelet cleans up, once a minute.
pods_gone() { [[ -z $(kubectl get pods -A -o name) && -z $(ctr --address "$CONTAINERD_SOCK" -n k8s.io tasks ls | awk 'NR > 1 && $3 != "STOPPED"') ]]; }
# By force: an older kubelet takes up to a minute until it has deleted a pod whose containers are
# long gone.
pods_clear() {
  rm -f "$K8S"/manifests/*
  kubectl delete statefulsets,daemonsets,jobs,pods -A --all --wait=false --force --grace-period 0 >/dev/null 2>&1 || true
  wait_for 60 "all pods and their containers are gone" pods_gone || { cluster_log; return 1; }
}

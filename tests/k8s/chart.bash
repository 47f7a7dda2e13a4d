# chart.bash: a node before mpsgate, the chart's images, and the pods of its release.
# shellcheck shell=bash

# shellcheck source=tests/k8s/services.bash
source "${BASH_SOURCE[0]%/*}/services.bash"

NS=mpsgate-system

teardown() {
  [[ ${BATS_TEST_COMPLETED:-} == 1 || -n $K8S_SKIP ]] && return 0
  cluster_log
  local pod
  for pod in $(kubectl get pods -n "$NS" -o name); do
    echo "--- $pod" >&2
    kubectl describe -n "$NS" "$pod" | tail -n 12 >&2
    kubectl logs -n "$NS" "$pod" --all-containers --tail 15 >&2
  done
  tail -n 5 "$K8S/log/services.log" "$K8S/log/service-proxy.log" >&2
}

# plain_cluster_start: cluster_start without mpsgate on the node, whose handlers are runc, and
# NVIDIA's.
plain_cluster_start() {
  mount -t tmpfs log /var/log
  network_start
  containerd_settings
  cat >>/etc/containerd/config.toml <<TOML
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "${MG_REAL_RUNTIME:-}"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
        BinaryName = "/usr/bin/nvidia-container-runtime"
TOML
  api_start
  begin registry "$MG_REPO/tests/k8s/registry" "$K8S/registry" "${REGISTRY#*:}"
  containerd_start
  rootfs "$MG/rootfs"
  import_image k8s.io
  control_start
  kubelet_start
  wait_for 180 "the node is ready" node_ready || { cluster_log; return 1; }
  wait_for 180 "the node takes pods" node_untainted || { cluster_log; return 1; }
}

# chart_node_start, chart_node_stop: such a node, for the chart; its images, and what its pods need.
chart_node_start() {
  mkdir -p "$K8S/pki"
  runtime_below
  sim_cards
  services_before
  rm -rf /etc/mpsgate /var/lib/mpsgate /usr/bin/mpsgate*
  plain_cluster_start
  node_systemctl
  services_start
  chart_images "$REGISTRY/mpsgate:0.1.0"
}
chart_node_stop() {
  pods_clear || true
  kubelet_stop
  control_stop
  containerd_stop
  end registry
  api_stop
  mps_kill
  # Of pods that a failed test has left, as in cluster_stop.
  pkill -KILL containerd-shim || true
}

# all_ready [HOW MANY]: every pod of the release, and there are so many.
all_ready() {
  kubectl get pods -n "$NS" -o json | jq -e --argjson many "${1:-6}" '[.items[] | select(.metadata.deletionTimestamp == null) | all(.status.conditions[]?; .type != "Ready" or .status == "True") and .status.phase == "Running"]
    | length >= $many and all'
}
mpsgated_pod() { kubectl get pods -n "$NS" -l app.kubernetes.io/component=mpsgated -o json | jq -r '[.items[] | select(.metadata.deletionTimestamp == null).metadata.name] | if length == 1 then .[0] else "" end'; }
in_mpsgated() { kubectl exec -n "$NS" "$(mpsgated_pod)" -c mpsgated -- "$@"; }
status_json() { in_mpsgated mpsgate status -o json; }
settled_at() { # mpsgated's pod of the newest settings is ready, and the node has its cards
  kubectl rollout status -n "$NS" daemonset/mpsgate --timeout 1s && has_allocatable 30
}

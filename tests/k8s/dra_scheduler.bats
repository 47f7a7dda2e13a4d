#!/usr/bin/env bats
# mpsgate-scheduler scores nodes for pods with claims: kube-scheduler and its claims decide where a
# pod may go, the extender how well a node suits. Nobody runs on these nodes: their annotations and
# ResourceSlices are written here.

load scheduler

setup_file() {
  K8S_SKIP=''
  [[ -n ${MPSGATE_K8S_BIN:-} ]] || K8S_SKIP="MPSGATE_K8S_BIN names no Kubernetes, and Debian's 1.20 has no resource.k8s.io"
  export K8S_SKIP
  [[ -z $K8S_SKIP ]] || return 0
  cluster_start
  offers /apis/resource.k8s.io/v1 || { K8S_SKIP="this API server has no resource.k8s.io/v1"; return 0; }
  chart_object DeviceClass shared-gpu.mpsgate.io | kubectl create -f - >/dev/null
  cluster_follow
  extender_start
  jq -n --argjson rules "$(rules_of ClusterRole mpsgate-scheduler-dra)" '{apiVersion: "rbac.authorization.k8s.io/v1", kind: "ClusterRole",
    metadata: {name: "mpsgate-scheduler-dra"}, rules: $rules}' | kubectl create -f - >/dev/null
  kubectl create clusterrolebinding mpsgate-scheduler-dra --clusterrole mpsgate-scheduler-dra --serviceaccount kube-system:mpsgate-scheduler >/dev/null
  cat >>"$K8S/extenders.yaml" <<YAML
- urlPrefix: $EXTENDER/mpsgate
  prioritizeVerb: prioritize-claims
  weight: 10
  nodeCacheCapable: true
  httpTimeout: 10s
  ignorable: true
YAML
  control_stop
  CONTROLLERS=job,namespace,serviceaccount,podgc,statefulset,garbagecollector,resourceclaim-controller control_start
  jq -n '{apiVersion: "resource.k8s.io/v1", kind: "ResourceClaimTemplate", metadata: {name: "two"},
    spec: {spec: {devices: {requests: [{name: "gpu", exactly: {deviceClassName: "shared-gpu.mpsgate.io", capacity: {requests: {memory: "2Gi"}}}}]}}}}' |
    kubectl create -f - >/dev/null
}

teardown_file() {
  [[ -z $K8S_SKIP ]] || return 0
  extender_stop
  cluster_stop
}

setup() { [[ -z $K8S_SKIP ]] || skip "$K8S_SKIP"; }

teardown() {
  [[ -z $K8S_SKIP ]] || return 0
  explain_failure
  [[ ${BATS_TEST_COMPLETED:-} == 1 ]] || { tail -n 15 "$K8S"/log/extender-*.log "$K8S/log/scheduler.log" >&2; }
  kubectl delete pods --all --grace-period=0 --force >/dev/null 2>&1 || true
  kubectl delete resourceslices --all >/dev/null
  nodes_clear
}

# offers_cards NODE GIB: its slice, as mpsgated writes it: what is left of one card.
offers_cards() {
  jq -n --arg node "$1" --arg memory "$2Gi" '{apiVersion: "resource.k8s.io/v1", kind: "ResourceSlice", metadata: {name: "\($node)-mpsgate.io"},
    spec: {driver: "mpsgate.io", nodeName: $node, pool: {name: $node, generation: 0, resourceSliceCount: 1}, devices: [{name: "gpu-0",
      allowMultipleAllocations: true, capacity: {memory: {value: $memory, requestPolicy: {default: $memory, validRange: {min: "1Mi", step: "1Mi", max: $memory}}}}}]}}' |
    kubectl create -f - >/dev/null
}
# claims POD: with a claim of 2 GiB, for one of the invented nodes.
claims() {
  pod "$1" '.spec.resourceClaims = [{name: "gpu", resourceClaimTemplateName: "two"}] | .spec.containers[0].resources.claims = [{name: "gpu"}]
    | .spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms = [{matchExpressions:
      [{key: "kubernetes.io/hostname", operator: "NotIn", values: ["'"$NODE_NAME"'"]}]}]'
}
# All claims go to NODE: four of them, so that chance does so once in 81 times.
all_go_to() {
  local n
  for n in 1 2 3 4; do
    claims "pod-$n"
    wait_for 90 "pod-$n has a node" is_bound "pod-$n"
    assert_equal "its node" "$(node_of "pod-$n")" "$1"
  done
}
three_nodes() { # LABELS
  nodes 'node("empty"; '"$1"'; [card(16)]), node("half"; '"$1"'; [card(16) + {local_mib: 6144}]), node("fuller"; '"$1"'; [card(16) + {local_mib: 8192}])'
  offers_cards empty 16
  offers_cards half 10
  offers_cards fuller 8
}

@test "claims fill the fullest node that has room, where nodes are filled one after the other" {
  local before
  three_nodes '{}'
  before=$(questions prioritize-claims)
  all_go_to fuller
  was_asked prioritize-claims "$((before + 3))"
  if grep -h "prioritize-claims" "$K8S"/log/extender-*.log; then fail "an extender could not answer"; fi
}

@test "claims go to the emptiest node, where the node's label says spread" {
  three_nodes '{"ack.node.gpu.placement": "spread"}'
  all_go_to empty
}

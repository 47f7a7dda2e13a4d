#!/usr/bin/env bats
# Claims with the chart: mpsgated serves kubelet from its pod, by its own account, under the chart's
# policies; an update of its pod takes no claim from anybody.

load chart

setup_file() {
  K8S_SKIP=''
  [[ -x ${MG_HELM:-} ]] || K8S_SKIP="Helm is not here: tests/env/install.sh chart"
  [[ -n ${MPSGATE_K8S_BIN:-} ]] || K8S_SKIP="MPSGATE_K8S_BIN names no Kubernetes, and Debian's 1.20 has no resource.k8s.io"
  export K8S_SKIP
  [[ -z $K8S_SKIP ]] || return 0
  export CONTROLLERS=job,namespace,serviceaccount,nodelifecycle,podgc,daemonset,garbagecollector,resourceclaim-controller
  chart_node_start
}

teardown_file() {
  [[ -z $K8S_SKIP ]] || return 0
  services_stop
  chart | kubectl delete -f - >/dev/null 2>&1 || true
  chart_node_stop
}

setup() { [[ -z $K8S_SKIP ]] || skip "$K8S_SKIP"; }

chart() {
  local version
  version=$(kubectl version -o json | jq -r .serverVersion.gitVersion)
  (cd "$MG_REPO" && helm_ template mpsgate packaging/kubernetes/chart --namespace "$NS" --kube-version "$version" --api-versions resource.k8s.io/v1 \
    --set image.repository="$REGISTRY/mpsgate" --set installer.restartEngine=true,config.mps.orphan=kill,dra.enabled=true)
}
claims_served() { status_json | jq -se '.[0].claims | . != null and .problem == null and .registered_ms > 0'; }
says_ready() { kubectl get resourceclaim -o json | jq -e '.items[0].status.devices[0] | .conditions[0].status == "True" and .data.memoryMiB == 7168'; }
another_mpsgated() { local now; now=$(mpsgated_pod) && [[ -n $now && $now != "$1" ]]; } # THAN
claims() { # POD [JQ]
  pod "$1" '.spec.hostIPC = true | .spec.resourceClaims = [{name: "gpu", resourceClaimTemplateName: "gpu-7gi"}]
    | .spec.containers[0].resources.claims = [{name: "gpu"}]'
}

@test "a pod's claim is prepared by mpsgated's pod, and its author is told, by the account that the chart makes" {
  kubectl label node "$NODE_NAME" ack.node.gpu.schedule=mps >/dev/null
  kubectl create namespace "$NS" >/dev/null
  chart | kubectl apply -f - >"$K8S/helm.out"
  wait_for 240 "every pod is ready" all_ready 2
  wait_for 60 "claims are served" claims_served || { status_json | jq .claims >&2; return 1; }
  # As README has it.
  sed -n '/^kind: ResourceClaimTemplate/,/^```/p' "$MG_REPO/README.md" | grep -v '^```' | sed '1i apiVersion: resource.k8s.io/v1' | kubectl create -f - >/dev/null
  claims first
  wait_for 90 "it runs" pod_is Running first
  assert_equal "grants" "$(memory_of_grants)" "[7168]"
  assert_contains "its environment" "$(pod_env first)" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M
  wait_for 30 "the claim says so" says_ready || { kubectl logs -n "$NS" "$(mpsgated_pod)" -c mpsgated | grep "status of a claim" >&2; return 1; }
  assert_equal "sockets of the driver" "$(find /var/lib/kubelet/plugins/mpsgate.io -type s | wc -l)" 1
}

@test "mpsgated's account writes no other node's slice, and no other driver's" {
  kubectl get resourceslice "$NODE_NAME-mpsgate.io" -o json | jq 'del(.metadata.uid, .metadata.resourceVersion, .metadata.ownerReferences, .metadata.managedFields)' >"$K8S/slice.json"
  local token
  token=$(kubectl create token mpsgate -n "$NS" --bound-object-kind Pod --bound-object-name "$(mpsgated_pod)")
  local as=(kubectl --kubeconfig /dev/null --server "https://127.0.0.1:$(<"$K8S/port")" --certificate-authority "$K8S/pki/apiserver.crt" --token "$token")
  jq '.metadata.name = "other-mpsgate.io" | .spec.nodeName = "other" | .spec.pool.name = "other"' "$K8S/slice.json" >"$K8S/other.json"
  try fail "${as[@]}" create --validate=false -f "$K8S/other.json"
  assert_contains "the policy's word" "$stderr" "may write the slice of the node that its pod runs on"
  jq '.metadata.name = "x" | .spec.driver = "gpu.example.com"' "$K8S/slice.json" >"$K8S/other.json"
  try fail "${as[@]}" create --validate=false -f "$K8S/other.json"
  assert_contains "the policy's word" "$stderr" "slices of the driver mpsgate.io"
  local claim
  claim=$(kubectl get resourceclaim -o 'jsonpath={.items[0].metadata.name}')
  # By hand: kubectl would read it first, which the account may not.
  try curl -sS --cacert "$K8S/pki/apiserver.crt" -X PATCH -H "Authorization: Bearer $token" -H 'Content-Type: application/merge-patch+json' \
    -d '{"status": {"allocation": null}}' "https://127.0.0.1:$(<"$K8S/port")/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/$claim/status"
  # From 1.36 on the API server itself does not take it, before any policy is asked.
  assert_contains "who refuses it" "$stdout" '"status": "Failure"' "status.allocation"
}

@test "mpsgated's pod is replaced: the claim, its container and the next pod's are served" {
  local pod
  pod=$(mpsgated_pod)
  kubectl rollout restart -n "$NS" daemonset/mpsgate >/dev/null
  wait_for 120 "another pod of mpsgated is there" another_mpsgated "$pod"
  wait_for 120 "it is ready" all_ready 2
  wait_for 90 "claims are served" claims_served || { status_json | jq .claims >&2; return 1; }
  assert_equal "grants" "$(memory_of_grants)" "[7168]"
  claims second
  wait_for 90 "it runs" pod_is Running second
  assert_equal "grants" "$(memory_of_grants)" "[7168,7168]"
  kubectl delete pod first second --wait=false >/dev/null
  wait_for 90 "no claim is left" no_claims
  wait_for 60 "all memory is free" grants_are "[]"
}
no_claims() { [[ -z $(kubectl get resourceclaims -o name) ]] && status_json | jq -se '.[0].claims.prepared == 0'; }

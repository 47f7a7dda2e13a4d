#!/usr/bin/env bats
# The chart in a real cluster, by README's own lines: installed, used, changed, rolled back, removed
# by docs/kubernetes.md; then the node is compared with what it was. Each test goes on where the one
# before it ended.
#
# It runs where the API server has all that the chart makes of a current one; Debian's 1.20 dies of
# what README's webhook writes.

load chart

setup_file() {
  K8S_SKIP=''
  [[ -x ${MG_HELM:-} ]] || K8S_SKIP="Helm is not here: tests/env/install.sh chart"
  [[ -n ${MPSGATE_K8S_BIN:-} ]] || K8S_SKIP="MPSGATE_K8S_BIN names no Kubernetes; Debian's 1.20 dies of any patch of a webhook (reflect2 1.0.1)"
  export K8S_SKIP
  [[ -z $K8S_SKIP ]] || return 0
  chart_node_start
  mkdir -p "$MG/sample/usr/bin"
  printf '#!/bin/sh\nenv\nexec sleep 600\n' >"$MG/sample/usr/bin/python"
  chmod 755 "$MG/sample/usr/bin/python"
  image ai-samples/gpushare-sample:tensorflow-1.5 "$MG/sample"
  node_now >"$K8S/node.before"
}

teardown_file() {
  [[ -z $K8S_SKIP ]] || return 0
  services_stop
  # Where a test has failed before the removal.
  helm_ uninstall mpsgate -n "$NS" --no-hooks >/dev/null 2>&1 || true
  chart_node_stop
}

setup() { [[ -z $K8S_SKIP ]] || skip "$K8S_SKIP"; }

# node_now: what mpsgate could leave on this node, a line each.
node_now() {
  find /etc/containerd /etc/mpsgate /etc/cdi /usr/bin /usr/lib/systemd /var/lib/mpsgate /run/mpsgate -xdev -type f -exec sha256sum {} + 2>/dev/null | sort -k2
  find /etc/containerd /etc/mpsgate /usr/bin /var/lib/mpsgate /run/mpsgate -xdev ! -type f 2>/dev/null | sort
  # Kubelet keeps a plugin's resource with 0 until it is started again.
  kubectl get node "$NODE_NAME" -o json | jq -S '{labels: .metadata.labels, annotations: (.metadata.annotations | keys),
    conditions: [.status.conditions[].type] | sort, capacity: [.status.capacity | to_entries[] | select(.value != "0").key]}'
  # Without kubelets' own, and the API server's, whose name is another each time.
  kubectl get leases -A -o json | jq -r '.items[].metadata | "lease \(.namespace)/\(.name)"' | grep -v -e /apiserver- -e kube-node-lease/ | sort
  kubectl get clusterroles,clusterrolebindings,validatingwebhookconfigurations,mutatingwebhookconfigurations,validatingadmissionpolicies,runtimeclasses -o name | sort
  jq -c '[.cards[].compute_mode]' "$NVML/nvml.json"
  # The kernel keeps 15 letters of a name.
  pgrep -l 'mpsgate|nvidia-cuda-mp' | awk '{ print $2 }' | sort -u
}
restarts_of_containerd() { wc -l <"$K8S/systemctl.log"; }
handlers() { kubectl get node "$NODE_NAME" -o json | jq -r '.metadata.annotations["mpsgate.io/handlers"]' | jq -Sc "$1"; }

@test "README's lines install it: holder, mpsgated, scheduler and webhook come up, the node has its memory, and no handler bypasses mpsgate" {
  kubectl label node "$NODE_NAME" ack.node.gpu.schedule=mps >/dev/null
  local install
  install=$(from_readme "helm install")
  (cd "$MG_REPO" && eval "${install/#helm/helm_}") >"$K8S/helm.out"
  wait_for 240 "every pod is ready" all_ready
  wait_for 60 "30 GiB are allocatable" has_allocatable 30
  assert_equal "handlers that bypass mpsgate" "$(handlers .round)" "[]"
  assert_equal "handlers that are led" "$(handlers .led)" '["mpsgate","nvidia","runc"]'
  try kubectl get node "$NODE_NAME" -o json
  jq -e '.status.conditions[] | select(.type == "GPUMemorySharingReady" and .status == "True")' <<<"$stdout" >/dev/null || fail "its condition"
  assert_equal "restarts of containerd" "$(restarts_of_containerd)" 1
}

@test "README's sample runs, and kubectl inspect cgpu shows it" {
  local line
  line=$(from_readme "sed 's/<NODE_NAME>")
  (cd "$MG_REPO" && eval "$line") >/dev/null
  sample_runs() { [[ $(kubectl get pods -l app=mps-sample -o 'jsonpath={.items[*].status.phase}') == Running ]]; }
  wait_for 120 "it runs" sample_runs
  wait_for 20 "it speaks" bash -c 'kubectl logs job/mps-sample | grep -F CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M'
  assert_equal "grants" "$(memory_of_grants)" "[7168]"
  assert_equal "its scheduler" "$(kubectl get pods -l app=mps-sample -o 'jsonpath={.items[*].spec.schedulerName}')" mpsgate
  try env PATH="$MG_OUT:$PATH" kubectl inspect cgpu
  assert_contains "kubectl inspect cgpu" "$stdout" "7/15" "Allocated/Total GPU Memory In Cluster:"
}

@test "runtimeClassName: nvidia leads through mpsgate: a forged card is refused, a limit holds, the chart's own pods are exempt" {
  (POD_TO=(cat); pod forged '.spec.runtimeClassName = "nvidia" | .spec.containers[0].env = [{name: "NVIDIA_VISIBLE_DEVICES", value: "all"}]') | kubectl create -f - >/dev/null 2>&1
  wait_for 60 "the forged one is refused" pod_refused forged E_VISIBLE_DEVICES
  asks user 2 '.spec.runtimeClassName = "nvidia" | .spec.containers[0].env = [{name: "SEEN", value: "yes"}]'
  wait_for 90 "who has limits runs" pod_is Running user
  assert_contains "its environment" "$(pod_env user)" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M
  wait_for 20 "both grants" grants_are "[2048,7168]"
  kubectl delete pod forged user --force --grace-period 0 >/dev/null 2>&1
  wait_for 30 "it is gone" grants_are "[7168]"
}

@test "the webhook refuses by its sentence, and writes the scheduler's name" {
  (POD_TO=(cat); asks open 2 'del(.spec.hostIPC)') >"$BATS_TEST_TMPDIR/pod.json"
  try fail kubectl create -f "$BATS_TEST_TMPDIR/pod.json"
  assert_contains "kubectl create" "$stderr" "pods.mpsgate.io" "[E_NO_HOST_IPC]" "hint: "
  assert_equal "schedulerName" "$(POD_TO=(kubectl create --dry-run=server -o json -f -); asks named 2 | jq -r .spec.schedulerName)" mpsgate
}

# taken NODE PATCH STATUS [WORDS]: what the API server answers the holder of $token.
taken() {
  local status
  status=$(curl -sS -o "$BATS_TEST_TMPDIR/answer" -w '%{http_code}' --cacert "$K8S/pki/apiserver.crt" -X PATCH -H "Authorization: Bearer $token" \
    -H 'Content-Type: application/merge-patch+json' -d "$2" "https://127.0.0.1:$(<"$K8S/port")/api/v1/nodes/$1")
  assert_equal "status of $2 on $1: $(jq -r .message "$BATS_TEST_TMPDIR/answer")" "$status" "$3"
  [[ -z ${4:-} ]] || assert_contains "the policy's word" "$(<"$BATS_TEST_TMPDIR/answer")" "$4"
}

@test "mpsgated's account writes its own node's labels and conditions, and nothing else of it or of another" {
  offers /apis/admissionregistration.k8s.io/v1 'any(.resources[]; .name == "validatingadmissionpolicies")' || skip "this API server has no ValidatingAdmissionPolicy"
  jq -n '{apiVersion: "v1", kind: "Node", metadata: {name: "foreign"}}' | kubectl create -f - >/dev/null
  local token
  # By its pod's token, as somebody who has taken the node.
  token=$(kubectl create token mpsgate -n "$NS" --bound-object-kind Pod --bound-object-name "$(mpsgated_pod)")
  taken "$NODE_NAME" '{"metadata": {"labels": {"mpsgate.io/shared": "true"}}}' 200
  taken "$NODE_NAME" '{"metadata": {"labels": {"node-role.kubernetes.io/control-plane": "yes"}}}' 422 "mpsgated's account changes no other label"
  taken "$NODE_NAME" '{"metadata": {"annotations": {"mpsgate.io/removal": "yes"}}}' 422 "mpsgated's account changes no other annotation"
  taken "$NODE_NAME" '{"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}' 422 "changes nothing in a node's spec"
  taken foreign '{"metadata": {"labels": {"mpsgate.io/shared": "true"}}}' 422 "may change the node that its pod runs on, and no other"
  kubectl delete node foreign >/dev/null
}

@test "an upgrade of settings replaces mpsgated alone: grants, control daemons, holder and containerd stay" {
  lifecycle() { pgrep -x nvidia-cuda-mps | sort; kubectl get pods -n "$NS" -l app.aliyun.com/name=mps-control-daemon -o 'jsonpath={.items[*].metadata.uid}'; kubectl get pods -l app=mps-sample -o 'jsonpath={.items[*].status.containerStatuses[*].containerID}'; }
  local before pod
  before=$(lifecycle) pod=$(mpsgated_pod)
  (cd "$MG_REPO" && helm_ upgrade mpsgate packaging/kubernetes/chart -n "$NS" --reuse-values --set config.log.level=debug --wait --timeout 4m) >/dev/null
  wait_for 60 "the node has its cards" settled_at
  [[ $(mpsgated_pod) != "$pod" ]] || fail "it is the same pod of mpsgated"
  assert_equal "what was there" "$(lifecycle)" "$before"
  assert_equal "grants" "$(memory_of_grants)" "[7168]"
  assert_equal "restarts of containerd" "$(restarts_of_containerd)" 1
}

@test "runtime.path there and back, each in one step, and a rollback: the node never loses its cards, and the grant stays" {
  local step
  for step in "upgrade mpsgate packaging/kubernetes/chart --reuse-values --set config.runtime.path=runc" \
    "upgrade mpsgate packaging/kubernetes/chart --reuse-values --set config.runtime.path=nvidia-container-runtime" "rollback mpsgate 1"; do
    # shellcheck disable=SC2086 # words
    (cd "$MG_REPO" && helm_ $step -n "$NS" --wait --timeout 4m) >/dev/null
    wait_for 90 "the node has its cards after: $step" settled_at
    assert_equal "grants after: $step" "$(memory_of_grants)" "[7168]"
    if [[ $step == *=runc ]]; then
      wait_for 30 "NVIDIA's handler is named as one that bypasses mpsgate" bypasses '["nvidia"]'
    else
      wait_for 30 "no handler bypasses mpsgate" bypasses '[]'
    fi
  done
}
bypasses() { [[ $(handlers .round) == "$1" ]]; }

@test "helm uninstall is refused while a container has GPU memory, names it, and the node goes on as before" {
  (cd "$MG_REPO" && helm_ upgrade mpsgate packaging/kubernetes/chart -n "$NS" --reuse-values --set removal.timeoutSeconds=10 --wait --timeout 4m) >/dev/null
  if helm_ uninstall mpsgate -n "$NS" >"$K8S/helm.out" 2>&1; then fail "it was removed"; fi
  assert_contains "the Job's log" "$(kubectl logs -n "$NS" job/mpsgate-removal-begin)" "error: cards were not given back in 10 s" "$NODE_NAME" \
    "$(kubectl get pods -l app=mps-sample -o 'jsonpath={.items[0].metadata.uid}')"
  assert_equal "annotation" "$(kubectl get node "$NODE_NAME" -o json | jq '.metadata.annotations | has("mpsgate.io/removal")')" false
  wait_for 90 "the node has its cards" settled_at
  assert_equal "grants" "$(memory_of_grants)" "[7168]"
}

@test "removed as docs/kubernetes.md says, the node is what it was, but for the link by which containers of before are stopped" {
  pod before
  wait_for 60 "an ordinary pod runs" pod_is Running before
  kubectl delete job mps-sample >/dev/null
  wait_for 60 "no container has GPU memory" grants_are "[]"
  # The 10 s of the refused one stay in force else.
  (cd "$MG_REPO" && helm_ upgrade mpsgate packaging/kubernetes/chart -n "$NS" --reuse-values --set removal.timeoutSeconds=240 --wait --timeout 4m) >/dev/null
  helm_ uninstall mpsgate -n "$NS" --wait >/dev/null
  assert_equal "what stands on nodes" "$(kubectl get nodes -o json | jq -c '[.items[].metadata | (.labels, .annotations) | keys[] | select(startswith("mpsgate.io/"))]')" "[]"
  assert_equal "leases and hooks" "$(kubectl get leases,jobs,serviceaccounts,roles -n "$NS" -o name | grep -v serviceaccount/default)" ""
  # The operator's own.
  kubectl label node "$NODE_NAME" ack.node.gpu.schedule- >/dev/null
  kubectl delete namespace "$NS" --timeout 120s >/dev/null
  try mpsgate node-remove --restart-engine
  assert_contains "what it says" "$stdout$stderr" "/usr/bin/mpsgate-runtime" "rm /usr/bin/mpsgate-runtime"
  node_now >"$K8S/node.after"
  assert_equal "what is left" "$(diff "$K8S/node.before" "$K8S/node.after" | grep '^[<>]')" "> /usr/bin/mpsgate-runtime"
  kubectl exec before -- true
  kubectl delete pod before --timeout 60s >/dev/null
  pod after
  wait_for 60 "a pod runs without mpsgate" pod_is Running after
  rm /usr/bin/mpsgate-runtime
  kubectl delete pod after --timeout 60s >/dev/null
  node_now >"$K8S/node.after"
  assert_equal "what is left" "$(diff "$K8S/node.before" "$K8S/node.after" | grep '^[<>]')" ""
}

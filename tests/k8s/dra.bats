#!/usr/bin/env bats
# GPU memory as claims of Dynamic Resource Allocation: kube-scheduler counts it by the node's
# ResourceSlice, kubelet has it prepared, containerd brings its token by CDI. It runs where the API
# server has resource.k8s.io/v1 with consumable capacity.

load cluster

DRA_FILES=/var/run/cdi/mpsgate.io-claim_

setup_file() {
  K8S_SKIP=''
  [[ -n ${MPSGATE_K8S_BIN:-} ]] || K8S_SKIP="MPSGATE_K8S_BIN names no Kubernetes, and Debian's 1.20 has no resource.k8s.io"
  export K8S_SKIP
  [[ -z $K8S_SKIP ]] || return 0
  CONTROLLERS=job,namespace,serviceaccount,nodelifecycle,podgc,garbagecollector,resourceclaim-controller cluster_start
  offers /apis/resource.k8s.io/v1 || { K8S_SKIP="this API server has no resource.k8s.io/v1"; return 0; }
  cluster_role mpsgated-claims mpsgate-dra
  kubectl delete clusterrolebinding mpsgated-claims >/dev/null
  kubectl create clusterrolebinding mpsgated-claims --clusterrole mpsgated-claims --serviceaccount kube-system:mpsgated >/dev/null
  chart_object DeviceClass shared-gpu.mpsgate.io | kubectl create -f - >/dev/null
  mkdir -p /var/run/cdi
  cluster_api_access 'kubeconfig = "/etc/mpsgate/kubeconfig"' "node_name = \"$NODE_NAME\"" 'dra = "on"'
  # A pod's token names its node, by which the API server lets it write to claims of that node.
  (umask 077 && service_account_kubeconfig mpsgated "{\"boundObjectRef\": {\"apiVersion\": \"v1\", \"kind\": \"Node\", \"name\": \"$NODE_NAME\",
    \"uid\": \"$(kubectl get node "$NODE_NAME" -o 'jsonpath={.metadata.uid}')\"}}" >/etc/mpsgate/kubeconfig)
  label ack.node.gpu.schedule=mps
  daemon_stop
  daemon_start
  wait_for 60 "the API server is followed" is_followed
  wait_for 60 "claims are served" claims_served
}

teardown_file() {
  [[ -z $K8S_SKIP ]] || return 0
  cluster_stop
}

setup() { [[ -z $K8S_SKIP ]] || skip "$K8S_SKIP"; }

teardown() {
  [[ -z $K8S_SKIP ]] || return 0
  explain_cluster
  kubectl delete resourceclaimtemplates --all >/dev/null
  cluster_reset
  kubectl delete resourceclaims --all --wait=false >/dev/null
  wait_for 60 "no claim is prepared" nothing_prepared
}

claims_served() { status_json | jq -se '.[0].claims | . != null and .problem == null and .registered_ms > 0'; }
nothing_prepared() { status_json | jq -se '.[0].claims.prepared == 0' && [[ -z $(compgen -G "$DRA_FILES*") ]]; }
# memory_of CARD: what the cluster sees of it.
memory_of() { kubectl get resourceslice "$NODE_NAME-mpsgate.io" -o json | jq -r --argjson n "$1" '.spec.devices[$n].capacity.memory.value'; }
sees_memory() { [[ $(memory_of "$1") == "$2" ]]; } # CARD AMOUNT
binds_at_once() { kubectl get resourceslice "$NODE_NAME-mpsgate.io" -o json | jq -e 'all(.spec.devices[]; has("bindingConditions") | not)'; }
uuid_of() { status_json | jq -r --argjson n "$1" '.cards[$n].uuid'; }

# template NAME MEMORY [JQ]: of claims with one request, `gpu`.
template() {
  jq -n --arg name "$1" --arg memory "$2" '{apiVersion: "resource.k8s.io/v1", kind: "ResourceClaimTemplate", metadata: {name: $name},
      spec: {spec: {devices: {requests: [{name: "gpu", exactly: {deviceClassName: "shared-gpu.mpsgate.io", capacity: {requests: {memory: $memory}}}}]}}}}' |
    jq "${3:-.}" | kubectl create -f - >/dev/null
}
# claims POD TEMPLATE [JQ [ARG...]]: a pod with a claim of that template.
claims() {
  local name=$1 template=$2 filter=${3:-.}
  shift $(($# < 3 ? $# : 3))
  pod "$name" '.spec.hostIPC = true | .spec.resourceClaims = [{name: "gpu", resourceClaimTemplateName: $ARGS.positional[-1]}]
    | .spec.containers[0].resources.claims = [{name: "gpu"}] | '"$filter" "$@" "$template"
}
on_card() { printf '.spec.spec.devices.requests[0].exactly.selectors = [{cel: {expression: "device.attributes[\\"mpsgate.io\\"].uuid == \\"%s\\""}}]' "$(uuid_of "$1")"; }
claim_of() { kubectl get pod "$1" -o 'jsonpath={.status.resourceClaimStatuses[0].resourceClaimName}'; }
says_ready() { kubectl get resourceclaim "$1" -o json | jq -e '.status.devices[0] | .conditions[0].status == "True" and .data.memoryMiB == 7168'; }
waits_for_memory() { kubectl describe pod "$1" | grep -E "cannot allocate all claims|insufficient"; }

@test "a pod with a claim of 7 GiB runs with its limit, and nothing of the claim is left when it has gone" {
  wait_for 30 "the cluster sees the first card" sees_memory 0 15Gi
  template seven 7Gi
  claims first seven '.spec.containers[0].env = [{name: "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", value: "0=80G"}]'
  wait_for 90 "it runs" pod_is Running first
  assert_equal "grants" "$(memory_of_grants)" "[7168]"
  local env
  env=$(pod_env first)
  assert_contains "its environment" "$env" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M CUDA_MPS_PIPE_DIRECTORY=
  refute_contains "its environment" "$env" MPSGATE_GRANT_
  refute_contains "what another process has" "$(kubectl exec first -- env)" MPSGATE_GRANT_
  wait_for 30 "the claim says so" says_ready "$(claim_of first)"
  assert_equal "modes of the file" "$(stat -c %a "$DRA_FILES"*)" 600
  kubectl delete pod first --wait=false >/dev/null
  wait_for 60 "the memory is free" is_free
  wait_for 60 "no claim is prepared" nothing_prepared
}

@test "without hostIPC a claim is refused as any request is" {
  template seven 7Gi
  claims alone seven '.spec.hostIPC = false'
  wait_for 90 "it is refused" pod_refused alone E_NO_HOST_IPC
  assert_equal "grants" "$(granted_ids)" ""
}

@test "where the node has shown that its driver needs none, a claim runs without hostIPC" {
  own_ipc_does
  template seven 7Gi
  claims alone seven '.spec.hostIPC = false'
  wait_for 90 "it runs" pod_is Running alone
  assert_contains "its environment" "$(pod_env alone)" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M
  own_ipc_ends
}

@test "three claims fill one card to the MiB, and the fourth waits and says why, until one has ended" {
  local size
  for size in 5119 5120 5121 1; do
    template "mib-$size" "${size}Mi" "$(on_card 0)"
  done
  for size in 5119 5120 5121; do claims "fits-$size" "mib-$size"; done
  for size in 5119 5120 5121; do wait_for 90 "fits-$size runs" pod_is Running "fits-$size"; done
  assert_equal "grants" "$(memory_of_grants)" "[5119,5120,5121]"
  claims waits mib-1
  wait_for 60 "it says why it waits" waits_for_memory waits
  assert_equal "its phase" "$(kubectl get pod waits -o 'jsonpath={.status.phase}')" Pending
  kubectl delete pod fits-5120 --wait=false >/dev/null
  wait_for 90 "it runs" pod_is Running waits
}

@test "claims, the device plugin and a local container never have the same memory" {
  wait_for 60 "30 GiB are allocatable" has_allocatable 30
  template ten 10Gi "$(on_card 0)"
  claims claimed ten
  wait_for 90 "it runs" pod_is Running claimed
  wait_for 60 "the kubelet has 20 GiB left" has_allocatable 20
  asks plugged 12
  wait_for 90 "it runs" pod_is Running plugged
  wait_for 60 "the cluster sees what is left of the other card" sees_memory 1 3Gi
  template four 4Gi "$(on_card 1)"
  claims late four
  wait_for 60 "it waits" waits_for_memory late
  assert_equal "grants" "$(memory_of_grants)" "[10240,12288]"
  kubectl delete pod plugged --wait=false >/dev/null
  wait_for 90 "it runs" pod_is Running late
}

@test "two requests of one claim are two containers', and two in one container are refused by name" {
  template both 2Gi '.spec.spec.devices.requests |= [(.[0] | .name = "one"), (.[0] | .name = "two")]'
  claims two both '.spec.containers = [(.spec.containers[0] | .name = "a" | .resources.claims = [{name: "gpu", request: "one"}]),
    (.spec.containers[0] | .name = "b" | .resources.claims = [{name: "gpu", request: "two"}])]'
  wait_for 90 "it runs" pod_is Running two
  assert_equal "grants" "$(memory_of_grants)" "[2048,2048]"
  claims greedy both
  wait_for 90 "it is refused" pod_refused greedy E_CLAIM
  wait_for 10 "it is told which" pod_says greedy ".one, greedy-gpu-"
}

@test "init and main containers may name one request after each other, and two that run at once may not" {
  template seven 7Gi
  claims init seven '.spec.initContainers = [.spec.containers[0] | .name = "first" | .command = ["env"]]'
  wait_for 90 "it runs" pod_is Running init
  assert_contains "what the first had" "$(kubectl logs init -c first)" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M
  assert_equal "grants" "$(memory_of_grants)" "[7168]"
  claims twice seven '.spec.containers += [.spec.containers[0] | .name = "second"]'
  wait_for 90 "the second is refused" pod_refused twice E_CLAIM
  wait_for 10 "it is told why" pod_says twice "held by another container already"
}

@test "a claim of two pods is one pod's alone" {
  jq -n '{apiVersion: "resource.k8s.io/v1", kind: "ResourceClaim", metadata: {name: "shared"}, spec: {devices: {requests: [
      {name: "gpu", exactly: {deviceClassName: "shared-gpu.mpsgate.io", capacity: {requests: {memory: "3Gi"}}}}]}}}' | kubectl create -f - >/dev/null
  claims one x '.spec.restartPolicy = "Always" | .spec.resourceClaims = [{name: "gpu", resourceClaimName: "shared"}]'
  wait_for 90 "it runs" pod_is Running one
  claims other x '.spec.resourceClaims = [{name: "gpu", resourceClaimName: "shared"}]'
  wait_for 90 "the other is refused" pod_refused other E_UNCONFIRMED
  assert_equal "grants" "$(memory_of_grants)" "[3072]"
  pod_is Running other && fail "it runs all the same"
  # Kubelet has it prepared again, for both.
  local before
  before=$(the_init)
  kubelet_stop
  kubelet_start
  wait_for 120 "the node is ready" node_ready
  wait_for 60 "claims are served" claims_served
  kill -KILL "$before"
  wait_for 120 "another process of the first has the grant" another_init "$before"
  kubectl delete pod one other --wait=false >/dev/null
}

@test "a restarted container, kubelet and mpsgated go on with what was prepared" {
  template seven 7Gi
  claims again seven '.spec.restartPolicy = "Always"'
  wait_for 90 "it runs" pod_is Running again
  local before
  before=$(the_init)
  kill -KILL "$before"
  wait_for 90 "another process has the grant" another_init "$before"
  assert_equal "grants" "$(memory_of_grants)" "[7168]"
  daemon_stop KILL
  daemon_start
  wait_for 60 "claims are served" claims_served
  before=$(the_init)
  kill -KILL "$before"
  wait_for 120 "another process has the grant" another_init "$before"
  kubelet_stop
  kubelet_start
  wait_for 120 "the node is ready" node_ready
  wait_for 60 "claims are served" claims_served
  template small 1Gi
  claims later small
  wait_for 120 "a new pod runs" pod_is Running later
  assert_equal "grants" "$(memory_of_grants)" "[1024,7168]"
}

@test "what no card can give waits or is refused, and says why" {
  template large 16Gi
  claims large large
  template pair 1Gi '.spec.spec.devices.requests[0].exactly.count = 2'
  claims pair pair
  template odd 1Gi '.spec.spec.devices.config = [{opaque: {driver: "mpsgate.io", parameters: {apiVersion: "mpsgate.io/v1alpha1", kind: "Grant", colour: "red"}}}]'
  claims odd odd
  template byte 1
  claims byte byte
  wait_for 60 "it waits" waits_for_memory large
  wait_for 90 "it is refused" pod_says pair "E_MULTI_CARD"
  wait_for 90 "it is refused" pod_says odd "E_CLAIM"
  assert_contains "what is wrong" "$(kubectl describe pod odd)" colour
  # What was consumed counts: the scheduler rounds up.
  wait_for 90 "one byte is one MiB" pod_is Running byte
  assert_equal "grants" "$(memory_of_grants)" "[1]"
}

@test "a limit by the name of the DeviceClass is refused, and with a setting it is a whole card" {
  kubectl get --raw /metrics | grep -qE 'kubernetes_feature_enabled\{name="DRAExtendedResource",.*\} 1$' ||
    skip "this API server makes no claims of limits"
  local limits='.spec.hostIPC = true | .spec.containers[0].resources.limits = {"deviceclass.resource.kubernetes.io/shared-gpu.mpsgate.io": "1"}'
  pod whole "$limits"
  wait_for 90 "it is refused" pod_says whole "kubernetes.dra_extended_resources"
  assert_equal "grants" "$(granted_ids)" ""
  kubectl delete pod whole --wait=false >/dev/null
  wait_for 60 "the memory is free" is_free
  sed -i '/^\[kubernetes\]/a dra_extended_resources = true' /etc/mpsgate/config.toml
  mpsgate reload
  pod allowed "$limits"
  wait_for 90 "it runs" pod_is Running allowed
  assert_equal "grants" "$(memory_of_grants)" "[15360]"
  sed -i '/^dra_extended_resources/d' /etc/mpsgate/config.toml
  mpsgate reload
}

@test "a slice that was edited or deleted by hand is put back" {
  wait_for 30 "the cluster sees the card" sees_memory 0 15Gi
  kubectl get resourceslice "$NODE_NAME-mpsgate.io" -o json | jq '.spec.devices[0].capacity.memory = {value: "80Gi"}' | kubectl replace -f - >/dev/null
  wait_for 30 "it is as it was" sees_memory 0 15Gi
  kubectl get resourceslice "$NODE_NAME-mpsgate.io" -o json |
    jq '.spec.devices[0] |= (.bindingConditions = ["never"] | .bindingFailureConditions = ["gone"])' |
    kubectl replace -f - -o json | jq -e '.spec.devices[0].bindingConditions == ["never"]' || fail "the API server drops conditions"
  wait_for 30 "no claim waits for a condition" binds_at_once
  kubectl delete resourceslice "$NODE_NAME-mpsgate.io" >/dev/null
  wait_for 30 "it is there again" sees_memory 0 15Gi
}

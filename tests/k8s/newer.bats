#!/usr/bin/env bats
# What only newer API servers offer: native sidecars, resources of a whole pod, resizing in place,
# user namespaces, containers that come later, Pod Security. Whether this one does is its own word;
# where it does not, a test is skipped and says what is missing.

load scheduler

setup_file() {
  cluster_start
  cluster_follow
  extender_access
}

teardown() {
  explain_cluster
  kubectl delete namespace narrow --wait=false --ignore-not-found >/dev/null 2>&1
  cluster_reset
}

# needs_field TYPE FIELD: the test is skipped where the API server has no such field.
needs_field() { has_field "$1" "$2" || skip "this API server has no $1.$2"; }
# needs_subresource NAME: of pods.
needs_subresource() { offers /api/v1 "any(.resources[]; .name == \"pods/$1\")" || skip "this API server has no pods/$1"; }
restarts_of() { kubectl get pod "$1" -o json | jq --arg name "${2:-main}" '.status | .containerStatuses[]?, .initContainerStatuses[]? | select(.name == $name).restartCount'; } # POD [CONTAINER]
restarted() { [[ $(restarts_of "$@") == 1 ]]; }
limit_in() { pod_env "$1" "$2" | sed -n 's/^CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=//p'; } # POD CONTAINER

@test "a native sidecar has its own memory beside the containers after it, and again after its own restart" {
  needs_field Container restartPolicy
  asks sidecar 2 '.spec.initContainers = [
      (.spec.containers[0] * {name: "side", restartPolicy: "Always", resources: {limits: {"aliyun.com/gpu-mem": "3"}}}),
      (.spec.containers[0] * {name: "first", command: ["env"], resources: {limits: {"aliyun.com/gpu-mem": "4"}}})]'
  wait_for 90 "it runs" pod_is Running sidecar
  assert_contains "environment of the init container" "$(kubectl logs sidecar -c first)" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M
  assert_equal "limit of the sidecar" "$(limit_in sidecar side)" 0=3072M
  assert_equal "limit of main" "$(limit_in sidecar main)" 0=2048M
  wait_for 30 "the init container's memory is free" grants_are "[2048,3072]"
  local before
  before=$(container_of sidecar side)
  kill -KILL "$(grant "$before" .pid)"
  wait_for 90 "the sidecar was started again" restarted sidecar side
  wait_for 60 "with its memory" grants_are "[2048,3072]"
  [[ $(container_of sidecar side) != "$before" ]] || fail "it is the same container"
  assert_equal "restarts of main" "$(restarts_of sidecar)" 0
}

@test "resources of a whole pod stand beside a container's GPU memory; GPU memory of a whole pod the API server takes from nobody" {
  needs_field PodSpec resources
  asks shared 2 '.spec.resources = {limits: {cpu: "500m", memory: "64Mi"}}'
  wait_for 60 "it runs" pod_is Running shared
  assert_equal "its limit" "$(limit_in shared main)" 0=2048M
  (POD_TO=(cat); pod whole '.spec.hostIPC = true | .spec.resources = {limits: {"aliyun.com/gpu-mem": "2"}}') >"$BATS_TEST_TMPDIR/whole.json"
  try fail kubectl create -f "$BATS_TEST_TMPDIR/whole.json"
  assert_contains "the API server's word" "$stderr" "spec.resources" "aliyun.com/gpu-mem"
}

@test "a container that is resized in place keeps its grant, and one that is restarted for it has the same again" {
  needs_subresource resize
  asks resized 2 '.spec.restartPolicy = "Always" | .spec.containers[0] |= (.resources = {requests: {cpu: "100m", memory: "32Mi"}, limits: (.resources.limits + {cpu: "200m", memory: "64Mi"})}
    | .resizePolicy = [{resourceName: "cpu", restartPolicy: "NotRequired"}, {resourceName: "memory", restartPolicy: "RestartContainer"}])'
  wait_for 60 "it runs" pod_is Running resized
  local before
  before=$(container_of resized)
  resize() { kubectl patch pod resized --subresource resize -p "{\"spec\": {\"containers\": [{\"name\": \"main\", \"resources\": {\"limits\": {\"$1\": \"$2\"}}}]}}" >/dev/null; } # RESOURCE LIMIT
  resize cpu 300m
  has_limit() { [[ $(kubectl get pod resized -o json | jq -r --arg name "$1" '.status.containerStatuses[0].resources.limits[$name]') == "$2" ]]; }
  wait_for 60 "the kernel has it" has_limit cpu 300m
  assert_equal "the container, and its restarts" "$(container_of resized) $(restarts_of resized)" "$before 0"
  assert_equal "its grant" "$(grant_of resized .memory_mib)" 2048
  resize memory 96Mi
  wait_for 90 "it was restarted" restarted resized
  wait_for 60 "it runs" has_limit memory 96Mi
  wait_for 60 "it has its memory once" grants_are "[2048]"
  assert_equal "its limit" "$(limit_in resized main)" 0=2048M
}

@test "a pod in a user namespace of its own is told a way that there is: hostIPC is none for it" {
  needs_field PodSpec hostUsers
  (POD_TO=(cat); asks own 2 '.spec.hostUsers = false') >"$BATS_TEST_TMPDIR/own.json"
  try fail kubectl create -f "$BATS_TEST_TMPDIR/own.json"
  assert_contains "the API server's word" "$stderr" "Forbidden"
  runc features | jq -e .linux.mountExtensions.idmap.enabled >/dev/null || skip "of a pod with hostUsers: false only the API server's part was seen: this runc has no user namespaces for pods (1.2 has)"
  jq 'del(.spec.hostIPC)' "$BATS_TEST_TMPDIR/own.json" | kubectl create -f - >/dev/null
  wait_for 60 "the node refuses it" pod_refused own E_NO_HOST_IPC
  try kubectl describe pod own
  assert_contains "kubectl describe pod" "$stdout" "hostUsers"
  refute_contains "kubectl describe pod" "$stdout" "set hostIPC: true and"
}

@test "a container that comes later to a pod with a grant has neither its memory nor a card, and asks for none" {
  needs_subresource ephemeralcontainers
  asks visited 2
  wait_for 60 "it runs" pod_is Running visited
  kubectl debug visited --image bb --container later --image-pull-policy Never --profile general -- sh -c 'env; ls /dev; : </dev/nvidia0; sleep 600' >/dev/null
  later_runs() { kubectl get pod visited -o json | jq -e '.status.ephemeralContainerStatuses[]? | select(.name == "later") | .state.running'; }
  wait_for 60 "it runs" later_runs
  wait_for 20 "it has spoken" bash -c 'kubectl logs visited -c later | grep nvidia0'
  try kubectl logs visited -c later
  refute_contains "what it sees" "$stdout" CUDA_MPS_ ALIYUN_COM_GPU "nvidia1" "nvidiactl"
  assert_contains "opening the card" "$stdout" "can't open /dev/nvidia0"
  assert_equal "grants" "$(memory_of_grants)" "[2048]"
  kubectl debug visited --image bb --container greedy --image-pull-policy Never --profile general --env NVIDIA_VISIBLE_DEVICES=all -- sleep 600 >/dev/null
  wait_for 60 "the greedy one is refused" pod_refused visited E_VISIBLE_DEVICES
  assert_equal "grants" "$(memory_of_grants)" "[2048]"
}

@test "Pod Security: a restricted namespace runs what asks for nothing, and says itself that hostIPC is not for it" {
  kubectl create namespace narrow >/dev/null
  kubectl label namespace narrow pod-security.kubernetes.io/enforce=restricted >/dev/null
  wait_for 30 "it has its account" kubectl get serviceaccount default -n narrow
  (POD_TO=(cat); pod open '.metadata.namespace = "narrow"') >"$BATS_TEST_TMPDIR/open.json"
  ! kubectl create --dry-run=server -f "$BATS_TEST_TMPDIR/open.json" >/dev/null 2>&1 || skip "this API server has no Pod Security"
  local restricted='.metadata.namespace = "narrow" | .spec.securityContext = {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: "RuntimeDefault"}}
    | .spec.containers[0].securityContext = {allowPrivilegeEscalation: false, capabilities: {drop: ["ALL"]}}'
  pod quiet "$restricted"
  quiet_runs() { [[ $(kubectl get pod quiet -n narrow -o 'jsonpath={.status.phase}') == Running ]]; }
  wait_for 60 "it runs" quiet_runs
  (POD_TO=(cat); asks wants 2 "$restricted") >"$BATS_TEST_TMPDIR/wants.json"
  try fail kubectl create -f "$BATS_TEST_TMPDIR/wants.json"
  assert_contains "its word" "$stderr" "violates PodSecurity" "hostIPC=true"
}

@test "the webhook writes schedulerName and hostIPC into pods that ask, and neither beside hostUsers: false" {
  offers /apis/admissionregistration.k8s.io/v1 'any(.resources[]; .name == "validatingadmissionpolicies")' ||
    skip "this API server is older than 1.30, and Debian's dies of any patch (reflect2 1.0.1)"
  replica_start 0
  wait_for 60 "it leads" has_leader
  mutation_start --webhook-host-ipc --webhook-scheduler-name mpsgate
  local fields='[.spec.schedulerName, .spec.hostIPC // false]'
  shown() { "${@:2}" | kubectl create --dry-run=server -o json -f - | jq -c "$1"; }
  local POD_TO=(cat)
  assert_equal "one that asks" "$(shown "$fields" asks a 2 'del(.spec.hostIPC)')" '["mpsgate",true]'
  assert_equal "one with a scheduler" "$(shown "$fields" asks b 2 '.spec.schedulerName = "other"')" '["other",true]'
  assert_equal "one that does not ask" "$(shown "$fields" pod c)" '["default-scheduler",false]'
  assert_equal "one in a user namespace" "$(shown "$fields" asks d 2 '.spec.hostUsers = false | del(.spec.hostIPC)')" '["mpsgate",false]'
  webhook_stop
  replica_stop 1
  replica_stop 0
}

#!/usr/bin/env bats
# What a pod writes against what it was given, and pods of every shape: several containers, init
# containers, without limits, static, made again under one name.

load cluster

# refused_pod CODE NAME [JQ]: a pod whose container is not let in.
refused_pod() {
  local code=$1 name=$2
  shift
  pod "$@"
  wait_for 60 "$name shows $code" pod_refused "$name" "$code" || return 1
  try kubectl describe pod "$name"
  assert_contains "kubectl describe pod" "$stdout" "hint: "
  try kubectl get events --field-selector "involvedObject.name=$name" -o 'jsonpath={.items[*].message}'
  assert_contains "events" "$stdout" "[$code]"
  assert_equal "grants" "$(granted_ids)" ""
  pod_is Running "$name" && fail "$name runs all the same"
  return 0
}

@test "the kubelet has the device plugin's memory, and gives a pod the 7 GiB of its limits, whatever else it writes" {
  wait_for 60 "30 GiB are allocatable" has_allocatable 30
  asks wants 7 '.metadata.annotations = {"aliyun.com/gpu-mem": "80", "mpsgate.io/gpu-mem": "80Gi", "mpsgate.io/grant": "mpsgate1.a.b.c",
      "io.kubernetes.cri.sandbox-uid": "another", "mpsgate.io/gpu": "1"}
    | .spec.containers[0].env = [{name: "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", value: "0=80G"}, {name: "MPSGATE_GPU_MEM", value: "80Gi"}]'
  wait_for 60 "it runs" pod_is Running wants
  assert_equal "grants" "$(memory_of_grants)" "[7168]"
  local env
  env=$(environment_of "$(the_init)")
  assert_contains "its environment" "$env" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M CUDA_MPS_PIPE_DIRECTORY= ALIYUN_COM_GPU_MEM_CONTAINER=7
  refute_contains "its environment" "$env" 0=80G
}

@test "another pod's real token gives nothing: not to who has no limits, and no more than theirs to who has" {
  asks owner 7
  wait_for 60 "it runs" pod_is Running owner
  local token
  token=$(token_of owner)
  [[ $token == mpsgate1.*.*.* ]] || fail "the owner's token: $token"
  pod thief '.spec.hostIPC = true | .metadata.annotations = {"mpsgate.io/grant": $ARGS.positional[0], "aliyun.com/gpu-mem": "7",
      "io.kubernetes.cri.sandbox-uid": $ARGS.positional[1], "io.kubernetes.cri.sandbox-name": "owner", "io.kubernetes.cri.container-name": "main"}' "$token" "$(uid_of owner)"
  asks small 2 '.metadata.annotations = {"mpsgate.io/grant": $ARGS.positional[0]}' "$token"
  wait_for 60 "the thief is refused" pod_refused thief E_UNCONFIRMED
  try kubectl describe pod thief
  assert_contains "kubectl describe pod" "$stdout" "first brought by container main of pod $(uid_of owner)" "hint: "
  wait_for 60 "the small one runs" pod_is Running small
  assert_equal "grants" "$(memory_of_grants)" "[2048,7168]"
  assert_equal "the memory of the small one" "$(grant_of small .memory_mib)" 2048
  [[ $(token_of small) != "$token" ]] || fail "the small one has the owner's token"
}

@test "annotations and environment without limits ask for nothing, and get nothing" {
  pod forged '.spec.hostIPC = true | .metadata.annotations = {"aliyun.com/gpu-mem": "80", "mpsgate.io/gpu-mem": "80Gi", "mpsgate.io/gpu": "0",
      "io.kubernetes.cri.container-type": "sandbox"}
    | .spec.containers[0].env = [{name: "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", value: "0=80G"}, {name: "CUDA_MPS_PIPE_DIRECTORY", value: "/tmp/nvidia-mps"},
      {name: "MPSGATE_GPU_MEM", value: "80Gi"}, {name: "ALIYUN_COM_GPU_MEM_CONTAINER", value: "80"}, {name: "SEEN", value: "yes"}]'
  wait_for 60 "it runs" pod_is Running forged
  local env
  env=$(pod_env forged)
  assert_contains "its environment" "$env" SEEN=yes
  refute_contains "its environment" "$env" CUDA_MPS_
  assert_equal "grants" "$(granted_ids)" ""
  try kubectl exec forged -- sh -c 'ls /dev'
  refute_contains "its devices" "$stdout" nvidia
}

@test "a forged token is refused" {
  refused_pod E_UNCONFIRMED forged '.spec.hostIPC = true | .metadata.annotations = {"mpsgate.io/grant": "mpsgate1.a.b.c"}'
}

@test "NVIDIA_VISIBLE_DEVICES of a card is refused without limits; with limits it becomes the granted card" {
  local value
  for value in all 0 "$(uuid 1)"; do
    refused_pod E_VISIBLE_DEVICES devices '.spec.containers[0].env = [{name: "NVIDIA_VISIBLE_DEVICES", value: $ARGS.positional[0]}]' "$value"
    kubectl delete pod devices >/dev/null
  done
  pod none '.spec.containers[0].env = [{name: "NVIDIA_VISIBLE_DEVICES", value: "none"}]'
  asks given 1 '.spec.containers[0].env = [{name: "NVIDIA_VISIBLE_DEVICES", value: "all"}]'
  wait_for 60 "the neighbour runs" pod_is Running none
  wait_for 60 "who has limits runs" pod_is Running given
  assert_contains "its environment" "$(pod_env given)" "NVIDIA_VISIBLE_DEVICES=$(grant_of given .card)"
}

@test "each container of a pod has the memory of its own limits, and one without limits nothing" {
  asks several 4 '.spec.containers += [.spec.containers[0] * {name: "side", resources: {limits: {"aliyun.com/gpu-mem": "3"}}},
    (.spec.containers[0] | .name = "plain" | del(.resources))]'
  wait_for 60 "it runs" pod_is Running several
  assert_equal "grants" "$(memory_of_grants)" "[3072,4096]"
  assert_equal "memory of main" "$(grant_of several .memory_mib)" 4096
  assert_equal "memory of side" "$(grant_of several .memory_mib side)" 3072
  assert_contains "environment of main" "$(pod_env several main)" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M
  assert_contains "environment of side" "$(pod_env several side)" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=3072M
  local env
  env=$(pod_env several plain)
  assert_contains "environment of plain" "$env" PATH=
  refute_contains "environment of plain" "$env" CUDA_MPS_ NVIDIA_VISIBLE_DEVICES ALIYUN_COM_GPU
}

@test "an init container has its own limits, larger or smaller than those of the container after it" {
  local first main
  for first in 12 2; do
    main=$((14 - first))
    asks "init-$first" "$main" '.spec.initContainers = [.spec.containers[0] * {name: "first", command: ["env"], resources: {limits: {"aliyun.com/gpu-mem": $ARGS.positional[0]}}}]' "$first"
  done
  for first in 12 2; do
    main=$((14 - first))
    wait_for 90 "init-$first runs" pod_is Running "init-$first"
    assert_contains "environment of the first" "$(kubectl logs "init-$first" -c first)" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=$((first * 1024))M"
    assert_contains "environment after it" "$(pod_env "init-$first")" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=$((main * 1024))M"
  done
  assert_equal "grants" "$(memory_of_grants)" "[2048,12288]"
}

@test "pods that are made again under their names, on a node that is full, have their memory once" {
  asks same 15
  stateful_set web 1 15
  wait_for 90 "both run" grants_are "[15360,15360]"
  local name token
  declare -A uids tokens
  for name in same web-0; do
    wait_for 60 "$name runs" pod_is Running "$name"
    uids[$name]=$(uid_of "$name") tokens[$name]=$(token_of "$name")
  done
  kubectl delete pod web-0 --wait=false >/dev/null
  kubectl get pod same -o json | jq 'del(.status, .spec.nodeName, .metadata.uid, .metadata.resourceVersion)' | kubectl replace --force -f - >/dev/null
  for name in same web-0; do
    wait_for 120 "the next $name runs" runs_anew "$name" "${uids[$name]}"
    [[ $(token_of "$name") != "${tokens[$name]}" ]] || fail "$name has the other one's token"
  done
  assert_equal "grants" "$(memory_of_grants)" "[15360,15360]"
}
runs_anew() { [[ $(uid_of "$1") != "$2" ]] && pod_is Running "$1"; } # POD UID

@test "a static pod has the memory of its limits, and frees it" {
  (POD_TO=(cat) && asks static 6) >"$K8S/static.json"
  mv "$K8S/static.json" "$K8S/manifests/"
  wait_for 60 "it runs" pod_is Running "static-$NODE_NAME"
  assert_equal "grants" "$(memory_of_grants)" "[6144]"
  assert_contains "its environment" "$(pod_env "static-$NODE_NAME")" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=6144M
  rm "$K8S/manifests/static.json"
  assert_free
}

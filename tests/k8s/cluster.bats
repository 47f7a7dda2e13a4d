#!/usr/bin/env bats
# A real Kubernetes with mpsgate below its kubelet: a pod that asks for nothing is not touched; the
# samples of the systems that mpsgate replaces run as they stand in their pages; whoever asks in the
# limits gets that memory through the device plugin, once.

load cluster

setup_file() {
  cluster_start
}

@test "the node is ready, and its default runtime is mpsgate's" {
  node_ready
  try mpsgate configure containerd --check
  assert_contains "configure --check" "$stdout" "ok     default handler mpsgate"
  try kubectl get node "$NODE_NAME" -o 'jsonpath={.status.nodeInfo.kubeletVersion}'
  assert_equal "kubelet" "Kubernetes $stdout" "$(kubelet --version)"
}

@test "a pod that asks for nothing runs to its end through mpsgate-runtime" {
  pod plain '.spec.containers[0].command = ["sh", "-c", "echo out: $SEEN"]
    | .spec.containers[0].env = [{name: "SEEN", value: "yes"}]'
  wait_for 60 "it succeeds" pod_is Succeeded plain
  assert_equal "its output" "$(kubectl logs plain)" "out: yes"
  # It is the runtime that containerd called: gone, nothing starts.
  mv /usr/bin/mpsgate-runtime /usr/bin/mpsgate-runtime.away
  pod without
  wait_for 60 "its start fails" pod_says without mpsgate-runtime
  mv /usr/bin/mpsgate-runtime.away /usr/bin/mpsgate-runtime
  wait_for 60 "it starts" pod_is Running without
}

@test "mpsgated's service account may do what its table of rules says, and nothing else" {
  cluster_api_access
  may() { kubectl --kubeconfig /etc/mpsgate/kubeconfig auth can-i --quiet "$@"; }
  local rule
  while read -r rule; do
    # shellcheck disable=SC2086 # verb and resource
    may $rule --all-namespaces || fail "it may not: $rule"
  done < <(rules_of ClusterRole mpsgate | jq -r '.[] | .verbs[] as $verb | .resources[] | "\($verb) \(sub("/.*"; ""))\(if contains("/") then " --subresource \(sub(".*/"; ""))" else "" end)"' | tee "$BATS_TEST_TMPDIR/rules")
  [[ $(wc -l <"$BATS_TEST_TMPDIR/rules") -ge 8 ]] || fail "few rules: $(<"$BATS_TEST_TMPDIR/rules")"
  for rule in 'delete pods' 'patch pods' 'create pods' 'create pods --subresource exec' 'delete nodes' 'get nodes' 'get secrets' 'list configmaps' 'patch daemonsets.apps'; do
    # shellcheck disable=SC2086
    may $rule --all-namespaces && fail "it may: $rule"
  done
  try kubectl --kubeconfig /etc/mpsgate/kubeconfig get pods -A --field-selector "spec.nodeName=$NODE_NAME"
  try fail kubectl --kubeconfig /etc/mpsgate/kubeconfig get secrets -A
  assert_contains "the refusal" "$stderr" "system:serviceaccount:kube-system:mpsgated"
}

# The page has hostPID: true in it, "to help you see the effect".
@test "the Job mps-sample runs as it stands in its page, with the 7 GiB of its limits and a PID namespace of its own" {
  mkdir -p "$MG/sample/usr/bin"
  cat >"$MG/sample/usr/bin/python" <<'SH'
#!/bin/sh
echo "in $(pwd): $*"
env
echo "pid $$."
until [ -e /tmp/end ]; do sleep 1; done
SH
  chmod +x "$MG/sample/usr/bin/python"
  image ai-samples/gpushare-sample:tensorflow-1.5 "$MG/sample"
  sample mps-sample | kubectl create -f -
  job_runs() { [[ $(kubectl get pods -l app=mps-sample -o 'jsonpath={.items[*].status.phase}') == Running ]]; }
  wait_for 60 "its pod runs" job_runs
  wait_for 10 "its program speaks" job_says CUDA_MPS_
  local pod
  pod=$(kubectl get pods -l app=mps-sample -o 'jsonpath={.items[*].metadata.name}')
  try kubectl logs job/mps-sample
  assert_contains "its log" "$stdout" "pid 1." "in /root: tensorflow-sample-code/tfjob/docker/mnist/main.py --max_steps=100000 --data_dir=tensorflow-sample-code/data" \
    CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M CUDA_MPS_PIPE_DIRECTORY=/ ALIYUN_COM_GPU_MEM_CONTAINER=7
  assert_equal "the grant's memory" "$(grant_of "$pod" .memory_mib mps-sample)" 7168
  try kubectl exec "$pod" -- env
  assert_contains "the environment of kubectl exec" "$stdout" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M
  try kubectl exec "$pod" -- sh -c 'cat /proc/[0-9]*/comm'
  refute_contains "what it sees" "$stdout" kubelet containerd
  # Without access to the API server mpsgated makes no events.
  assert_contains "the operator is told" "$(mpsgate status)" "E_HOST_PID 1"
  kubectl exec "$pod" -- touch /tmp/end
  wait_for 60 "the Job is complete" kubectl wait --for condition=complete job/mps-sample --timeout 1s
  assert_free
}
job_says() { kubectl logs job/mps-sample | grep -F -- "$1"; }

# In settings of its own: the resource is there when it is named.
slices() { # LIST
  printf '[kubernetes]\nslices_gib = %s\n' "$1" >>/etc/mpsgate/config.toml
  mpsgate reload
}
no_slices() {
  sed -i '/^\[kubernetes\]/,$d' /etc/mpsgate/config.toml
  mpsgate reload
}
fits_nowhere() { kubectl describe pod "$1" | grep -F "Insufficient $2"; } # POD RESOURCE

@test "the pod of nos runs as it stands in its page, as user 1000, with 10 GiB; no other size is given the same memory" {
  image library/busybox:latest
  slices '[10, 5]'
  wait_for 60 "a slice for each card" has_allocatable 2 nvidia.com/gpu-10gb
  wait_for 60 "three for each card" has_allocatable 6 nvidia.com/gpu-5gb
  sample nos-mps-partitioning | kubectl create -f -
  wait_for 60 "it runs" pod_is Running mps-partitioning-example
  assert_equal "its grant" "$(grant_of mps-partitioning-example '"\(.memory_mib) \(.uid)"' sleepy)" "10240 1000"
  assert_contains "its environment" "$(pod_env mps-partitioning-example sleepy)" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10240M
  wait_for 60 "the memory is gone from the other sizes" has_allocatable 20
  wait_for 60 "one of 5 GiB is left beside it" has_allocatable 4 nvidia.com/gpu-5gb
  wait_for 30 "its own size has it still" has_allocatable 2 nvidia.com/gpu-10gb
  asks whole 15
  wait_for 60 "a whole card runs beside it" pod_is Running whole
  assert_equal "grants" "$(memory_of_grants)" "[10240,15360]"
  wait_for 60 "no card is left for another slice" has_allocatable 1 nvidia.com/gpu-10gb
  pod second '.spec.hostIPC = true | .spec.containers[0].resources.limits["nvidia.com/gpu-10gb"] = "1"'
  wait_for 60 "it fits nowhere" fits_nowhere second nvidia.com/gpu-10gb
  assert_equal "grants" "$(memory_of_grants)" "[10240,15360]"
  kubectl delete pod whole >/dev/null
  wait_for 90 "it runs where the whole card was" pod_is Running second
  assert_equal "grants" "$(memory_of_grants)" "[10240,10240]"
  kubectl delete pod mps-partitioning-example --grace-period 1 --wait=false >/dev/null # else its sleep, which as pid 1 has no SIGTERM, has 30 s
  no_slices
}

@test "without hostIPC kubectl describe pod says what to do" {
  pod private '.spec.containers[0].resources.limits["aliyun.com/gpu-mem"] = "7"'
  wait_for 60 "it shows the code" pod_refused private E_NO_HOST_IPC
  try kubectl describe pod private
  assert_contains "kubectl describe pod" "$stdout" "hint: " "hostIPC"
}

@test "two equal pods at once, and one that does not fit: each has its own memory, and the third waits" {
  asks one 12
  asks two 12
  asks three 12
  wait_for 90 "two grants" grants_are "[12288,12288]"
  assert_equal "cards with one of them" "$(status_json | jq '[.grants[].card] | unique | length')" 2
  wait_for 60 "the third is pending" pod_is Pending three
  assert_equal "grants" "$(memory_of_grants)" "[12288,12288]"
}


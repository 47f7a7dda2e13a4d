#!/usr/bin/env bats
# What a pod has survives what happens to containers, kubelet, mpsgated, the node and the API
# server; it is free when its container is really gone, and not before; what a local engine has is
# gone from the node.
#
# nightly: minutes without an API server and of draining; the e2e files restart mpsgated each time

load cluster

@test "a container that is restarted has its memory again; a restart of mpsgated or of the kubelet changes nothing" {
  asks again 7 '.spec.restartPolicy = "Always"'
  wait_for 60 "it runs" pod_is Running again
  local first
  first=$(the_init)
  kill -KILL "$first"
  wait_for 90 "another container" another_init "$first"
  assert_equal "grants" "$(memory_of_grants)" "[7168]"
  first=$(the_init)
  daemon_stop
  daemon_start
  kubelet_stop
  kubelet_start
  wait_for 60 "the kubelet has the devices" has_devices
  wait_for 60 "30 GiB are allocatable" has_allocatable 30
  assert_equal "grants" "$(memory_of_grants)" "[7168]"
  assert_equal "its container" "$(the_init)" "$first"
  asks more 3
  wait_for 60 "another pod runs" pod_is Running more
  wait_for 30 "both grants" grants_are "[3072,7168]"
}

decided() { another_init "$1" || pod_is Failed again; } # THAN
token_is() { [[ $(token_of "$1") == "$2" ]]; } # POD TOKEN

# A kubelet before device plugins are there again: an older one starts the pod from what it has on
# disk, a newer one fails it for good.
@test "after a power cut a pod has its memory again, by what the kubelet has on disk, or is failed and named, and another has its place" {
  asks again 7 '.spec.restartPolicy = "Always"'
  wait_for 60 "it runs" pod_is Running again
  local token first
  token=$(token_of again) first=$(the_init)
  node_crash
  wait_for 10 "its container is gone" gone "$first"
  node_boot
  wait_for 60 "the kubelet has the devices" has_devices
  wait_for 60 "the node is ready" node_ready
  wait_for 120 "another container, or none for good" decided "$first"
  if pod_is Failed again; then
    assert_equal "its reason" "$(kubectl get pod again -o 'jsonpath={.status.reason}')" UnexpectedAdmissionError
    wait_for 60 "an event says so" pod_says again "kubectl delete pod -n default again"
    pod_says again GPUPodNotAdmitted
    assert_equal "grants" "$(memory_of_grants)" "[]"
    wait_for 60 "30 GiB are allocatable" has_allocatable 30
    asks instead 15
    wait_for 60 "another has its place" pod_is Running instead
    return
  fi
  wait_for 60 "the pod is" pod_is Running again
  assert_equal "grants" "$(memory_of_grants)" "[7168]"
  # The API server may still show the container of before.
  wait_for 60 "its token is the one of before" token_is again "$token"
  wait_for 60 "30 GiB are allocatable" has_allocatable 30
  # What the kubelet remembers is counted: the rest is there, and no more.
  asks rest 15
  asks more 9
  wait_for 60 "the rest is given" grants_are "[7168,15360]"
  wait_for 60 "more is not" pod_says more "Insufficient aliyun.com/gpu-mem"
}

@test "a minute without the API server: containers that end have their memory again" {
  asks again 7 '.spec.restartPolicy = "Always"'
  wait_for 60 "it runs" pod_is Running again
  local pid count end=$((SECONDS + 60))
  api_stop
  # The kubelet takes ten seconds more before each next one.
  for ((count = 1; count <= 2; count++)); do
    pid=$(the_init)
    kill -KILL "$pid"
    wait_for 90 "container $((count + 1))" another_init "$pid"
    assert_equal "grants" "$(memory_of_grants)" "[7168]"
    assert_contains "its environment" "$(environment_of "$(the_init)")" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M
  done
  pid=$(the_init)
  wait_for 60 "the minute is over" minute_over "$end"
  assert_equal "its container" "$(the_init)" "$pid"
  api_start
  wait_for 90 "the node is ready" node_ready
  wait_for 60 "the restarts are known" restarted again 2
  # It tries again after up to 30 s, and until then it keeps promises of pods that were deleted.
  wait_for 90 "mpsgated follows again" is_followed
  asks more 3
  wait_for 60 "another pod runs" pod_is Running more
  assert_equal "grants" "$(memory_of_grants)" "[3072,7168]"
  assert_equal "its container" "$(grant_of again .pid)" "$pid"
}
minute_over() { ((SECONDS >= $1)); }
restarted() { [[ $(kubectl get pod "$1" -o 'jsonpath={.status.containerStatuses[0].restartCount}') == "$2" ]]; } # NAME TIMES

# stubborn NAME GIB: a pod whose container ends when it is told to by a file, whatever the signal.
stubborn() {
  asks "$1" "$2" '.spec.terminationGracePeriodSeconds = 120
    | .spec.containers[0].command = ["sh", "-c", "trap : TERM; touch /tmp/ready; until [ -e /tmp/end ]; do sleep 1; done"]'
  wait_for 60 "it runs" pod_is Running "$1"
  wait_for 10 "it is stubborn" kubectl exec "$1" -- ls /tmp/ready
}
deleted() { [[ -n $(kubectl get pod "$1" -o 'jsonpath={.metadata.deletionTimestamp}') ]]; }
absent() { ! kubectl get pod "$1"; }

@test "a pod that is deleted has its memory until its container is gone; the next one waits for that" {
  stubborn old 15
  asks other 15
  wait_for 60 "the node is full" grants_are "[15360,15360]"
  local root
  root=/proc/$(grant_of old .pid)/root
  kubectl delete pod old --wait=false >/dev/null
  wait_for 10 "it is being deleted" deleted old
  asks next 15
  wait_for 60 "the next one waits" pod_says next "Insufficient aliyun.com/gpu-mem"
  assert_equal "the grant of the old one" "$(grant_of old .memory_mib)" 15360
  touch "$root/tmp/end"
  wait_for 90 "the next one runs" pod_is Running next
  assert_equal "grants" "$(memory_of_grants)" "[15360,15360]"
}

@test "a pod that is deleted by force behind its kubelet's back has its memory while its container lives" {
  asks old 15 '.spec.restartPolicy = "Always"'
  asks other 15 '.spec.restartPolicy = "Always"'
  wait_for 60 "the node is full" grants_are "[15360,15360]"
  wait_for 60 "it runs" pod_is Running old
  local pid
  pid=$(grant_of old .pid)
  kubelet_stop
  kubectl delete pod old --force --grace-period 0 >/dev/null 2>&1
  wait_for 10 "the API server has forgotten it" absent old
  assert_equal "grants" "$(memory_of_grants)" "[15360,15360]"
  gone "$pid" && fail "the old container is gone: nothing was shown"
  kubelet_start
  wait_for 60 "the kubelet has the devices" has_devices
  asks next 15 '.spec.restartPolicy = "Always"'
  # Refused as long as the old container lives, where the kubelet is that quick; a newer one fails
  # it for good then, and it is named.
  next_decided() { pod_is Running next || pod_is Failed next; }
  wait_for 150 "the next one runs, or was too early" next_decided
  if pod_is Failed next; then
    wait_for 60 "an event says what to do" pod_says next "kubectl delete pod -n default next"
    wait_for 60 "the old container is gone" gone "$pid"
    kubectl delete pod next >/dev/null
    asks next 15 '.spec.restartPolicy = "Always"'
    wait_for 150 "made again it runs" pod_is Running next
  fi
  wait_for 10 "the old container is gone" gone "$pid"
  # A pod counts as running between two attempts, too.
  wait_for 90 "both have their memory" grants_are "[15360,15360]"
}

@test "a drained node has no grant; after it the pods come again" {
  stateful_set web 2 9
  jq -n '{apiVersion: "apps/v1", kind: "DaemonSet", metadata: {name: "agent"}, spec: {selector: {matchLabels: {app: "agent"}},
    template: {metadata: {labels: {app: "agent"}}, spec: {terminationGracePeriodSeconds: 1, automountServiceAccountToken: false, containers: [{name: "main", image: "bb", imagePullPolicy: "Never", command: ["sleep", "600"]}]}}}}' | kubectl create -f - >/dev/null
  asks alone 5
  wait_for 90 "all run" grants_are "[5120,9216,9216]"
  LIMIT=120 try kubectl drain "$NODE_NAME" --ignore-daemonsets --force --timeout 100s
  assert_free
  wait_for 30 "the pods that come after them wait" pod_is Pending web-0
  assert_equal "the agent" "$(kubectl get pods -l app=agent -o 'jsonpath={.items[*].status.phase}')" Running
  kubectl uncordon "$NODE_NAME" >/dev/null
  wait_for 90 "they come again" grants_are "[9216,9216]"
}

@test "what a docker container has on this node is gone from what pods can have, and comes back" {
  docker_start --add-runtime mpsgate=/usr/bin/mpsgate-runtime --default-runtime mpsgate
  local ask=(--network none --ipc host --env MPSGATE_GPU_MEM=7Gi bb)
  wait_for 60 "30 GiB are allocatable" has_allocatable 30
  # On a node with a kubelet the environment asks for nothing, and where it does, it is not trusted.
  try_docker run --rm "${ask[@]}" env
  refute_contains "environment" "$stdout" CUDA_MPS_
  printf '[requests]\nfrom_env = "on"\n' >>/etc/mpsgate/config.toml
  mpsgate reload
  try_docker fail run --rm "${ask[@]}" true
  assert_contains "stderr" "$stderr" "[E_UNCONFIRMED]" "hint: "
  printf '[trust]\nlocal = "on"\n' >>/etc/mpsgate/config.toml
  mpsgate reload
  try_docker run -d --name local "${ask[@]}" sleep 600
  assert_equal "grants" "$(memory_of_grants)" "[7168]"
  wait_for 60 "7 GiB are gone" has_allocatable 23
  assert_equal "capacity" "$(kubectl get node "$NODE_NAME" -o 'jsonpath={.status.capacity.aliyun\.com/gpu-mem}')" 30
  asks whole 15
  asks rest 8
  wait_for 60 "pods have the rest" grants_are "[7168,8192,15360]"
  asks more 1
  wait_for 60 "no more" pod_says more "Insufficient aliyun.com/gpu-mem"
  try_docker rm -f local
  wait_for 60 "30 GiB are allocatable" has_allocatable 30
  wait_for 60 "the pod that waited runs" pod_is Running more
  docker_stop
  sed -i '/^\[requests\]/,$d' /etc/mpsgate/config.toml
  mpsgate reload
}

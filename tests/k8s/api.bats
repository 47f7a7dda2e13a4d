#!/usr/bin/env bats
# mpsgated with the API server: the node shows its cards, labels switch it, pods that are bound hold
# their memory, slices are served as pods ask for them, and what goes wrong becomes an event. With
# the rights of the ClusterRole alone.

load cluster

setup_file() {
  cluster_start
  printf '[trust]\nlocal = "on"\n' >>/etc/mpsgate/config.toml
  cluster_follow
}

teardown() {
  explain_failure
  [[ ${BATS_TEST_COMPLETED:-} == 1 ]] || { cluster_log; tail -n 30 "$MG/log/mpsgated.log" >&2; }
  delete_all
  pods_clear
  label ack.node.gpu.schedule=mps ack.node.gpu.placement- nos.nebuly.com/gpu-partitioning- || true
  assert_free
}

node_json() { kubectl get node "$NODE_NAME" -o json; }
node_shows() { node_json | jq -e "$1"; } # JQ
# has_event KIND NAME REASON TEXT: written by mpsgated.
has_event() {
  kubectl get events -A -o json | jq -e --arg kind "$1" --arg name "$2" --arg reason "$3" --arg text "$4" \
    '.items[] | select(.source.component == "mpsgated" and .involvedObject.kind == $kind and .involvedObject.name == $name
      and .reason == $reason and (.message | contains($text)))'
}
card_of() { grant_of "$1" .card_index "${2:-main}"; } # POD [CONTAINER]
schedule_is() { [[ $(status_json | jq -r .schedule) == "$1" ]]; }

@test "the node shows its cards, their number, labels and a condition, and mpsgate how it stands" {
  wait_for 60 "the cards" node_shows '.metadata.annotations["mpsgate.io/cards"] | fromjson | .cards | length == 2'
  wait_for 60 "the condition" node_shows '.status.conditions[] | select(.type == "GPUMemorySharingReady" and .status == "True"
    and .message == "2 of 2 cards take GPU memory requests; guarantee level mps+watchdog, not proven on each of them")'
  node_shows '.metadata.annotations["mpsgate.io/cards"] | fromjson | .version == 1 and .cards[1].index == 1
    and .cards[1].memory_mib == 15360 and .cards[1].healthy and (.cards[1].uuid | startswith("GPU-"))'
  wait_for 60 "their level" node_shows '.metadata.annotations["mpsgate.io/cards"] | fromjson | .cards
    | map("\(.guarantee), \(.proof)") | all(. == "mps+watchdog, not tried on this card")'
  node_shows '.metadata.labels | .["aliyun.accelerator/nvidia_count"] == "2" and .["aliyun.accelerator/nvidia_mem"] == "15360MiB"
    and .["aliyun.accelerator/nvidia_name"] == "Simulated-T4" and .["mpsgate.io/shared"] == "true"
    and .["mpsgate.io/guarantee"] == "mps-watchdog" and .["mpsgate.io/proven"] == "false"'
  wait_for 60 "its cards as a resource" node_shows '.status.allocatable["aliyun.com/gpu-count"] == "2"'
  try mpsgate doctor
  assert_contains "doctor" "$stdout" "api-server" "node node1"
  local memory
  memory=$(awk '/^VmRSS/ { print $2 }' "/proc/$(<"$MG/mpsgated.pid")/status")
  echo "# mpsgated has $memory KiB" >&3
  ((memory < 30 * 1024)) || fail "mpsgated has $memory KiB"
  exec 4<>/dev/tcp/127.0.0.1/19400
  printf 'GET /metrics HTTP/1.0\r\n\r\n' >&4
  metrics=$(timeout 10 cat <&4)
  exec 4>&-
  assert_contains "metrics" "$metrics" "mpsgate_api_server_followed 1" "mpsgate_events_dropped_total 0"
}

handlers_are() { node_shows ".metadata.annotations[\"mpsgate.io/handlers\"] | fromjson | $1"; } # JQ
bypass_is() { node_shows ".status.conditions[] | select(.type == \"GPUMemorySharingBypass\" and .status == \"$1\" and (.message | contains(\"$2\")))"; } # STATUS TEXT

@test "a handler that bypasses mpsgate is on the node's object as soon as the engine has it, by the engine's own reading" {
  wait_for 90 "the handlers" handlers_are '.version == 1 and .by == "engine" and (.led | index("mpsgate") != null) and .round == []'
  wait_for 60 "the condition" bypass_is False "every handler leads through mpsgate"
  cp /etc/containerd/config.toml "$K8S/config.toml"
  cp /usr/bin/true /usr/local/bin/past-runtime
  cat >>/etc/containerd/config.toml <<'TOML'
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.past]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.past.options]
    BinaryName = "/usr/local/bin/past-runtime"
TOML
  # Written, and not loaded: nobody knows what it has.
  try mpsgate reload
  wait_for 60 "that nobody knows" bypass_is Unknown "systemctl restart containerd"
  containerd_stop
  containerd_start
  try mpsgate reload
  wait_for 60 "it bypasses mpsgate" handlers_are '.round == ["past"]'
  wait_for 60 "the condition" bypass_is True "past"
  cp "$K8S/config.toml" /etc/containerd/config.toml
  containerd_stop
  containerd_start
  try mpsgate reload
  wait_for 60 "it is gone" handlers_are '.round == []'
  wait_for 60 "the condition" bypass_is False ""
}

@test "a refusal is an event of its pod, and a way past mpsgate is named as one" {
  pod private '.spec.containers[0].resources.limits["aliyun.com/gpu-mem"] = "7"'
  wait_for 60 "the refusal" has_event Pod private GPUMemoryRefused "[E_NO_HOST_IPC]; hint: set hostIPC: true"
  pod past '.spec.containers[0].env = [{name: "NVIDIA_VISIBLE_DEVICES", value: "all"}]'
  wait_for 60 "the bypass" has_event Pod past GPUBypassAttempt "[E_VISIBLE_DEVICES]"
  asks large 7 '.spec.containers[0].env = [{name: "A", value: "b"}]'
  wait_for 60 "its neighbour runs" pod_is Running large
  assert_equal "events of the neighbour" "$(kubectl get events -o json | jq '[.items[] | select(.involvedObject.name == "large" and .source.component == "mpsgated")] | length')" 0
}

@test "a volume of its own at /dev/shm is warned of by name, as is hostPID, and refused where the node has shown that no client attaches so" {
  dshm() { asks "$1" 2 '.spec.volumes = [{name: "dshm", emptyDir: {medium: "Memory"}}] | .spec.containers[0].volumeMounts = [{name: "dshm", mountPath: "/dev/shm"}]'; }
  dshm torch
  wait_for 60 "the warning" has_event Pod torch GPUMemoryWarned "kubernetes.io~empty-dir/dshm at /dev/shm"
  wait_for 60 "it runs all the same" pod_is Running torch
  assert_contains "status" "$(mpsgate status)" W_SHM
  asks seeing 2 '.spec.hostPID = true'
  wait_for 60 "so is one that gets a PID namespace of its own" has_event Pod seeing GPUMemoryWarned "[E_HOST_PID]"
  answered own-shm no
  wait_for 60 "the node's answer counts" grep -q '"shared_memory":"required"' /run/mpsgate/node.json
  dshm next
  wait_for 60 "it is refused" pod_refused next E_NO_SHM
  asks neighbour 2
  wait_for 60 "its neighbour runs" pod_is Running neighbour
  rm -r /var/lib/mpsgate/qualification
  try mpsgate reload
}

@test "a pod that is bound holds its memory before its container exists: local containers have what is left" {
  pod later '.spec.hostIPC = true | .spec.containers[0].resources.limits["aliyun.com/gpu-mem"] = "12"
    | .spec.initContainers = [{name: "wait", image: "bb", imagePullPolicy: "Never", command: ["sh", "-c", "until [ -e /tmp/go ]; do sleep 1; done"]}]'
  promised() { status_json | jq -se '[.[0].cards[].promised_mib] | sort == [0, 12288]'; }
  wait_for 60 "12 GiB are promised" promised
  granted first 12Gi
  refused second E_NO_CAPACITY --ann mpsgate.io/gpu-mem=4Gi
  granted third 3Gi
  assert_equal "no grant of the pod yet" "$(memory_of_grants)" "[3072,12288]"
  wait_for 60 "its init container runs" init_runs later
  kubectl exec later -c wait -- touch /tmp/go
  wait_for 60 "it runs" pod_is Running later
  assert_equal "grants" "$(memory_of_grants)" "[3072,12288,12288]"
  wait_for 30 "no promise is left" no_promise
  kubectl delete pod later --wait=false >/dev/null
  wait_for 90 "its memory is free" grants_are "[3072,12288]"
  granted fourth 4Gi
}
init_runs() { kubectl get pod "$1" -o 'jsonpath={.status.initContainerStatuses[0].state.running}' | grep -q .; }
no_promise() { status_json | jq -se '[.[0].cards[].promised_mib] | add == 0'; }

@test "placement follows the label: packed, or spread" {
  asks one 3
  asks two 4
  wait_for 60 "one runs" pod_is Running one
  wait_for 60 "two runs" pod_is Running two
  assert_equal "packed" "$(card_of one)" "$(card_of two)"
  label ack.node.gpu.placement=spread
  spreads() { grep -q 'placement: Some(Spread)' "$MG/log/mpsgated.log"; }
  wait_for 30 "the label is seen" spreads
  asks three 5
  wait_for 60 "three runs" pod_is Running three
  assert_equal "cards in use" "$(status_json | jq '[.grants[].card_index] | unique | length')" 2
}

@test "slices of nos are served as pods ask for them, where the node's label says so" {
  image library/busybox:latest
  sample nos-mps-partitioning | kubectl create -f -
  wait_for 60 "nobody has it" pod_says mps-partitioning-example "Insufficient nvidia.com/gpu-10gb"
  label nos.nebuly.com/gpu-partitioning=mps
  wait_for 90 "a slice for each card" has_allocatable 2 nvidia.com/gpu-10gb
  wait_for 90 "it runs" pod_is Running mps-partitioning-example
  assert_equal "its grant" "$(grant_of mps-partitioning-example '"\(.memory_mib) \(.uid)"' sleepy)" "10240 1000"
  kubectl delete pod mps-partitioning-example --grace-period 1 --wait=false >/dev/null
}

@test "the schedule is switched when the last container of the other one has ended, and an event says whom it waits for" {
  asks holds 7
  wait_for 60 "it runs" pod_is Running holds
  label ack.node.gpu.schedule=share
  wait_for 60 "the node says what it waits for" has_event Node "$NODE_NAME" GPUModeSwitchDeferred "$(container_of holds)"
  schedule_is mps
  wait_for 60 "pods are not given what cannot be granted" has_allocatable 0
  kubectl delete pod holds --wait=false >/dev/null
  wait_for 90 "the schedule is share" schedule_is share
  wait_for 60 "the switch is told" has_event Node "$NODE_NAME" GPUModeSwitched share
  wait_for 60 "30 GiB are allocatable" has_allocatable 30
  assert_equal "MPS control daemons" "$(mps_pids)" ""

  # No hostIPC, and two cards.
  pod wide '.metadata.labels = {"aliyun.com/gpu-count": "2"} | .spec.containers[0].resources.limits["aliyun.com/gpu-mem"] = "8"'
  wait_for 60 "it runs" pod_is Running wide
  assert_equal "4 GiB of each card, by agreement" "$(status_json | jq -c '[.grants[] | [.card_index, .memory_mib, .guarantee]] | sort')" \
    '[[0,4096,"none"],[1,4096,"none"]]'
  refute_contains "its environment" "$(pod_env wide)" CUDA_MPS_
  label ack.node.gpu.schedule=mps
  wait_for 60 "the way back waits, too" has_event Node "$NODE_NAME" GPUModeSwitchDeferred "$(container_of wide)"
  kubectl delete pod wide --wait=false >/dev/null
  wait_for 90 "the schedule is mps" schedule_is mps
  wait_for 60 "30 GiB are allocatable" has_allocatable 30
}

@test "a node without the label is left alone: cards are given back when nobody has them" {
  asks holds 7
  wait_for 60 "it runs" pod_is Running holds
  label ack.node.gpu.schedule-
  wait_for 60 "the node says who is in the way" has_event Node "$NODE_NAME" GPUModeSwitchDeferred "$(container_of holds)"
  node_shows '.metadata.labels["mpsgate.io/shared"] == "true"'
  pod_is Running holds
  kubectl delete pod holds --wait=false >/dev/null
  wait_for 90 "no MPS is left" no_mps
  wait_for 60 "nothing of ours is left on the node" node_shows '(.metadata | .annotations["mpsgate.io/cards"] == null and .labels["mpsgate.io/shared"] == null and .labels["mpsgate.io/guarantee"] == null and .labels["mpsgate.io/proven"] == null)
    and all(.status.conditions[]; .type != "GPUMemorySharingReady") and .status.capacity["aliyun.com/gpu-count"] == null'
  # And untouched from the start.
  : >"$MG/log/mpsgated.log"
  daemon_stop
  daemon_start
  wait_for 30 "the label's absence is obeyed" grep -q "API server answers" "$MG/log/mpsgated.log"
  refute_contains "mpsgated's log" "$(cat "$MG/log/mpsgated.log")" "control daemon answers" "compute mode leased"
  label ack.node.gpu.schedule=mps
  wait_for 90 "30 GiB are allocatable" has_allocatable 30
  asks again 7
  wait_for 60 "pods run" pod_is Running again
}
no_mps() { [[ -z $(mps_pids) ]]; }

@test "MPS that dies is an event of the pods that had it, and of the node" {
  asks hit 7
  wait_for 60 "it runs" pod_is Running hit
  kill -KILL "$(status_json | jq --argjson card "$(card_of hit)" '.cards[] | select(.index == $card).mps.pid')"
  wait_for 60 "the pod is told" has_event Pod hit MPSFault "restart the container"
  wait_for 60 "30 GiB are allocatable" has_allocatable 30
}

@test "a pod that kubelet failed because it had no devices is named, with what to do" {
  daemon_stop
  asks late 2 '.spec.nodeName = $ARGS.positional[0]' "$NODE_NAME"
  wait_for 60 "kubelet fails it" pod_is Failed late
  assert_equal "its reason" "$(kubectl get pod late -o 'jsonpath={.status.reason}')" UnexpectedAdmissionError
  daemon_start
  wait_for 60 "an event says so" has_event Pod late GPUPodNotAdmitted "kubectl delete pod -n default late"
}

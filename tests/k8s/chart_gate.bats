#!/usr/bin/env bats
# The containers' doors to MPS in a cluster: the gates are a container of mpsgated's pod, and the
# holder's pod keeps the sockets. NVIDIA's own client in a pod, NVIDIA's own control daemon in the
# holder's; the server is the tests' own. No webhook, so on every Kubernetes that the chart is for.

load chart
load ../e2e/gate

setup_file() {
  K8S_SKIP=''
  [[ -x ${MG_HELM:-} ]] || K8S_SKIP="Helm is not here: tests/env/install.sh chart"
  mkdir -p "$MG/cuda"
  [[ -n $K8S_SKIP ]] || rootfs_libcuda "$MG/cuda" 2>"$MG/why" || K8S_SKIP=$(tail -n 1 "$MG/why")
  export K8S_SKIP
  [[ -z $K8S_SKIP ]] || return 0
  export MPS_SERVER=$MG_OUT/fakes/nvidia-cuda-mps-server
  chart_node_start
  image cuda:1 "$MG/cuda"
}

teardown_file() {
  [[ -z $K8S_SKIP ]] || return 0
  services_stop
  chart | kubectl delete -f - >/dev/null 2>&1 || true
  chart_node_stop
}

setup() { [[ -z $K8S_SKIP ]] || skip "$K8S_SKIP"; }

# chart: rendered without Helm in the cluster, as what is built of Debian's source knows no version
# of its own.
chart() {
  local version
  version=$(kubectl version -o json | jq -r '.serverVersion.gitVersion | if startswith("v0.0.0") then "v1.20.2" else . end')
  (cd "$MG_REPO" && helm_ template mpsgate packaging/kubernetes/chart --namespace "$NS" --kube-version "$version" --set image.repository="$REGISTRY/mpsgate" \
    --set installer.restartEngine=true,config.mps.orphan=kill)
}
capabilities() { awk '/^CapEff:/ { print $2 }' "/proc/$1/status"; } # PID

@test "a pod's CUDA client is served through its door, by a gate in mpsgated's pod that has two capabilities" {
  kubectl label node "$NODE_NAME" ack.node.gpu.schedule=mps >/dev/null
  kubectl create namespace "$NS" >/dev/null
  chart | kubectl apply -f - >"$K8S/helm.out"
  wait_for 240 "every pod is ready" all_ready 2
  wait_for 60 "30 GiB are allocatable" has_allocatable 30
  server_says_word
  asks a 2 ".spec.containers[0].image = \"$REGISTRY/cuda:1\" | .spec.containers[0].imagePullPolicy = \"IfNotPresent\""
  wait_for 60 "it runs" pod_is Running a
  assert_equal "its files" "$(kubectl exec a -- ls /run/mpsgate/mps)" control
  try kubectl exec a -- cuda-client "$LIBCUDA"
  assert_equal "cuInit" "${stdout##* }" "$WORD"
  local gate
  gate=$(gate_pid)
  assert_equal "its capabilities" "$(capabilities "$gate")" 00000000000000c0
  assert_equal "its cgroup namespace" "$(stat -Lc %i "/proc/$gate/ns/cgroup")" "$(stat -Lc %i /proc/1/ns/cgroup)"
  assert_equal "its root directory" "$(find "/proc/$gate/root/" -mindepth 1 -maxdepth 1 -printf '%f\n' | sort | xargs)" "proc run sys"
  assert_contains "the gate's log" "$(kubectl logs -n "$NS" "$(mpsgated_pod)" -c gate)" "client handed over"
  # It says its counts every 5 s.
  wait_for 10 "mpsgated knows of the client" counted
}

counted() { [[ $(in_mpsgated mpsgate status) == *"handed over 1,"* ]]; }

@test "mpsgated's pod is replaced under attaching clients: each is served" {
  local pod gate
  pod=$(mpsgated_pod) gate=$(gate_pid)
  # shellcheck disable=SC2016 # the container's shell
  kubectl exec a -- sh -c 'until [ -e /tmp/stop ]; do cuda-client "$1"; done' sh "$LIBCUDA" >"$K8S/codes" 3>&- &
  local attaching=$!
  kubectl rollout restart -n "$NS" daemonset/mpsgate >/dev/null
  wait_for 120 "another pod of mpsgated is there" another_mpsgated "$pod"
  wait_for 120 "it is ready" all_ready 2
  wait_for 30 "another gate serves" another_gate "$gate"
  local before
  before=$(wc -l <"$K8S/codes")
  wait_for 30 "clients attach through it" more_codes "$before"
  kubectl exec a -- touch /tmp/stop
  wait "$attaching"
  echo "# codes: $(awk '{ print $NF }' "$K8S/codes" | sort | uniq -c | xargs)" >&3
  assert_equal "what cuInit said" "$(awk '{ print $NF }' "$K8S/codes" | sort -u)" "$WORD"
  assert_equal "grants" "$(memory_of_grants)" "[2048]"
}

@test "a GPU is asked from mpsgated's pod, in containers of the node" {
  local library
  library=$(find "$MG/cuda" -name libcuda.so.1)
  # Without a GPU no question is answered with no.
  LIMIT=120 try kubectl exec -n "$NS" "$(mpsgated_pod)" -c qualify -- mpsgate qualify 1 --from-pod --library "$library"
  assert_contains "the answers" "$stdout" "its client reached the MPS server through its door" "as far as with the server's own"
  assert_equal "kept" "$(status_json | jq '.cards[1].qualification.answers | length')" 7
  assert_equal "containers that are left" "$(find /run/mpsgate/qualify -mindepth 1 2>/dev/null)" ""
  assert_contains "who asks by himself" "$(pgrep -af 'mpsgate qualify')" "--due --from-pod --every=900"
}
another_mpsgated() { local now; now=$(mpsgated_pod) && [[ -n $now && $now != "$1" ]]; } # THAN
more_codes() { (($(wc -l <"$K8S/codes") > $1)); } # THAN

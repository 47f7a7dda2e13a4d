#!/usr/bin/env bats
# mpsgate-scheduler as the extender of a real kube-scheduler: which node, which card, and that its
# ledger is the API server's truth. Beside the real node there are nodes that nobody runs on: pods
# are bound to them, and stay so.

load extended

@test "20 GiB fit into no card of 2 x 16, whatever their sum; where a card is larger, there they go" {
  nodes 'node("two-of-16"; {}; [card(16), card(16)])'
  waiting large 20
  wait_for 60 "kube-scheduler says why" unplaced large "no card"
  assert_equal "its node" "$(node_of large)" ""
  nodes 'node("mixed"; {}; [card(16), card(24)])'
  wait_for 90 "it has a node" is_bound large
  assert_equal "its node" "$(node_of large)" mixed
  assert_equal "its card" "$(cards_of large)" '{"main":{"1":20480}}'
  wait_for 60 "the ledger is the truth" ledger_is_true
}

@test "inside a node the fullest card that fits is taken, and the annotations say it in every form" {
  nodes 'node("three"; {}; [card(16), card(24), card(40)])'
  waiting first 20
  wait_for 60 "it has a node" is_bound first
  waiting second 4
  wait_for 60 "it has a node" is_bound second
  waiting third 10
  wait_for 60 "it has a node" is_bound third
  waiting fourth 30
  wait_for 60 "it has a node" is_bound fourth
  assert_equal "20 GiB" "$(cards_of first)" '{"main":{"1":20480}}'
  assert_equal "4 GiB: what is left of that card" "$(cards_of second)" '{"main":{"1":4096}}'
  assert_equal "10 GiB" "$(cards_of third)" '{"main":{"0":10240}}'
  assert_equal "30 GiB" "$(cards_of fourth)" '{"main":{"2":30720}}'
  local annotations
  annotations=$(kubectl get pod first -o json | jq -c .metadata.annotations)
  jq -e '.ALIYUN_COM_GPU_MEM_IDX == "1" and .ALIYUN_COM_GPU_MEM_POD == "20" and .ALIYUN_COM_GPU_MEM_DEV == "24" and .ALIYUN_COM_GPU_MEM_ASSIGNED == "false"
    and (.ALIYUN_COM_GPU_MEM_ASSUME_TIME | length) == 19 and ."scheduler.framework.gpushare.allocation" == "{\"0\":{\"1\":20}}"' <<<"$annotations" ||
    fail "$annotations"
  wait_for 60 "the ledger is the truth" ledger_is_true
}

@test "binpack fills one node, spread takes another, by the nodes' labels" {
  nodes 'node("a"; {pool: "packed"}; [card(16), card(16)]), node("b"; {pool: "packed"}; [card(16), card(16)]),
    node("c"; {pool: "spread", "ack.node.gpu.placement": "spread"}; [card(16), card(16)]),
    node("d"; {pool: "spread", "ack.node.gpu.placement": "spread"}; [card(16), card(16)])'
  local n
  for n in 1 2 3 4; do
    waiting "packed-$n" 4 '.spec.nodeSelector = {pool: "packed"}'
    wait_for 60 "it has a node" is_bound "packed-$n"
    waiting "spread-$n" 4 '.spec.nodeSelector = {pool: "spread"}'
    wait_for 60 "it has a node" is_bound "spread-$n"
  done
  wait_for 60 "the ledger is the truth" ledger_is_true
  jq -e 'to_entries | map(select(.key | test("^[ab]/"))) | length == 1 and .[0].value == 16' <<<"$(in_ledger)" || fail "packed: $(in_ledger)"
  jq -e 'to_entries | map(select(.key | test("^[cd]/"))) | length == 4 and all(.value == 4)' <<<"$(in_ledger)" || fail "spread: $(in_ledger)"
}

@test "memory over M cards is for a node that shares without MPS; one under MPS says why it is none" {
  nodes 'node("mps"; {}; [card(16), card(16), card(16)])'
  waiting several 24 '.metadata.labels["aliyun.com/gpu-count"] = "3"'
  wait_for 60 "kube-scheduler says why" unplaced several "asks for 3 cards"
  nodes 'node("share"; {"ack.node.gpu.schedule": "share"}; [card(16) + {one_uid: false}, card(6) + {one_uid: false}, card(16) + {one_uid: false}, card(16) + {one_uid: false}])'
  wait_for 90 "it has a node" is_bound several
  assert_equal "its node" "$(node_of several)" share
  assert_equal "its cards" "$(cards_of several)" '{"main":{"0":8192,"2":8192,"3":8192}}'
  wait_for 60 "the ledger is the truth" ledger_is_true
}

@test "a card that is sick, serves another uid, or has as many pods as its node's label allows, takes none" {
  nodes 'node("picky"; {"ack.node.gpu.max-pod": "1"}; [card(16) + {healthy: false}, card(16) + {uid: 1000, local_mib: 1024}, card(16) + {local_mib: 10240}, card(16)])'
  waiting one 8
  wait_for 60 "it has a node" is_bound one
  assert_equal "its card" "$(cards_of one)" '{"main":{"3":8192}}'
  waiting two 8
  wait_for 60 "kube-scheduler says why" unplaced two "card"
  waiting user 8 '.spec.securityContext.runAsUser = 1000'
  wait_for 60 "it has a node" is_bound user
  assert_equal "its card" "$(cards_of user)" '{"main":{"1":8192}}'
}

@test "the compute share of a card is given out once" {
  nodes 'node("halves"; {}; [card(16)])'
  waiting most 2 '.spec.containers[0].resources.limits["aliyun.com/gpu-core.percentage"] = "60"'
  wait_for 60 "it has a node" is_bound most
  waiting half 2 '.spec.containers[0].resources.limits["aliyun.com/gpu-core.percentage"] = "50"'
  wait_for 60 "kube-scheduler says why" unplaced half "percent of the compute"
  waiting rest 2 '.spec.containers[0].resources.limits["aliyun.com/gpu-core.percentage"] = "40"'
  wait_for 60 "it has a node" is_bound rest
}

@test "a pod comes to the real node, on the card that was chosen, with its containers' memory on each" {
  asks real 9 '.spec.nodeSelector = {"kubernetes.io/hostname": $ARGS.positional[0]}
    | .spec.containers += [.spec.containers[0] * {name: "side", resources: {limits: {"aliyun.com/gpu-mem": "8"}}}]' "$NODE_NAME"
  wait_for 90 "it runs" pod_is Running real
  assert_equal "memory" "$(memory_of_grants)" "[8192,9216]"
  local container
  for container in main side; do
    assert_equal "the card of $container" "$(grant_of real .card_index "$container")" "$(cards_of real | jq -r --arg name "$container" '.[$name] | keys[0]')"
  done
  wait_for 30 "the node says what it holds" node_holds "$(uid_of real)" '[8192, 9216]'
  wait_for 60 "the ledger is the truth" ledger_is_true
}

@test "the webhook says at kubectl create what a node would refuse, and is in nobody's way" {
  webhook_start
  local file=$BATS_TEST_TMPDIR/pod.json
  (POD_TO=(cat); waiting privileged 4 '.spec.containers[0].securityContext.privileged = true') >"$file"
  try fail kubectl create -f "$file"
  assert_contains "kubectl create" "$stderr" "privileged" "[E_PRIVILEGED]"
  (POD_TO=(cat); waiting devices 4 '.spec.containers[0].env = [{name: "NVIDIA_VISIBLE_DEVICES", value: "all"}]') >"$file"
  try fail kubectl create -f "$file"
  assert_contains "kubectl create" "$stderr" "[E_VISIBLE_DEVICES]"
  (POD_TO=(cat); waiting private 4 '.spec.hostIPC = false') >"$file"
  try fail kubectl create -f "$file"
  assert_contains "kubectl create" "$stderr" "[E_NO_HOST_IPC]" "hostIPC: true"
  pod ordinary '.spec.containers[0].securityContext.privileged = true'
  kubectl create job --image bb told -o json --dry-run=client |
    jq '.spec.template.spec.containers[0] |= (.securityContext.privileged = true | .resources.limits["aliyun.com/gpu-mem"] = "4")' >"$BATS_TEST_TMPDIR/job.json"
  try kubectl create -f "$BATS_TEST_TMPDIR/job.json"
  assert_contains "a Job's maker is warned" "$stderr" "Warning" "[E_PRIVILEGED]"
  # ACK's sample with what PyTorch's and vLLM's charts have.
  sample mps-sample | kubectl create -f - -o json --dry-run=client |
    jq '.spec.template.spec |= (del(.hostPID) | .volumes = [{name: "dshm", emptyDir: {medium: "Memory"}}]
      | .containers[0].volumeMounts = [{name: "dshm", mountPath: "/dev/shm"}])' >"$BATS_TEST_TMPDIR/job.json"
  try kubectl create -f "$BATS_TEST_TMPDIR/job.json"
  assert_contains "the maker of a Job with its own /dev/shm is warned" "$stderr" "Warning" 'the volume "dshm" (emptyDir)' "[W_SHM]"
  replica_stop 1
  waiting meanwhile 4 '.spec.containers[0].securityContext.privileged = true'
  webhook_stop
  replica_start 1
}

@test "1,000 pods over 100 nodes: the ledger equals the API server's truth, after them, after half of them, and anew" {
  nodes 'range(100) | node("n\(.)"; {}; [card(16), card(16), card(24), card(40)])'
  local begin=$SECONDS
  jq -n --argjson pod "$(POD_TO=(cat); waiting x 1)" '{apiVersion: "v1", kind: "List", items: [range(1000) | . as $n | $pod
    | .metadata = {name: "p\($n)", namespace: "default", labels: {half: ($n % 2 | tostring)}}
    | .spec.containers[0].resources.limits["aliyun.com/gpu-mem"] = ([1, 2, 3, 4, 5, 6, 8, 10, 16, 20][($n * 7 + ($n / 10 | floor)) % 10] | tostring)]}' |
    kubectl create -f - >/dev/null
  echo "# 1,000 pods were made in $((SECONDS - begin)) s" >&3
  all_decided() { [[ $(kubectl get pods --field-selector spec.nodeName= -o name | wc -l) == 0 ]]; }
  wait_for 240 "all have nodes" all_decided
  echo "# and bound after $((SECONDS - begin)) s" >&3
  wait_for 60 "the ledger is the truth" ledger_is_true
  nothing_overcommitted || fail "a card is overcommitted"
  kubectl delete pods -l half=1 --force --grace-period 0 --wait=false >/dev/null 2>&1
  half_left() { [[ $(kubectl get pods -o name | wc -l) == 500 ]]; }
  wait_for 120 "half are gone" half_left
  wait_for 60 "the ledger is the truth" ledger_is_true
  local before
  before=$(in_ledger)
  replica_stop 0 KILL
  replica_stop 1 KILL
  replica_start 0
  replica_start 1
  wait_for 60 "one of them leads" has_leader
  wait_for 60 "the ledger is the truth" ledger_is_true
  assert_equal "built anew" "$(in_ledger)" "$before"
}

@test "kubectl inspect cgpu shows the cluster as the ledger has it" {
  nodes 'node("shown"; {}; [card(16), card(24)])'
  waiting seen 20
  wait_for 60 "it has a node" is_bound seen
  try env PATH="$MG_OUT:$PATH" kubectl inspect cgpu
  assert_contains "its table" "$stdout" "GPU Memory(GiB)" "0/16" "20/24" "20/40" "Allocated/Total GPU Memory In Cluster:"
  try "$MG_OUT/kubectl-inspect-cgpu" shown -d
  assert_contains "its details" "$stdout" seen default 20
}

@test "over TLS kube-scheduler shows its certificate and has pods bound, and whoever has none is not answered" {
  nodes 'node("secured"; {}; [card(16)])'
  local url=https://127.0.0.1:${EXTENDER_PORTS[0]} tls=$K8S/tls
  extender_secured
  try fail curl -sS --cacert "$tls/servers.crt" "$url/healthz"
  try curl -fsS --cacert "$tls/servers.crt" --cert "$tls/client.crt" --key "$tls/client.key" "$url/healthz"
  kube_scheduler_extended "$url" "enableHTTPS: true" "tlsConfig: {caFile: $tls/servers.crt}"
  waiting stranger 4
  wait_for 60 "without a certificate it gets no answer" unplaced stranger "tls:"
  assert_equal "its node" "$(node_of stranger)" ""
  kube_scheduler_extended "$url" "enableHTTPS: true" "tlsConfig: {caFile: $tls/servers.crt, certFile: $tls/client.crt, keyFile: $tls/client.key}"
  wait_for 120 "with one the pod has a node" is_bound stranger
  assert_equal "its card" "$(cards_of stranger)" '{"main":{"0":4096}}'
  kubectl delete pod stranger --force --grace-period 0 >/dev/null 2>&1
  extender_unsecured
}

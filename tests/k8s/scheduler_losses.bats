#!/usr/bin/env bats
# mpsgate-scheduler as the extender of a real kube-scheduler, and what is lost meanwhile: a replica,
# a pod that is deleted by force or evicted, the API server, mpsgated. Its ledger is the API
# server's truth all the same.

load extended

@test "a replica killed while a binding is on its way: no pod is lost, and no memory is given twice" {
  nodes 'node("only"; {}; [card(16)])'
  # What asks the API server to ask somebody who never answers, before it binds.
  local port=19609 leader
  begin tarpit socat "TCP-LISTEN:$port,bind=127.0.0.1,fork,reuseaddr" EXEC:'sleep 60'
  jq -n --arg url "https://127.0.0.1:$port/" '{apiVersion: "admissionregistration.k8s.io/v1", kind: "ValidatingWebhookConfiguration", metadata: {name: "tarpit"},
    webhooks: [{name: "tarpit.example.com", clientConfig: {url: $url}, failurePolicy: "Fail", sideEffects: "None", timeoutSeconds: 30, admissionReviewVersions: ["v1"],
      rules: [{apiGroups: [""], apiVersions: ["v1"], operations: ["CREATE"], resources: ["pods/binding"]}]}]}' | kubectl create -f - >/dev/null
  wait_for 60 "the API server asks the tarpit" binding_is_stuck
  waiting between 10
  wait_for 60 "its memory is taken" only_has 10
  assert_equal "its node" "$(node_of between)" ""
  has_cards between && fail "its cards are written on it before it is bound"
  leader=$(leader)
  replica_stop "$leader" KILL
  kubectl delete validatingwebhookconfiguration tarpit >/dev/null
  end tarpit
  replica_start "$leader"
  wait_for 60 "one of them leads" has_leader
  # What was not bound counts for nothing, and both want the one card.
  waiting other 10
  kube_scheduler_tries_again
  wait_for 150 "one of the two has the card" one_of_both_bound
  wait_for 60 "the ledger is the truth" ledger_is_true
  nothing_overcommitted || fail "$(inspect)"
  local bound=between
  is_bound between || bound=other
  kubectl delete pod "$bound" --force --grace-period 0 >/dev/null 2>&1
  kube_scheduler_tries_again
  one_left_bound() { is_bound "$([[ $bound == between ]] && echo other || echo between)"; }
  wait_for 150 "and then the other" one_left_bound
  wait_for 60 "the ledger is the truth" ledger_is_true
}
binding_is_stuck() { # of a pod that nobody made, tried only
  timeout 2 kubectl create --raw "/api/v1/namespaces/default/pods/nobody/binding?dryRun=All" -f - >/dev/null 2>&1 \
    <<<'{"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "nobody"}, "target": {"kind": "Node", "name": "only"}}'
  [[ $? == 124 ]]
}
has_cards() { [[ -n $(kubectl get pod "$1" -o json | jq -r '.metadata.annotations["mpsgate.io/placement"] // empty') ]]; }
only_has() { [[ $(in_ledger) == "{\"only/0\":$1}" ]]; } # GIB
one_of_both_bound() { is_bound between || is_bound other; }

@test "two replicas: one binds, the other is ready; the leader is killed, and pods are bound on" {
  nodes 'node("a"; {}; [card(16), card(16)]), node("b"; {}; [card(16), card(16)])'
  local leader follower
  leader=$(leader)
  follower=$((1 - leader))
  wait_for 60 "the follower is ready" replica_answers "$follower" readyz
  replica_answers "$follower" leaderz && fail "both lead"
  try curl -sS "http://127.0.0.1:${EXTENDER_PORTS[$follower]}/mpsgate/bind" -d '{"PodName":"x","PodNamespace":"default","PodUID":"u","Node":"a"}'
  assert_contains "a follower asked to bind" "$stdout" "and not this one"
  waiting before 10
  wait_for 60 "it has a node" is_bound before
  replica_stop "$leader" KILL
  waiting during 10
  wait_for 90 "the other leads" replica_answers "$follower" leaderz
  wait_for 30 "the Service has the other" curl -fsS -o /dev/null "$EXTENDER/leaderz"
  kube_scheduler_tries_again
  wait_for 120 "it has a node" is_bound during
  replica_start "$leader"
  wait_for 60 "it is ready again" replica_answers "$leader" readyz
  wait_for 60 "the ledger is the truth" ledger_is_true
  # Ended in order, it hands over at once.
  replica_stop "$follower"
  wait_for 10 "the first leads again" replica_answers "$leader" leaderz
  replica_start "$follower"
  wait_for 60 "the follower is ready" replica_answers "$follower" readyz
}

@test "memory of a pod that is deleted by force is free when its container is gone, not before" {
  asks slow 15 '.spec.nodeSelector = {"kubernetes.io/hostname": $ARGS.positional[0]}' "$NODE_NAME"
  wait_for 90 "it runs" pod_is Running slow
  local uid pid n
  uid=$(uid_of slow)
  pid=$(the_init)
  wait_for 30 "the node says what it holds" node_holds "$uid" '[15360]'
  # Behind the kubelet's back, which would end it. One that is gone would have the node's cards
  # stand as unhealthy.
  kill -STOP "$(<"$K8S/kubelet.pid")"
  kubectl delete pod slow --force --grace-period 0 --wait=false
  pod_away() { ! kubectl get pod slow; }
  wait_for 30 "the API server has forgotten it" pod_away
  for n in 1 2; do asks "next-$n" 15 '.spec.nodeSelector = {"kubernetes.io/hostname": $ARGS.positional[0]}' "$NODE_NAME"; done
  wait_for 60 "one of them has the other card" bound_are 1
  wait_for 60 "the other is told why" unplaced_any
  ledger_holds 30 || fail "the ledger has given away what the container holds: $(inspect "$NODE_NAME")"
  gone "$pid" && fail "its container is gone"
  kill -KILL "$pid"
  wait_for 30 "the node holds nothing of it" node_holds "$uid" '[]'
  # To a newer kube-scheduler a node's annotation is an event: the other pod has the memory at once.
  heard() { ledger_holds 15 || bound_are 2; }
  wait_for 30 "and the ledger has heard it" heard
  kube_scheduler_tries_again
  wait_for 150 "then the other has a node, too" bound_are 2
  wait_for 60 "the ledger is the truth" ledger_is_true
  kubectl delete pods --all --force --grace-period 0 >/dev/null 2>&1
  kill -CONT "$(<"$K8S/kubelet.pid")"
  wait_for 90 "the node is ready" node_ready
}
ledger_holds() { [[ $(inspect "$NODE_NAME" | jq '[.nodes[].devs[].usedGPU] | add') == "$1" ]]; } # GIB
bound_are() { [[ $(kubectl get pods -o json | jq '[.items[] | select(.spec.nodeName)] | length') == "$1" ]]; }
unplaced_any() { unplaced next-1 card || unplaced next-2 card; }

@test "preemption: of two cards that are full one is freed for a pod of higher priority, and none where that would not help" {
  local name before
  kubectl create priorityclass urgent --value 1000 >/dev/null
  for name in first second; do
    asks "$name" 12 '.spec.nodeSelector = {"kubernetes.io/hostname": $ARGS.positional[0]}' "$NODE_NAME"
    wait_for 90 "it runs" pod_is Running "$name"
  done
  # Both gone, the node had 30 GiB, as kube-scheduler counts; no card has 20.
  before=$(questions preempt)
  asks huge 20 '.spec.priorityClassName = "urgent"'
  wait_for 60 "kube-scheduler says why" unplaced huge "Insufficient aliyun.com/gpu-mem"
  if ! wait_for 20 "it has asked whether preemption helps" was_asked preempt "$before"; then
    kubectl delete priorityclass urgent >/dev/null
    # It ends pods for one that no card takes, whatever the extender would say.
    skip "this kube-scheduler asks no extender about preemption (kubernetes#103019)"
  fi
  kubectl delete pod huge --force --grace-period 0 >/dev/null 2>&1
  assert_equal "evicted for nothing" "$(evicted first second)" ""

  asks wanted 10 '.spec.priorityClassName = "urgent"'
  one_evicted() { [[ $(evicted first second | wc -l) == 1 ]]; }
  wait_for 90 "one of the two is evicted" one_evicted
  name=$(evicted first second)
  victim_gone() { ! kubectl get pod "$name"; }
  wait_for 90 "and has ended" victim_gone
  # A node's annotation, which says that the memory is free, is no event for it.
  kube_scheduler_tries_again
  wait_for 150 "the other one has its card, and runs" pod_is Running wanted
  assert_equal "evicted" "$(evicted first second)" "$name"
  assert_equal "memory" "$(memory_of_grants)" "[10240,12288]"
  wait_for 60 "the ledger is the truth" ledger_is_true
  kubectl delete priorityclass urgent >/dev/null
}

@test "an API server that says nothing any more is noticed by the node and by the scheduler, and so is its return" {
  local server
  server=$(pgrep -x kube-apiserver)
  wait_for 60 "it is heard" is_followed
  # The kernel goes on answering for it.
  kill -STOP "$server"
  wait_for 60 "mpsgate doctor says so" doctor_says "nothing was heard for"
  wait_for 60 "the first replica is not ready" not_ready 0 "nothing was heard for"
  wait_for 60 "nor is the second" not_ready 1 "nothing was heard for"
  kill -CONT "$server"
  wait_for 120 "the node hears it again" is_followed
  wait_for 120 "one of them leads" has_leader
  wait_for 120 "and both are ready" both_ready
  asks after 4 '.spec.nodeSelector = {"kubernetes.io/hostname": $ARGS.positional[0]}' "$NODE_NAME"
  wait_for 120 "a pod is placed and runs" pod_is Running after
}
doctor_says() { mpsgate doctor 2>&1 | grep api-server | grep -F -- "$1"; }                              # TEXT
not_ready() { curl -sS "http://127.0.0.1:${EXTENDER_PORTS[$1]}/readyz" | grep -F -- "$2"; }               # N TEXT
both_ready() { replica_answers 0 readyz && replica_answers 1 readyz; }

have_come() { (($(kubectl get pods -o name | wc -l) >= $1)); } # N
all_run() { [[ $(kubectl get pods -o json | jq '[.items[] | select(.status.phase == "Running")] | length') == "$1" ]]; } # N

@test "pods that come while mpsgated is replaced wait for the next one, and none is lost" {
  wait_for 60 "30 GiB are allocatable" has_allocatable 30
  local n makes
  for n in {1..14}; do
    asks "come-$n" 1
  done 3>&- &
  makes=$! # not mpsgated, which comes below
  wait_for 60 "some have come" have_come 3
  daemon_stop
  wait_for 60 "some come meanwhile" have_come 9
  daemon_start
  wait "$makes"
  wait_for 180 "all of them run" all_run 14
  assert_equal "pods that kubelet failed" "$(kubectl get pods -o json | jq -c '[.items[] | select(.status.phase == "Failed") | {name: .metadata.name, message: .status.message}]')" "[]"
}

# scheduler.bash: mpsgate-scheduler beside the cluster of cluster.bash: two replicas with a service
# account's rights, before them haproxy, which stands for the Service (it asks /leaderz), a
# kube-scheduler that asks them, and nodes that nobody runs on.
# shellcheck shell=bash

# shellcheck source=tests/k8s/cluster.bash
source "${BASH_SOURCE[0]%/*}/cluster.bash"

EXTENDER_PORTS=(19601 19602)
EXTENDER=http://127.0.0.1:19600
# Where a replica that wants certificates answers probes.
EXTENDER_PROBES=127.0.0.1:19603
WEBHOOK=127.0.0.1:19610

# extender_access: a service account with the rights of the chart's, and its kubeconfig. It runs in
# no pod that it could label.
extender_access() {
  cluster_role mpsgate-scheduler mpsgate-scheduler
  jq -n --argjson rules "$(rules_of Role mpsgate-scheduler | jq -c 'map(select(.resources == ["leases"]))')" '{apiVersion: "rbac.authorization.k8s.io/v1", kind: "Role",
    metadata: {name: "mpsgate-scheduler", namespace: "kube-system"}, rules: $rules}' | kubectl create -f - >/dev/null
  kubectl create rolebinding -n kube-system mpsgate-scheduler --role mpsgate-scheduler --serviceaccount kube-system:mpsgate-scheduler >/dev/null
  (umask 077 && service_account_kubeconfig mpsgate-scheduler >"$K8S/mpsgate-scheduler.kubeconfig")
}

# replica_start N [OPTION...]: the Nth of them, from 0.
replica_start() {
  local n=$1
  shift
  begin "extender-$n" "$MG_OUT/mpsgate-scheduler" --kubeconfig "$K8S/mpsgate-scheduler.kubeconfig" --listen "127.0.0.1:${EXTENDER_PORTS[$n]}" "$@"
}
replica_stop() { end "extender-$1" "${2:-TERM}"; } # N [SIGNAL]
replica_answers() { curl -fsS -o /dev/null "http://127.0.0.1:${EXTENDER_PORTS[$1]}/$2" 2>/dev/null; } # N PATH
leader() {                                                                                             # its N
  local n
  for n in "${!EXTENDER_PORTS[@]}"; do replica_answers "$n" leaderz && { echo "$n"; return; }; done
  return 1
}
has_leader() { leader >/dev/null; }

balancer_start() {
  cat >"$K8S/haproxy.cfg" <<CFG
global
  log stderr local0
defaults
  mode http
  timeout connect 1s
  timeout client 60s
  timeout server 60s
listen extender
  bind ${EXTENDER#http://}
  option httpchk GET /leaderz
  http-check expect status 200
  default-server check inter 500ms fall 1 rise 1 on-marked-down shutdown-sessions
  server a 127.0.0.1:${EXTENDER_PORTS[0]}
  server b 127.0.0.1:${EXTENDER_PORTS[1]}
CFG
  begin haproxy haproxy -f "$K8S/haproxy.cfg"
}

# webhook_answers PATH KIND [OPTION...]: the second replica answers admission reviews, too, and the
# API server asks it there.
webhook_answers() {
  local path=$1 kind=$2
  shift 2
  openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=webhook -addext subjectAltName=IP:127.0.0.1 \
    -keyout "$K8S/webhook.key" -out "$K8S/webhook.crt" 2>/dev/null
  replica_stop 1
  replica_start 1 --webhook-listen "$WEBHOOK" --webhook-tls-cert "$K8S/webhook.crt" --webhook-tls-key "$K8S/webhook.key" "$@"
  wait_for 60 "it is ready" replica_answers 1 readyz
  jq -n --arg kind "$kind" --arg url "https://$WEBHOOK/mpsgate/$path" --arg ca "$(base64 -w0 "$K8S/webhook.crt")" '{apiVersion: "admissionregistration.k8s.io/v1",
    kind: $kind, metadata: {name: "mpsgate"}, webhooks: [{name: "pods.mpsgate.io", clientConfig: {url: $url, caBundle: $ca},
      failurePolicy: "Ignore", sideEffects: "None", timeoutSeconds: 5, admissionReviewVersions: ["v1"],
      rules: [{apiGroups: [""], apiVersions: ["v1"], operations: ["CREATE"], resources: ["pods"]},
        {apiGroups: ["batch"], apiVersions: ["v1"], operations: ["CREATE"], resources: ["jobs"]}]}]}' | kubectl create -f - >/dev/null
  wait_for 60 "the API server asks it" is_asked_to "$path"
}
is_asked_to() { # PATH: a pod is tried, and never made; the replica has counted a review
  kubectl run tried --image bb --dry-run=server >/dev/null 2>&1
  curl -fsS "http://127.0.0.1:${EXTENDER_PORTS[1]}/metrics" | grep -q "^mpsgate_scheduler_requests_total{.*\"$1\""
}
# webhook_start: only what it refuses and warns of. mutation_start [OPTION...]: what it writes,
# which Debian's API server, built with a Go newer than its libraries (reflect2 1.0.1), dies of.
webhook_start() { webhook_answers validate ValidatingWebhookConfiguration; }
mutation_start() { webhook_answers mutate MutatingWebhookConfiguration "$@"; }
webhook_stop() { kubectl delete validatingwebhookconfigurations,mutatingwebhookconfigurations --all >/dev/null 2>&1; }

# kube_scheduler_extended [URL [LINE...]]: the scheduler of cluster.bash, started again with our
# entry, at another URL than the Service's and with more lines; controllers without the one that
# gives up nodes without a kubelet.
kube_scheduler_extended() {
  local url=${1:-$EXTENDER}
  shift $(($# < 1 ? $# : 1))
  cat >"$K8S/extenders.yaml" <<YAML
extenders:
- urlPrefix: $url/mpsgate
  filterVerb: filter
  prioritizeVerb: prioritize
  preemptVerb: preempt
  bindVerb: bind
  weight: 10
  nodeCacheCapable: true
  httpTimeout: 10s
$( (($# == 0)) || printf '  %s\n' "$@")
  managedResources:
  - {name: aliyun.com/gpu-mem}
  - {name: nvidia.com/gpu-10gb}
  - {name: mpsgate.io/gpu-mem-256mi}
  - {name: aliyun.com/gpu-core.percentage, ignoredByScheduler: true}
YAML
  control_stop
  CONTROLLERS=job,namespace,serviceaccount,podgc,statefulset,garbagecollector control_start
}

# extender_secured: one replica, which answers by TLS whoever shows a certificate that the CA of
# clients has signed: of these there is kube-scheduler's, $K8S/tls/client.crt.
extender_secured() {
  local tls=$K8S/tls key=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)
  local leaf=(-addext "basicConstraints=critical,CA:FALSE" -addext subjectAltName=IP:127.0.0.1)
  mkdir -p "$tls"
  openssl req -x509 "${key[@]}" -days 2 -subj /CN=clients -keyout "$tls/clients.key" -out "$tls/clients.crt" 2>/dev/null
  openssl req -x509 "${key[@]}" -days 2 -subj /CN=servers -keyout "$tls/servers.key" -out "$tls/servers.crt" 2>/dev/null
  openssl req -x509 "${key[@]}" -days 2 -subj /CN=kube-scheduler "${leaf[@]}" -CA "$tls/clients.crt" -CAkey "$tls/clients.key" \
    -keyout "$tls/client.key" -out "$tls/client.crt" 2>/dev/null
  openssl req -x509 "${key[@]}" -days 2 -subj /CN=extender "${leaf[@]}" -CA "$tls/servers.crt" -CAkey "$tls/servers.key" \
    -keyout "$tls/server.key" -out "$tls/server.crt" 2>/dev/null
  replica_stop 1
  replica_stop 0
  replica_start 0 --probe-listen "$EXTENDER_PROBES" --tls-cert "$tls/server.crt" --tls-key "$tls/server.key" --tls-client-ca "$tls/clients.crt"
  wait_for 60 "it leads" curl -fsS -o /dev/null "http://$EXTENDER_PROBES/leaderz"
}
# extender_unsecured: both, as before.
extender_unsecured() {
  replica_stop 0
  replica_start 0
  replica_start 1
  wait_for 60 "one of them leads" has_leader
  kube_scheduler_extended
}

extender_start() {
  extender_access
  replica_start 0
  replica_start 1
  balancer_start
  wait_for 60 "one of them leads" has_leader || { tail -n 20 "$K8S"/log/extender-*.log >&2; return 1; }
  kube_scheduler_extended
}
extender_stop() {
  end haproxy
  replica_stop 0
  replica_stop 1
}

# nodes JQ [ARG...]: nodes that nobody runs on, of a filter that gives `node(name; labels; cards)`
# as often as it likes; a card is `card(GiB)` and what is added to it.
nodes() {
  local filter=$1
  shift
  jq -n 'def card($gib): {memory_mib: ($gib * 1024), local_mib: 0, healthy: true, one_uid: true, max_clients: 48};
    def node($name; $labels; $cards):
      ([$cards[].memory_mib] | add / 1024 | floor | tostring) as $memory
      | {"cpu": "64", "memory": "512Gi", "pods": "1000", "ephemeral-storage": "100Gi", "aliyun.com/gpu-mem": $memory,
         "aliyun.com/gpu-count": ($cards | length | tostring)} as $all
      | {apiVersion: "v1", kind: "Node", metadata: {name: $name, labels: ({"kubernetes.io/hostname": $name, "ack.node.gpu.schedule": "mps"} + $labels),
          annotations: {"mpsgate.io/cards": ({version: 1, cards: [$cards | to_entries[] | {uuid: "GPU-\($name)-\(.key)", index: .key} + .value]} | tojson)}},
         status: {capacity: $all, allocatable: $all, addresses: [{type: "InternalIP", address: "192.0.2.1"}],
          conditions: [{type: "Ready", status: "True", reason: "Invented", message: "nobody runs here"}]}};
    {apiVersion: "v1", kind: "List", items: ['"$filter"']}' --args "$@" | kubectl create -o name -f - >"$K8S/nodes.made"
  # The API server's admission (TaintNodesByCondition) marks each new node; what takes it off again
  # is not here.
  sed 's|.*/||' "$K8S/nodes.made" | xargs sh -c 'kubectl taint nodes "$@" node.kubernetes.io/not-ready-' sh >/dev/null
  wait_for 60 "they are in the ledger" ledger_has_nodes
}
ledger_has_nodes() { [[ $(inspect | jq -r '.nodes[].name' | sort) == "$(kubectl get nodes -o name | sed 's|.*/||' | sort)" ]]; }
# What is no event for an older kube-scheduler (a node's annotation, an extender that answers again)
# it finds within a minute. A new node is one, and makes it try all pods at once.
kube_scheduler_tries_again() { nodes 'node("another-\($ARGS.positional[0])"; {}; [card(1)])' "$RANDOM"; }
nodes_clear() {
  local all
  mapfile -t all < <(kubectl get nodes -o name | grep -v "^node/$NODE_NAME\$")
  ((${#all[@]} == 0)) || kubectl delete --wait=false "${all[@]}" >/dev/null
}

inspect() { curl -fsS "$EXTENDER/mpsgate/inspect${1:+/$1}"; } # [NODE]
# What the ledger has on each card, `{"node/index": GiB}`, and what the API server's pods say.
in_ledger() { inspect | jq -Sc '[.nodes[] | .name as $node | .devs[] | select(.usedGPU > 0) | {key: "\($node)/\(.id)", value: .usedGPU}] | from_entries'; }
in_api() {
  kubectl get pods -A -o json | jq -Sc '[.items[] | select(.spec.nodeName and (.status.phase | . != "Succeeded" and . != "Failed"))
    | .spec.nodeName as $node | (.metadata.annotations["mpsgate.io/placement"] // empty) | fromjson | .containers[] | to_entries[]
    | {key: "\($node)/\(.key)", mib: .value}] | group_by(.key) | map({key: .[0].key, value: (map(.mib) | add / 1024)}) | from_entries'
}
ledger_is_true() { [[ $(in_ledger) == "$(in_api)" ]]; }
nothing_overcommitted() { inspect | jq -e 'all(.nodes[].devs[]; .usedGPU <= .totalGPU)' >/dev/null; }

# waiting NAME GIB [JQ [ARG...]]: a pod for one of the invented nodes, or for the real one where the
# filter says so.
waiting() {
  local name=$1 gib=$2 filter=${3:-.}
  shift $(($# < 3 ? $# : 3))
  asks "$name" "$gib" ".spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms = [{matchExpressions:
    [{key: \"kubernetes.io/hostname\", operator: \"NotIn\", values: [\"$NODE_NAME\"]}]}] | $filter" "$@"
}
node_of() { kubectl get pod "$1" -o 'jsonpath={.spec.nodeName}'; }
is_bound() { [[ -n $(node_of "$1") ]]; } # POD
is_on() { [[ $(node_of "$1") == "$2" ]]; } # POD NODE
# cards_of POD: `{"container":{"index":MiB}}`.
cards_of() { kubectl get pod "$1" -o json | jq -Sc '.metadata.annotations["mpsgate.io/placement"] | fromjson | .containers'; }
# unplaced POD TEXT: kube-scheduler says why.
unplaced() { kubectl get events --field-selector "involvedObject.name=$1,reason=FailedScheduling" -o 'jsonpath={.items[*].message}' | grep -F -- "$2"; }

# --- preemption -----------------------------------------------------------------------------------

# questions VERB: how many of them all replicas have answered, rightly or not.
questions() {
  local port
  for port in "${EXTENDER_PORTS[@]}"; do curl -fsS "http://127.0.0.1:$port/metrics"; done |
    awk -v verb="verb=\"$1\"" '/^mpsgate_scheduler_requests_total/ && index($1, verb) { sum += $2 } END { print sum + 0 }'
}
was_asked() { (($(questions "$1") > $2)); } # VERB MORE-THAN
# evicted POD...: which of them the API server is told to delete, or has deleted.
evicted() {
  local pod
  for pod; do [[ $(kubectl get pod "$pod" -o json 2>/dev/null | jq .metadata.deletionTimestamp) == null ]] || echo "$pod"; done
}

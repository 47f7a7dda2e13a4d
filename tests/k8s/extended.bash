# extended.bash: what scheduler.bats and scheduler_losses.bats have in common: their cluster, which
# mpsgated follows and whose kube-scheduler asks both replicas, and what is left after each test.
# shellcheck shell=bash

# shellcheck source=tests/k8s/scheduler.bash
source "${BASH_SOURCE[0]%/*}/scheduler.bash"

setup_file() {
  cluster_start
  cluster_follow
  extender_start
}

teardown_file() {
  extender_stop
  cluster_stop
}

teardown() {
  pkill -CONT -x 'kube-apiserver|kubelet' || true # where a test has failed meanwhile
  explain_failure
  webhook_stop || true
  [[ ${BATS_TEST_COMPLETED:-} == 1 ]] || { cluster_log; inspect | jq -c '.nodes[]' | tail -n 20 >&2; tail -n 15 "$K8S"/log/extender-*.log >&2; }
  pods_clear
  nodes_clear
  assert_free
}

# node_holds POD-UID [MIB...]: on whichever cards, as the node's annotation has it.
node_holds() {
  kubectl get node "$NODE_NAME" -o json | jq -e --arg uid "$1" --argjson held "$2" '[.metadata.annotations["mpsgate.io/cards"] | fromjson | .cards[].held[$uid] // empty] | sort == $held'
}

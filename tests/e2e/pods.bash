# pods.bash: the default set-up for a node that has a kubelet; the runtime is called as its
# containerd does.
# shellcheck shell=bash disable=SC2034 # of is read by the tests

# shellcheck source=tests/e2e/suite.bash
source "${BASH_SOURCE[0]%/*}/suite.bash"
# shellcheck source=tests/e2e/token.bash
source "${BASH_SOURCE[0]%/*}/token.bash"

RUNC_ROOT=$MG/runc/k8s.io

setup_file() {
  kubelet_socket
  node_start
}

teardown_file() {
  node_stop
  rm -rf /var/lib/kubelet
}

# of POD CONTAINER TOKEN: sets of to bundle's options for a container as containerd's CRI describes
# it.
of() {
  of=(--ann io.kubernetes.cri.container-type=container --ann "io.kubernetes.cri.sandbox-uid=$1"
    --ann io.kubernetes.cri.sandbox-namespace=default --ann "io.kubernetes.cri.sandbox-name=web"
    --ann "io.kubernetes.cri.container-name=$2" --ann "mpsgate.io/grant=$3")
}

# podded ID OPTION...: a running container with a grant.
podded() {
  local id=$1
  shift
  bundle "$id" "$@"
  create "$id"
  assert_equal "the grant of $id" "$(grant "$id" .state)" active
  start "$id"
}

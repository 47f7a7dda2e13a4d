#!/usr/bin/env bats
# policy.privileged = "close": a privileged container keeps every device but NVIDIA's, for good:
# after `update`, and with systemd's cgroup driver after set-property and daemon-reload.

load suite

SETTINGS='/^\[mps\]/i [policy]\nprivileged = "close"'

# privileged ID: running, with every capability and the rule of `--privileged`.
privileged() {
  bundle "$1" --caps-all --jq '.linux.devices = [{path: "/dev/nvidia0", type: "c", major: 195, minor: 0}]'
  create "$1"
  start "$1"
}

# shut WHEN ID: neither managed card opens, by a node of its own; nor NVIDIA's shared ones; others
# do.
shut() {
  local node major
  for node in "195 0" "195 1" "195 255" "$MG_UVM_MAJOR 0"; do
    try_oci fail exec "$2" sh -c "rm -f /tmp/n; mknod /tmp/n c $node && : </tmp/n"
    assert_contains "$1: open of $node" "$stderr" "not permitted"
  done
  # With no driver behind them, as with most numbers: the rules let it through where that is the
  # answer.
  for node in "c 1 3" "c 1 5" "c 10 229" "c 226 0" "c 511 0" "b 7 200"; do
    # runc names majors to systemd by their drivers: what none is loaded for is lost when systemd
    # writes its rules anew (1.1.15).
    read -r _ major _ <<<"$node"
    [[ $1 == "at first" || ${MG_SYSTEMD:-0} != 1 || $REAL != *runc ]] || grep -qE "^ *$major " /proc/devices || continue
    try_oci any exec "$2" sh -c "rm -f /tmp/n; mknod /tmp/n $node && : </tmp/n"
    refute_contains "$1: open of $node" "$stderr" "not permitted"
  done
}

# bats test_tags=runtime
@test "closed: no card by a node of its own, every other device; and so after update" {
  privileged p
  try_oci any exec p ls /dev
  refute_contains "nodes" "$stdout" nvidia0
  shut "at first" p
  try_oci update --pids-limit 100 p
  shut "after update" p
}

# bats test_tags=runtime
@test "closed under systemd: the same after set-property and daemon-reload" {
  [[ ${MG_SYSTEMD:-0} == 1 ]] || skip "needs systemd's cgroup driver (tests/vm)"
  privileged p
  shut "at first" p
  local scope
  scope=$(basename "$(sed -n 's/^0:://p' "/proc/$(oci state p | jq .pid)/cgroup" | grep -o '.*\.scope')")
  systemctl set-property --runtime "$scope" CPUWeight=50
  shut "after set-property" p
  systemctl daemon-reload
  shut "after daemon-reload" p
  try_oci update --pids-limit 100 p
  systemctl daemon-reload
  shut "after update and daemon-reload" p
}

# bats test_tags=runtime
@test "the neighbours: privileged with a request is refused, a plain one is untouched" {
  refused x E_PRIVILEGED --ann mpsgate.io/gpu-mem=1Gi --caps-all
  allowed y
}

#!/usr/bin/env bats
# mps.channel = "control": containers share the control daemon's socket. What root in a container
# can say there, and the server's limit, which is for all. The real control daemon where it can be
# had.

load suite

SETTINGS='s/^control = .*/&\nchannel = "control"/'

setup_file() {
  rootfs "$MG/rootfs"
  rootfs_program "$MG/rootfs" "$(control_program)"
  node_start
}

# ask ID COMMAND: one command on the MPS channel, by root in the container.
ask() {
  LIMIT=10 try_oci any exec "$1" sh -c "$MPS_ASKS" x "$2"
}

@test "from inside, as root: the channel answers queries" {
  granted g 7Gi
  ask g "get_default_device_pinned_mem_limit 0"
  assert_contains "limit read back through the client directory" "$stdout" "7G"
  ask g get_server_list
  assert_equal "exit status of a query" "$status" 0
}

# bats test_tags=runtime
@test "from inside, as root: set is refused, and changes nothing" {
  [[ $(control_program) != *-535.* ]] || skip "control daemon 535 lets every client set limits; 550 is needed"
  granted g 7Gi
  local index limit
  index=$(grant g .card_index) limit=$(card "$(grant g .card_index)" .mps.default_limit_mib)
  ask g "set_default_device_pinned_mem_limit 0 15G"
  assert_contains "set" "$stdout$stderr" "Insufficient privileges"
  ask g "set_default_active_thread_percentage 10"
  assert_contains "set" "$stdout$stderr" "Insufficient privileges"
  assert_equal "default limit" "$(card "$index" .mps.default_limit_mib)" "$limit"
  ask g "get_default_device_pinned_mem_limit 0"
  assert_contains "limit" "$stdout" "7G"
  ask g get_default_active_thread_percentage
  assert_contains "share" "$stdout" "100.0"
}

@test "from inside, as root: quit is refused, and ends nothing" {
  granted g 7Gi
  local index pid
  index=$(grant g .card_index) pid=$(card "$(grant g .card_index)" .mps.pid)
  ask g quit
  assert_contains "quit" "$stdout$stderr" "Not enough privilege"
  [[ -d /proc/$pid ]] || fail "the control daemon is gone"
  ask g get_server_list
  assert_equal "exit status of a query after it" "$status" 0
  assert_equal "pid of the control daemon" "$(card "$index" .mps.pid)" "$pid"
}

cap_is() { [[ $(card 0 .mps.default_limit_mib) == "$1" ]]; }

@test "the server's cap follows the largest live grant" {
  granted small 2Gi --ann mpsgate.io/gpu=0
  wait_for 10 "cap of 2 GiB" cap_is 2048
  granted large 5Gi --ann mpsgate.io/gpu=0
  wait_for 10 "cap of 5 GiB" cap_is 5120
  # The worst case stands in each grant.
  assert_equal "what small gets that unsets its limit" "$(grant small .cap_mib)" 5120
  delete large
  wait_for 10 "cap of 2 GiB again" cap_is 2048
}

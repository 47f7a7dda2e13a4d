#!/usr/bin/env bats
# What accidents and other processes do to a card's MPS: a control daemon that stands still or dies,
# an orphan, a fault. Real runc; the real control daemon where it can be had, and its fake where a
# server or a client is needed, which takes a GPU.

load suite

setup_file() { node_with "$(control_program)"; }

teardown() {
  explain_failure
  delete_all
  node_with "$(control_program)"
}

# node_with CONTROL [SED]: the node anew, with this control program in mpsgated's and in containers'
# hands.
node_with() {
  node_stop
  rm -rf "$MG/rootfs"
  rootfs "$MG/rootfs"
  rootfs_program "$MG/rootfs" "$1"
  sim_cards
  settings "s|^control = .*|control = \"$1\"|${2:+;$2}"
  daemon_start
}

double() { echo "$MG_OUT/fakes/nvidia-cuda-mps-control"; }

# Control daemons, and no front-end of a moment.
control_pids() { pgrep -f 'nvidia-cuda-mps-control -f$' || true; }

@test "a stopped control daemon is told, and nobody is killed" {
  granted good 1Gi --ann mpsgate.io/gpu=0
  local pid
  pid=$(card 0 .mps.pid)
  kill -STOP "$pid"
  wait_for 10 "it is told" says 0 "somebody stopped it, pid $pid"
  assert_equal "hint" "$(card 0 .hint)" "let it go on: kill -CONT $pid"
  kill -CONT "$pid"
  wait_for 20 "card 0 is ready" card_is ready 0
  assert_equal "actions" "$(actions)" ""
  assert_equal "good" "$(state_of good)" running
}

@test "a control daemon that dies: its grants are broken and count, the card serves new ones" {
  granted old 7Gi --ann mpsgate.io/gpu=0
  granted other 1Gi --ann mpsgate.io/gpu=1
  local pid server
  # Only the fake has a server here.
  pid=$(card 0 .mps.pid) server=$(card 0 '.mps.servers[].pid')
  kill -KILL "$pid"
  [[ -z $server ]] || kill -KILL "$server"
  wait_for 10 "old is broken" grant_is old broken
  wait_for 20 "card 0 is ready" card_is ready 0
  [[ $(card 0 .mps.pid) != "$pid" ]] || fail "the pid of a dead control daemon: $pid"
  assert_contains "hint" "$(grant old .hint)" "restart the container"
  assert_equal "other" "$(grant other .state)" active
  assert_equal "card 0 still has old's memory" "$(card 0 .granted_mib)" 7168
  assert_equal "limit" "$(card 0 .mps.default_limit_mib)" 7168
  try mpsgate status
  assert_contains "status" "$stdout" "broken" "hint: old:"
  granted new 1Gi --ann mpsgate.io/gpu=0
  # Restarted, it is whole again.
  daemon_stop KILL
  daemon_start
  assert_equal "old after a restart of mpsgated" "$(grant old .state)" broken
  delete old
  granted old 7Gi --ann mpsgate.io/gpu=0
  assert_equal "old, started again" "$(grant old .state)" active
}

@test "two mpsgated start at once, ten times: one wins, the other says so and touches nothing" {
  granted g 1Gi
  local pids round one two lost
  pids=$(control_pids)
  for round in {1..10}; do
    daemon_stop
    mpsgated >"$MG/log/one" 2>&1 3>&- &
    one=$!
    mpsgated >"$MG/log/two" 2>&1 3>&- &
    two=$!
    wait_for 20 "one of them ends (round $round)" bash -c "[[ ! -e /proc/$one || ! -e /proc/$two ]]"
    if [[ -e /proc/$one ]]; then lost=two; echo "$one" >"$MG/mpsgated.pid"; else lost=one; echo "$two" >"$MG/mpsgated.pid"; fi
    status=0
    wait "${!lost}" || status=$?
    assert_equal "exit status of the other" "$status" 2
    assert_contains "its words" "$(<"$MG/log/$lost")" "another mpsgated holds /run/mpsgate/ledger/lock" "hint: "
    wait_for 20 "the winner is ready" settled
    assert_equal "grants" "$(granted_ids)" g
    assert_equal "control daemons" "$(control_pids)" "$pids"
  done
}

# --- with the fake: servers and clients ----------------------------------------------------------

@test "an orphan server: the card waits for its end, and nothing of a tenant is killed" {
  node_with "$(double)"
  granted g 1Gi --ann mpsgate.io/gpu=0
  local server
  server=$(card 0 '.mps.servers[0].pid')
  kill -KILL "$(card 0 .mps.pid)"
  wait_for 10 "the orphan is named" says 0 "whose server still holds the card for g: pid $server"
  refused x E_GPU_UNHEALTHY --ann mpsgate.io/gpu-mem=1Gi --ann mpsgate.io/gpu=0
  assert_contains "hint" "$stderr" "kill $server" 'mps.orphan = "kill"'
  assert_equal "g" "$(state_of g)" running
  [[ -d /proc/$server ]] || fail "the orphan was ended"
  kill -KILL "$server"
  wait_for 20 "card 0 is ready" card_is ready 0
  granted h 1Gi --ann mpsgate.io/gpu=0
}

@test "mps.orphan = kill: the orphan is ended, the card is ready again" {
  node_with "$(double)" '/^\[mps\]/a orphan = "kill"'
  granted g 1Gi --ann mpsgate.io/gpu=0
  local server
  server=$(card 0 '.mps.servers[0].pid')
  kill -KILL "$(card 0 .mps.pid)"
  wait_for 20 "the orphan ends" gone "$server"
  wait_for 20 "card 0 is ready" card_is ready 0
  assert_equal "g" "$(state_of g)" running
  assert_equal "g's grant" "$(grant g .state)" broken
}

# client_pids: those that card 0's server serves.
client_pids() { mps_asks 0 "get_client_list $(card 0 '.mps.servers[0].pid')"; }

attached() { [[ $(client_pids | wc -l) == "$1" ]]; } # COUNT

@test "FAULT: the card is closed, the client that the log names is repeated as its word, until the server is ACTIVE again" {
  node_with "$(double)"
  granted bad 1Gi --ann mpsgate.io/gpu=0
  granted good 1Gi --ann mpsgate.io/gpu=0
  "$RUNTIME" --root "$RUNC_ROOT" exec -d bad nvidia-cuda-mps-control client 3>&-
  wait_for 10 "bad's client is served" attached 1
  client_pids >"$MG/culprit"
  mv "$MG/culprit" /run/mpsgate/mps/0/log/fake-fault
  wait_for 10 "the fault is told" says 0 "in FAULT after a fatal GPU error, for which its log, which proves nothing, names container bad"
  refused x E_GPU_UNHEALTHY --ann mpsgate.io/gpu-mem=1Gi --ann mpsgate.io/gpu=0
  # A container may be able to write that line.
  assert_equal "actions" "$(actions)" ""
  assert_equal "bad" "$(state_of bad)" running
  delete bad
  rm /run/mpsgate/mps/0/log/fake-fault
  wait_for 10 "card 0 is ready" card_is ready 0
  assert_equal "good" "$(state_of good)" running
}

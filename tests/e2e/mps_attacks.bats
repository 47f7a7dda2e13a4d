#!/usr/bin/env bats
# What containers, accidents and other processes do to a card's MPS, where containers share the
# control daemon's socket (mps.channel = "control"): a channel that is held, a control daemon that
# dies, an orphan, a fault. Real runc; the real control daemon where it can
# be had, and its fake where a server or a client is needed, which takes a GPU.

load suite

setup_file() { node_with "$(control_program)"; }

teardown() {
  explain_failure
  let_go
  delete_all
  node_with "$(control_program)"
}

# node_with CONTROL [SED]: the node anew, with this control program in mpsgated's and in containers'
# hands.
node_with() {
  node_stop
  rm -rf "$MG/rootfs"
  rootfs "$MG/rootfs"
  rootfs_program "$MG/rootfs" "$(double)"
  mv "$MG/rootfs/usr/bin/nvidia-cuda-mps-control" "$MG/rootfs/usr/bin/mps-double"
  rootfs_program "$MG/rootfs" "$1"
  sim_cards
  settings "s|^control = .*|control = \"$1\"\nchannel = \"control\"|${2:+;$2}"
  daemon_start
}

double() { echo "$MG_OUT/fakes/nvidia-cuda-mps-control"; }

# hold ID: a process of the container that keeps the control channel of its card. A front-end
# connects before it reads its input, so the driver's own program is all it takes; again where it
# gave up at once.
hold() {
  "$RUNTIME" --root "$RUNC_ROOT" exec -d "$1" sh -c 'sleep 600 | for i in 1 2 3 4 5; do
    begun=$(date +%s)
    nvidia-cuda-mps-control
    [ $(($(date +%s) - begun)) -le 1 ] || break
  done' 3>&-
}

# flood ID N: a process of the container with N connections that say nothing.
flood() { "$RUNTIME" --root "$RUNC_ROOT" exec -d "$1" mps-double hold "$2" 3>&-; }

let_go() {
  kill_listed "$MG/held"
}

# Control daemons, and no front-end of a moment.
control_pids() { pgrep -f 'nvidia-cuda-mps-control -f$' || true; }

# ask ID COMMAND: one command on the MPS channel, by root in the container.
ask() {
  LIMIT=10 try_oci any exec "$1" sh -c "$MPS_ASKS" x "$2"
}

@test "a container that holds the channel is killed, its neighbour lives, and status says why" {
  granted bad 1Gi --ann mpsgate.io/gpu=0
  granted good 1Gi --ann mpsgate.io/gpu=0
  granted other 1Gi --ann mpsgate.io/gpu=1
  hold bad
  wait_for 30 "the holder is named" says 0 "its channel is held by container bad, pid"
  wait_for 20 "bad is killed" stopped bad
  wait_for 10 "card 0 is ready" card_is ready 0
  assert_equal "good" "$(state_of good)" running
  assert_equal "other" "$(state_of other)" running
  ask good get_server_list
  assert_equal "exit status of a neighbour's query" "$status" 0
  assert_equal "actions" "$(actions)" "bad killed"
  try mpsgate status
  assert_contains "status" "$stdout" "ACTIONS" "bad" "killed" "held the MPS channel of the card for 5 s"
  wait_for 10 "bad's memory is free" not_granted bad
}

@test "policy.enforce = report: the holder is named and lives, and the card goes on without its connection" {
  node_with "$(control_program)" '/^\[mps\]/i [policy]\nenforce = "report"'
  granted bad 1Gi --ann mpsgate.io/gpu=0
  hold bad
  named() { [[ $(card 0 .hint) == *"end container bad"*'policy.enforce = "report"'* ]]; }
  wait_for 20 "bad is named" named
  refused x E_GPU_UNHEALTHY --ann mpsgate.io/gpu-mem=1Gi --ann mpsgate.io/gpu=0
  assert_contains "refusal" "$stderr" "its channel is held by container bad"
  wait_for 20 "bad is reported" acted
  assert_equal "actions" "$(actions)" "bad reported"
  wait_for 20 "card 0 is ready" card_is ready 0
  allowed y --ann mpsgate.io/gpu-mem=1Gi
  assert_equal "bad" "$(state_of bad)" running
}

@test "a holder outside every container is reported and never killed" {
  granted good 1Gi --ann mpsgate.io/gpu=0
  sleep 600 3>&- | CUDA_MPS_PIPE_DIRECTORY=/run/mpsgate/mps/0/client "$(control_program)" 3>&- &
  echo $! >"$MG/held"
  wait_for 20 "it is reported" acted
  assert_equal "actions" "$(actions)" "null reported"
  assert_contains "hint" "$(card 0 .hint)" "end it: kill "
  assert_equal "good" "$(state_of good)" running
  eval "$(card 0 .hint | sed 's/^end it: //')"
  wait_for 10 "card 0 is ready" card_is ready 0
}

@test "a flood of connections from two containers: both are killed, the third lives" {
  granted one 1Gi --ann mpsgate.io/gpu=0
  granted two 1Gi --ann mpsgate.io/gpu=0
  granted good 1Gi --ann mpsgate.io/gpu=0
  flood one 65
  flood two 64
  wait_for 40 "one is killed" stopped one
  wait_for 40 "two is killed" stopped two
  wait_for 20 "card 0 is ready" card_is ready 0
  assert_equal "good" "$(state_of good)" running
  assert_contains "actions" "$(actions)" "one killed" "two killed"
  refute_contains "actions" "$(actions)" "good"
}

@test "a paused container that holds the channel is killed all the same" {
  granted bad 1Gi --ann mpsgate.io/gpu=0
  hold bad
  wait_for 30 "the holder is named" says 0 "container bad"
  try_oci pause bad
  wait_for 20 "bad is killed" stopped bad
  wait_for 10 "card 0 is ready" card_is ready 0
}

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
  # Its container was not touched, and a process started anew in it reaches the new daemon.
  ask old "get_default_device_pinned_mem_limit 0"
  assert_contains "limit through the old container's directory" "$stdout" 7G
  granted new 1Gi --ann mpsgate.io/gpu=0
  ask new get_server_list
  assert_equal "exit status of a query" "$status" 0
  # Restarted, it is whole again.
  daemon_stop KILL
  daemon_start
  assert_equal "old after a restart of mpsgated" "$(grant old .state)" broken
  delete old
  granted old 7Gi --ann mpsgate.io/gpu=0
  assert_equal "old, started again" "$(grant old .state)" active
}

@test "links that are taken away or replaced are made again under a running container" {
  granted g 1Gi --ann mpsgate.io/gpu=0
  local dir=/run/mpsgate/mps/0/client
  rm "$dir/control"
  ln -s /etc/passwd "$dir/control"
  linked() { [[ /run/mpsgate/mps/0/pipe/control -ef $dir/control && ! -L $dir/control ]]; }
  wait_for 10 "the link is made again" linked
  ask g get_server_list
  assert_equal "exit status of a query" "$status" 0
  assert_contains "log" "$(<"$MG/log/mpsgated.log")" "$dir/control was a symbolic link"
  mv /run/mpsgate/mps/0/pipe/control_lock "$MG/away"
  wait_for 10 "the missing file is named" says 0 "/run/mpsgate/mps/0/pipe/control_lock is missing"
  # A daemon that starts now does not start a second control daemon beside the one that runs.
  local pids
  pids=$(control_pids)
  daemon_stop KILL
  daemon_start
  assert_equal "control daemons" "$(control_pids)" "$pids"
  mv "$MG/away" /run/mpsgate/mps/0/pipe/control_lock
  wait_for 10 "card 0 is ready" card_is ready 0
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
client_pids() {
  echo "get_client_list $(card 0 '.mps.servers[0].pid')" | CUDA_MPS_PIPE_DIRECTORY=/run/mpsgate/mps/0/pipe "$(double)"
}

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

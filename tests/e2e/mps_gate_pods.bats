#!/usr/bin/env bats
# The gates as a container of their own, as in mpsgated's pod: `mpsgate-gate --every-card` starts
# them when mpsgated asks, and `mpsgated hold` keeps the containers' sockets while they are
# replaced. NVIDIA's own client in containers on runc, NVIDIA's own control daemon; the server is
# the tests' own.

load suite
load gate
load pod

SETTINGS="$GATE_SETTINGS; s/^control = .*/&\nsupervisor = \"holder\"/"

setup_file() {
  gate_files
  [[ ! -f $MG/skip ]] || return 0
  pod_make
  pod_start --control "$MG/control/nvidia-cuda-mps-control"
  gates_start
  node_start
}

teardown_file() {
  [[ ! -f $MG/skip ]] || return 0
  node_stop
  gates_stop
  pod_kill
}

setup() {
  gate_needed
  server_says_word
}

teardown() {
  [[ ! -f $MG/skip ]] || return 0
  explain_failure
  [[ ${BATS_TEST_COMPLETED:-} == 1 ]] || tail -n 40 "$MG/log/gates.log" "$MG/log/hold.log"
  node_reset
}

capabilities() { awk '/^CapEff:/ { print $2 }' "/proc/$1/status"; } # PID
inode() { stat -c %i "$1"; }

@test "a gate is its parent's child, with two capabilities and three directories, in the node's cgroup namespace" {
  local gate root
  granted c 2Gi --ann mpsgate.io/gpu=0
  cu_init c "$WORD"
  gate=$(gate_pid) root=/proc/$(gate_pid)/root/
  assert_equal "its parent" "$(awk '/^PPid:/ { print $2 }' "/proc/$gate/status")" "$(<"$MG/gates.pid")"
  assert_equal "its capabilities" "$(capabilities "$gate")" 00000000000000c0
  assert_equal "its root directory" "$(find "$root" -mindepth 1 -maxdepth 1 -printf '%f\n' | sort | xargs)" "proc run sys"
  assert_equal "of /run" "$(find "${root}run" -mindepth 1 -maxdepth 2 | sed "s|^$root|/|" | sort | xargs)" "/run/mpsgate /run/mpsgate/mps"
  # Root may write what is root's without any capability: none of it can be written.
  for part in / /proc /sys/fs/cgroup; do
    assert_contains "$part" "$(awk -v at="$part" '$5 == at { print $6 }' "/proc/$gate/mountinfo" | tail -n 1)" ro, nodev nosuid noexec
  done
  assert_equal "its cgroup namespace" "$(inode -L "/proc/$gate/ns/cgroup")" "$(inode -L /proc/1/ns/cgroup)"
}

@test "the gates' container is replaced, by SIGTERM and by SIGKILL, under attaching clients: none goes on without MPS" {
  local round how before socket said
  granted c 2Gi --ann mpsgate.io/gpu=0
  cu_init c "$WORD"
  socket=$(inode "$(door_of c)/control")
  for round in 1 2 3 4 5 6; do
    how=TERM
    ((round % 2)) || how=KILL
    before=$(gate_pid)
    : >"$BATS_TEST_TMPDIR/said"
    # shellcheck disable=SC2016 # the container's shell
    oci exec c sh -c 'for i in 1 2 3 4 5 6 7 8; do cuda-client "$1" & sleep 0.02; done; wait' sh "$LIBCUDA" >"$BATS_TEST_TMPDIR/said" 2>&1 3>&- &
    sleep 0.1
    gates_stop "$how"
    # Clients that find nobody at the socket wait in its backlog.
    oci exec c cuda-client "$LIBCUDA" >"$BATS_TEST_TMPDIR/waited" 2>&1 3>&- &
    gates_start
    wait_for 20 "another gate serves" another_gate "$before"
    wait_for 30 "the client that found nobody is served" grep -q " $WORD\$" "$BATS_TEST_TMPDIR/waited"
    wait_for 30 "eight have an answer" said_lines 8
    said=$(awk '{ print $NF }' "$BATS_TEST_TMPDIR/said" | sort | uniq -c | xargs)
    echo "# round $round, $how: $said" >&3
    # After a SIGKILL those that have spoken end with 805, and none with 100.
    if [[ $how == TERM ]]; then assert_equal "codes" "$said" "8 $WORD"; fi
    refute_contains "codes" "$said" " 100"
    assert_equal "the socket" "$(inode "$(door_of c)/control")" "$socket"
  done
  cu_init c "$WORD"
}
said_lines() { (($(wc -l <"$BATS_TEST_TMPDIR/said") >= $1)); } # HOW MANY

@test "a gate that is killed is started again by its parent, and its container attaches" {
  local before
  granted c 2Gi --ann mpsgate.io/gpu=0
  before=$(gate_pid)
  kill -KILL "$before"
  cu_init c "$WORD"
  wait_for 10 "another gate serves" another_gate "$before"
  assert_contains "its parent's log" "$(grep 'gate ended' "$MG/log/gates.log" | tail -n 1)" 'card=0 how="signal 9"'
}

@test "a holder that is started anew is told of the sockets that it lacks" {
  local before
  granted c 2Gi --ann mpsgate.io/gpu=0
  cu_init c "$WORD"
  pod_kill
  pod_start --control "$MG/control/nvidia-cuda-mps-control"
  wait_for 60 "the card is ready" card_is ready 0
  server_says_word
  # It looks every 5 s.
  wait_for 20 "the holder has the socket" holder_keeps 1
  before=$(gate_pid)
  gates_stop KILL
  oci exec c cuda-client "$LIBCUDA" >"$BATS_TEST_TMPDIR/waited" 2>&1 3>&- &
  gates_start
  wait_for 20 "another gate serves" another_gate "$before"
  wait_for 30 "who found nobody is served" grep -q " $WORD\$" "$BATS_TEST_TMPDIR/waited"
}
# Listening sockets of containers that the holder has, beside its own two.
holder_keeps() { [[ $(find "/proc/$(<"$MG/hold.pid")/fd" -lname 'socket:*' | wc -l) == $(($1 + 2)) ]]; }

@test "at the store's socket nobody but root can ask, and nothing can be started" {
  assert_equal "its mode" "$(stat -c '%U %a' /run/mpsgate/mps/store.sock)" "root 600"
  local said
  said=$(python3 - <<'PY'
import json, socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.settimeout(5)
s.connect("/run/mpsgate/mps/store.sock")
s.send(json.dumps({"format": 1, "message": {"start": {"card": 0}}}).encode())
print(s.recv(100))
PY
)
  assert_equal "the answer" "$said" "b''"
  assert_contains "the holder's log" "$(tail -n 3 "$MG/log/hold.log")" "a gate is not answered"
}

@test "after disable there is no gate, no order for one, and nothing of it is kept" {
  daemon_with "$SETTINGS; s/^manage = .*/manage = []/"
  try mpsgate enable 0
  wait_for 20 "the card is ready" card_is ready 0
  granted c 2Gi --ann mpsgate.io/gpu=0
  wait_for 10 "the holder has its socket" holder_keeps 1
  delete c
  wait_for 10 "it is released" not_granted c
  wait_for 10 "the holder has nothing" holder_keeps 0
  try mpsgate disable 0
  wait_for 10 "the gate ends" no_gate
  [[ ! -e /run/mpsgate/mps/gates/0 && ! -e $card ]] || fail "$(find /run/mpsgate/mps)"
  sleep 1
  no_gate || fail "the gate was started again"
  daemon_with
}
no_gate() { ! gate_pid; }

#!/usr/bin/env bats
# Each container has a door of its own. NVIDIA's own client library in
# containers on runc, NVIDIA's own control daemon behind the gate; the server is the tests' own.

load suite
load gate

SETTINGS=$GATE_SETTINGS

setup_file() {
  gate_files
  [[ -f $MG/skip ]] || node_start
}

teardown_file() {
  [[ -f $MG/skip ]] || node_stop
}

setup() {
  gate_needed
  server_says_word
}

teardown() {
  [[ ! -f $MG/skip ]] || return 0
  explain_failure
  node_reset
}

ended() { grep -qE "client ended container=$1 .* reason=$2 " "$card/log/gate.log" || fail "$(<"$card/log/gate.log")"; } # ID REASON
doors() { find "$card/containers" -mindepth 1 -maxdepth 1 -type d | wc -l; }
no_doors() { [[ $(find "$card/containers" "$card/clients" -mindepth 1 | wc -l) == 0 ]]; }
descriptors() { find "/proc/$(pgrep -f "^$MG/control/nvidia-cuda-mps-control" | head -n 1)/fd" -mindepth 1 | wc -l; }

descriptors_are() { (($(descriptors) <= $1)); } # AT MOST

# bats test_tags=runtime
@test "a granted container sees one socket, its client is served, and the control daemon sees the gate and the client's uid" {
  local uid
  for uid in 0 1000; do
    granted "as$uid" 2Gi --ann mpsgate.io/gpu=0 --jq ".process.user = {uid: $uid, gid: $uid}"
    try_oci 0 exec "as$uid" sh -c 'ls -A "$CUDA_MPS_PIPE_DIRECTORY"'
    assert_equal "its directory" "$stdout" control
    # crun 1.8 execs as root where nobody is named.
    cu_init "as$uid" "$WORD" --user "$uid:$uid"
    assert_contains "the daemon's log" "$(grep 'NEW CLIENT' "$card/log/control.log")" "NEW CLIENT $(gate_pid) from user $uid:"
    assert_contains "the gate's log" "$(grep 'client handed over' "$card/log/gate.log")" "container=as$uid"
    delete "as$uid"
    wait_for 10 "its door is closed" no_doors
  done
}

# bats test_tags=runtime
@test "a client of another uid than its grant's is ended, by name, and so is one with another container's door" {
  granted one 2Gi --ann mpsgate.io/gpu=0
  granted other 2Gi --ann mpsgate.io/gpu=0
  assert_equal "doors" "$(doors)" 2
  local door client
  door=$(door_of one)
  client=("$MG_OUT/fakes/cuda-client" "$(find "$MG/rootfs/usr/bin" -name 'libcuda.so.1')")
  # In the container's cgroup, as another user. Not by exec: crun 1.21 takes --user 1000 for root.
  # Its directory on the host is root's alone, so he walks to a bind of it.
  mkdir -p "$MG/bound"
  mount --bind "$door" "$MG/bound"
  try any beside one env CUDA_MPS_PIPE_DIRECTORY="$MG/bound" setpriv --reuid 1000 --regid 1000 --clear-groups "${client[@]}"
  umount "$MG/bound"
  assert_equal "cuInit as another user" "${stdout##* }" "$ENDED"
  ended one uid
  # From the host, beside the container: its process is in no container's cgroup.
  try any env CUDA_MPS_PIPE_DIRECTORY="$door" "${client[@]}"
  assert_equal "cuInit from the host" "${stdout##* }" "$ENDED"
  ended one elsewhere
  refused thief E_MPS_MOUNT --jq ".mounts += [{destination: \"/x\", type: \"bind\", source: \"$door\", options: [\"bind\"]}]"
  cu_init one "$WORD"
  cu_init other "$WORD"
  # NVIDIA's client comes a second time where it is ended before its word.
  wait_for 15 "status counts them" counted uid=1 elsewhere=2
  assert_contains "status" "$(mpsgate status)" "GPU 0: gate: clients handed over" "ended: elsewhere 2, uid 1"
}

# bats test_tags=runtime
@test "a user who reads a container's door in /proc cannot reach it, and whoever reaches it keeps its clients from nothing" {
  granted one 2Gi --ann mpsgate.io/gpu=0
  local door name
  door=$(door_of one) name=$(basename "$(door_of one)")
  try 0 setpriv --reuid 1000 --regid 1000 --clear-groups sh -c 'cat /proc/[0-9]*/mountinfo 2>/dev/null'
  assert_contains "what a user reads" "$stdout" "/mpsgate/mps/0/containers/$name"
  try fail setpriv --reuid 1000 --regid 1000 --clear-groups ls "$door"
  assert_contains "ls" "$stderr" "Permission denied"
  try fail setpriv --reuid 1000 --regid 1000 --clear-groups door.pl "$door" connect
  assert_contains "connect" "$stderr" "Permission denied"
  # Root can, from outside the container: it holds nothing of what the container may have.
  silent "$door"
  for _ in 1 2 3; do LIMIT=10 cu_init one "$WORD"; done
  cu_init one "$WORD"
  # Each thing is told the 1st, 2nd, 4th time and so on.
  local told
  told=$(grep "instance=$name" "$card/log/gate.log")
  assert_contains "the gate's log" "$told" reason=elsewhere
  refute_contains "the gate's log" "$told" reason=silent
  (($(grep -c "client ended" <<<"$told") <= 14)) || fail "$told"
  assert_equal "clients handed over" "$(sed -n 's/.*client handed over.* count=//p' <<<"$told" | paste -sd' ')" "1 2 4"
}

# counted REASON=N...: what card 0's gate has ended so far.
counted() {
  local found
  found=$(mpsgate status -o json | jq -r '.cards[0].gate.ended | to_entries | map("\(.key)=\(.value)") | sort | join(" ")')
  [[ $found == "$(printf '%s\n' "$@" | sort | paste -sd' ')" ]]
}

# bats test_tags=runtime
@test "a bundle that is created again gets a door of its own, also where its last one is gone" {
  granted again 2Gi --ann mpsgate.io/gpu=0
  cu_init again "$WORD"
  try_oci delete --force again
  wait_for 10 "its door is closed" no_doors
  create again
  start again
  cu_init again "$WORD"
}

@test "root in a container reaches no command of the control daemon through its door" {
  rootfs_program "$MG/rootfs" "$MG/control/nvidia-cuda-mps-control"
  granted root 2Gi --ann mpsgate.io/gpu=0
  # A number comes from a daemon that it reached: through NVIDIA's own socket root of the node does.
  asked="echo get_default_active_thread_percentage | timeout 10 nvidia-cuda-mps-control"
  assert_equal "the host's answer" "$(control get_default_active_thread_percentage)" 100.0
  try_oci any exec root sh -c "$asked"
  refute_contains "the container's answer" "$stdout$stderr" 100
  ended root word
  cu_init root "$WORD"
}

# limits: what the server gives its next client, and the next server its first.
limits() {
  local server
  server=$(control get_server_list)
  [[ -z $server ]] || control "get_device_pinned_mem_limit $server 0"
  control "get_default_device_pinned_mem_limit 0"
}
control() { mps_asks 0 "$1"; } # COMMAND

@test "a client is handed over to a server that has its container's limit, and the default is the smallest" {
  granted small 1Gi --ann mpsgate.io/gpu=0
  granted large 3Gi --ann mpsgate.io/gpu=0
  local id
  for id in small large large small large; do
    cu_init "$id" "$WORD"
    case $id in
      small) assert_equal "limits" "$(limits)" $'1G\n1G' ;;
      large) assert_equal "limits" "$(limits)" $'3G\n1G' ;;
    esac
  done
  delete small
  wait_for 10 "the default is the only one's" default_is 3G
  cu_init large "$WORD"
  # It gets more while it runs, and so does its next client.
  try mpsgate resize large 5Gi
  assert_contains "answer" "$stdout" "container large has 5 GiB of GPU 0 now, and had 3 GiB"
  cu_init large "$WORD"
  assert_equal "limits" "$(limits)" $'5G\n5G'
}

status_says() { mpsgate status | grep -qF "$1"; } # TEXT
default_is() { [[ $(control "get_default_device_pinned_mem_limit 0") == "$1" ]]; } # LIMIT

@test "a server that does not say its limit gets no client, nobody is blamed for it, and who waits is served when it goes on" {
  local server
  granted small 1Gi --ann mpsgate.io/gpu=0
  granted large 3Gi --ann mpsgate.io/gpu=0
  cu_init small "$WORD"
  server=$(control get_server_list)
  kill -STOP "$server"
  oci exec large cuda-client "$LIBCUDA" >"$BATS_TEST_TMPDIR/waited" 3>&- &
  wait_for 20 "status names the server" status_says "somebody stopped its MPS server, pid $server"
  kill -CONT "$server"
  wait_for 20 "it is served" grep -q " $WORD\$" "$BATS_TEST_TMPDIR/waited"
  wait $!
  assert_equal "limits" "$(limits)" $'3G\n1G'
  wait_for 20 "the card is ready" card_is ready 0
  # A limit that was given up on comes into force all the same: the next one's is set anew.
  cu_init small "$WORD"
  kill -STOP "$server"
  oci exec large cuda-client "$LIBCUDA" >"$BATS_TEST_TMPDIR/gone" 3>&- &
  wait_for 20 "status names the server" status_says "somebody stopped its MPS server, pid $server"
  pkill -x cuda-client
  wait $! || true
  kill -CONT "$server"
  wait_for 20 "the card is ready" card_is ready 0
  cu_init small "$WORD"
  assert_equal "limits" "$(limits)" $'1G\n1G'
  cu_init small "$WORD"
  assert_equal "actions" "$(mpsgate status -o json | jq -c .actions)" "[]"
}

@test "words that cost a shared daemon a descriptor each, and silence, cost it nothing, and a neighbour attaches" {
  local before instance pids began took n worst=0
  granted flood 2Gi --ann mpsgate.io/gpu=0
  granted neighbour 2Gi --ann mpsgate.io/gpu=0
  cu_init neighbour "$WORD"
  before=$(descriptors)
  instance=$(door_of flood)
  try beside flood perl "$BATS_TEST_DIRNAME/door.pl" "$instance" words 400 255
  assert_equal "words" "$stdout" "said 400"
  # All of it at once, and clients of its own beside it.
  beside flood perl "$BATS_TEST_DIRNAME/door.pl" "$instance" hold 200 60 3>&- &
  pids=$!
  while :; do beside flood perl "$BATS_TEST_DIRNAME/door.pl" "$instance" words 1000 255; done >/dev/null 3>&- &
  pids+=" $!"
  for ((n = 0; n < ${MG_ATTACHES:-5}; n++)); do
    began=${EPOCHREALTIME/./}
    cu_init neighbour "$WORD"
    took=$(((${EPOCHREALTIME/./} - began) / 1000))
    ((took <= worst)) || worst=$took
  done
  # shellcheck disable=SC2086  # two pids
  kill $pids
  pkill -f "door.pl $instance" || true
  echo "# an exec with a neighbour's attach took at most $worst ms beside them, of $n" >&3
  cu_init flood "$WORD"
  # mpsgated's own questions come and go.
  wait_for 10 "the control daemon has no descriptor more than $before" descriptors_are "$before"
}

@test "neither mpsgated's restart nor the gate's death ends an attached client or keeps a new one from attaching" {
  local before client waiting
  granted c 2Gi --ann mpsgate.io/gpu=0 --args sh -c "sleep 600 | cuda-client $LIBCUDA"
  wait_for 20 "it is served" grep -q " $WORD\$" "$MG/out/c"
  client=$(pgrep -x cuda-client)
  before=$(gate_pid)
  # While mpsgated is away nobody is handed over, and nobody is sent away.
  daemon_stop
  oci exec c cuda-client "$LIBCUDA" >"$BATS_TEST_TMPDIR/waited" 3>&- &
  waiting=$!
  sleep 0.5
  assert_equal "what it was told meanwhile" "$(<"$BATS_TEST_TMPDIR/waited")" ""
  daemon_start
  wait_for 20 "it is served" grep -q " $WORD\$" "$BATS_TEST_TMPDIR/waited"
  wait "$waiting"
  assert_equal "the same gate" "$(gate_pid)" "$before"
  cu_init c "$WORD"
  kill -TERM "$before"
  wait_for 20 "mpsgated starts another one" another_gate "$before"
  wait_for 20 "its door is open again" attaches_again c
  assert_equal "the attached client" "$(pgrep -x cuda-client)" "$client"
}

# MG_RESTARTS=100 is each night's (make test-restarts), and what SPECIFICATION's rows were measured
# with.
@test "mpsgated is restarted, by SIGTERM and by SIGKILL, under clients that attach all the time: each is served" {
  local n signal
  granted c 2Gi --ann mpsgate.io/gpu=0 --args sh -c "while :; do cuda-client $LIBCUDA </dev/null; done"
  wait_for 20 "one is served" grep -q " $WORD\$" "$MG/out/c"
  for ((n = 0; n < ${MG_RESTARTS:-4}; n++)); do
    if ((n % 2)); then signal=KILL; else signal=TERM; fi
    sleep "0.$((RANDOM % 10))"
    daemon_stop "$signal"
    sleep "0.$((RANDOM % 3))"
    daemon_start
  done
  delete c
  assert_equal "what cuInit said, each time" "$(awk '{ print $NF }' "$MG/out/c" | sort -u)" "$WORD"
  echo "# served over $n restarts: $(wc -l <"$MG/out/c")" >&3
}

another_holder() { local now; now=$(holder_pid) && [[ -n $now && $now != "$1" ]]; } # THAN

@test "the gate is replaced and the holder killed under clients that attach all the time: each is served" {
  local n pid
  granted c 2Gi --ann mpsgate.io/gpu=0 --args sh -c "while :; do cuda-client $LIBCUDA </dev/null; done"
  wait_for 20 "one is served" grep -q " $WORD\$" "$MG/out/c"
  for ((n = 0; n < ${MG_RESTARTS:-4}; n++)); do
    pid=$(gate_pid)
    sleep "0.$((RANDOM % 10))"
    kill -TERM "$pid"
    wait_for 20 "another gate" another_gate "$pid"
  done
  for ((n = 0; n < ${MG_RESTARTS:-1}; n++)); do
    pid=$(holder_pid)
    sleep "0.$((RANDOM % 10))"
    kill -KILL "$pid"
    wait_for 30 "another holder" another_holder "$pid"
  done
  # The gate has brought its sockets to the new one by then, and is replaced once more.
  sleep 7
  pid=$(gate_pid)
  kill -TERM "$pid"
  wait_for 20 "another gate" another_gate "$pid"
  sleep 1
  delete c
  assert_equal "what cuInit said, each time" "$(awk '{ print $NF }' "$MG/out/c" | sort -u)" "$WORD"
  echo "# served meanwhile: $(wc -l <"$MG/out/c")" >&3
}

attaches_again() { oci exec "$1" cuda-client "$LIBCUDA" 2>/dev/null | grep -q " $WORD\$"; } # ID

@test "below a new control daemon a container that was there attaches again, and only when its limits are set" {
  # Its server outlives it, and nobody is here to end that.
  settings "$SETTINGS; /^\[mps\]/a orphan = \"kill\""
  try 0 mpsgate reload
  granted c 2Gi --ann mpsgate.io/gpu=0
  cu_init c "$WORD"
  kill -KILL "$(pgrep -f "^$MG/control/nvidia-cuda-mps-control" | head -n 1)"
  wait_for 30 "the card is ready" card_is ready 0
  echo "$WORD" >"$card/log/fake-server-status"
  granted new 2Gi --ann mpsgate.io/gpu=0
  cu_init new "$WORD"
  cu_init c "$WORD"
  settings
  try 0 mpsgate reload
}

@test "after disable there is no gate and nothing of it" {
  daemon_with "$SETTINGS; s/^manage = .*/manage = []/"
  try mpsgate enable 0
  wait_for 20 "the card is ready" card_is ready 0
  granted c 2Gi --ann mpsgate.io/gpu=0
  delete c
  wait_for 10 "it is released" not_granted c
  try mpsgate disable 0
  ! gate_pid || fail "a gate is left"
  [[ ! -e $card ]] || fail "$(find "$card")"
  daemon_with
}

@test "qualify answers what can be answered without a GPU, with NVIDIA's client and control daemon" {
  LIMIT=100 try any mpsgate qualify 0 --library "$(find "$MG/rootfs/usr/bin" -name libcuda.so.1)" -o json
  answers() { jq -r --arg name "$1" '.answers[] | select(.question == $name) | "\(.verdict): \(.seen)"' <<<"$stdout"; }
  assert_contains "attach" "$(answers attach)" "unanswered: no GPU: its client reached the MPS server through its door" "($WORD)"
  assert_contains "commands" "$(answers commands)" "yes: no answer, and the gate ended the client for its word"
  assert_contains "own-shm" "$(answers own-shm)" "unanswered: as far as with the server's own" "($WORD)"
  assert_contains "limit" "$(answers limit)" "unanswered: no CUDA client attaches"
  assert_equal "kept" "$(mpsgate status -o json | jq -r '.cards[0].qualification.answers | length')" 7
}

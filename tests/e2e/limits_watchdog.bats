#!/usr/bin/env bats
# Containers that take more of a card than was granted: real runc, real processes in real cgroups,
# and a simulated NVML that says what each of them uses.

load mpsgate

setup_file() {
  rootfs "$MG/rootfs"
  rootfs_program "$MG/rootfs" "$MG_OUT/fakes/cuda-client"
}

setup() { node_anew; }

teardown_file() { node_stop; }

teardown() {
  explain_failure
  kill_listed "$MG/stranger"
  kill_listed "$MG/strangers"
  node_stop
}

reads_actions() { [[ $(actions) == "$1" ]]; }
used_is() { [[ $(grant "$1" .used_mib) == "$2" ]]; } # ID MIB

# second_process ID: another process of the container, started as `exec` does; its pid is $second.
second_process() {
  "$RUNTIME" --root "$RUNC_ROOT" exec -d --pid-file "$MG/second" "$1" sleep 600 3>&-
  second=$(<"$MG/second")
}

# Its first thread has ended, and another one lives.
leaderless() { grep -q ') Z ' "/proc/$1/stat" && grep -q '^Threads:[[:space:]]*[2-9]' "/proc/$1/status"; } # PID

# Its name is the byte ff, which is no text.
renamed() { [[ $(od -An -tx1 "/proc/$1/comm") == " ff 0a" ]]; } # PID

# numbered ID PID: another process of the container, with this pid in the node's namespace. It ends
# with a process in $MG/stranger.
numbered() {
  local of
  "$MG_OUT/fakes/cuda-client" - numbered "$2" >"$BATS_TEST_TMPDIR/numbered" 3>&- &
  echo $! >"$MG/stranger"
  wait_for 10 "a process with pid $2" grep -qx "$2" "$BATS_TEST_TMPDIR/numbered"
  if [[ -d /sys/fs/cgroup/devices ]]; then
    of=/sys/fs/cgroup/devices$(sed -n 's/^[0-9]*:devices://p' "/proc/$(pid_of "$1")/cgroup")
  else
    of=/sys/fs/cgroup$(sed -n 's/^0:://p' "/proc/$(pid_of "$1")/cgroup")
  fi
  echo "$2" >"$of/cgroup.procs"
}

# bats test_tags=runtime
@test "two processes that take more than the grant in sum end their container, not its neighbour" {
  granted bad 1Gi --ann mpsgate.io/gpu=0
  granted good 1Gi --ann mpsgate.io/gpu=0
  second_process bad
  uses "$(pid_of bad)" 1000 "$second" 1000 "$(pid_of good)" 1024
  wait_for 20 "bad is ended" stopped bad
  wait_for 20 "its second process is ended" gone "$second"
  wait_for 10 "it is noted" acted
  assert_equal "actions" "$(actions)" "bad killed"
  assert_equal "good" "$(state_of good)" running
  try mpsgate status
  assert_contains "status" "$stdout" "ACTIONS" "bad" "killed" \
    "it used 2000 MiB of the card, 1024 MiB were granted and 512 MiB tolerated" "mps+watchdog"
  wait_for 10 "bad's memory is free" not_granted bad
  assert_equal "what good uses" "$(grant good .used_mib)" 1024
}

# bats test_tags=runtime
@test "a container within its grant is left alone, whatever its neighbours and its tolerance are" {
  granted web 1Gi --ann mpsgate.io/gpu=0
  second_process web
  uses "$(pid_of web)" 1024 "$second" 512
  wait_for 10 "it is seen" used_is web 1536
  uses "$(pid_of web)" 1024 "$second" 511
  wait_for 10 "it is seen again" used_is web 1535
  uses "$(pid_of web)" 1024 "$second" 512
  wait_for 10 "it is seen a third time" used_is web 1536
  assert_equal "actions" "$(actions)" ""
  assert_equal "web" "$(state_of web)" running
}

# counts KIND: with processes of that kind (leaderless, renamed), containers that take more than
# their grant are ended, and a neighbour is not.
counts() {
  local kind=$1 init id pid
  granted init 1Gi --ann mpsgate.io/gpu=0 --args sh -c "until [ -e /go ]; do sleep 0.1; done; exec cuda-client - $kind"
  granted bad 1Gi --ann mpsgate.io/gpu=0
  granted good 1Gi --ann mpsgate.io/gpu=0
  init=$(pid_of init)
  touch "$MG/b/init/rootfs/go"
  for id in bad good; do
    "$RUNTIME" --root "$RUNC_ROOT" exec -d --pid-file "$MG/second.$id" "$id" cuda-client - "$kind" 3>&-
  done
  for pid in "$init" "$(<"$MG/second.bad")" "$(<"$MG/second.good")"; do
    wait_for 10 "$pid is $kind" "$kind" "$pid"
  done
  uses "$init" 2000 "$(<"$MG/second.bad")" 2000 "$(<"$MG/second.good")" 1024
  wait_for 20 "bad is ended" stopped bad
  # runc takes a container whose init's main thread has ended for stopped.
  wait_for 20 "init is ended" gone "$init"
  wait_for 20 "the second process of bad is ended" gone "$(<"$MG/second.bad")"
  wait_for 10 "their memory is free" not_granted init
  wait_for 10 "their memory is free" not_granted bad
  assert_equal "actions" "$(actions | tr -d ' ' | tr ',' '\n' | sort | xargs)" "badkilled initkilled"
  assert_equal "good" "$(state_of good)" running
  "$kind" "$(<"$MG/second.good")" || fail "its second process was ended"
  wait_for 10 "what good uses" used_is good 1024
}

# counts_plain KIND: the same of a process of mpsgate run.
counts_plain() {
  stranger mpsgate run --gpu-mem 1Gi --gpu 0 --name bad -- "$MG_OUT/fakes/cuda-client" - "$1"
  wait_for 20 "it has its grant" grant_is bad active
  wait_for 10 "it is $1" "$1" "$stranger"
  uses "$stranger" 1024
  wait_for 10 "it is seen" used_is bad 1024
  assert_equal "actions" "$(actions)" ""
  uses "$stranger" 2000
  wait_for 20 "its grant ends" not_granted bad
  assert_equal "actions" "$(actions)" "root/bad killed"
}

# bats test_tags=runtime
@test "a process whose main thread has ended counts: as init, as one that exec started, and its neighbour's is left alone" {
  counts leaderless
}

# bats test_tags=runtime
@test "a process of mpsgate run whose main thread has ended counts for its grant" {
  counts_plain leaderless
}

# bats test_tags=runtime
@test "a process whose name is no text counts: as init, as one that exec started, and its neighbour's is left alone" {
  counts renamed
}

@test "a process of mpsgate run whose name is no text counts for its grant" {
  counts_plain renamed
}

# bats test_tags=runtime
@test "memory that a process leaves behind is its container's, and who has its pid by then is left alone" {
  local pid=$((20000 + BASHPID % 10000))
  granted bad 1Gi --ann mpsgate.io/gpu=0
  granted good 1Gi --ann mpsgate.io/gpu=0
  numbered bad "$pid"
  uses "$pid" 900
  wait_for 10 "it is seen" used_is bad 900
  kill_listed "$MG/stranger"
  wait_for 10 "it has ended" gone "$pid"
  # As a driver does while a child holds what it had opened.
  uses "$pid" 1000
  wait_for 10 "it counts all the same" used_is bad 1000
  numbered good "$pid"
  # Nor is mpsgated to forget it.
  daemon_stop
  daemon_start
  wait_for 10 "it counts all the same" used_is bad 1000
  assert_equal "what good uses" "$(grant good .used_mib)" 0
  # Who has ended takes no more, and the process with its pid is at no door.
  uses "$pid" 14000
  wait_for 20 "what is more is nobody's" reads_actions "null reported"
  assert_contains "why" "$(status_json | jq -r '.actions[].why')" \
    "13000 MiB of the card are listed under pid $pid, whose process has ended or cannot be seen"
  assert_equal "bad" "$(state_of bad) $(grant bad .used_mib)" "running 1000"
  assert_equal "good" "$(state_of good)" running
  kill -0 "$pid" || fail "the process with its pid was ended"
  # Not listed any more: the next one with that pid is a client as others are.
  uses "$(pid_of good)" 10
  wait_for 10 "it is seen" used_is good 10
  uses "$pid" 100
  wait_for 10 "it is its own" used_is good 100
  # Where nobody has the pid, all is the container's who had it.
  kill_listed "$MG/stranger"
  wait_for 10 "it has ended" gone "$pid"
  uses "$pid" 14000
  wait_for 20 "good is ended" stopped good
  assert_equal "bad" "$(state_of bad)" running
}

@test "policy.enforce = report: the overrun is named once, and the container lives" {
  node_anew '/^\[mps\]/i [policy]\nenforce = "report"'
  granted bad 1Gi --ann mpsgate.io/gpu=0
  uses "$(pid_of bad)" 2000
  wait_for 20 "it is reported" acted
  uses "$(pid_of bad)" 2001
  wait_for 10 "another look" used_is bad 2001
  uses "$(pid_of bad)" 2002
  wait_for 10 "one more" used_is bad 2002
  assert_equal "actions" "$(actions)" "bad reported"
  assert_equal "bad" "$(state_of bad)" running
  assert_equal "its guarantee" "$(grant bad .guarantee)" mps
}

@test "a process outside every grant is reported, and lives" {
  granted good 1Gi --ann mpsgate.io/gpu=0
  sleep 600 3>&- &
  echo $! >"$MG/stranger"
  uses "$(<"$MG/stranger")" 9000 "$(pid_of good)" 1000
  wait_for 20 "it is reported" acted
  assert_equal "actions" "$(actions)" "null reported"
  assert_contains "why" "$(status_json | jq -r '.actions[0].why')" "pid $(<"$MG/stranger") (sleep)" \
    "uses 9000 MiB of the card and is in no container with a grant"
  kill -0 "$(<"$MG/stranger")" || fail "the process was ended"
  assert_equal "good" "$(state_of good)" running
}

@test "memory of nobody is named, and mpsgate usage adds the day up, over a restart too" {
  granted web 1Gi --ann mpsgate.io/gpu=0
  jq --argjson pid "$(pid_of web)" '.cards[0] += {memory_used_mib: 4096, processes: [{pid: $pid, used_mib: 1024, kind: "mps"}]}' \
    "$NVML/nvml.json" >"$NVML/nvml.json.next"
  mv "$NVML/nvml.json.next" "$NVML/nvml.json"
  named() { mpsgate status | grep -q "^GPU 0: 3 GiB in use are of no process that can be named"; }
  wait_for 10 "status names it" named
  used_of_day() { mpsgate usage --by gpu -o json | jq '.rows[] | select(.gpu == 0) | .used_gib_seconds'; }
  # Two looks more: each stands for the time since the one before it.
  sleep 3
  daemon_stop
  local before
  before=$(used_of_day)
  daemon_start
  wait_for 10 "it is looked at again" used_is web 1024
  sleep 3
  daemon_stop
  try 0 mpsgate usage --by gpu -o json
  jq -e --argjson before "$before" '.rows[] | select(.gpu == 0)
    | .used_gib_seconds > $before and .containers_gib_seconds > 0
      and ((.nobody_gib_seconds - 3 * .containers_gib_seconds) | fabs) < 0.01
      and ((.used_gib_seconds - 4 * .containers_gib_seconds) | fabs) < 0.01' <<<"$stdout" >/dev/null || fail "$stdout"
  try 0 mpsgate usage -o csv
  assert_contains "the table for spreadsheets" "$stdout" "namespace,pod,container,granted_gib_seconds" $'\n,,web,'
  try 0 mpsgate usage --by user
  assert_contains "by user" "$stdout" "UID" "GiB-hours"
  daemon_start
}

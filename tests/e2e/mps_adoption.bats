#!/usr/bin/env bats
# mpsgated ends, in every way that it can, and the next one finds what the last one had: control
# daemons, grants, reservations. What only looks like a control daemon is not taken for one.

# shellcheck disable=SC2030,SC2031 # a test is a subshell, and sets what it reads itself
load suite

teardown() {
  explain_failure
  touch "$MG/go"
  kill_listed "$MG/victims"
  node_reset
}

log_size() { stat -c %s "$MG/log/mpsgated.log"; }
log_since() { tail -c "+$(($1 + 1))" "$MG/log/mpsgated.log"; } # SIZE

# victim CMD...: runs it in the background until the test ends; its pid is $victim.
victim() {
  "$@" >/dev/null 2>&1 </dev/null 3>&- &
  victim=$!
  echo "$victim" >>"$MG/victims"
}

# What must not change over a restart.
grants_now() { status_json | jq -cS '[.grants[] | {container_id, instance, card, memory_mib, pid, state}] | sort_by(.container_id)'; }

# What an upgrade must not change of what runs.
terms_now() { status_json | jq -cS '{channel, overrides, grants: [.grants[] | {container_id, guarantee, proof, cap_mib}] | sort_by(.container_id)}'; }

control_pids() { status_json | jq -c '[.cards[].mps.pid]'; }

terms_are() { [[ $(terms_now) == "$1" ]]; }
grants_are_watched() { [[ $(status_json | jq '[.grants[] | select(.state == "active") | .guarantee | startswith("mps+watchdog")] | all') == true ]]; }

# upgrade: another build of mpsgated in place of the installed one, as a package does it.
upgrade() {
  cp /usr/bin/mpsgated /usr/bin/.mpsgated.new
  printf 'another build' >>/usr/bin/.mpsgated.new # behind the ELF image, where nothing reads it
  mv /usr/bin/.mpsgated.new /usr/bin/mpsgated
}

# reserve_slowly ID SIZE: a container whose create stands still between reservation and grant, until
# $MG/go is there. The pid of its runtime is $creator.
reserve_slowly() {
  rm -f "$MG/go"
  bundle "$1" --ann "mpsgate.io/gpu-mem=$2" \
    --jq ".hooks.createRuntime = [{path: \"/bin/sh\", args: [\"sh\", \"-c\", \"until test -e $MG/go; do sleep 0.02; done\"], env: [\"PATH=/bin:/usr/bin\"]}]"
  mpsgate-runtime --root "$RUNC_ROOT" create --bundle "$MG/b/$1" "$1" >"$MG/out/$1" 2>&1 </dev/null 3>&- &
  creator=$!
  wait_for 10 "$1 is reserved" grant_is "$1" reserved || { cat "$MG/out/$1" >&2; return 1; }
}

@test "SIGTERM, kill -9 and an upgrade: control daemons, grants and reservations are found again" {
  local pids control before terms how creator
  granted a 2Gi
  granted b 3Gi --ann mpsgate.io/gpu=1
  reserve_slowly slow 1Gi
  wait_for 10 "the watchdog has looked" grants_are_watched
  terms=$(terms_now)
  pids=$(mps_pids) control=$(control_pids) before=$(grants_now)
  for how in TERM KILL upgrade; do
    case $how in
      upgrade) upgrade; daemon_stop ;;
      *) daemon_stop "$how" ;;
    esac
    daemon_start
    assert_equal "program after $how" "$(readlink "/proc/$(<"$MG/mpsgated.pid")/exe")" /usr/bin/mpsgated
    wait_for 10 "the processes of MPS after $how" mps_pids_are "$pids"
    assert_equal "control daemons after $how" "$(control_pids)" "$control"
    assert_equal "grants after $how" "$(grants_now)" "$before"
    wait_for 20 "channel, level and worst case after $how" terms_are "$terms"
  done
  # The reservation is as good as before, and the ends of containers are seen.
  touch "$MG/go"
  wait "$creator"
  assert_equal "state of the slow one" "$(grant slow .state)" active
  try_oci kill a KILL
  wait_for 10 "a is released" not_granted a
  delete slow
  delete b
}

@test "a reservation whose creator died while mpsgated was away is gone after it" {
  local creator
  reserve_slowly slow 1Gi
  daemon_stop KILL
  kill -KILL "$creator"
  wait_for 10 "the creator ends" gone "$creator"
  daemon_start
  wait_for 10 "slow is released" not_granted slow
  touch "$MG/go"
  rm -rf "${RUNC_ROOT:?}/slow" # what a killed runc leaves
}

@test "a container that is created while mpsgated restarts waits for it" {
  local how creator
  bundle w --ann mpsgate.io/gpu-mem=1Gi
  for how in TERM KILL; do
    daemon_stop "$how"
    mpsgate-runtime --root "$RUNC_ROOT" create --bundle "$MG/b/w" w >"$MG/out/w" 2>&1 </dev/null 3>&- &
    creator=$!
    daemon_start
    wait "$creator" || fail "create during a restart:" "$(<"$MG/out/w")"
    assert_equal "state" "$(grant w .state)" active
    try_oci delete --force w
  done
  # Between reservation and grant: the hook waits too.
  reserve_slowly slow 1Gi
  daemon_stop KILL
  touch "$MG/go"
  daemon_start
  wait "$creator" || fail "hook during a restart:" "$(<"$MG/out/slow")"
  assert_equal "state" "$(grant slow .state)" active
}

@test "a control daemon in another directory is nobody's: neither adopted nor ended" {
  local dir=$MG/own pids victim
  mkdir -p "$dir/pipe" "$dir/log"
  victim env CUDA_MPS_PIPE_DIRECTORY="$dir/pipe" CUDA_MPS_LOG_DIRECTORY="$dir/log" "$(control_program)" -f
  wait_for 10 "it runs" test -S "$dir/pipe/control"
  pids=$(control_pids)
  daemon_stop KILL
  daemon_start
  assert_equal "control daemons" "$(control_pids)" "$pids"
  refute_contains "control daemons" "$pids" "$victim"
  [[ -d /proc/$victim ]] || fail "it was ended"
}

# lock_holder PROGRAM: root's, in the place of card 0's control daemon, with its environment and its
# lock. struct flock: F_WRLCK, SEEK_SET, the whole file. F_SETLK is 6.
lock_holder() {
  # shellcheck disable=SC2016
  exec env CUDA_MPS_PIPE_DIRECTORY=/run/mpsgate/mps/0/pipe "$1" -e \
    'open F, "+<", $ARGV[0] or die; my $l = pack "s s x4 q q l x4", 1, 0, 0, 0, 0; fcntl(F, 6, $l) or die; sleep 600' \
    /run/mpsgate/mps/0/daemon.lock
}
# With a path of its own that reads like the control program's, as a container can have it.
lock_holder_by_name() {
  # shellcheck disable=SC2016
  exec unshare --mount bash -c "$(declare -f lock_holder)"'
    mount --bind "$(command -v perl)" "$1" && lock_holder "$1"' x "$(readlink -f "$(control_program)")"
}

@test "somebody else who holds the control daemon's lock is named, and not adopted" {
  local pid who victim
  for who in "lock_holder perl" lock_holder_by_name; do
    pid=$(card 0 .mps.pid)
    daemon_stop KILL
    kill -KILL "$pid"
    wait_for 10 "the control daemon ends" gone "$pid"
    # shellcheck disable=SC2086 # a function and its argument
    victim $who
    wait_for 10 "it has the lock" bash -c "grep -q ' $victim ' /proc/locks"
    daemon_start
    assert_contains "state of card 0" "$(card 0 .state)" "is locked by pid $victim" "not our control daemon"
    refused x E_GPU_UNHEALTHY --ann mpsgate.io/gpu-mem=1Gi --ann mpsgate.io/gpu=0
    allowed y --ann mpsgate.io/gpu-mem=1Gi
    [[ -d /proc/$victim ]] || fail "it was ended"
    kill -KILL "$victim"
    wait_for 20 "card 0 is ready" card_is ready 0
  done
}

# with_control PATH: mpsgated on this control program.
with_control() { settings "s|^control = .*|control = \"$1\"|"; }
lives_and_answers() { # PID
  [[ -d /proc/$1 ]] || fail "control daemon $1 was ended"
  assert_equal "control daemon" "$(card 0 .mps.pid)" "$1"
}

@test "a control program that was upgraded under its running daemons: adopted, with what to do" {
  local program=nvidia-cuda-mps-control dir=$MG/driver pid size
  # With nothing running: a driver of our own, in the place of version 1.
  daemon_stop
  mps_kill
  rm -rf /run/mpsgate/mps
  mkdir -p "$dir/1" "$dir/2"
  cp "$(control_program)" "$dir/1/$program"
  [[ ! -x $(dirname "$(control_program)")/nvidia-cuda-mps-server ]] ||
    cp "$(dirname "$(control_program)")/nvidia-cuda-mps-server" "$dir/1/"
  with_control "$dir/1/$program"
  daemon_start
  granted g 7Gi --ann mpsgate.io/gpu=0
  pid=$(card 0 .mps.pid)

  # Under the same name, as dpkg and rpm do it.
  cp "$dir/1/$program" "$dir/1/new"
  mv "$dir/1/new" "$dir/1/$program"
  assert_equal "exe" "$(readlink "/proc/$pid/exe")" "$dir/1/$program (deleted)"
  size=$(log_size)
  daemon_stop KILL
  daemon_start
  lives_and_answers "$pid"
  assert_contains "log" "$(log_since "$size")" "from before an upgrade of its program" "mpsgate mps restart"
  granted h 1Gi --ann mpsgate.io/gpu=0

  # Into a directory of the new version.
  mv "$dir/1/$program" "$dir/2/"
  [[ ! -e $dir/1/nvidia-cuda-mps-server ]] || mv "$dir/1/nvidia-cuda-mps-server" "$dir/2/"
  with_control "$dir/2/$program"
  daemon_stop
  daemon_start
  lives_and_answers "$pid"

  # When its clients are gone and it ends, the next one is of the new program.
  delete g
  delete h
  kill -KILL "$pid"
  wait_for 30 "another control daemon" bash -c "[[ \$(mpsgate status -o json | jq '.cards[0].mps.pid') != @($pid|null) ]]"
  assert_equal "exe" "$(readlink "/proc/$(card 0 .mps.pid)/exe")" "$dir/2/$program"

  # Another program by the settings, while the old one is still there: somebody chose that. Named.
  settings
  daemon_stop
  daemon_start
  assert_contains "state" "$(card 0 .state)" "it runs $dir/2/$program, not $(control_program)"
  daemon_stop
  mps_kill
  rm -rf /run/mpsgate/mps
  daemon_start
}

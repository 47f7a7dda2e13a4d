#!/usr/bin/env bats
# A kernel without pidfds, as before 5.3, and without cgroup v2: the lifecycle of a grant on the
# fallbacks, pid with start time and cgroup v1. Everything here runs below tests/env/old-kernel.pl:
# the shim, the hook, runc, mpsgated, the control daemons.
#
# under: old-kernel.pl
# nightly: a lifecycle that plain and grant try each time, on the fallbacks

# shellcheck disable=SC2030,SC2031 # a test is a subshell, and sets what it reads itself
load suite
load gate

setup_file() {
  # A hybrid machine mounts v2 beside v1; on one with v2 alone this file still shows the want of
  # pidfds.
  ! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified
  node_start
}

teardown() {
  explain_failure
  kill_listed "$MG/strangers"
  node_reset
}

@test "the kernel is as old as it should be" {
  # pidfd_open, clone3, close_range, openat2, pidfd_getfd
  local call
  for call in 434 435 436 437 438; do
    try 38 perl -e 'syscall($ARGV[0] + 0, 0, 0, 0, 0); exit $!' "$call"
  done
  [[ -d /sys/fs/cgroup/devices ]] || skip "v1 only: this machine has cgroup v2 alone"
  refute_contains "mounts" "$(cat /proc/mounts)" " cgroup2 "
}

@test "granted, exec'd into, and free when init ends, when it is killed, when it is deleted" {
  local how pid
  for how in end kill delete; do
    granted g 7Gi
    pid=$(oci state g | jq .pid)
    assert_equal "pid" "$(grant g .pid)" "$pid"
    # shellcheck disable=SC2016
    try_oci exec g sh -c 'echo $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT'
    assert_equal "limit" "$stdout" 0=7168M
    case $how in
      end) kill -KILL "$pid" ;;
      kill) try_oci kill g KILL ;;
      delete) try_oci delete --force g ;;
    esac
    wait_for 10 "released after $how" not_granted g
    delete g
  done
}

@test "NVIDIA's client is served at its container's door" {
  gate_files
  gate_needed
  daemon_stop
  mps_kill
  settings "$GATE_SETTINGS"
  daemon_start
  server_says_word
  granted c 2Gi --ann mpsgate.io/gpu=0
  cu_init c "$WORD"
  delete c
  assert_free
  daemon_stop
  mps_kill
  settings
  daemon_start
}

@test "refused where it must be, with an allowed neighbour" {
  refused x E_NO_HOST_IPC --ann mpsgate.io/gpu-mem=1Gi --private-ipc
  refused x E_VISIBLE_DEVICES --env NVIDIA_VISIBLE_DEVICES=all
  allowed y --ann mpsgate.io/gpu-mem=1Gi
  allowed z
}

@test "mpsgated ended by SIGTERM and kill -9: control daemons and grants are found again, ends are seen" {
  local pids before signal
  granted stays 7Gi
  granted ends 2Gi
  granted gone 1Gi
  pids=$(mps_pids)
  for signal in TERM KILL; do
    before=$(recorded_grants)
    daemon_stop "$signal"
    daemon_start
    wait_for 10 "MPS after $signal" mps_pids_are "$pids"
    assert_equal "grants after $signal" "$(recorded_grants)" "$before"
  done
  try_oci kill ends KILL
  wait_for 10 "the end of one is seen" not_granted ends
  daemon_stop KILL
  try runc --root "$RUNC_ROOT" delete --force gone
  daemon_start
  wait_for 10 "one that ended meanwhile is released" not_granted gone
  assert_equal "grants" "$(granted_ids)" stays
}

@test "a reservation ends with its creator" {
  bundle slow --ann mpsgate.io/gpu-mem=1Gi \
    --jq '.hooks.createRuntime = [{path: "/bin/sleep", args: ["sleep", "600"]}]'
  stranger mpsgate-runtime --root "$RUNC_ROOT" create --bundle "$MG/b/slow" slow
  wait_for 10 "slow is reserved" bash -c '[[ $(mpsgate status -o json | jq -r ".grants[0].state") == reserved ]]'
  kill -KILL "$stranger"
  wait_for 10 "slow is released" not_granted slow
  rm -rf "${RUNC_ROOT:?}/slow"
}

@test "the pid is another process's: told apart by its start time" {
  [[ -w /proc/sys/kernel/ns_last_pid ]] || skip "this kernel lets nobody choose a pid"
  local pid stranger try
  granted g 7Gi
  pid=$(oci state g | jq .pid)
  daemon_stop KILL
  kill -KILL "$pid"
  wait_for 10 "init ends" gone "$pid"
  for try in {1..50}; do
    echo $((pid - 1)) >/proc/sys/kernel/ns_last_pid
    stranger sleep 600
    [[ $stranger != "$pid" ]] || break
    kill -KILL "$stranger"
  done
  assert_equal "pid of the stranger after $try attempts" "$stranger" "$pid"
  daemon_start
  wait_for 10 "g is released" not_granted g
  [[ -d /proc/$stranger ]] || fail "the stranger was ended"
}

@test "an engine in a pid namespace of its own is refused: its pids mean nothing to mpsgated" {
  bundle n --ann mpsgate.io/gpu-mem=7Gi
  try fail unshare --pid --fork --kill-child --mount-proc mpsgate-runtime --root "$RUNC_ROOT" create --bundle "$MG/b/n" n
  assert_contains "stderr" "$stderr" "this kernel has no pidfds" "[E_HOOK_STATE]"
  assert_free
}

@test "a control daemon that dies is started again, one that hangs is ended when the card is taken back" {
  local pid
  pid=$(card 0 .mps.pid)
  kill -KILL "$pid"
  wait_for 30 "another control daemon" bash -c "[[ \$(mpsgate status -o json | jq '.cards[0].mps.pid') != @($pid|null) ]]"
  daemon_stop
  settings 's/^manage = .*/manage = []/'
  pid=$(pgrep -x nvidia-cuda-mps | head -1)
  kill -STOP "$pid"
  daemon_start
  wait_for 30 "both are given back" bash -c '[[ -z $(pgrep -x nvidia-cuda-mps) ]]'
  wait_for 10 "their modes are" bash -c "[[ \$(jq -c '[.cards[].compute_mode] | unique' $NVML/nvml.json) == '[\"DEFAULT\"]' ]]"
  daemon_with
}

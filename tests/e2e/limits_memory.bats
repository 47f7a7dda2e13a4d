#!/usr/bin/env bats
# The driver's own memory limit on a container's cgroup (r615 and newer): real runc or crun, real
# cgroups, and a simulated NVML that takes limits as the driver does where it counts by itself. On
# cgroup v1 it shows that nothing is tried.

load mpsgate

teardown_file() { node_stop; }

teardown() {
  explain_failure
  node_stop
}

is_v2() { [[ $(stat -fc %T /sys/fs/cgroup) == cgroup2fs ]]; }
has_dmem() { grep -qw dmem /sys/fs/cgroup/cgroup.controllers; }

# driver OFFER: the node anew, with a driver that offers these limits; null: none.
driver() {
  node_stop
  rm -f "$NVML/nvml.json.limits" "$MG/log/mpsgated.log"
  sim_cards "" ".memory_limits = $1 | if .memory_limits == null then del(.memory_limits) else . end"
  settings
  daemon_start
}

# entry_of CGROUP: as the driver has it, `SOFT HARD` in bytes; nothing where it has none. One that
# was cleared is an entry without an end, and one that was not stays when its cgroup has gone.
entry_of() {
  jq -r --arg cgroup "$1" '.cards[0].limits[$cgroup] // empty | select(.hard_bytes < 1e18) | "\(.soft_bytes) \(.hard_bytes)"' "$NVML/nvml.json"
}
limit_of() { [[ ! -d $1 ]] || entry_of "$1"; } # CGROUP: while that is there
calls() { cat "$NVML/nvml.json.limits" 2>/dev/null || true; }
cleared() { # no cgroup that is there has a limit
  local cgroup
  for cgroup in $(jq -r '.cards[].limits // {} | keys[]' "$NVML/nvml.json"); do [[ -z $(limit_of "$cgroup") ]] || return 1; done
}
level_is() { [[ $(grant "$1" .guarantee) == "$2" ]]; } # ID LEVEL

# bats test_tags=runtime
@test "a grant is the hard limit of its container's cgroup, before its program runs and until it ends" {
  is_v2 || skip "cgroup v1 here, where nothing is tried: see below"
  driver '{}'
  bundle web --ann mpsgate.io/gpu-mem=1Gi --ann mpsgate.io/gpu=0
  create web
  web=$(grant web .cgroup)
  assert_equal "web's limit before it is started" "$(limit_of "$web")" "0 $((1 << 30))"
  start web
  granted db 2Gi --ann mpsgate.io/gpu=0
  db=$(grant db .cgroup)
  assert_equal "db's limit" "$(limit_of "$db")" "0 $((2 << 30))"
  assert_equal "levels" "$(grant web .guarantee) $(grant db .guarantee)" "cgroup cgroup"
  # What exec starts is in the cgroup, or below it.
  "$RUNTIME" --root "$RUNC_ROOT" exec -d --pid-file "$MG/second" web sleep 600 3>&-
  assert_contains "the cgroup of what exec started" "/sys/fs/cgroup$(sed -n 's/^0:://p' "/proc/$(<"$MG/second")/cgroup")" "$web"
  try mpsgate status -o wide
  assert_contains "status" "$stdout" "guarantee cgroup: the driver limits the container's cgroup"

  # The next mpsgated tells it again when it has read it back.
  daemon_stop
  daemon_start
  wait_for 20 "the limit is read back" level_is web cgroup
  delete web
  wait_for 20 "the grant to end" not_granted web
  assert_equal "web's limit" "$(limit_of "$web")" ""
  assert_equal "db's limit" "$(limit_of "$db")" "0 $((2 << 30))"
  delete db
  wait_for 20 "no limit is left" cleared
  granted web 1Gi --ann mpsgate.io/gpu=0
  web=$(grant web .cgroup)
  for size in 3 2; do
    mpsgate resize web ${size}Gi
    assert_equal "web's limit" "$(limit_of "$web")" "0 $((size << 30))"
    assert_equal "web's level" "$(grant web .guarantee) $(grant web .memory_mib)" "cgroup $((size << 10))"
  done
  delete web
  wait_for 20 "no limit is left" cleared
  # Never a soft limit: it would leak into every ancestor.
  ! calls | grep '^set' | grep -qv ' soft 0 ' || fail "a soft limit was set: $(calls)"
}

# bats test_tags=runtime
@test "a limit is cleared before delete removes the cgroup, however the container ended" {
  is_v2 || skip "cgroup v1 here"
  driver '{}'
  # The shim gives mpsgated four seconds, and an emulated machine may need longer: what is left then
  # is named. That the answer comes after the clearing: src/daemon/tests/daemon/limits.rs.
  local turn left=0
  for turn in 1 2 3; do
    granted web 1Gi --ann mpsgate.io/gpu=0
    web=$(grant web .cgroup)
    delete web
    [[ -z $(entry_of "$web") ]] || left=$((left + 1))
    [[ ! -d $web ]] || fail "$web is there"
    granted db 1Gi --ann mpsgate.io/gpu=0
    db=$(grant db .cgroup)
    # A container that runs is not removed, and keeps its limit.
    try_oci any delete db
    [[ $status != 0 ]] || fail "a container that runs was removed"
    assert_equal "its limit, $turn" "$(limit_of "$db")" "0 $((1 << 30))"
    try_oci kill db KILL
    wait_for 10 "it is stopped" stopped db
    try_oci delete db
    remove_bundles "$MG/b/db"
    [[ -z $(entry_of "$db") ]] || left=$((left + 1))
    wait_for 20 "the grants to end" none_granted
  done
  # Each by a call while the cgroup was there: the fake refuses one for a path that has gone.
  assert_equal "cleared" "$(calls | grep -c ^clear)" $((6 - left))
  ((left < 6)) || fail "all limits are left"
  wait_for 20 "$left are named" named "$left"
  # The container is removed in time although mpsgated hangs, and what that leaves is named.
  granted web 1Gi --ann mpsgate.io/gpu=0
  web=$(grant web .cgroup)
  kill -STOP "$(<"$MG/mpsgated.pid")"
  delete web
  [[ -n $(entry_of "$web") ]] || fail "cleared by nobody"
  kill -CONT "$(<"$MG/mpsgated.pid")"
  wait_for 20 "it is named" named $((left + 1))
}
named() { [[ $(grep -c "had gone before the driver's limit of it was cleared" "$MG/log/mpsgated.log") == "$1" ]]; }
none_granted() { [[ $(status_json | jq '.grants | length') == 0 ]]; }

# bats test_tags=runtime
@test "mpsgate qualify --full asks whether the driver holds a container in sum, and the level follows" {
  is_v2 || skip "cgroup v1 here, where nothing is tried: see below"
  [[ ${MG_REAL_RUNTIME:-} == */runc && ${MG_SYSTEMD:-0} == 1 ]] || skip "asked on runc under systemd alone: two minutes"
  # The fakes of driver 580: a client has two processes in its container, which MPS does not add up.
  mkdir -p "$MG/asked"
  install -t "$MG/asked" "$MG_OUT"/fakes/nvidia-cuda-mps-{control,server} "$MG_OUT/fakes/libcuda.so.1"
  echo 580 >"$MG/asked/fake-mps-version"
  MG_MPS_CONTROL=$MG/asked/nvidia-cuda-mps-control driver '{}'
  local held seen
  for held in no yes; do
    [[ $held == no ]] || echo summed >/usr/bin/fake-libcuda.word
    LIMIT=120 try any mpsgate qualify 0 --full --library "$MG/asked/libcuda.so.1" -o json
    seen=$(jq -c '.answers[] | select(.question == "cgroup")' <<<"$stdout")
    assert_contains "what was seen" "$(jq -r .seen <<<"$seen")" "4096 MiB: one client got "
    assert_equal "cgroup" "$(jq -r .verdict <<<"$seen")" "$held"
    granted "$held" 1Gi --ann mpsgate.io/gpu=0
    if [[ $held == yes ]]; then
      assert_contains "its level" "$(grant yes '"\(.guarantee), \(.proof)"')" "cgroup, proven here "
    else
      refute_contains "its level" "$(grant no .guarantee)" cgroup
      assert_contains "status" "$(mpsgate status)" "The driver does not hold a container's cgroup to its limit: 4096 MiB: one client got 4096, another beside it 4096"
    fi
    delete "$held"
  done
  rm -f /usr/bin/fake-libcuda.word /dev/shm/mpsgate-fake-sum.*
}

# bats test_tags=runtime
@test "where the runtime does not enable dmem for the container's cgroup, mpsgated does" {
  is_v2 || skip "cgroup v1 here"
  has_dmem || skip "this kernel has no dmem controller: $(uname -r)"
  driver '{"needs": "dmem.max"}'
  granted web 1Gi --ann mpsgate.io/gpu=0
  web=$(grant web .cgroup)
  [[ -e $web/dmem.max ]] || fail "no dmem.max in $web"
  assert_equal "web's limit" "$(limit_of "$web")" "0 $((1 << 30))"
  assert_equal "level" "$(grant web .guarantee)" cgroup
}

# bats test_tags=runtime
@test "a driver without limits: the next level, and status says why" {
  is_v2 || skip "cgroup v1 here, which is the reason that is given: see below"
  driver null
  next_level "driver 550.163.01 offers no memory limits for cgroups"
}

# bats test_tags=runtime
@test "a driver with limits on cgroup v1: the next level, and status says why" {
  ! is_v2 || skip "cgroup v2 here"
  driver '{}'
  next_level "the driver's memory limits need cgroup v2, and this node has v1 or both"
}

next_level() { # WHY
  granted web 1Gi --ann mpsgate.io/gpu=0
  wait_for 20 "the watchdog looks" level_is web mps+watchdog
  try mpsgate status -o wide
  assert_contains "status" "$stdout" "GPU 0: no guarantee cgroup: $1"
  granted db 1Gi --ann mpsgate.io/gpu=0
  assert_equal "said in the log" "$(grep -c "does not limit containers of the card by cgroup" "$MG/log/mpsgated.log")" 1
  delete web
  wait_for 20 "the grant to end" not_granted web
  assert_equal "what the driver was asked" "$(calls)" ""
}

# bats test_tags=runtime
@test "doctor says whether the driver offers limits, and whether they can be used here" {
  driver '{}'
  local offered="warn offered for cgroups, but only for those of v2"
  ! is_v2 || offered="ok offered for cgroups"
  assert_contains "doctor" "$(doctor_says)" "$offered"
  driver null
  assert_contains "doctor" "$(doctor_says)" "ok none for cgroups by this driver"
}
doctor_says() {
  try any mpsgate doctor -o json
  jq -r '.checks[] | select(.name == "memory-limits") | "\(.result) \(.evidence)"' <<<"$stdout"
}

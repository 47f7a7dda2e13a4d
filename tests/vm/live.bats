#!/usr/bin/env bats
# mpsgated and its control daemons as units of a real systemd, on cgroup v2: what ends whom, and
# what every one of them finds again.

load live

setup_file() {
  mkdir -p "$MG"
  rootfs "$MG/rootfs"
  rootfs_program "$MG/rootfs" "$(control_program)"
  live_install
}

teardown() {
  explain_live
  delete_all
  assert_free
}

# same_node PIDS GRANTS: what a new mpsgated has to find.
same_node() {
  wait_for 30 "mpsgated answers" settled
  assert_equal "control daemons" "$(daemon_pids)" "$1"
  assert_equal "grants" "$(recorded_grants)" "$2"
  try_oci exec g true
}

@test "the machine: cgroup v2 alone, every capability, pidfd, cgroup.kill" {
  assert_equal "filesystem" "$(stat -fc %T /sys/fs/cgroup)" cgroup2fs
  assert_equal "capabilities" "$(sed -n 's/^CapBnd:\t0*//p' /proc/self/status)" "$(printf '%x' $(((2 << $(</proc/sys/kernel/cap_last_cap)) - 1)))"
  [[ -e /sys/fs/cgroup/init.scope/cgroup.kill ]] || fail "no cgroup.kill"
  echo "# kernel $(uname -r), controllers $(</sys/fs/cgroup/cgroup.controllers), dmem $(test -e /sys/fs/cgroup/dmem.capacity && echo there || echo not there)" >&3
}

@test "systemd-analyze finds no fault in the units" {
  try systemd-analyze verify --man=no /etc/systemd/system/mpsgated.service /etc/systemd/system/mpsgate-mps@.service /etc/systemd/system/mpsgate-hold.service
  assert_equal "output" "$stdout$stderr" ""
}

@test "mpsgated is ordered before every engine, and has the descriptors and the hardening of its unit" {
  local engine pid
  for engine in docker containerd crio kubelet; do
    assert_contains "Before" " $(unit_of mpsgated Before) " " $engine.service "
  done
  assert_contains "After" " $(unit_of mpsgated After) " " nvidia-persistenced.service "
  pid=$(main_pid)
  assert_contains "limits" "$(grep 'open files' "/proc/$pid/limits")" " 16384 "
  # CAP_SYS_TIME is bit 25, CAP_SYS_PTRACE 19.
  (((0x$(sed -n 's/^CapBnd:\t//p' "/proc/$pid/status") >> 25 & 1) == 0)) || fail "CAP_SYS_TIME is still there"
  (((0x$(sed -n 's/^CapBnd:\t//p' "/proc/$pid/status") >> 19 & 1) == 1)) || fail "CAP_SYS_PTRACE is gone"
  assert_equal "system calls" "$(sed -n 's/^Seccomp:\t//p' "/proc/$pid/status")" 2
  echo "# $(systemd-analyze security --no-pager mpsgated.service | tail -1)" >&3
}

@test "each control daemon is the main process of a unit of its own, with its descriptors, log and cgroup" {
  local n pid
  assert_equal "state" "$(unit_of mpsgated ActiveState) $(unit_of mpsgated Type)" "active notify"
  for n in 0 1; do
    pid=$(unit_of "mpsgate-mps@$n" MainPID)
    assert_equal "control daemon of card $n" "$pid" "$(card "$n" .mps.pid)"
    assert_contains "limits" "$(grep 'open files' "/proc/$pid/limits")" " 16384 "
    assert_contains "cgroup" "$(<"/proc/$pid/cgroup")" "mpsgate-mps@$n.service"
    # The launcher has become the control daemon, in a mount namespace of its own.
    assert_equal "program" "$(readlink "/proc/$pid/exe")" "$(readlink -f "$(control_program)")"
    [[ $(readlink "/proc/$pid/ns/mnt") != "$(readlink /proc/1/ns/mnt)" ]] || fail "it is in the node's mount namespace"
    assert_equal "its sockets on the node" "$(ls -A "/run/mpsgate/mps/$n/pipe")" ""
    [[ -S $(pipe_of "$n")/control ]] || fail "no socket where it has its own"
    assert_equal "card" "$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^CUDA_VISIBLE_DEVICES=//p')" "$(uuid "$n")"
    [[ -s /run/mpsgate/mps/$n/log/control.log ]] || fail "an empty control.log"
  done
  refute_contains "mpsgated's cgroup" "$(<"/sys/fs/cgroup$(unit_of mpsgated ControlGroup)/cgroup.procs")" "$pid"
}

@test "a grant in a systemd scope: device rules by BPF, and they survive systemctl daemon-reload" {
  granted g 7Gi --ann mpsgate.io/gpu=0 --jq '.process.capabilities |= map_values(. + ["CAP_MKNOD"])'
  assert_contains "cgroup" "$(<"/proc/$(oci state g | jq .pid)/cgroup")" "0::$MG_CGROUP/mg-g.scope"
  for round in 1 2; do
    try_oci any exec g sh -c ': </dev/nvidia0'
    assert_contains "open of nvidia0, look $round" "$stderr" "No such device"
    try_oci fail exec g sh -c '[ -e /tmp/other ] || mknod /tmp/other c 195 1; : </tmp/other'
    assert_contains "open of another card, look $round" "$stderr" "Operation not permitted"
    systemctl daemon-reload
  done
}

# before_ours ID COMMAND: a bundle with a grant of card 0 whose prestart hook runs COMMAND with its
# cgroup in $cg and that of its slice in $top. It runs before our own hook.
before_ours() {
  local id=$1 hook
  hook='cg=/sys/fs/cgroup$(sed -n s/^0:://p "/proc/$(jq .pid)/cgroup"); top=/sys/fs/cgroup'$MG_CGROUP"; $2"
  bundle "$id" --ann mpsgate.io/gpu-mem=7Gi --ann mpsgate.io/gpu=0 --jq ".hooks.prestart = [{path: \"/bin/bash\",
    args: [\"bash\", \"-ec\", $(jq -n --arg s "$hook" '$s')], env: [\"PATH=/usr/sbin:/usr/bin\"]}]"
}

@test "the hook sees what the kernel does: rules that another hook opened or closed are vetoed" {
  before_ours quiet :
  create quiet
  delete quiet
  before_ours opened 'until [ "$cg" = "$top" ]; do
    for id in $(bpftool -j cgroup show "$cg" | jq ".[]? | select(.attach_type | test(\"device\")).id"); do
      bpftool cgroup detach "$cg" cgroup_device id "$id"
    done
    cg=${cg%/*}
  done'
  create fail opened
  assert_contains "stderr" "$stderr" "[E_DEVICE_OPEN]" /dev/nvidia1 "hint: "
  before_ours closed 'cd "$cg"; scope=${cg#"$top"/}; systemctl set-property --runtime "${scope%%/*}" DevicePolicy=strict DeviceAllow='
  create fail closed
  assert_contains "stderr" "$stderr" "[E_DEVICE_CLOSED]" /dev/nvidia "hint: "
}

@test "systemctl restart and SIGKILL of mpsgated: control daemons keep their pids, grants stay" {
  granted g 7Gi
  local pids grants main
  pids=$(daemon_pids) grants=$(recorded_grants) main=$(main_pid)
  systemctl restart mpsgated
  another_pid "$main" || fail "still $main"
  same_node "$pids" "$grants"
  main=$(main_pid)
  systemctl kill -s KILL mpsgated
  wait_for 30 "another mpsgated" another_pid "$main"
  same_node "$pids" "$grants"
}

@test "a hung mpsgated is ended by the watchdog, and the next one finds everything" {
  granted g 7Gi
  local pids grants main
  pids=$(daemon_pids) grants=$(recorded_grants) main=$(main_pid)
  kill -STOP "$main"
  wait_for 60 "another mpsgated" another_pid "$main"
  assert_contains "journal" "$(journalctl --no-pager -u mpsgated | grep -i watchdog)" "Watchdog timeout"
  same_node "$pids" "$grants"
}

# bats test_tags=nightly
@test "mpsgated stopped: control daemons, container and grant go on" {
  granted g 7Gi
  local pids grants
  pids=$(daemon_pids) grants=$(recorded_grants)
  systemctl stop mpsgated
  assert_equal "control daemons" "$(daemon_pids)" "$pids"
  try_oci exec g true
  systemctl start mpsgated
  same_node "$pids" "$grants"
}

another_control() { [[ $(card 0 .mps.pid) =~ ^[0-9]+$ && $(card 0 .mps.pid) != "$1" ]] && card_is ready 0; } # THAN

@test "systemctl stop of a control daemon's unit, and its SIGKILL: a unit again, its grants broken, new ones taken" {
  local way pid
  for way in stop 'kill -s KILL'; do
    granted g 7Gi --ann mpsgate.io/gpu=0
    pid=$(card 0 .mps.pid)
    # shellcheck disable=SC2086 # two words
    systemctl $way mpsgate-mps@0
    wait_for 60 "another control daemon" another_control "$pid"
    assert_equal "main process" "$(unit_of mpsgate-mps@0 MainPID)" "$(card 0 .mps.pid)"
    assert_equal "the grant of before" "$(grant g .state)" broken
    allowed y --ann mpsgate.io/gpu-mem=1Gi --ann mpsgate.io/gpu=0
    delete g
  done
}

# bats test_tags=nightly
@test "mpsgate mps restart: the unit has another process" {
  local pid
  pid=$(card 0 .mps.pid)
  try mpsgate mps restart 0 --yes
  wait_for 60 "card 0 is ready" card_is ready 0
  [[ $(card 0 .mps.pid) != "$pid" ]] || fail "the same process: $pid"
  assert_equal "main process" "$(unit_of mpsgate-mps@0 MainPID)" "$(card 0 .mps.pid)"
}

# bats test_tags=nightly
@test "disable ends the unit and leaves nothing of it; enable starts it" {
  try mpsgate disable 1
  assert_equal "unit" "$(unit_of mpsgate-mps@1 ActiveState) $(unit_of mpsgate-mps@1 Result)" "inactive success"
  [[ ! -e /run/mpsgate/mps/mps-1.env ]] || fail "its environment is still there"
  assert_equal "compute mode" "$(jq -r '.cards[1].compute_mode' "$NVML/nvml.json")" DEFAULT
  try fail systemctl start mpsgate-mps@1
  try mpsgate enable 1
  wait_for 60 "card 1 is ready" card_is ready 1
}

# --- the gate ---

gate_serves() { unit_is "mpsgate-gate@$1" ActiveState active && unit_is "mpsgate-gate@$1" SubState running; } # CARD
doors_of() { find "/run/mpsgate/mps/$1/containers" -mindepth 1 -maxdepth 1 -type d; } # CARD
another_gate() { local pid; pid=$(unit_of mpsgate-gate@0 MainPID); [[ $pid != 0 && $pid != "$1" ]] && gate_serves 0; } # THAN

@test "each card has a gate, a unit of its own, with two capabilities and a filter of system calls" {
  local pid status
  settings 's/^manage.*/manage = []/'
  systemctl restart mpsgated
  wait_for 60 "mpsgated answers" settled
  wait_for 30 "the gate serves" gate_serves 0
  wait_for 30 "the gate serves" gate_serves 1
  try systemd-analyze verify --man=no /etc/systemd/system/mpsgate-gate@.service
  assert_equal "output" "$stdout$stderr" ""
  pid=$(unit_of mpsgate-gate@0 MainPID)
  status=$(<"/proc/$pid/status")
  # CAP_SETGID is bit 6, CAP_SETUID 7.
  for which in CapPrm CapEff CapBnd; do assert_equal "$which" "$(sed -n "s/^$which:\t0*//p" <<<"$status")" c0; done
  for which in CapInh CapAmb; do assert_equal "$which" "$(sed -n "s/^$which:\t0*//p" <<<"$status")" ""; done
  assert_equal "system calls" "$(sed -n 's/^Seccomp:\t//p' <<<"$status")" 2
  assert_equal "new privileges" "$(sed -n 's/^NoNewPrivs:\t//p' <<<"$status")" 1
  assert_contains "its log" "$(journalctl --no-pager -u mpsgate-gate@0)" "serving"
}

@test "restarts of the gate's unit, and of mpsgated, under clients that come all the time: none is refused, and no socket is another" {
  local before n visitor door restarts=${MG_UNIT_RESTARTS:-20}
  granted g 1Gi --ann mpsgate.io/gpu=0
  door=$(doors_of 0)
  before=$(stat -c %i "$door/control")
  perl "$BATS_TEST_DIRNAME/../e2e/door.pl" "$door" visit "$BATS_TEST_TMPDIR/enough" >"$BATS_TEST_TMPDIR/visits" 3>&- &
  visitor=$!
  for ((n = 1; n <= restarts; n++)); do
    systemctl restart mpsgate-gate@0
    ((n % 5)) || systemctl restart mpsgated
  done
  touch "$BATS_TEST_TMPDIR/enough"
  wait "$visitor"
  echo "# $(<"$BATS_TEST_TMPDIR/visits")" >&3
  assert_equal "the socket" "$(stat -c %i "$door/control")" "$before"
  assert_contains "visits" "$(<"$BATS_TEST_TMPDIR/visits")" " refused 0"
  (($(sed 's/greeted \([0-9]*\) .*/\1/' "$BATS_TEST_TMPDIR/visits") > restarts)) || fail "too few visits to mean anything"
  wait_for 30 "mpsgated answers" settled
  try_oci exec g sh -c 'ls "$CUDA_MPS_PIPE_DIRECTORY"'
  assert_equal "its directory" "$stdout" control
}

@test "SIGKILL of the gate: systemd starts it again, and its sockets are the same" {
  local before pid door
  granted g 1Gi --ann mpsgate.io/gpu=0
  door=$(doors_of 0)
  before=$(stat -c %i "$door/control") pid=$(unit_of mpsgate-gate@0 MainPID)
  systemctl kill -s KILL mpsgate-gate@0
  wait_for 30 "another gate" another_gate "$pid"
  assert_equal "the socket" "$(stat -c %i "$door/control")" "$before"
  # In the container's cgroup: who is outside is ended before a word.
  try timeout 20 sh -c 'echo $$ >"$0/cgroup.procs" && exec perl "$@"' "$(jq -r .container.cgroup.path "/run/mpsgate/mps/0/clients/$(basename "$door").json")" \
    "$BATS_TEST_DIRNAME/../e2e/door.pl" "$door" words 3 255
  assert_equal "words" "$stdout" "said 3"
  # From within the unit's sandbox it reaches mpsgated.
  wait_for 30 "mpsgated knows what became of them" bash -c '[[ $(mpsgate status -o json | jq ".cards[0].gate.ended.word") == 3 ]]'
  delete g
  wait_for 10 "its door is closed" bash -c '[[ -z $(ls -A /run/mpsgate/mps/0/clients /run/mpsgate/mps/0/containers | grep -v :) ]]'
  assert_equal "descriptors in the store" "$(unit_of mpsgate-gate@0 NFileDescriptorStore)" 0
}

# bats test_tags=nightly
@test "disable ends the gate's unit" {
  try mpsgate disable 1
  assert_equal "unit" "$(unit_of mpsgate-gate@1 ActiveState)" inactive
  try mpsgate enable 1
  wait_for 60 "card 1 is ready" card_is ready 1
  gate_serves 1
  settings 's/^manage.*/manage = []/'
  systemctl restart mpsgated
  wait_for 60 "mpsgated answers" settled
}

# --- a systemd before 240: RHEL 8, Alibaba Cloud Linux 2 and 3 ---

parent_of() { sed -n 's/^PPid:\t//p' "/proc/$1/status"; } # PID
gate_pids() { pgrep -x mpsgate-gate | sort -n; }
another_hold() { local pid; pid=$(unit_of mpsgate-hold MainPID); [[ $pid != 0 && $pid != "$1" ]]; } # THAN

# systemd_says VERSION: all that mpsgated asks of it but its version is answered by the real one.
systemd_says() {
  cp /usr/bin/systemctl /usr/local/sbin/systemctl-itself
  printf '#!/bin/sh\n[ "$1" != --version ] || { echo "systemd %s (%s-45.el8)"; exit; }\nexec /usr/local/sbin/systemctl-itself "$@"\n' "$1" "$1" >/usr/local/sbin/systemctl-older
  chmod 755 /usr/local/sbin/systemctl-older
  mount --bind /usr/local/sbin/systemctl-older /usr/bin/systemctl
}

# bats test_tags=nightly
@test "a systemd before 240: one unit holds control daemons and gates; restarts and SIGKILL of it and of mpsgated cost nobody anything" {
  local n pid pids grants hold gates visitor door
  for n in 0 1; do try mpsgate disable "$n"; done
  systemctl stop mpsgated
  systemd_says 239
  systemctl start mpsgated
  wait_for 60 "mpsgated answers" settled
  for n in 0 1; do try mpsgate enable "$n"; wait_for 60 "card $n is ready" card_is ready "$n"; done
  assert_equal "the unit of the holder" "$(unit_of mpsgate-hold ActiveState)" active
  hold=$(unit_of mpsgate-hold MainPID)
  for n in 0 1; do
    assert_equal "units of a card" "$(unit_of "mpsgate-mps@$n" ActiveState) $(unit_of "mpsgate-gate@$n" ActiveState)" "inactive inactive"
    pid=$(card "$n" .mps.pid)
    assert_equal "who started it" "$(parent_of "$pid")" "$hold"
    assert_contains "cgroup" "$(<"/proc/$pid/cgroup")" mpsgate-hold.service
    assert_equal "its sockets on the node" "$(ls -A "/run/mpsgate/mps/$n/pipe")" ""
    [[ -s /run/mpsgate/mps/$n/log/control.log ]] || fail "an empty control.log"
  done
  # mpsgated's unit filters namespaces; what the holder's unit starts does not inherit that.
  [[ $(readlink "/proc/$(card 0 .mps.pid)/ns/mnt") != "$(readlink /proc/1/ns/mnt)" ]] || fail "it is in the node's mount namespace"
  granted g 1Gi --ann mpsgate.io/gpu=0
  door=$(doors_of 0)
  pids="$(card 0 .mps.pid) $(card 1 .mps.pid)" grants=$(recorded_grants) gates=$(gate_pids)
  perl "$BATS_TEST_DIRNAME/../e2e/door.pl" "$door" visit "$BATS_TEST_TMPDIR/enough" >"$BATS_TEST_TMPDIR/visits" 3>&- &
  visitor=$!
  systemctl restart mpsgated
  wait_for 30 "mpsgated answers" settled
  systemctl kill -s KILL --kill-who=main mpsgate-hold
  wait_for 30 "another holder" another_hold "$hold"
  hold=$(unit_of mpsgate-hold MainPID)
  systemctl restart mpsgate-hold
  wait_for 30 "another holder" another_hold "$hold"
  systemctl restart mpsgated
  wait_for 30 "mpsgated answers" settled
  touch "$BATS_TEST_TMPDIR/enough"
  wait "$visitor"
  echo "# $(<"$BATS_TEST_TMPDIR/visits")" >&3
  assert_contains "visits" "$(<"$BATS_TEST_TMPDIR/visits")" " refused 0"
  assert_equal "control daemons" "$(card 0 .mps.pid) $(card 1 .mps.pid)" "$pids"
  assert_equal "gates" "$(gate_pids)" "$gates"
  assert_equal "grants" "$(recorded_grants)" "$grants"
  try_oci exec g true
  delete g
  for n in 0 1; do try mpsgate disable "$n"; done
  wait_for 30 "nothing of it runs" bash -c '! pgrep -x mpsgate-gate && ! pgrep -x nvidia-cuda-mps'
  systemctl stop mpsgated mpsgate-hold
  umount /usr/bin/systemctl
  systemctl start mpsgated
  wait_for 60 "mpsgated answers" settled
  for n in 0 1; do try mpsgate enable "$n"; wait_for 60 "card $n is ready" card_is ready "$n"; done
  assert_equal "a unit for each card again" "$(unit_of mpsgate-mps@0 ActiveState)" active
}

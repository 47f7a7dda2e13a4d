#!/usr/bin/env bats
# mpsgate run: plain processes with a grant, as root and as users of a group: without systemd, on
# the cgroups of this machine and on v2 alone, and in a machine of tests/vm on v2 with systemd
# (hosts). NVIDIA's own client library and control daemon; the server is the tests' own, whose code
# WORD nobody else says.
# also: MG_UNIFIED=1

load process

setup_file() { users_node 8192 2; }

@test "a command has its grant's environment, its own exit status, and leaves nothing" {
  try 7 mpsgate run --gpu-mem 2Gi --gpu 1 --compute 30 --priority low --name train -- sh -c 'env; cat /proc/self/cgroup; exit 7'
  assert_contains "its environment" "$stdout" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M CUDA_MPS_PIPE_DIRECTORY=/run/mpsgate/mps/1/clients/ \
    MPSGATE_GPU_MEM_MIB=2048 "MPSGATE_GPU_UUID=$(uuid 1)" CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30 CUDA_MPS_CLIENT_PRIORITY=1
  assert_contains "its cgroup" "$stdout" /mpsgate-run-
  try 0 env CUDA_VISIBLE_DEVICES=3 CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=80G mpsgate run --gpu-mem 1Gi -- env
  assert_contains "its environment" "$stdout" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M
  refute_contains "its environment" "$stdout" CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES
  # It is the command: killed by what it is sent, as any.
  running victim --gpu-mem 1Gi -- sleep 600
  assert_equal "the program" "$(cat "/proc/$stranger/comm")" sleep
  assert_equal "status" "$(mpsgate status | grep -c victim)" 1
  kill -TERM "$stranger"
  wait_for 10 "its memory is free" not_granted victim
}

@test "a client attaches through the door, and nobody else's does" {
  gate_needed
  server_says_word
  try any mpsgate run --gpu-mem 2Gi --gpu 0 -- "$MG_OUT/fakes/cuda-client" "$(client)"
  assert_equal "cuInit" "${stdout##* }" "$WORD"
  try any run_as alice --gpu-mem 2Gi --gpu 0 -- "$MG_OUT/fakes/cuda-client" "$(client)"
  assert_equal "cuInit as a user" "${stdout##* }" "$WORD"
  assert_contains "the gate's log" "$(grep 'client handed over' "$card/log/gate.log" | tail -n 1)" "container=alice/run-"
  try any setsid --wait mpsgate run --gpu-mem 2Gi --gpu 0 --user alice -- "$MG_OUT/fakes/cuda-client" "$(client)"
  assert_equal "cuInit as root's for a user" "${stdout##* }" "$WORD"
  running hers --gpu-mem 2Gi --gpu 0 --user alice -- sleep 600
  local door
  door=$(door_of hers)
  # Neither another user nor she herself beside her grant's processes.
  for user in bob alice; do
    try any as "$user" env CUDA_MPS_PIPE_DIRECTORY="$door" "$MG_OUT/fakes/cuda-client" "$(client)"
    assert_equal "cuInit of $user from elsewhere" "${stdout##* }" "$ENDED"
  done
  assert_contains "the gate's log" "$(<"$card/log/gate.log")" "client ended container=root/hers" "reason=elsewhere"
}

@test "whoever knows a process's door and says nothing there keeps its owner from nothing" {
  gate_needed
  server_says_word
  local n
  running hers --gpu-mem 2Gi --gpu 0 --user alice -- sleep 600
  # By no list of names: carol was told it.
  try fail as carol ls "$card/clients"
  assert_contains "ls" "$stderr" "Permission denied"
  silent "$(door_of hers)" as carol
  for n in 1 2 3; do
    LIMIT=10 try any beside hers as alice env CUDA_MPS_PIPE_DIRECTORY="$(door_of hers)" "$MG_OUT/fakes/cuda-client" "$(client)"
    assert_equal "cuInit, time $n" "${stdout##* }" "$WORD"
  done
  assert_contains "the gate's log" "$(<"$card/log/gate.log")" "client ended container=root/hers" "reason=elsewhere"
  refute_contains "the gate's log" "$(<"$card/log/gate.log")" reason=silent
}

@test "a process of the node without a grant reaches no control daemon" {
  gate_needed
  server_says_word
  try any as carol env CUDA_MPS_PIPE_DIRECTORY="$card/pipe" "$MG_OUT/fakes/cuda-client" "$(client)"
  refute_contains "cuInit without a grant" "$stdout" "$WORD"
  refute_contains "the daemon's log" "$(<"$card/log/control.log")" "from user $(id -u carol):"
  # Of another card not even so, with a grant: its node does not open.
  try any run_as alice --gpu-mem 1Gi --gpu 1 -- sh -c 'exec 2>&1; : <"$0"' /dev/nvidia0
  assert_contains "another card's node" "$stdout" "Operation not permitted"
}

@test "it opens its own card and no other one, whoever it is" {
  try any opens /dev/nvidia1
  assert_contains "another card" "$stdout" "Operation not permitted"
  # A simulated card has no driver.
  try any opens /dev/nvidia0
  assert_contains "its own card" "$stdout" "No such device or address"
  try 0 opens /dev/null
  try any mpsgate run --gpu-mem 1Gi --gpu 0 -- sh -c 'exec 2>&1; mknod "$0" c 195 1; : <"$0"' "$MG/node"
  assert_contains "a node of its own" "$stdout" "Operation not permitted"
  # Also while mpsgated is away.
  running alone --gpu-mem 1Gi --gpu 0 -- sh -c 'exec 2>"$0"; until test -e "$0.go"; do sleep 0.1; done; : </dev/nvidia1' "$MG/alone"
  daemon_stop
  touch "$MG/alone.go"
  wait_for 10 "it has tried" gone "$stranger"
  assert_contains "without mpsgated" "$(<"$MG/alone")" "Operation not permitted"
  daemon_start
}

@test "users run their own processes, within their quota, and can do nothing else there" {
  try 0 run_as alice --gpu-mem 2Gi -- id -un
  assert_equal "who it is" "$stdout" alice
  try 125 run_as carol --gpu-mem 2Gi -- id
  assert_contains "who is not in the group" "$stderr" "only root may talk to mpsgated" run.group
  try 125 run_as alice --gpu-mem 9Gi -- id
  assert_contains "beyond the quota" "$stderr" "the user asks for 9 GiB, and may have 8 GiB at a time [E_QUOTA]" run.max_mib
  stranger run_as alice --gpu-mem 7Gi --name big -- sleep 600
  wait_for 20 "it has its grant" grant_is big active
  try 125 run_as alice --gpu-mem 2Gi -- id
  assert_contains "beside what she has" "$stderr" "asks for 2 GiB beside the 7 GiB of other processes" E_QUOTA
  # A name is its user's own, and her quota is not his.
  try 0 run_as bob --gpu-mem 1Gi --name big -- id -un
  # What is mpsgate's own is nobody's.
  try 125 run_as alice --gpu-mem 1Gi --name mpsgate-big -- id
  assert_contains "a name of mpsgate's own" "$stderr" "mpsgate-big begins with mpsgate-" "--name big" E_REQUEST
  try 125 run_as alice --gpu-mem 1Gi --name big -- id
  assert_contains "two of one name" "$stderr" "of this name" E_LEDGER
  stranger run_as alice --gpu-mem 1Gi --name small -- sleep 600
  wait_for 20 "it has its grant" grant_is small active
  try 125 run_as alice --gpu-mem 1Gi -- id
  assert_contains "more grants" "$stderr" "grant number 3, and a user may have 2" E_QUOTA run.max_grants
  # Root's are nobody's quota.
  try 0 setsid --wait mpsgate run --gpu-mem 1Gi --user alice -- id -un
  # Another's process, and everything else, are root's.
  try 125 as alice mpsgate run --gpu-mem 1Gi --user bob --socket "$USERS" -- id
  assert_contains "as another user" "$stderr" "another user's process" E_UNCONFIRMED
  for command in status "resize big 1Gi" "disable 0" "mps stop 0 --yes"; do
    # shellcheck disable=SC2086 # its words
    try any as alice mpsgate $command --socket "$USERS"
    assert_contains "$command" "$stderr" "for nothing else"
  done
  assert_equal "what alice has" "$(status_json | jq -c '[.grants[] | select(.uid == '"$(id -u alice)"') | .memory_mib] | sort')" "[1024,7168]"
}

@test "who is nobody to the user database, or not in the group there, gets nothing, whatever uid and groups a process has" {
  local id
  # As a user makes one for each of the own subordinate uids, in a user namespace. It is executed
  # outside, with the group of whoever executes it.
  install -m 4755 -o 100004 "$(command -v dash)" /usr/bin/subordinate-shell
  try 0 as alice subordinate-shell -p -c 'id -u; id -nG'
  assert_contains "the process" "$stdout" 100004 gpu
  try 125 as alice subordinate-shell -p -c 'exec mpsgate run --gpu-mem 1Gi -- true'
  assert_contains "a subordinate uid" "$stderr" "uid 100004 is no user of this node" E_UNCONFIRMED "getent passwd 100004"
  # A group that a process was started with is not its user's.
  id=$(getent group gpu | cut -d: -f3)
  try 125 setpriv --reuid carol --regid carol --groups "$id" --reset-env -- mpsgate run --gpu-mem 1Gi -- true
  assert_contains "a group of the process alone" "$stderr" "carol (uid $(id -u carol)) is not in the group gpu" E_UNCONFIRMED "usermod -aG gpu carol"
  assert_equal "grants" "$(granted_ids)" ""
  # A user's first group counts as any other.
  useradd --create-home --gid gpu dora
  try 0 setpriv --reuid dora --regid gpu --clear-groups --reset-env -- mpsgate run --gpu-mem 1Gi -- id -un
  assert_equal "who it is" "$stdout" dora
  # What is taken back counts at once, also for who is logged in.
  gpasswd --delete bob gpu
  try 125 setpriv --reuid bob --regid bob --groups "$id" --reset-env -- mpsgate run --gpu-mem 1Gi -- true
  gpasswd --add bob gpu
  assert_contains "who was in the group" "$stderr" "bob (uid $(id -u bob)) is not in the group gpu"
  try 0 run_as bob --gpu-mem 1Gi -- true
}

@test "a process is shown and taken as USER/NAME, and nobody takes a container's name by it" {
  local id=3f2a9c01b2d34e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7 name gib=1
  granted "$id" 1Gi --ann mpsgate.io/gpu=0
  for name in "${id::12}" "$id"; do
    stranger run_as alice --gpu-mem 1Gi --gpu 1 --name "$name" -- sleep 600
    wait_for 20 "it has its grant" grant_is "alice/$name" active
  done
  assert_equal "who is who" "$(granted_ids)" "$id alice/${id::12} alice/$id"
  assert_contains "status" "$(mpsgate status)" "alice/${id::12} "
  # What the operator has from the engine is the container's.
  for name in "${id::12}" "$id"; do
    try 0 mpsgate resize "$name" $((++gib))Gi
    assert_equal "the container's" "$(status_json | jq --arg id "$id" '.grants[] | select(.container_id == $id) | .memory_mib')" $((gib * 1024))
    assert_equal "hers" "$(grant "alice/$name" .memory_mib)" 1024
  done
  try 0 mpsgate resize "alice/${id::12}" 2Gi
  assert_contains "hers" "$stdout" "container alice/${id::12} has 2 GiB"
  # A user may have two.
  kill_listed "$MG/strangers"
  for name in "${id::12}" "$id"; do wait_for 10 "its memory is free" not_granted "alice/$name"; done
  stranger run_as alice --gpu-mem 1Gi --gpu 1 --name train -- sleep 600
  wait_for 20 "it has its grant" grant_is alice/train active
  try any mpsgate resize train 2Gi
  assert_contains "without her name" "$stderr" 'no container or process "train" has a grant' "mpsgate resize 'alice/train' 2048Mi" E_RESIZE
  granted web2 1Gi --ann mpsgate.io/gpu=0
  granted web 1Gi --ann mpsgate.io/gpu=0
  try any mpsgate resize web 2Gi
  assert_contains "one's whole id, another's beginning" "$stderr" "/web2" "/web" "mpsgate resize '$RUNC_ROOT/web' 2048Mi" E_RESIZE
  try 0 mpsgate resize "$RUNC_ROOT/web" 2Gi
  assert_equal "both" "$(grant web .memory_mib) $(grant web2 .memory_mib)" "2048 1024"
  delete_all
}

@test "a process waits for one of its name that is ending" {
  stranger run_as alice --gpu-mem 1Gi --gpu 0 --name train -- sh -c 'trap "sleep 1; exit" TERM; while :; do sleep 0.1; done'
  wait_for 20 "it has its grant" grant_is alice/train active
  # What was its end begins only now.
  kill -TERM "$(grant alice/train .pid)"
  try 0 run_as alice --gpu-mem 1Gi --gpu 0 --name train -- id -un
  assert_equal "who it is" "$stdout" alice
}

@test "a connection that its process has left behind moves nobody" {
  try 0 as alice perl "$BATS_TEST_DIRNAME/borrowed.pl" "$USERS"
  assert_contains "the answer" "$stdout" E_UNCONFIRMED
  assert_equal "grants" "$(granted_ids)" ""
}

@test "a user's process cannot leave its cgroup, as a set-user-ID program neither" {
  stranger run_as alice --gpu-mem 1Gi --name locked -- sleep 600
  wait_for 20 "it has its grant" grant_is locked active
  local cgroup pid
  pid=$(grant locked .pid) cgroup=$(cgroup_of "$pid")
  assert_equal "whose cgroup it is" "$(stat -c '%U %a' "$cgroup/cgroup.procs")" "root 644"
  try any as alice sh -c 'echo "$1" >"$0/cgroup.procs"' "${cgroup%/*}" "$pid"
  assert_contains "into another one" "$stderr" "Permission denied"
  assert_equal "where it is" "$(cgroup_of "$pid")" "$cgroup"
  try any run_as alice --gpu-mem 1Gi --gpu 0 -- sh -c 'exec 2>&1; /usr/bin/setuid-shell -p -c ": </dev/nvidia1"'
  assert_contains "another card, as root" "$stdout" "Operation not permitted"
}

@test "a process in a cgroup that a user may change is refused, as it could leave; under systemd it gets one elsewhere" {
  local given
  given=$(cgroup_of self) given=${given%/}/mg-given
  mkdir "$given"
  program from 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"'
  for change in "chown alice $given" "chown alice $given/cgroup.procs" "chmod o+w $given/cgroup.procs"; do
    $change
    if [[ -d /run/systemd/system ]]; then
      try 0 from "$given" run_as alice --gpu-mem 1Gi -- cat /proc/self/cgroup
      assert_contains "its cgroup" "$stdout" "mpsgate.slice/mpsgate-run-"
    else
      try 125 from "$given" run_as alice --gpu-mem 1Gi -- true
      assert_contains "$change" "$stderr" "mg-given" "is not root's alone, so the process could leave" "from a cgroup that is" E_CGROUP
    fi
    chown root "$given" "$given/cgroup.procs"
    chmod o-w "$given/cgroup.procs"
  done
  try 0 from "$given" run_as alice --gpu-mem 1Gi -- true
  wait_for 10 "it is empty" rmdir "$given"
}

@test "what cannot be started says why: no command, none that can be executed, no memory, no daemon" {
  try 127 mpsgate run --gpu-mem 1Gi -- no-such-command
  assert_contains "a command that is none" "$stderr" 'cannot execute "no-such-command"' "No such file"
  try 126 mpsgate run --gpu-mem 1Gi -- /etc/passwd
  assert_contains "a file" "$stderr" 'cannot execute "/etc/passwd"' "Permission denied"
  try 64 mpsgate run --gpu-mem 7 -- true
  assert_contains "without a unit" "$stderr" "--gpu-mem" "7Gi"
  try 64 mpsgate run --gpu-mem 1Gi
  try 125 mpsgate run --gpu-mem 15Gi --user nosuch -- true
  assert_contains "no user" "$stderr" 'there is no user "nosuch"'
  try 125 mpsgate run --gpu-mem 100Gi -- true
  assert_contains "no card is so large" "$stderr" E_TOO_LARGE
  running whole --gpu-mem 15Gi --gpu 0 -- sleep 600
  try 125 mpsgate run --gpu-mem 1Gi --gpu 0 -- true
  assert_contains "the card is full" "$stderr" E_NO_CAPACITY
  try 125 mpsgate run --gpu-mem 1Gi --name whole -- true
  assert_contains "two of one name" "$stderr" "a grant of 15 GiB already" "choose another name"
  daemon_stop
  try 125 mpsgate run --gpu-mem 1Gi --gpu 1 -- true
  assert_contains "no daemon" "$stderr" "mpsgated is not running" "systemctl start mpsgated"
  try 125 run_as alice --gpu-mem 1Gi -- true
  daemon_start
  assert_equal "the grant is kept" "$(grant whole .state)" active
}

@test "the memory is held until the last process has ended, over a restart of mpsgated, too" {
  mpsgate run --gpu-mem 1Gi --name forks -- sh -c 'trap "" TERM; sleep 600 >/dev/null 2>&1 3>&- & echo $! >'"$MG/forked"
  local left
  left=$(<"$MG/forked")
  echo "$left" >>"$MG/strangers"
  assert_equal "the grant" "$(grant forks .memory_mib)" 1024
  try 125 mpsgate run --gpu-mem 1Gi --name forks -- true
  assert_contains "again" "$stderr" "processes left" "kill -KILL $left"
  daemon_stop
  kill -KILL "$left"
  daemon_start
  wait_for 10 "its memory is free" not_granted forks
}

@test "a process that takes more than its grant is ended, and its neighbour is not" {
  running good --gpu-mem 1Gi --gpu 0 -- sleep 600
  running bad --gpu-mem 1Gi --gpu 0 -- sh -c 'sleep 600 & sleep 600'
  local pid=$stranger
  uses "$pid" 4000 "$(grant good .pid)" 1024
  wait_for 20 "it is ended" gone "$pid"
  wait_for 10 "its memory is free" not_granted bad
  assert_equal "actions" "$(actions)" "root/bad killed"
  uses
}

#!/usr/bin/env bats
# What Slurm prints from 23.11 to 26.05, and what it must not: stand-ins for scontrol and slurmd
# print what a test wrote, and a task asks from a cgroup named as Slurm names it, on v2 by SLUID
# too. A real Slurm is in slurm.bats.
# sandbox: MG_GPUS=2
# needs: setpriv
# also: MG_UNIFIED=1

load ../e2e/suite

PREFIX=$MG/slurm
BEGUN=$PREFIX
SETTINGS="\$a [slurm]\njobs = true\nprefix = \"$PREFIX\""
SLUID=s4J8QZ0T7M2R9C
HALVES='Gres Name=gpu Type=a40 Count=1 Index=0 ID=1 File=/dev/nvidia0 Links=(null) Flags=HAS_FILE
Gres Name=gpu Type=a40 Count=1 Index=1 ID=1 File=/dev/nvidia1 Links=(null) Flags=HAS_FILE
Gres Name=shard Type=a40 Count=15 Index=0 ID=2 File=/dev/nvidia0 Links=(null) Flags=HAS_FILE,SHARED
Gres Name=shard Type=a40 Count=15 Index=1 ID=2 File=/dev/nvidia1 Links=(null) Flags=HAS_FILE,SHARED'

setup_file() {
  mkdir -p "$PREFIX"/{bin,sbin}
  useradd --no-create-home alice
  cat >"$PREFIX/bin/scontrol" <<SH
#!/bin/bash
case "\$1 \$2" in
  "show aliases") echo node1 ;;
  "show job")
    echo "\${*: -1}" >>"$MG/questions"
    . "$PREFIX/answer"
    ;;
esac
SH
  printf '#!/bin/sh\ncat "%s/gres"\n' "$PREFIX" >"$PREFIX/sbin/slurmd"
  # task DIR: as slurmstepd starts a task's prolog.
  cat >"$PREFIX/bin/task" <<'SH'
#!/bin/bash
echo $$ >"$1/cgroup.procs" || exit
exec setpriv --reuid alice --regid alice --init-groups env SLURM_JOB_GPUS=0 mpsgate slurm task-prolog
SH
  chmod 755 "$PREFIX"/*bin/*
  echo "$HALVES" >"$PREFIX/gres"
  node_start
  wait_for 20 "jobs are served" looked
}

teardown() {
  explain_failure
  job_ends
  node_reset
}

is_v2() { [[ $(stat -fc %T /sys/fs/cgroup) == cgroup2fs ]]; }
looked() { grep -qE "Slurm and mpsgate (agree|differ)" "$MG/log/mpsgated.log"; }
# job NAME: its cgroup, with a process of Slurm's own in it.
job() {
  local top
  if is_v2; then
    top=/sys/fs/cgroup$MG_CGROUP/system.slice/slurmstepd.scope/$1
    task=$top/step_0/user/task_0
  else
    top=/sys/fs/cgroup/devices$MG_CGROUP/slurm/uid_$(id -u alice)/$1
    task=$top/step_0/task_0
  fi
  mkdir -p "$task" "$top/step_extern"
  begin extern bash -c 'echo $$ >"$1/cgroup.procs" && exec sleep 600' - "$top/step_extern"
  wait_for 10 "it is there" grep -q . "$top/step_extern/cgroup.procs"
}
job_ends() {
  local top=/sys/fs/cgroup/devices$MG_CGROUP/slurm
  end extern
  ! is_v2 || top=/sys/fs/cgroup$MG_CGROUP/system.slice
  wait_for 10 "its cgroups are gone" no_job "$top"
  wait_for 10 "its memory is free" not_granted job-4711
}
no_job() { find "$1" -depth -type d -exec rmdir {} + 2>/dev/null; [[ ! -e $1 ]]; } # DIR
# names: what a job's cgroup may be called here.
names() { echo job_4711; ! is_v2 || echo "$SLUID"; }
# line GRES [SLUID [NAME]]: a job as scontrol prints it.
line() {
  printf 'JobId=4711 JobName=%s SLUID=%s UserId=alice(%s) JobState=RUNNING NodeList=node1 ' "${3-train}" "${2-$SLUID}" "$(id -u alice)"
  printf 'Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=* JOB_GRES=%s Nodes=node1 CPU_IDs=0 Mem=0 ' "${1%%(*}"
  printf 'GRES=%s MinCPUsNode=1 MinMemoryNode=0 Comment=(null) \n' "$1"
}
# says: what scontrol does when it is asked for the job, as a script on stdin. answers: on stdin.
says() { cat >"$PREFIX/answer"; }
answers() {
  cat >"$PREFIX/text"
  echo "cat '$PREFIX/text'" | says
}
# gres: what slurmd prints, on stdin.
gres() {
  cat >"$PREFIX/gres"
  daemon_stop
  : >"$MG/log/mpsgated.log"
  daemon_start
  wait_for 20 "it has looked at Slurm" looked
}
asks() { try "$1" "$PREFIX/bin/task" "$task"; } # STATUS

@test "a job is found by its cgroup's name, its SLUID too, and its grant has its number" {
  local name
  for name in $(names); do
    : >"$MG/questions"
    line "shard:7(IDX:1)" | answers
    job "$name"
    asks 0
    assert_contains "$name" "$stdout" "export MPSGATE_GPU_MEM_MIB=7168" "export MPSGATE_GPU_UUID=$(uuid 1)" "unset CUDA_VISIBLE_DEVICES"
    assert_equal "question" "$(<"$MG/questions")" "${name#job_}"
    grant_is job-4711 active
    # The next task needs no answer.
    says <<<'exit 1'
    asks 0
    assert_contains "$name, again" "$stdout" "export MPSGATE_GPU_MEM_MIB=7168"
    job_ends
  done
}

@test "another job's SLUID, two jobs, half a line, a line break, no end: nothing is given" {
  local name wrong fake="x Socks/Node=* JOB_GRES=shard:15 Nodes=node1 GRES=shard:15(IDX:0) MinCPUsNode=1"
  for name in $(names); do
    for wrong in two half break forged endless fails none; do
      case $wrong in
        two) { line "shard:7(IDX:1)"; line "shard:7(IDX:1)"; } | answers ;;
        half) line "shard:7(IDX:1)" | head -c 150 | answers ;;
        break) line "shard:7(IDX:1)" "$SLUID" $'x\ny' | answers ;;
        forged) line "(null)" "$SLUID" "x SLUID=$SLUID ${fake#x }"$'\nrest' | answers ;;
        endless) says <<<'head -c 100000000 /dev/zero | tr "\0" x' ;;
        fails) says <<<'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1' ;;
        none) says <<<: ;;
      esac
      job "$name"
      asks 1
      assert_contains "$name, $wrong" "$stdout" "print mpsgate: " E_UNCONFIRMED
      refute_contains "$name, $wrong" "$stdout" MPSGATE_GPU_MEM_MIB
      job_ends
    done
  done
  is_v2 || return 0
  # It was requeued meanwhile; a Slurm that prints none; what the user wrote.
  for wrong in "$(line "shard:7(IDX:1)" "${SLUID%C}D")" "$(line "shard:7(IDX:1)" | sed 's/SLUID=[^ ]* //')" \
    "$(line "shard:7(IDX:1)" "${SLUID%C}D" "x SLUID=$SLUID")"; do
    answers <<<"$wrong"
    job "$SLUID"
    asks 1
    assert_contains "$wrong" "$stdout" "print mpsgate: " E_UNCONFIRMED
    job_ends
  done
  # No SLUID, or a directory of the user's.
  for name in "${SLUID,,}" "${SLUID}0" "${SLUID%C}I" mine; do
    : >"$MG/questions"
    line "shard:7(IDX:1)" | answers
    job "$name"
    asks 1
    assert_contains "$name" "$stdout" "no cgroup of a Slurm job's devices"
    assert_equal "questions" "$(<"$MG/questions")" ""
    job_ends
  done
  job "$SLUID"
  chown alice "${task%/step_0/*}"
  asks 1
  assert_contains "a user's directory" "$stdout" "no cgroup of a Slurm job's devices"
}

@test "the first job of an array is asked for once more alone" {
  : >"$MG/questions"
  says <<SH
case "\${*: -1}" in
  4711) sed 's/ JobName/ ArrayJobId=4711 ArrayTaskId=3&/; p; s/JobId=4711/JobId=4712/; s/TaskId=3/TaskId=1/' "$PREFIX/text" ;;
  4711_3) sed 's/ JobName/ ArrayJobId=4711 ArrayTaskId=3&/' "$PREFIX/text" ;;
  *) exit 1 ;;
esac
SH
  line "shard:7(IDX:1)" >"$PREFIX/text"
  job job_4711
  asks 0
  assert_contains "its grant" "$stdout" "export MPSGATE_GPU_MEM_MIB=7168"
  assert_equal "questions" "$(xargs <"$MG/questions")" "4711 4711_3"
}

@test "GPUs in a range without shards: a job has the card that Slurm gave it" {
  gres <<<'slurmd: Gres Name=gpu Type=t4 Count=2 ID=7696487 File=/dev/nvidia[0-1] Links=(null) Flags=HAS_FILE,UUID'
  assert_contains "log" "$(<"$MG/log/mpsgated.log")" "Slurm and mpsgate agree"
  line "gpu:t4:1(IDX:1)" | answers
  job job_4711
  asks 0
  assert_contains "its card" "$stdout" "export MPSGATE_GPU_MEM_MIB=15360" "export MPSGATE_GPU_UUID=$(uuid 1)"
}

@test "instances of MIG: the log and the job's user are told that they are not shared" {
  gres <<'G'
slurmd: Gres Name=gpu Type=(null) Count=1 ID=7696487 File=/dev/nvidia0 Links=(null) Flags=HAS_FILE
slurmd: Gres Name=gpu Type=1g Count=1 ID=7696487 File=/dev/nvidia1,/dev/nvidia-caps/nvidia-cap30,/dev/nvidia-caps/nvidia-cap31 Links=0 Flags=HAS_FILE
G
  assert_contains "log" "$(<"$MG/log/mpsgated.log")" "Slurm gives out /dev/nvidia1 by several files together (MultipleFiles= in gres.conf)"
  refute_contains "log" "$(<"$MG/log/mpsgated.log")" "has no File= of it"
  line "gpu:1g:1(IDX:1)" | answers
  job job_4711
  asks 1
  assert_contains "what its user reads" "$stdout" "instance of MIG on /dev/nvidia1: MIG is not shared through MPS here" E_GPU_UNFIT
}

@test "a shard as a hundredth of a card: what it has to be worth is told, and followed" {
  gres <<<"${HALVES//Count=15/Count=100}"
  assert_contains "log" "$(<"$MG/log/mpsgated.log")" "jobs beyond that are refused" "slurm.shard_mib = 153 in /etc/mpsgate/config.toml"
  line "shard:25(IDX:1)" | answers
  job job_4711
  asks 1
  assert_contains "what its user reads" "$stdout" E_TOO_LARGE "ask for at most --gres=shard:15" "slurm.shard_mib = 153"
  job_ends
  settings "$SETTINGS\nshard_mib = 153"
  mpsgate reload
  job job_4711
  asks 0
  assert_contains "its grant" "$stdout" "export MPSGATE_GPU_MEM_MIB=3825"
  job_ends
  settings
  mpsgate reload
  gres <<<"$HALVES"
}

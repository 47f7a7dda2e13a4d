#!/usr/bin/env bats
# Jobs of a newer Slurm than this machine's, a real one in a root of its own (slurm-root.sh): what
# is other there than in slurm.bats. Debian sid's has 26.05, whose jobs on cgroup v2 are in
# directories named by SLUID; trixie's has 24.11.
# sandbox: MG_GPUS=2
# slurm: sid
# needs: munged setpriv gcc
# also: MG_UNIFIED=1
# also: MG_SLURM=trixie

load ../e2e/suite
load slurm

SETTINGS="\$a [slurm]\njobs = true\nconf = \"$SLURM_CONF\"\nprefix = \"$SLURM_NEWER\""
SCRIPTS=$MG/scripts
PLAIN="TaskProlog=$SCRIPTS/slurm-task-prolog
Epilog=$SCRIPTS/slurm-epilog
PrologFlags=Alloc,Contain"

setup_file() {
  cp -r "$MG_REPO/packaging/slurm" "$SCRIPTS"
  SLURM_LINES=$PLAIN slurm_start
  node_start
  wait_for 20 "jobs are served" agreed || { cat "$MG/log/mpsgated.log" >&2; return 1; }
}
teardown_file() {
  slurm_stop
  node_stop
}
teardown() {
  explain_failure
  [[ -n $BATS_TEST_COMPLETED ]] || slurm_words
  slurm_cancel
  wait_for 30 "no job is left" slurm_idle
  wait_for 10 "the node stays" slurm_node_is IDLE
  uses
  node_reset
}

agreed() { grep -q "Slurm and mpsgate agree" "$MG/log/mpsgated.log"; }
runs() { wait_for 20 "job $1 has its grant" grant_is "job-$1" active; } # ID
state() { echo "$(slurm_of "$1" JobState) $(slurm_of "$1" ExitCode)"; } # ID
# again: Slurm with other settings, and mpsgated, which asks it what the node has.
again() {
  daemon_stop
  slurm_stop
  SLURM_LINES=$PLAIN slurm_start
  : >"$MG/log/mpsgated.log"
  daemon_start
  wait_for 20 "jobs are served" agreed
}
# where ID: the name of the job's cgroup.
where() { grep -oE 'cgroup=\S+' <<<"$(grep "grant active container=job-$1 " "$MG/log/mpsgated.log" | tail -1)" | sed 's|.*/||'; }

@test "a job has what its shards are worth, by its own cgroup, and nothing after" {
  local job sluid
  job=$(slurm_submit alice --gres=shard:7 <<'SH'
env | grep -E '^(CUDA_V|CUDA_MPS_PINNED|MPSGATE)' | sort
srun --gres=shard:3 sh -c 'echo "step $MPSGATE_GPU_MEM_MIB"'
for card in 0 1; do (exec 9<>/dev/nvidia$card) 2>&1 | grep -oE '[A-Z][a-z ]*$'; done
sleep 3
SH
  )
  runs "$job"
  sluid=$(slurm_of "$job" SLUID)
  if slurm_on_v2 && [[ -n $sluid ]]; then
    assert_equal "its cgroup" "$(where "$job")" "$sluid"
  else
    assert_equal "its cgroup" "$(where "$job")" "job_$job"
  fi
  slurm_wait "$job"
  assert_equal "output" "$(slurm_output "$job")" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M
MPSGATE_GPU_MEM_MIB=7168
MPSGATE_GPU_UUID=$(uuid 0)
step 7168
No such device or address
Operation not permitted"
  wait_for 10 "its memory is free" not_granted "job-$job"
}

@test "requeued, and an array: a grant for each job, each time" {
  local job
  job=$(slurm_submit alice --requeue --gres=shard:7 <<<'echo "$SLURM_RESTART_COUNT $MPSGATE_GPU_MEM_MIB"; sleep 600')
  runs "$job"
  scontrol requeue "$job"
  wait_for 40 "it runs again" grep -qx "1 7168" "$SLURM/home/alice/slurm-$job.out"
  runs "$job"
  scancel "$job"
  wait_for 20 "its memory is free" not_granted "job-$job"
  job=$(slurm_submit alice --array=1-3 --gres=shard:2 <<<'echo "$MPSGATE_GPU_MEM_MIB"; sleep 3')
  wait_for 40 "they end" slurm_idle
  assert_equal "output" "$(cat "$SLURM/home/alice/slurm-${job}_"*.out | xargs)" "2048 2048 2048"
}

@test "a line break in a job's name gives nothing" {
  local job fake="x Socks/Node=* JOB_GRES=shard:15 Nodes=$SLURM_NODE CPU_IDs=0 Mem=0 GRES=shard:15(IDX:0) MinCPUsNode=1"
  job=$(slurm_submit alice --gres=shard:1 --job-name="$fake"$'\n'rest <<<'echo "$MPSGATE_GPU_MEM_MIB"')
  slurm_wait "$job"
  assert_contains "what its user reads" "$(slurm_output "$job")" E_UNCONFIRMED "may have a line break"
  assert_equal "grants" "$(granted_ids)" ""
}

@test "a job over its shards: its tasks are ended, and its owner can read why" {
  local job pid
  job=$(slurm_submit alice --gres=shard:2 <<<'sleep 600 & srun sleep 600')
  runs "$job"
  wait_for 10 "its step is there" pgrep -f "^sleep 600"
  pid=$(pgrep -f "^sleep 600" | head -n 1)
  uses "$pid" 4000
  slurm_wait "$job" 30
  assert_contains "state" "$(state "$job")" FAILED
  assert_equal "its processes" "$(pgrep -c -f "^sleep 600")" 0
  assert_contains "comment" "$(scontrol show job "$job")" "AdminComment=mpsgate ends it: it used 4000 MiB of the card"
  wait_for 10 "its memory is free" not_granted "job-$job"
}

@test "GPUs in a range, without shards; CgroupJobIdPaths=yes where Slurm has it" {
  local job
  SLURM_GRES='Name=gpu File=/dev/nvidia[0-1]' SLURM_NODE_GRES=gpu:2
  if slurm_on_v2 && [[ $(scontrol --version) == *" 26."* ]]; then SLURM_CGROUP=CgroupJobIdPaths=yes; fi
  again
  for uuid in "$(uuid 0)" "$(uuid 1)"; do
    job=$(slurm_submit alice --gres=gpu:1 <<<'echo "$MPSGATE_GPU_UUID $MPSGATE_GPU_MEM_MIB"; sleep 600')
    runs "$job"
    wait_for 10 "it says its card" grep -qx "$uuid 15360" "$SLURM/home/alice/slurm-$job.out"
    assert_equal "its cgroup" "$(where "$job")" "job_$job"
  done
  SLURM_GRES='' SLURM_NODE_GRES='' SLURM_CGROUP=''
  slurm_cancel
  wait_for 30 "no job is left" slurm_idle
  again
}

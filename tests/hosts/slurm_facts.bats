#!/usr/bin/env bats
# What Slurm itself does, on which mpsgate's part of it rests: which script runs when, as whom and
# in which cgroup, what it is told of a job's shards, and what a user sees of its refusal. mpsgate
# is not there. Measured with Debian 12's Slurm 22.05; a newer one that differs fails here.
# sandbox: MG_GPUS=2
# needs: munged slurmctld slurmd sbatch setpriv

load ../e2e/helpers
load slurm

HOOKS=$MG/hooks
# The scripts write down what they see, a line each; `refuse-NAME` makes one fail.
PLAIN="Prolog=$HOOKS/prolog
Epilog=$HOOKS/epilog
TaskProlog=$HOOKS/taskprolog
PrologFlags=Alloc,Contain"

setup_file() {
  [[ $(stat -fc %T /sys/fs/cgroup) != cgroup2fs ]] || { echo "this machine has cgroup v2" >"$MG/skip"; return; }
  local name
  mkdir -p "$HOOKS"
  for name in prolog epilog taskprolog; do
    cat >"$HOOKS/$name" <<'SH'
#!/bin/bash
PATH=/usr/bin:/bin
name=${0##*/} folder=${0%/*}
told=$(scontrol show job -d -o "$SLURM_JOB_ID" | grep "^JobId=$SLURM_JOB_ID " | grep -oE ' (JOB_GRES|GRES)=[^ ]*' | tr -d '\n')
pid=$$ cgroup=$(sed -n 's/^[0-9]*:devices://p' /proc/self/cgroup)
dirs=$(find "${SLURM_CONF%/*}/cgroup/devices" -type d -path "*/job_$SLURM_JOB_ID*" 2>/dev/null | wc -l)
echo "$name job=$SLURM_JOB_ID uid=$UID owner=$SLURM_JOB_UID gpus=${SLURM_JOB_GPUS--} visible=${CUDA_VISIBLE_DEVICES--} shards=${SLURM_SHARDS_ON_NODE--} percent=${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE--} restarts=${SLURM_JOB_RESTART_COUNT--} step=${SLURM_STEP_ID--} cgroup=$cgroup dirs=$dirs$told end" >>"$folder/log"
if [[ -e $folder/refuse-$name ]]; then
  echo "print mpsgate: the card is full ($name)"
  echo "on stderr" >&2
  exit 3
fi
if [[ $name == taskprolog ]]; then
  echo "export MG_EXPORTED=by taskprolog"
  echo "export MG_SET=another"
  echo "unset MG_UNSET"
  echo "print a line for the user"
fi
SH
    chmod 755 "$HOOKS/$name"
  done
  touch "$HOOKS/log" "$HOOKS/spank"
  chmod 666 "$HOOKS/log" "$HOOKS/spank" # TaskProlog is the user's
  SLURM_LINES=$PLAIN slurm_start
}
teardown_file() { [[ -f $MG/skip ]] || slurm_stop; }

setup() {
  [[ ! -f $MG/skip ]] || skip "$(<"$MG/skip")"
  : >"$HOOKS/log"
  : >"$HOOKS/spank"
}
teardown() {
  [[ ! -f $MG/skip ]] || return 0
  rm -f "$HOOKS"/refuse-*
  [[ -n $BATS_TEST_COMPLETED ]] || { cat "$HOOKS/log"; slurm_words; }
  slurm_cancel
  scontrol update "nodename=$SLURM_NODE" state=resume 2>/dev/null || true
  wait_for 30 "no job is left" slurm_idle
}

# seen NAME ID: what that script wrote down of a job.
seen() { grep "^$1 job=$2 " "$HOOKS/log"; }
# names ID: which scripts ran for it.
names() { grep " job=$1 " "$HOOKS/log" | cut -d' ' -f1 | xargs; }
# again LINES: with other settings.
again() {
  slurm_stop
  SLURM_LINES="$PLAIN
$1" slurm_start
}

@test "Prolog: root, outside the job's cgroup, which is not there; told the card, and the shards by scontrol alone" {
  local other job
  other=$(slurm_submit bob --gres=shard:10 <<<'sleep 20')
  wait_for 10 "the first runs" slurm_runs "$other"
  job=$(slurm_submit alice --gres=shard:7 <<<'true')
  slurm_wait "$job"
  # Seven and ten are more than a card has: the second one's.
  assert_contains Prolog "$(seen prolog "$job")" "uid=0 owner=$(id -u alice) gpus=1 visible=1 shards=- " "cgroup=/ dirs=0 " \
    "JOB_GRES=shard:7 GRES=shard:7(IDX:1) end"
  assert_contains "Prolog of another user" "$(seen prolog "$other")" "gpus=0 visible=0" "GRES=shard:10(IDX:0)"
}

@test "Epilog: root, once, when the job's processes and cgroups are gone; scontrol has no card any more" {
  local job
  job=$(slurm_submit alice --gres=shard:7 <<<'setsid nohup sleep 600 >/dev/null 2>&1 & srun true; srun true')
  slurm_wait "$job"
  assert_equal "scripts" "$(names "$job")" "prolog taskprolog taskprolog taskprolog epilog"
  assert_contains Epilog "$(seen epilog "$job")" "uid=0" "gpus=0 visible=0 shards=- " "cgroup=/ dirs=0 JOB_GRES=shard:7 GRES= end"
  assert_equal "what setsid started" "$(pgrep -c -x sleep -u alice)" 0
}

@test "TaskProlog: the user, in the task's own cgroup, before each task; gives the task variables, or refuses it" {
  local job cgroup
  cgroup=$MG_CGROUP/slurm_$SLURM_NODE/uid_$(id -u alice)/job_
  job=$(slurm_submit alice -n2 --gres=shard:7 --export=ALL,MG_UNSET=1,MG_SET=1 <<<'echo "$MG_EXPORTED, $MG_SET, ${MG_UNSET-unset}"; srun --gres=shard:3 -n2 true')
  slurm_wait "$job"
  assert_equal "output" "$(slurm_output "$job" | head -2)" "a line for the user
by taskprolog, another, unset"
  assert_contains "of the script" "$(seen taskprolog "$job" | sed -n 1p)" "uid=$(id -u alice)" "gpus=0 visible=0 shards=7" "step=- cgroup=$cgroup$job/step_batch/task_0 "
  assert_equal "of the step" "$(seen taskprolog "$job" | sed 1d | grep -oE "shards=3 .*cgroup=[^ ]*" | sed 's/percent=- restarts=- //' | sort)" \
    "shards=3 step=0 cgroup=$cgroup$job/step_0/task_0
shards=3 step=0 cgroup=$cgroup$job/step_0/task_1"
  touch "$HOOKS/refuse-taskprolog"
  job=$(slurm_submit alice --gres=shard:7 <<<'echo it ran')
  slurm_wait "$job"
  assert_equal "state" "$(slurm_of "$job" JobState) $(slurm_of "$job" ExitCode)" "FAILED 3:0"
  assert_contains "what its user reads" "$(slurm_output "$job")" "mpsgate: the card is full (taskprolog)" "TaskProlog failed status=3"
  refute_contains "what its user reads" "$(slurm_output "$job")" "it ran" "on stderr"
  try 3 "$SLURM/as" alice srun --gres=shard:7 echo it ran
  assert_contains "what srun says" "$stdout$stderr" "mpsgate: the card is full (taskprolog)" "TaskProlog failed status=3"
  wait_for 10 "the node stays" slurm_node_is IDLE
}

@test "a task's variables: its step's shards, and the card's number among those that it may open" {
  local other job
  other=$(slurm_submit bob --gres=shard:10 <<<'sleep 20')
  wait_for 10 "the first runs" slurm_runs "$other"
  job=$(slurm_submit alice --gres=shard:7 --export=ALL,SLURM_SHARDS_ON_NODE=15,SLURM_JOB_GPUS=0,CUDA_VISIBLE_DEVICES=0,1 <<'SH'
echo "$SLURM_SHARDS_ON_NODE $SLURM_JOB_GPUS $CUDA_VISIBLE_DEVICES"
export SLURM_SHARDS_ON_NODE=15
srun --gres=shard:3 bash -c 'echo "$SLURM_SHARDS_ON_NODE $SLURM_STEP_GPUS $CUDA_VISIBLE_DEVICES"'
srun --gres=shard:8 true 2>&1 | head -1
srun --gres=none bash -c 'echo "${SLURM_SHARDS_ON_NODE-no shards}"'
for card in 0 1; do (exec 9<>/dev/nvidia$card) 2>&1 | grep -oE '[A-Z][a-z ]*$'; done
SH
  )
  slurm_wait "$job"
  # No driver is there behind the node that may be opened.
  assert_equal "output" "$(slurm_output "$job" | grep -v "line for the user")" "7 1 0
3 1 0
srun: error: Step requested gres_per_node=shard:8 is more than the job's gres_per_node=shard:7
no shards
Operation not permitted
No such device or address"
}

@test "a job without shards: Prolog has no card, and what its user sets is what its steps see" {
  local job
  job=$(slurm_submit alice --export=ALL,SLURM_JOB_GPUS=1,SLURM_SHARDS_ON_NODE=15 <<<'srun bash -c "echo \$SLURM_JOB_GPUS"; (exec 9<>/dev/nvidia1) 2>&1 | grep -oE "[A-Z][a-z ]*\$"')
  slurm_wait "$job"
  assert_contains Prolog "$(seen prolog "$job")" "gpus=- visible=- shards=- "
  assert_equal "output" "$(slurm_output "$job" | grep -v "line for the user")" "1
Operation not permitted"
}

@test "a job's cgroup: one of all its steps, there until the last is over; its directories are the user's" {
  local job cgroup dir
  job=$(slurm_submit alice -n3 --gres=shard:7 <<'SH'
for i in 1 2; do srun --exact --overlap -n1 --gres=shard:7 sleep 3 & done
d=/sys/fs/cgroup/devices$(sed -n 's/^[0-9]*:devices://p' /proc/self/cgroup)
mkdir "$d/mine" && echo made
sleep 2 &
echo $! >"$d/mine/cgroup.procs" && echo moved below
(echo $! >"${d%/*}/cgroup.procs") 2>&1 | grep -oE '[A-Z][a-z ]*$'
wait
SH
  )
  wait_for 10 "its steps run" slurm_has_dirs "$job" step_0 step_1
  dir=$(find "$SLURM/cgroup/devices" -type d -name "job_$job")
  assert_equal "owner of the job's and the task's" "$(stat -c '%U %a' "$dir" "$dir/step_batch/task_0" | xargs)" "root 755 alice 755"
  assert_equal "its file" "$(stat -c '%U %a' "$dir/step_batch/task_0/cgroup.procs")" "root 644"
  assert_contains "without a step" "$(slurm_dirs "$job")" "job_$job/step_extern"
  slurm_wait "$job"
  assert_contains "output" "$(slurm_output "$job")" "made" "moved below" "Permission denied"
}
# slurm_has_dirs ID NAME...
slurm_has_dirs() {
  local job=$1 name
  shift
  for name; do slurm_dirs "$job" | grep -qx "job_$job/$name/task_0" || return 1; done
}

@test "who hides in a cgroup below the task's outlives the job, Epilog and all" {
  local job left
  job=$(slurm_hidden alice)
  slurm_wait "$job"
  assert_equal "scripts" "$(names "$job")" "prolog taskprolog epilog"
  left=$(pgrep -x sleep -u alice)
  assert_contains "its cgroup" "$(sed -n 's/^[0-9]*:devices://p' "/proc/$left/cgroup")" "/job_$job/step_batch/task_0/mine"
  kill -KILL "$left"
  # Another job of the same user could have moved in. Nobody else's can: the kernel asks for rights
  # on the process.
}

@test "Prolog fails: the job is requeued and held, and the node is drained; without the hold too" {
  local job
  touch "$HOOKS/refuse-prolog"
  job=$(slurm_submit alice --gres=shard:7 <<<'echo it ran')
  wait_for 10 "the node is drained" slurm_node_is IDLE+DRAIN
  assert_contains "its reason" "$(scontrol show node "$SLURM_NODE")" "Reason=Prolog error"
  wait_for 10 "the job is held" slurm_job_is "$job" PENDING
  assert_equal "reason" "$(slurm_of "$job" Reason) $(slurm_of "$job" Restarts)" "launch_failed_requeued_held 1"
  [[ ! -e $SLURM/home/alice/slurm-$job.out ]]
  assert_equal "scripts" "$(names "$job")" "prolog epilog"
  scancel "$job"
  again SchedulerParameters=nohold_on_prolog_fail
  job=$(slurm_submit alice --gres=shard:7 <<<'echo it ran')
  wait_for 10 "the node is drained" slurm_node_is IDLE+DRAIN
  wait_for 10 "the job waits" slurm_job_is "$job" PENDING
  assert_equal "reason" "$(slurm_of "$job" Reason)" "BeginTime"
  scancel "$job"
  again ''
}

@test "Prolog cancels its job and ends well: nothing runs, Epilog does, and the node stays" {
  local job
  cp "$HOOKS/prolog" "$HOOKS/prolog.kept"
  sed -i "\$a scontrol update jobid=\$SLURM_JOB_ID comment='mpsgate: the card is full'; scontrol notify \$SLURM_JOB_ID 'mpsgate: the card is full'; scancel \$SLURM_JOB_ID; exit 0" "$HOOKS/prolog"
  job=$(slurm_submit alice --gres=shard:7 <<<'echo it ran')
  slurm_wait "$job"
  try fail "$SLURM/as" alice srun --gres=shard:7 echo it ran
  mv "$HOOKS/prolog.kept" "$HOOKS/prolog"
  assert_contains "what srun says" "$stderr" "mpsgate: the card is full"
  assert_equal "state" "$(slurm_of "$job" JobState)" CANCELLED
  assert_contains "comment" "$(scontrol show job "$job")" "Comment=mpsgate: the card is full"
  assert_equal "scripts" "$(names "$job")" "prolog epilog"
  # There is no file to read why.
  [[ ! -e $SLURM/home/alice/slurm-$job.out ]]
  wait_for 10 "the node stays" slurm_node_is IDLE
}

@test "a requeued job: the same number, Epilog before the next Prolog, which is told how often" {
  local job
  job=$(slurm_submit alice --gres=shard:7 <<<'echo "restarts: $SLURM_RESTART_COUNT"; sleep 600')
  wait_for 10 "it runs" slurm_runs_a_task "$job"
  scontrol requeue "$job"
  wait_for 30 "it runs again" slurm_runs_a_task "$job" 2
  assert_equal "scripts" "$(names "$job")" "prolog taskprolog epilog prolog taskprolog"
  assert_equal "restarts" "$(grep -E "^(pro|epi)log job=$job " "$HOOKS/log" | grep -oE 'restarts=[0-9]+' | xargs)" "restarts=0 restarts=1 restarts=1"
  wait_for 10 "its words" grep -qx "restarts: 1" "$SLURM/home/alice/slurm-$job.out"
}
# slurm_runs_a_task ID [TIMES]
slurm_runs_a_task() { [[ $(seen taskprolog "$1" | wc -l) -ge ${2:-1} ]] && slurm_runs "$1"; }

@test "a job array: each job has a number, and scontrol lists all of them for the array's own" {
  local job
  job=$(slurm_submit alice --array=1-3 --gres=shard:2 <<<'sleep 1')
  wait_for 30 "they end" slurm_idle
  assert_equal "Prologs" "$(grep -c '^prolog ' "$HOOKS/log")" 3
  assert_equal "of the array's number" "$(scontrol show job -o "$job" | grep -c ^JobId=)" 3
  assert_contains "the array's own" "$(seen prolog "$job")" "JOB_GRES=shard:2 GRES=shard:2(IDX:0) end"
}

@test "two jobs too large: more than the node has is refused, more than a card has waits; others run" {
  local large job jobs=()
  try 1 "$SLURM/as" alice sbatch --gres=shard:31 --wrap true
  assert_contains "what sbatch says" "$stderr" "Requested node configuration is not available"
  large=$(slurm_submit alice --gres=shard:16 <<<'true')
  for _ in {1..8}; do jobs+=("$(slurm_submit bob --gres=shard:7 <<<'sleep 0.5')"); done
  for job in "${jobs[@]}"; do slurm_wait "$job"; done
  slurm_job_is "$large" PENDING
  try 1 "$SLURM/as" alice sbatch --gres=gpu:1,shard:1 --wrap true
  assert_contains "what sbatch says" "$stderr" "Invalid generic resource"
}

@test "slurmd restarted, even by SIGKILL: the job goes on, no second Prolog; Epilog waits for slurmd" {
  local job signal
  for signal in TERM KILL; do
    job=$(slurm_submit alice --gres=shard:7 <<<'sleep 3; srun true; echo end')
    wait_for 10 "it runs" slurm_runs_a_task "$job"
    slurmd_stop "$signal"
    slurmd_start
    slurm_wait "$job"
    assert_contains "$signal" "$(slurm_output "$job")" end
    assert_equal "scripts, $signal" "$(names "$job")" "prolog taskprolog taskprolog epilog"
  done
  job=$(slurm_submit alice --gres=shard:7 <<<'sleep 1')
  wait_for 10 "it runs" slurm_runs_a_task "$job"
  slurmd_stop KILL
  wait_for 10 "its task ends" slurm_has_no_task "$job"
  assert_equal "scripts without slurmd" "$(names "$job")" "prolog taskprolog"
  slurmd_start
  slurm_wait "$job"
  assert_equal "scripts" "$(names "$job")" "prolog taskprolog epilog"
}
slurm_has_no_task() { ! slurm_dirs "$1" | grep -q step_batch; }

@test "its slurmstepds are killed: the job seems to run, and Epilog runs while its processes live" {
  local job
  job=$(slurm_submit alice --gres=shard:7 <<<'exec sleep 600')
  wait_for 10 "it runs" slurm_runs_a_task "$job"
  wait_for 10 "its program is there" pgrep -x sleep -u alice
  pgrep -f "slurmstepd: \[$job\." | xargs kill -KILL
  sleep 1
  slurm_runs "$job"
  scancel "$job"
  wait_for 20 "Epilog runs" seen epilog "$job"
  assert_equal "processes" "$(pgrep -c -x sleep -u alice)" 1
  pkill -KILL -x -u alice sleep
}

@test "SPANK: who is called when, as whom and in which cgroup; task_init_privileged refuses a task alone" {
  local job user cgroup
  [[ -e /usr/include/slurm/spank.h ]] && command -v gcc >/dev/null || skip "libslurm-dev or gcc is missing: tests/env/install.sh hosts"
  gcc -Wall -Werror -shared -fPIC -o "$MG/spank_facts.so" "$MG_REPO/tests/hosts/spank_facts.c"
  SLURM_SPANK="required $MG/spank_facts.so $HOOKS" again ''
  : >"$HOOKS/spank"
  job=$(slurm_submit alice --gres=shard:7 <<<'env | grep ^MG_SPANK | sort')
  slurm_wait "$job"
  user=$(id -u alice) cgroup=$MG_CGROUP/slurm_$SLURM_NODE/uid_$user/job_$job
  # Those of the batch step (fffffffb), and the two of slurmd's own.
  assert_equal "hooks" "$(grep " job=$job " "$HOOKS/spank" | grep -v "step=fffffffc" | sed -E 's/^hook=(\S+) .* uid=(\S+) euid=(\S+) .* setenv=(\S+) getenv_shards=(\S+) .*/\1 \2 \3 \4 \5/' | grep -v task_post_fork)" \
    "job_prolog 0 0 3006 -
init 0 0 0 7
init_post_opt 0 0 0 7
user_init 0 $user 0 7
task_init_privileged 0 0 0 7
task_init $user $user 0 7
task_exit 0 0 0 7
exit 0 0 0 7
job_epilog 0 0 3006 -"
  assert_contains "task_init's cgroup" "$(grep "hook=task_init .* job=$job " "$HOOKS/spank")" "devices=$cgroup/step_batch/task_0 "
  # Its parent moves it meanwhile: the job's cgroup is all that is sure.
  assert_contains "task_init_privileged's" "$(grep "hook=task_init_privileged .* job=$job " "$HOOKS/spank")" "devices=$cgroup/step_batch"
  assert_equal "output" "$(slurm_output "$job" | grep -v "line for the user")" "MG_SPANK_init=1
MG_SPANK_init_post_opt=1
MG_SPANK_task_init=1
MG_SPANK_task_init_privileged=1
MG_SPANK_user_init=1"
  touch "$HOOKS/refuse-task_init_privileged"
  job=$(slurm_submit alice --gres=shard:7 <<<'echo it ran')
  slurm_wait "$job"
  assert_equal "state" "$(slurm_of "$job" JobState) $(slurm_of "$job" ExitCode)" "FAILED 1:0"
  assert_contains "what its user reads" "$(slurm_output "$job")" "error: mg: task_init_privileged refuses: the card has 2 GiB free"
  wait_for 10 "the node stays" slurm_node_is IDLE
  rm "$HOOKS/refuse-task_init_privileged"
  # But not so in a hook of the whole step.
  touch "$HOOKS/refuse-user_init"
  job=$(slurm_submit alice --gres=shard:7 <<<'echo it ran')
  wait_for 10 "the node is drained" slurm_node_is IDLE+DRAIN
  slurm_wait "$job"
  assert_equal "state" "$(slurm_of "$job" JobState)" COMPLETED
  again ''
}

@test "shards that gres.conf and slurm.conf count differently: too few and slurmd ends, too many are cut off the last card" {
  local job
  slurmd_stop
  sed -i.kept 's/Count=15/Count=10/' "$SLURM/gres.conf"
  try 1 slurmd -D -N "$SLURM_NODE" -f "$SLURM_CONF"
  assert_contains "what slurmd says" "$stderr" fatal
  sed 's/Count=15/Count=20/' "$SLURM/gres.conf.kept" >"$SLURM/gres.conf"
  slurmd_start
  assert_contains "the node" "$(scontrol show node "$SLURM_NODE")" "Gres=gpu:2,shard:30"
  assert_equal "what slurmd -G says" "$(slurmd -N "$SLURM_NODE" -G 2>&1 | grep -oE 'Name=shard .*File=\S+' | sed 's/ID=[0-9]* //')" \
    "Name=shard Type=(null) Count=20 Index=0 File=/dev/nvidia0
Name=shard Type=(null) Count=10 Index=1 File=/dev/nvidia1"
  slurmd_stop
  mv "$SLURM/gres.conf.kept" "$SLURM/gres.conf"
  slurmd_start
}

@test "gres/mps: the share is in Prolog's and the task's variables, as a per cent of the card" {
  local job
  SLURM_SHARING=mps SLURM_SHARDS=200 again ''
  job=$(slurm_submit alice --gres=mps:50 <<<'echo "$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $CUDA_VISIBLE_DEVICES ${SLURM_SHARDS_ON_NODE-none}"')
  slurm_wait "$job"
  assert_contains Prolog "$(seen prolog "$job")" "gpus=0 visible=0 shards=- percent=25 " "JOB_GRES=mps:50 GRES=mps:50(IDX:0) end"
  assert_equal "output" "$(slurm_output "$job" | grep -v "line for the user")" "25 0 none"
  again ''
}

@test "slurm_stop leaves no process and no cgroup, whatever runs" {
  local job
  job=$(slurm_submit alice --gres=shard:7 <<<'trap "" TERM; sleep 600 & wait; sleep 600')
  wait_for 10 "it runs" slurm_runs_a_task "$job"
  slurm_stop
  assert_equal "processes" "$(pgrep -a 'munged|slurm' | xargs; pgrep -a -u alice | xargs)" ""
  assert_equal "cgroups" "$(find /sys/fs/cgroup -type d -path "*$MG_CGROUP/slurm_*")" ""
  SLURM_LINES=$PLAIN slurm_start
}

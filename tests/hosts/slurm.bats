#!/usr/bin/env bats
# Jobs of a real Slurm (Debian's 22.05, one controller and one node, cgroup v1) that get what it has
# given them of a GPU, by the scripts that the package installs. NVIDIA's own client library and
# control daemon; the server is the tests' own, whose code WORD nobody else says.
# sandbox: MG_GPUS=2
# needs: munged slurmctld slurmd sbatch setpriv

load ../e2e/suite
load ../e2e/gate
load slurm

SETTINGS="$GATE_SETTINGS; \$a [slurm]\njobs = true\nconf = \"$SLURM_CONF\""
SCRIPTS=$MG/scripts
SOCKET=/run/mpsgate/slurm.sock
PLAIN="TaskProlog=$SCRIPTS/slurm-task-prolog
Epilog=$SCRIPTS/slurm-epilog
PrologFlags=Alloc,Contain"

setup_file() {
  [[ $(stat -fc %T /sys/fs/cgroup) != cgroup2fs ]] || { echo "this machine has cgroup v2" >"$MG/skip-all"; return; }
  gate_files
  cp -r "$MG_REPO/packaging/slurm" "$SCRIPTS"
  SLURM_LINES=$PLAIN slurm_start
  node_start
  wait_for 20 "jobs are served" agreed || { cat "$MG/log/mpsgated.log" /etc/mpsgate/config.toml >&2; return 1; }
}
teardown_file() {
  [[ ! -f $MG/skip-all ]] || return 0
  slurm_stop
  node_stop
}

setup() {
  [[ ! -f $MG/skip-all ]] || skip "$(<"$MG/skip-all")"
  if gate_ready; then server_says_word; fi
}
teardown() {
  [[ ! -f $MG/skip-all ]] || return 0
  explain_failure
  [[ -n $BATS_TEST_COMPLETED ]] || slurm_words
  slurm_cancel
  wait_for 30 "no job is left" slurm_idle
  wait_for 10 "the node stays" slurm_node_is IDLE
  uses
  node_reset
}

gate_ready() { [[ ! -f $MG/skip ]]; }
agreed() { grep -q "Slurm and mpsgate agree" "$MG/log/mpsgated.log"; }
# again LINES: Slurm with other settings.
again() {
  slurm_stop
  SLURM_LINES="$PLAIN
$1" slurm_start
}
# runs ID: until its grant is active.
runs() { wait_for 20 "job $1 has its grant" grant_is "job-$1" active; }
client() { find "$MG/rootfs/usr/bin" -name libcuda.so.1; }
job_dir() { find "$SLURM/cgroup/devices" -type d -name "job_$1"; } # ID
state() { echo "$(slurm_of "$1" JobState) $(slurm_of "$1" ExitCode)"; } # ID

@test "a job has what its shards are worth: variables, its card, a place in the status, and nothing after" {
  local other job
  other=$(slurm_submit bob --gres=shard:10 <<<'sleep 20')
  runs "$other"
  job=$(slurm_submit alice --gres=shard:7 --export=ALL,CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=80G,CUDA_VISIBLE_DEVICES=0,1 <<'SH'
env | grep -E '^(CUDA|MPSGATE|NVIDIA)' | sort
for card in 0 1; do (exec 9<>/dev/nvidia$card) 2>&1 | grep -oE '[A-Z][a-z ]*$'; done
sleep 3
SH
  )
  runs "$job"
  # Seven and ten are more than a card has: the second one's.
  assert_equal "grant" "$(grant "job-$job" '"\(.memory_mib) \(.card_index) \(.uid) \(.guarantee)"')" "7168 1 $(id -u alice) mps+watchdog"
  slurm_wait "$job"
  assert_equal "output" "$(slurm_output "$job" | sed 's|clients/.*|clients/…|')" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M
CUDA_MPS_PIPE_DIRECTORY=/run/mpsgate/mps/1/clients/…
MPSGATE_GPU_MEM_MIB=7168
MPSGATE_GPU_UUID=$(uuid 1)
Operation not permitted
No such device or address"
  wait_for 10 "its memory is free" not_granted "job-$job"
  grant_is "job-$other" active
}

@test "NVIDIA's client attaches up to the server, from the batch script and from a step; nobody else at its door" {
  gate_ready || skip "$(<"$MG/skip")"
  local job
  job=$(slurm_submit alice --gres=shard:7 <<SH
"$MG_OUT/fakes/cuda-client" "$(client)"
srun --gres=shard:3 "$MG_OUT/fakes/cuda-client" "$(client)"
sleep 600
SH
  )
  runs "$job"
  wait_for 20 "both have attached" said "$job" 2
  assert_equal "cuInit" "$(slurm_output "$job" | grep -oE '[0-9]+$' | xargs)" "$WORD $WORD"
  for user in alice bob; do
    try any "$SLURM/as" "$user" env "CUDA_MPS_PIPE_DIRECTORY=$(door_of "job-$job")" "$MG_OUT/fakes/cuda-client" "$(client)"
    assert_equal "cuInit of $user from elsewhere" "${stdout##* }" "$ENDED"
  done
}
said() { slurm_output "$1" && [[ $(slurm_output "$1" | grep -cE '[0-9]+$') == "$2" ]]; } # ID COUNT

@test "tasks and steps of a job share its one grant; its first task brings it about" {
  local job
  job=$(slurm_submit alice -n3 --gres=shard:7 <<'SH'
srun --gres=shard:3 -n3 sh -c 'echo "$MPSGATE_GPU_MEM_MIB $CUDA_MPS_PIPE_DIRECTORY"'
srun --gres=none sh -c 'echo "$MPSGATE_GPU_MEM_MIB $CUDA_MPS_PIPE_DIRECTORY"'
SH
  )
  slurm_wait "$job"
  assert_equal "different lines" "$(slurm_output "$job" | sort -u | wc -l)" 1
  assert_equal "lines" "$(slurm_output "$job" | grep -c '^7168 /run/mpsgate/mps/0/clients/')" 6
  assert_equal "reservations" "$(grep -c "reserved container=job-$job " "$MG/log/mpsgated.log")" 1
  # Without a batch script: the step that is there first.
  try 0 "$SLURM/as" alice srun -n4 --gres=shard:5 sh -c 'echo "$MPSGATE_GPU_MEM_MIB"'
  assert_equal "of srun" "$(xargs <<<"$stdout")" "5120 5120 5120 5120"
}

@test "ten jobs, two of them too large: eight run side by side as the cards hold them" {
  local large job jobs=()
  large=$(slurm_submit alice --gres=shard:16 <<<'echo it ran')
  try 1 "$SLURM/as" alice sbatch --gres=shard:31 --wrap true
  assert_contains "what sbatch says" "$stderr" "Requested node configuration is not available"
  for _ in {1..8}; do jobs+=("$(slurm_submit bob --gres=shard:7 <<<'echo "$MPSGATE_GPU_MEM_MIB"; sleep 1')"); done
  for job in "${jobs[@]}"; do
    slurm_wait "$job" 60
    assert_equal "job $job" "$(state "$job") $(slurm_output "$job")" "COMPLETED 0:0 7168"
  done
  slurm_job_is "$large" PENDING
  assert_equal "refused" "$(grep -c "container refused container=job-" "$MG/log/mpsgated.log")" 0
}

@test "more shards than the card has memory: named at start, and a job beyond is refused with its sentence; the node stays" {
  local job
  daemon_stop
  SLURM_SHARDS=20 again ''
  : >"$MG/log/mpsgated.log"
  daemon_start
  wait_for 20 "it is named" grep -q "Slurm and mpsgate differ" "$MG/log/mpsgated.log"
  assert_contains "log" "$(<"$MG/log/mpsgated.log")" \
    "Slurm has 20 shards of 1 GiB for /dev/nvidia0, which has 15 GiB to grant: jobs beyond that are refused; Count=15 in gres.conf"
  try any mpsgate doctor
  assert_contains "doctor" "$stdout" slurm "Slurm has 20 shards of 1 GiB for /dev/nvidia1"
  job=$(slurm_submit alice --gres=shard:18 <<<'echo it ran')
  slurm_wait "$job"
  assert_equal "state" "$(state "$job")" "FAILED 1:0"
  assert_contains "what its user reads" "$(slurm_output "$job")" "mpsgate: " "18 GiB" E_TOO_LARGE
  refute_contains "what its user reads" "$(slurm_output "$job")" "it ran"
  try fail "$SLURM/as" alice srun --gres=shard:18 echo it ran
  assert_contains "what srun says" "$stdout$stderr" E_TOO_LARGE
  wait_for 10 "the node stays" slurm_node_is IDLE
  again ''
  daemon_with
}

@test "a job over its shards: its tasks are ended and the job with them, its neighbour is not, and its owner can read why" {
  local bad good pid
  # Of one user: the card's server serves no other one's beside (mps.multiuser).
  good=$(slurm_submit alice --gres=shard:2 <<<'sleep 601')
  bad=$(slurm_submit alice --gres=shard:2 <<<'sleep 600 & srun sleep 600')
  runs "$good"
  runs "$bad"
  wait_for 10 "its step is there" pgrep -f "^sleep 600"
  pid=$(pgrep -f "^sleep 600" | head -n 1)
  uses "$pid" 4000 "$(pgrep -f "^sleep 601")" 2048
  slurm_wait "$bad" 30
  assert_contains "state" "$(state "$bad")" FAILED
  assert_equal "its processes" "$(pgrep -c -f "^sleep 600")" 0
  assert_contains "comment" "$(scontrol show job "$bad")" "AdminComment=mpsgate ends it: it used 4000 MiB of the card, 2048 MiB were granted"
  # Here the list goes on naming its process, which is said as nobody's then.
  assert_equal "actions" "$(status_json | jq -r '[.actions[] | select(.container_id) | "\(.container_id) \(.what)"] | join(", ")')" "job-$bad killed"
  slurm_runs "$good"
  wait_for 10 "its memory is free" not_granted "job-$bad"
  grant_is "job-$good" active
}

@test "requeued, and an array: a grant for each job, each time" {
  local job
  job=$(slurm_submit alice --gres=shard:7 <<<'echo "$SLURM_RESTART_COUNT $MPSGATE_GPU_MEM_MIB"; sleep 600')
  runs "$job"
  scontrol requeue "$job"
  wait_for 30 "it runs again" grep -qx "1 7168" "$SLURM/home/alice/slurm-$job.out"
  runs "$job"
  scancel "$job"
  wait_for 20 "its memory is free" not_granted "job-$job"
  job=$(slurm_submit alice --array=1-3 --gres=shard:2 <<<'echo "$MPSGATE_GPU_MEM_MIB"; sleep 1')
  wait_for 40 "they end" slurm_idle
  assert_equal "output" "$(cat "$SLURM/home/alice/slurm-${job}_"*.out | xargs)" "2048 2048 2048"
}

@test "mpsgated restarted or killed, slurmd restarted: the grant stays with the job, and ends with it" {
  local job signal
  job=$(slurm_submit alice --gres=shard:7 <<<'for i in $(seq 100); do srun --gres=shard:3 sh -c "echo \$MPSGATE_GPU_MEM_MIB"; sleep 0.5; done')
  runs "$job"
  for signal in TERM KILL; do
    daemon_stop "$signal"
    daemon_start
    grant_is "job-$job" active
    slurmd_stop "$signal"
    slurmd_start
    grant_is "job-$job" active
  done
  scancel "$job"
  wait_for 20 "its memory is free" not_granted "job-$job"
  # It ends while nobody is there.
  job=$(slurm_submit alice --gres=shard:7 <<<'sleep 600')
  runs "$job"
  daemon_stop
  scancel "$job"
  wait_for 30 "no job is left" slurm_idle
  daemon_start
  wait_for 10 "its memory is free" not_granted "job-$job"
}

@test "who hides in a cgroup below the task's is ended by the epilog; without one the memory is held for him" {
  local job left
  job=$(slurm_hidden alice)
  slurm_wait "$job"
  wait_for 10 "its memory is free" not_granted "job-$job"
  assert_equal "alice's processes" "$(pgrep -c -x sleep -u alice)" 0
  again "Epilog=/bin/true"
  job=$(slurm_hidden alice)
  slurm_wait "$job"
  sleep 2
  grant_is "job-$job" active
  left=$(pgrep -x sleep -u alice)
  assert_contains "where it is" "$(grep :devices: "/proc/$left/cgroup")" "/job_$job/step_batch/task_0/mine"
  kill -KILL "$left"
  wait_for 10 "its memory is free" not_granted "job-$job"
  again ''
}

@test "the epilog twice, of an unknown job, or without mpsgated: nothing is ended, the node stays" {
  local job
  job=$(slurm_submit alice --gres=shard:2 <<<'sleep 600')
  runs "$job"
  try 0 env SLURM_JOB_ID=4711 mpsgate slurm epilog
  grant_is "job-$job" active
  try 2 env -u SLURM_JOB_ID mpsgate slurm epilog
  assert_contains "without a job" "$stderr" "SLURM_JOB_ID names no job"
  # Only root's word ends a job.
  try fail "$SLURM/as" alice SLURM_JOB_ID="$job" mpsgate slurm epilog
  try fail "$SLURM/as" alice mpsgate slurm epilog --socket "$SOCKET"
  grant_is "job-$job" active
  try 0 env SLURM_JOB_ID="$job" mpsgate slurm epilog
  wait_for 10 "the job is ended" slurm_ended "$job"
  try 0 env SLURM_JOB_ID="$job" mpsgate slurm epilog
}

@test "without mpsgated: jobs without shards run, those with are refused with its sentence, and the node stays" {
  local job
  daemon_stop
  job=$(slurm_submit alice <<<'echo it ran')
  slurm_wait "$job"
  assert_equal "without shards" "$(state "$job") $(slurm_output "$job")" "COMPLETED 0:0 it ran"
  job=$(slurm_submit alice --gres=shard:7 <<<'echo it ran')
  slurm_wait "$job"
  assert_equal "state" "$(state "$job")" "FAILED 1:0"
  assert_contains "what its user reads" "$(slurm_output "$job")" "mpsgate: mpsgated is not running"
  refute_contains "what its user reads" "$(slurm_output "$job")" "it ran"
  wait_for 10 "the node stays" slurm_node_is IDLE
  daemon_start
}

@test "where scontrol does not answer a task is refused with its sentence; another job goes on" {
  local job
  job=$(slurm_submit alice --gres=shard:7 <<<'sleep 600')
  runs "$job"
  sed -i "s|^jobs = .*|&\nprefix = \"/nowhere\"|" /etc/mpsgate/config.toml
  mpsgate reload
  job=$(slurm_submit alice --gres=shard:2 <<<'echo it ran')
  slurm_wait "$job"
  assert_equal "state" "$(state "$job")" "FAILED 1:0"
  assert_contains "what its user reads" "$(slurm_output "$job")" "mpsgate: Slurm does not say what job $job was given: No such file" E_UNCONFIRMED
  settings
  mpsgate reload
}

# Slurm's programs by another way, which counts the questions about each job, and of a controller
# that never answers those about the job in $MG/hangs.
counted() {
  mkdir -p "$MG/prefix/bin" "$MG/prefix/sbin"
  printf '#!/bin/sh\nexec slurmd "$@"\n' >"$MG/prefix/sbin/slurmd"
  cat >"$MG/prefix/bin/scontrol" <<SH
#!/bin/sh
echo "\$*" >>"$MG/questions"
[ -z "\$5" ] || [ "\$5" != "\$(cat "$MG/hangs")" ] || exec sleep 600
exec scontrol "\$@"
SH
  chmod 755 "$MG/prefix"/*/*
  : >"$MG/questions"
  : >"$MG/hangs"
  sed -i "s|^jobs = .*|&\nprefix = \"$MG/prefix\"|" /etc/mpsgate/config.toml
  mpsgate reload
}
questions() { grep -c -- "^show job .* $1\$" "$MG/questions"; } # ID
asked() { (($(questions "$1"))); }
# asking USER TIMES: a job without shards whose processes ask all the same, once $SLURM/go is there.
asking() {
  slurm_submit "$1" <<SH
until test -e "$SLURM/go"; do sleep 0.1; done
for n in \$(seq $2); do SLURM_SHARDS_ON_NODE=1 mpsgate slurm task-prolog & done
wait
echo all have asked
SH
}

@test "a job that has nothing and asks without end has Slurm's controller asked now and then, and keeps no other job waiting" {
  local idle job
  counted
  idle=$(asking alice 200)
  touch "$SLURM/go"
  wait_for 30 "its controller is asked" asked "$idle"
  job=$(slurm_submit bob --gres=shard:2 <<<'echo "$MPSGATE_GPU_MEM_MIB"; sleep 600')
  runs "$job"
  slurm_wait "$idle" 60
  rm "$SLURM/go"
  assert_contains "what it says" "$(slurm_output "$idle")" "all have asked"
  (($(questions "$idle") < 50)) || fail "200 tasks that asked were $(questions "$idle") questions"
  settings
  mpsgate reload
}

@test "a job that the card refuses has Slurm's controller asked once for all of its tasks" {
  local job
  counted
  # One on each card, so that alice's is beside one of them.
  for _ in 1 2; do
    job=$(slurm_submit bob --gres=shard:10 <<<'sleep 600')
    runs "$job"
  done
  : >"$MG/questions"
  try fail "$SLURM/as" alice srun -n12 --gres=shard:2 echo it ran
  refute_contains "what srun says" "$stdout$stderr" "it ran"
  (($(grep -c E_UID <<<"$stdout$stderr") > 6)) || fail "not all tasks were refused E_UID: $stdout$stderr"
  # Two where the tasks take longer than an answer is kept.
  (($(grep -c "^show job " "$MG/questions") >= 1 && $(grep -c "^show job " "$MG/questions") <= 2)) || fail "its tasks were these questions: $(<"$MG/questions")"
  settings
  mpsgate reload
}

@test "a controller that does not answer for one user's job costs other users nothing" {
  local hung first job
  counted
  # One that has its grant already: its next tasks need nobody's answer.
  first=$(slurm_submit bob --gres=shard:2 <<SH
until test -e "$SLURM/next"; do sleep 0.1; done
srun --gres=shard:1 sh -c 'echo "\$MPSGATE_GPU_MEM_MIB"'
sleep 600
SH
  )
  runs "$first"
  hung=$(asking alice 100)
  echo "$hung" >"$MG/hangs"
  touch "$SLURM/go"
  wait_for 30 "its controller is asked" asked "$hung"
  touch "$SLURM/next"
  wait_for 30 "the step of a job with a grant runs" grep -qx 2048 "$SLURM/home/bob/slurm-$first.out"
  job=$(slurm_submit bob --gres=shard:2 <<<'sleep 600')
  runs "$job"
  rm "$SLURM/go" "$SLURM/next"
  : >"$MG/hangs"
  settings
  mpsgate reload
}

@test "gres/gpu is the whole card, gres/mps a share of memory and compute; several GPUs are refused" {
  local job
  job=$(slurm_submit alice --gres=gpu:1 <<<'echo "$MPSGATE_GPU_MEM_MIB ${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE-all}"')
  slurm_wait "$job"
  assert_equal "a GPU" "$(slurm_output "$job")" "15360 all"
  job=$(slurm_submit alice --gres=gpu:2 <<<'echo it ran')
  slurm_wait "$job"
  assert_contains "two GPUs" "$(state "$job") $(slurm_output "$job")" "FAILED 1:0" "mpsgate: Slurm has given the job parts of 2 GPUs" E_MULTI_CARD
  daemon_stop
  SLURM_SHARING=mps SLURM_SHARDS=200 again ''
  : >"$MG/log/mpsgated.log"
  daemon_start
  wait_for 20 "jobs are served" agreed
  job=$(slurm_submit alice --gres=mps:50 <<<'echo "$MPSGATE_GPU_MEM_MIB $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"')
  slurm_wait "$job"
  assert_equal "mps" "$(slurm_output "$job")" "3840 25"
  daemon_stop
  again ''
  daemon_start
}

@test "what a user writes gives nothing: names, comments, variables, the socket from elsewhere" {
  local job fake="x Socks/Node=* JOB_GRES=shard:15 Nodes=$SLURM_NODE CPU_IDs=0 Mem=0 GRES=shard:15(IDX:0) MinCPUsNode=1"
  for option in --job-name --comment; do
    job=$(slurm_submit alice --gres=shard:1 "$option=$fake" <<<'echo "$MPSGATE_GPU_MEM_MIB"')
    slurm_wait "$job"
    assert_contains "$option" "$(state "$job") $(slurm_output "$job")" "FAILED 1:0" "cannot be read from scontrol's answer" E_UNCONFIRMED
  done
  # The first of its lines is whole, and alice's.
  job=$(slurm_submit alice --gres=shard:1 --job-name="$fake"$'\n'rest <<<'echo "$MPSGATE_GPU_MEM_MIB"')
  slurm_wait "$job"
  assert_contains "a line break" "$(state "$job") $(slurm_output "$job")" "FAILED 1:0" "may have a line break" E_UNCONFIRMED
  job=$(slurm_submit alice --job-name="x"$'\n'"JobId=$((job + 1)) $fake" --export=ALL,SLURM_SHARDS_ON_NODE=15 <<<'echo "${MPSGATE_GPU_MEM_MIB-nothing}"')
  slurm_wait "$job"
  refute_contains "a line of its own" "$(slurm_output "$job")" 15360
  # No shards, and a variable that says some.
  job=$(slurm_submit alice --export=ALL,SLURM_SHARDS_ON_NODE=15,SLURM_JOB_GPUS=0 <<<'echo "${MPSGATE_GPU_MEM_MIB-nothing}"')
  slurm_wait "$job"
  assert_equal "no shards" "$(slurm_output "$job")" nothing
  job=$(slurm_submit alice --gres=shard:1 <<<'export SLURM_SHARDS_ON_NODE=15; srun --gres=shard:1 sh -c "echo \$MPSGATE_GPU_MEM_MIB"')
  slurm_wait "$job"
  assert_equal "one shard" "$(slurm_output "$job")" 1024
  try 1 "$SLURM/as" alice SLURM_SHARDS_ON_NODE=15 mpsgate slurm task-prolog
  assert_contains "from elsewhere" "$stdout" "print mpsgate: the process that asks is in no cgroup of a Slurm job's devices [E_UNCONFIRMED]"
  # A subordinate uid of alice's is nobody (process.bats), also in alice's job.
  install -m 4755 -o 100004 "$(command -v dash)" /usr/bin/subordinate-shell
  job=$(slurm_submit alice --gres=shard:1 <<<'subordinate-shell -p -c "mpsgate slurm task-prolog"')
  slurm_wait "$job"
  assert_contains "a subordinate uid" "$(slurm_output "$job")" "uid 100004 is no user of this node" E_UNCONFIRMED "getent passwd 100004"
  # The socket for jobs gives nothing else.
  try fail "$SLURM/as" alice mpsgate run --socket "$SOCKET" --gpu-mem 1Gi -- true
  assert_contains "run" "$stderr" E_UNCONFIRMED
  try fail "$SLURM/as" alice mpsgate status
  assert_equal "grants" "$(granted_ids)" ""
}

@test "a directory that looks like a job's is none where a user made it" {
  local job
  job=$(slurm_submit alice --gres=shard:1 <<'SH'
d=/sys/fs/cgroup/devices$(sed -n 's/^[0-9]*:devices://p' /proc/self/cgroup)/slurm/uid_0/job_4711
mkdir -p "$d"
echo $$ >"$d/cgroup.procs"
mpsgate slurm task-prolog | grep MEM_MIB
SH
  )
  slurm_wait "$job"
  assert_equal "whose grant" "$(slurm_output "$job")" "export MPSGATE_GPU_MEM_MIB=1024"
}

@test "cards are found by their files, whatever else gres.conf has" {
  local job
  daemon_stop
  slurm_stop
  # The first card is not Slurm's.
  SLURM_LINES=$PLAIN SLURM_NODE_GRES=gpu:1,shard:15 SLURM_GRES=$'Name=gpu File=/dev/nvidia1\nName=shard Count=15 File=/dev/nvidia1' slurm_start
  : >"$MG/log/mpsgated.log"
  daemon_start
  wait_for 20 "it is named" grep -q "Slurm does not know /dev/nvidia0" "$MG/log/mpsgated.log"
  job=$(slurm_submit alice --gres=shard:7 <<<'echo "$MPSGATE_GPU_UUID"')
  slurm_wait "$job"
  assert_equal "its card" "$(slurm_output "$job")" "$(uuid 1)"
  # As Slurm's own pages write it: no file for the shards.
  daemon_stop
  slurm_stop
  SLURM_LINES=$PLAIN SLURM_GRES=$'Name=gpu File=/dev/nvidia[0-1]\nName=shard Count=30' slurm_start
  : >"$MG/log/mpsgated.log"
  daemon_start
  wait_for 20 "jobs are served" agreed
  for uuid in "$(uuid 0)" "$(uuid 1)"; do
    job=$(slurm_submit alice --gres=shard:10 <<<'echo "$MPSGATE_GPU_UUID"; sleep 600')
    runs "$job"
    wait_for 10 "it says its card" grep -qx "$uuid" "$SLURM/home/alice/slurm-$job.out"
  done
  daemon_stop
  again ''
  daemon_start
}

@test "Slurm that does not close devices: the task is refused, and told what is missing" {
  local job
  SLURM_CGROUP=ConstrainDevices=no again ''
  job=$(slurm_submit alice --gres=shard:7 <<<'echo it ran')
  slurm_wait "$job"
  assert_contains "what its user reads" "$(state "$job") $(slurm_output "$job")" "FAILED 1:0" ConstrainDevices=yes
  again ''
}

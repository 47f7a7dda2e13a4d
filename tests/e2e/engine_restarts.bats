#!/usr/bin/env bats
# The lives of containers: restarted by their engines, started in every way that runc has, broken
# off in the middle, outlived by their own processes, followed by strangers with their pids. After
# each, the memory is where it belongs.

# shellcheck disable=SC2030,SC2031 # a test is a subshell, and sets what it reads itself
load suite
load podman

setup_file() {
  node_start
  docker_start --add-runtime mpsgate=/usr/bin/mpsgate-runtime --default-runtime mpsgate
  if command -v podman >/dev/null; then podman_start; fi
}

teardown_file() {
  podman_clear
  docker_stop
  node_stop
}

teardown() {
  explain_failure
  kill_listed "$MG/strangers"
  docker_clear
  node_reset
}

WANT=(--network none --ipc host --env MPSGATE_GPU_MEM=7Gi)

docker_state() { docker inspect -f "{{.State.$2}}" "$1"; } # NAME FIELD
docker_is() { [[ $(docker_state "$1" "$2") == "$3" ]]; }   # NAME FIELD VALUE
docker_id() { docker inspect -f '{{.Id}}' "$1"; }
restarts() { [[ $(docker inspect -f '{{.RestartCount}} {{.State.Running}}' "$1") == "$2" ]]; } # NAME "COUNT RUNNING"
# Asked anew each time: Docker calls a container running, with pid 0, while it restarts it.
granted_as_docker_says() { granted_pid "$2" "$(docker_state "$1" Pid)"; } # NAME ID
granted_pid() { [[ $(grant "$1" .pid) == "$2" ]]; } # ID PID

# --- Docker ---------------------------------------------------------------------------------------

@test "Docker, on-failure:2: three lives, one grant at a time, none at the end" {
  try_docker run -d --name got --restart on-failure:2 "${WANT[@]}" bb sh -c 'env | grep PINNED; sleep 0.3; exit 3'
  local id now end=$((SECONDS + 30))
  id=$(docker_id got)
  until restarts got "2 false"; do
    now=$(granted_ids)
    [[ -z $now || $now == "$id" ]] || fail "grants: $now"
    ((SECONDS < end)) || fail "still restarting"
  done
  assert_equal "lives with the limit" "$(docker logs got | sort | uniq -c | tr -s ' ')" " 3 CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M"
  assert_free
}

@test "Docker, always: killed while mpsgated restarts, the container is back with one grant" {
  try_docker run -d --name got --restart always "${WANT[@]}" bb sleep 600
  local id first pid
  id=$(docker_id got) first=$(grant "$(docker_id got)" .instance) pid=$(docker_state got Pid)
  daemon_stop KILL
  kill -KILL "$pid"
  daemon_start
  wait_for 20 "the container runs again" docker_is got Running true
  wait_for 10 "it has a grant" granted_as_docker_says got "$id"
  assert_equal "grants" "$(granted_ids)" "$id"
  [[ $(grant "$id" .instance) != "$first" ]] || fail "the instance was used again"
  assert_equal "free" "$(free_total)" $((CARD_MEMORY * 2 - 7168))
}

@test "Docker, always, mpsgated away: refused in the user's sight, others live on, docker start after it" {
  try_docker run -d --name got --restart always "${WANT[@]}" bb sleep 600
  try_docker run -d --name other --network none --ipc host --env MPSGATE_GPU_MEM=2Gi bb sleep 600
  local pid
  pid=$(docker_state other Pid)
  daemon_stop
  kill -KILL "$(docker_state got Pid)"
  # Docker 20.10 gives up where a start fails, whatever the policy says.
  wait_for 20 "Docker has given up" docker_is got Status exited
  assert_contains "what docker inspect shows" "$(docker_state got Error)" "[E_DAEMON_AWAY]" "hint: "
  daemon_start
  assert_equal "grants" "$(granted_ids)" "$(docker_id other)"
  assert_equal "pid of the other one" "$(docker_state other Pid)" "$pid"
  try_docker start got
  wait_for 10 "a grant after docker start" granted_as_docker_says got "$(docker_id got)"
}

@test "Docker, unless-stopped on a full card: what was free is somebody else's now, and the refusal says whose" {
  try_docker run -d --name got --restart unless-stopped --network none --ipc host --env MPSGATE_GPU_MEM=15Gi \
    bb sh -c 'sleep 600'
  try_docker stop -t 0 got
  assert_free
  try_docker run -d --name one --network none --ipc host --env MPSGATE_GPU_MEM=15Gi bb sleep 600
  try_docker run -d --name two --network none --ipc host --env MPSGATE_GPU_MEM=1Gi bb sleep 600
  local before
  before=$(granted_ids)
  try_docker fail start got
  assert_contains "docker start" "$stderr" "[E_NO_CAPACITY]" "hint: "
  try_docker fail restart -t 0 got
  assert_contains "docker restart" "$stderr" "[E_NO_CAPACITY]" "$(docker_id one | cut -c1-12)"
  assert_equal "grants of the others" "$(granted_ids)" "$before"
  try_docker rm -f two
  wait_for 10 "room again" bash -c '[[ $(mpsgate status -o json | jq ".grants | length") == 1 ]]'
  try_docker start got
}

@test "Docker, with a terminal (its console socket): run and exec" {
  try_docker run -d -t --name got "${WANT[@]}" bb sh -c 'test -t 0 && echo terminal && env | grep PINNED; sleep 600'
  wait_for 10 "its output" bash -c "/usr/bin/docker --host unix://$DOCKER_SOCK logs got | grep -q 0=7168M"
  assert_contains "output" "$(docker logs got)" terminal
  # shellcheck disable=SC2016
  try script -qec "/usr/bin/docker --host unix://$DOCKER_SOCK exec -it got sh -c 'test -t 0 && echo terminal \$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT'" /dev/null
  assert_contains "exec" "$stdout" "terminal 0=7168M"
}

# --- Podman ---------------------------------------------------------------------------------------

PODMAN_RUN=(run --network host --ipc host --ulimit nofile=1024:1024 --ulimit nproc=1000:1000
  --annotation mpsgate.io/gpu-mem=7Gi)

@test "Podman: run, exec, restart, on-failure, rm" {
  command -v podman >/dev/null || skip "podman is not installed"
  local id first
  try_podman "${PODMAN_RUN[@]}" -d --cgroup-parent "$MG_CGROUP" --name got bb sleep 600
  id=$(podman inspect -f '{{.Id}}' got)
  assert_equal "memory" "$(grant "$id" .memory_mib)" 7168
  first=$(grant "$id" .instance)
  try_podman exec got env
  assert_contains "exec" "$stdout" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M"
  try_podman restart -t 0 got
  assert_equal "grants" "$(granted_ids)" "$id"
  [[ $(grant "$id" .instance) != "$first" ]] || fail "the instance was used again"
  try_podman rm -f -t 0 got
  assert_free
  try_podman "${PODMAN_RUN[@]}" -d --cgroup-parent "$MG_CGROUP" --name fails --restart on-failure:2 bb sh -c 'exit 3'
  wait_for 30 "three lives" bash -c "$(declare -f podman); [[ \$(podman inspect -f '{{.RestartCount}} {{.State.Running}}' fails) == '2 false' ]]"
  assert_free
  try_podman rm -f -t 0 fails
  try_podman fail "${PODMAN_RUN[@]}" --annotation mpsgate.io/gpu-mem=7GB --rm bb true
  assert_contains "a bad value" "$stderr" "[E_REQUEST]" 7GB
}

# --- runc -----------------------------------------------------------------------------------------

@test "a crash loop beside a full card: nobody else's memory lost, every refusal clear" {
  granted big0 14Gi --ann mpsgate.io/gpu=0
  granted big1 15Gi --ann mpsgate.io/gpu=1
  local before i
  before=$(recorded_grants)
  bundle loop --ann mpsgate.io/gpu-mem=1Gi --args sh -c 'exit 3'
  bundle full --ann mpsgate.io/gpu-mem=2Gi
  for i in {1..50}; do
    try_oci 3 run --bundle "$MG/b/loop" loop
    if ((i % 5 == 0)); then
      try_oci fail run --bundle "$MG/b/full" full
      assert_refusal_text full E_NO_CAPACITY
      assert_contains "refusal $i" "$stderr" big0 big1
    fi
  done
  wait_for 10 "the last instance has ended" not_granted loop
  assert_equal "the neighbours' grants" "$(recorded_grants)" "$before"
  inside_env big0 0=14336M
}
inside_env() { # ID LIMIT
  # shellcheck disable=SC2016
  try_oci exec "$1" sh -c 'echo $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT'
  assert_equal "limit in $1" "$stdout" "$2"
}

@test "two roots with one id: each has its own grant, exec its own limit, and ends alone" {
  granted g 2Gi
  bundle g2 --ann mpsgate.io/gpu-mem=3Gi
  try mpsgate-runtime --root "$MG/runc2" run -d --bundle "$MG/b/g2" g
  inside_env g 0=2048M
  # shellcheck disable=SC2016
  try mpsgate-runtime --root "$MG/runc2" exec g sh -c 'echo $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT'
  assert_equal "limit below the other root" "$stdout" 0=3072M
  try_oci kill g KILL
  wait_for 10 "one is left" bash -c '[[ $(mpsgate status -o json | jq ".grants | length") == 1 ]]'
  assert_equal "memory of what is left" "$(grant g .memory_mib)" 3072
  try mpsgate-runtime --root "$MG/runc2" delete --force g
}

@test "run detached, and in the foreground with a terminal" {
  bundle d --ann mpsgate.io/gpu-mem=7Gi
  TRY_OUT=$MG/out/d try_oci run -d --bundle "$MG/b/d" d
  assert_equal "state" "$(grant d .state)" active
  assert_equal "pid" "$(grant d .pid)" "$(oci state d | jq .pid)"
  delete d
  assert_free
  bundle t --ann mpsgate.io/gpu-mem=7Gi --jq '.process.terminal = true' \
    --args sh -c 'test -t 0 && echo "terminal $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"'
  try script -qec "mpsgate-runtime --root $RUNC_ROOT run --bundle $MG/b/t t" /dev/null
  assert_contains "output" "$stdout" "terminal 0=7168M"
  assert_free
}

@test "an engine in a pid namespace of its own: the grant is the right process's, and ends with it" {
  bundle n --ann mpsgate.io/gpu-mem=7Gi
  stranger unshare --pid --fork --kill-child --mount-proc mpsgate-runtime --root "$RUNC_ROOT" run --bundle "$MG/b/n" n
  wait_for 10 "it has a grant" bash -c '[[ $(mpsgate status -o json | jq -r ".grants[0].state") == active ]]'
  local pid
  pid=$(grant n .pid)
  assert_contains "its init as we see it" "$(tr '\0' ' ' <"/proc/$pid/cmdline")" "sleep 600"
  assert_equal "namespaces it is counted in" "$(sed -n 's/^NSpid:\t//p' "/proc/$pid/status" | wc -w)" 3
  daemon_stop KILL
  daemon_start
  assert_equal "pid after a restart" "$(grant n .pid)" "$pid"
  kill -KILL "$stranger"
  wait_for 10 "released" not_granted n
  runc --root "$RUNC_ROOT" delete --force n
}

@test "an engine whose /proc is of another pid namespace: no grant" {
  bundle n --ann mpsgate.io/gpu-mem=7Gi
  try fail unshare --pid --fork --kill-child mpsgate-runtime --root "$RUNC_ROOT" run --bundle "$MG/b/n" n
  assert_free
  # runc gives up by itself; so the hook is asked alone, with a record and a pid that is somebody
  # else's.
  granted g 1Gi
  local instance
  instance=$(grant g .instance)
  # shellcheck disable=SC2016
  try fail unshare --pid --fork sh -c 'echo "{\"ociVersion\":\"1.0.2\",\"id\":\"g\",\"pid\":1,\"status\":\"creating\",\"bundle\":\"/x\"}" |
    mpsgate-hook createRuntime --root="$1" --instance="$2"' x "$RUNC_ROOT" "$instance"
  assert_contains "the hook" "$stderr" "[E_HOOK_STATE]" "/proc is of another pid namespace" "--mount-proc"
}

cgroups_of() { sed -n "s|^[0-9]*:\([^:]*\):\(/.*$1\)\$|\1 \2|p" "/proc/$2/cgroup"; } # ID PID: "CONTROLLERS PATH"

@test "init ends while a process stays in the cgroup: counted until it ends, and no second instance before" {
  granted g 7Gi
  local pid controllers path stranger
  pid=$(oci state g | jq .pid)
  stranger sleep 600
  while read -r controllers path; do
    for dir in "/sys/fs/cgroup/${controllers#name=}$path" "/sys/fs/cgroup/unified$path" "/sys/fs/cgroup$path"; do
      [[ ! -d $dir ]] || echo "$stranger" >"$dir/cgroup.procs"
    done
  done < <(cgroups_of g "$pid")
  try_oci kill g KILL
  wait_for 10 "init ends" gone "$pid"
  # As after a crash of the engine: nothing of its state is left.
  rm -rf "${RUNC_ROOT:?}/g"
  # The runtime's word for the end does not give away what is in use.
  try bash -c 'echo "{\"ociVersion\":\"1.0.2\",\"id\":\"g\",\"status\":\"stopped\",\"bundle\":\"/x\"}" |
    mpsgate-hook poststop --root="$1" --instance="$2"' x "$RUNC_ROOT" "$(grant g .instance)"
  assert_equal "memory" "$(grant g .memory_mib)" 7168
  daemon_stop KILL
  daemon_start
  assert_equal "memory after a restart" "$(grant g .memory_mib)" 7168
  create fail g
  assert_refusal_text g E_LEDGER
  assert_contains "refusal" "$stderr" "a previous instance of this container has processes left" "pid $stranger (sleep)" \
    "kill -KILL $stranger"
  assert_equal "memory, counted once" "$(free_total)" $((CARD_MEMORY * 2 - 7168))
  kill -KILL "$stranger"
  create g
  assert_equal "grants" "$(granted_ids)" g
}

# take_pid PID: a process of the host that has this pid; $stranger.
take_pid() {
  local try
  for try in {1..50}; do
    echo $(($1 - 1)) >/proc/sys/kernel/ns_last_pid
    stranger sleep 600
    [[ $stranger != "$1" ]] || return 0
    kill -KILL "$stranger"
  done
  fail "pid $1 was not to be had"
}

@test "the pid is another process's: the grant ends, the stranger is neither its holder nor hurt" {
  [[ -w /proc/sys/kernel/ns_last_pid ]] || skip "this kernel lets nobody choose a pid"
  local pid stranger creator how
  for how in running away; do
    granted g 7Gi
    pid=$(oci state g | jq .pid)
    [[ $how == running ]] || daemon_stop KILL
    kill -KILL "$pid"
    wait_for 10 "init ends" gone "$pid"
    take_pid "$pid"
    [[ $how == running ]] || daemon_start
    wait_for 10 "g is released, mpsgated $how" not_granted g
    try_oci any kill g KILL
    try_oci delete --force g
    [[ -d /proc/$stranger ]] || fail "the stranger with pid $pid was ended"
  done
  # Likewise the creator of a reservation.
  bundle slow --ann mpsgate.io/gpu-mem=1Gi \
    --jq '.hooks.createRuntime = [{path: "/bin/sleep", args: ["sleep", "600"]}]'
  stranger mpsgate-runtime --root "$RUNC_ROOT" create --bundle "$MG/b/slow" slow
  wait_for 10 "slow is reserved" bash -c '[[ $(mpsgate status -o json | jq -r ".grants[0].state") == reserved ]]'
  creator=$stranger
  daemon_stop KILL
  kill -KILL "$creator"
  wait_for 10 "the creator ends" gone "$creator"
  take_pid "$creator"
  daemon_start
  wait_for 10 "slow is released" not_granted slow
  rm -rf "${RUNC_ROOT:?}/slow"
}

@test "the shim killed between reserve and exec: config.json as it was, the reservation expires" {
  local before limit record
  granted g 7Gi
  record=$(stat -c %s /run/mpsgate/grants/*)
  delete g
  bundle g --ann mpsgate.io/gpu-mem=7Gi
  before=$(sha256sum <"$MG/b/g/config.json")
  # SIGXFSZ ends it in the middle of a write: of the record for exec, then of config.json, which is
  # longer.
  for limit in 64 $((record + 64)); do
    try any env --default-signal=XFSZ prlimit --fsize=$limit:$limit --core=0:0 mpsgate-runtime --root "$RUNC_ROOT" create --bundle "$MG/b/g" g
    assert_equal "exit status with $limit bytes" "$status" 153
    assert_equal "config.json" "$(sha256sum <"$MG/b/g/config.json")" "$before"
    assert_free
  done
  create g
  assert_equal "state" "$(grant g .state)" active
}

@test "the runtime fails after the hook: no such program, a bad seccomp profile: no grant is left" {
  bundle g --ann mpsgate.io/gpu-mem=7Gi --args /no/such/program
  create fail g
  assert_contains "stderr" "$stderr" "/no/such/program"
  assert_free
  bundle s --ann mpsgate.io/gpu-mem=7Gi --jq '.linux.seccomp = {defaultAction: "SCMP_ACT_ALLOW",
    architectures: ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"], syscalls: [{names: ["getcwd"], action: "SCMP_ACT_NO_SUCH"}]}'
  create fail s
  assert_contains "stderr" "$stderr" "SCMP_ACT_NO_SUCH"
  assert_free
  # After it has started: the filter lets nothing through.
  bundle k --ann mpsgate.io/gpu-mem=7Gi --jq '.linux.seccomp = {defaultAction: "SCMP_ACT_KILL_PROCESS",
    architectures: ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"], syscalls: []}'
  try_oci any run --bundle "$MG/b/k" k
  [[ $status != 0 ]] || fail "it ran"
  assert_free
}

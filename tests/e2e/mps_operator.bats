#!/usr/bin/env bats
# What an operator does to a node in use: containers with a grant are killed, a card's MPS is
# stopped and restarted, settings are reloaded. Always with the fake as control daemon: a real one
# has no CUDA clients without a GPU.

load suite

# Read by control_program.
export MG_MPS_CONTROL=''

setup_file() {
  rootfs "$MG/rootfs"
  rootfs_program "$MG/rootfs" "$(control_program)"
  node_start
}

teardown_file() {
  docker_stop
  node_stop
}

teardown() {
  local pid
  explain_failure
  for pid in $(mps_pids) $(pgrep -x mpsgated); do kill -CONT "$pid" 2>/dev/null || true; done
  [[ ! -f $MG/docker.pid ]] || docker_clear
  delete_all
  if [[ -f $MG/settings.good ]]; then
    cp "$MG/settings.good" /etc/mpsgate/config.toml
    rm "$MG/settings.good"
    daemon_stop
  fi
  [[ -f $MG/mpsgated.pid ]] || daemon_start
  local index
  for ((index = 0; index < MG_GPUS; index++)); do
    card_is ready "$index" || mpsgate mps restart "$index" --yes >&2
  done
  assert_free
}

# cuda ID [BUNDLE OPTION...]: a granted container on card 0 with a CUDA process that is not its
# init.
cuda() {
  local id=$1
  shift
  granted "$id" 2Gi --ann mpsgate.io/gpu=0 "$@" --args sh -c 'nvidia-cuda-mps-control client & sleep 600'
  wait_for 20 "the CUDA process of $id" grep -q '^attached' "$MG/out/$id"
}

# commands WORD: what the control daemon of card 0 was sent that begins with WORD.
commands() { sed -n "s/.*Cmd:\($1.*\)/\1/p" /run/mpsgate/mps/0/log/control.log; }
terminations() { commands terminate_client | wc -l; }
clients() { mpsgate mps stop 0 -o json | jq -c "[.servers[].clients[] | select(.container_id == \"$1\") | .pid]"; }
count() { status_json | jq ".$1"; }

# --- kill -----------------------------------------------------------------------------------------

@test "kill with SIGKILL terminates the container's CUDA clients first, and nobody else's" {
  local spelling before server pid neighbour
  cuda n
  neighbour=$(clients n)
  for spelling in KILL SIGKILL 9; do
    cuda g
    before=$(count clients_terminated)
    pid=$(clients g | jq '.[0]') server=$(commands "get_client_list" | tail -1 | cut -d' ' -f2)
    try_oci kill g "$spelling"
    assert_equal "the last termination" "$(commands terminate_client | tail -1)" "terminate_client $server $pid"
    assert_contains "the CUDA process' last words" "$(cat "$MG/out/g")" CUDA_ERROR_MPS_CLIENT_TERMINATED
    wait_for 10 "state stopped" stopped g
    assert_equal "clients terminated" "$(count clients_terminated)" $((before + 1))
    [[ ! -s $MG/log/oci.json ]] || fail "something was logged: $(cat "$MG/log/oci.json")"
    try_oci delete g
    wait_for 10 "the grant's end" not_granted g
  done
  assert_equal "the neighbour's clients" "$(clients n)" "$neighbour"
  refute_contains "the neighbour" "$(cat "$MG/out/n")" CUDA_ERROR
}

@test "delete --force terminates first, too; delete of what has ended asks nobody" {
  local before
  cuda g
  before=$(terminations)
  try_oci delete --force g
  assert_equal "terminations" "$(terminations)" $((before + 1))
  cuda g
  try_oci kill g KILL
  wait_for 10 "state stopped" stopped g
  before=$(terminations)
  try_oci delete --force g
  assert_equal "terminations" "$(terminations)" "$before"
}

@test "any other signal terminates nobody" {
  local before signal
  before=$(terminations)
  cuda g
  for signal in '' TERM USR1 STOP CONT; do
    # shellcheck disable=SC2086 # none, or one word
    try_oci kill g $signal
  done
  assert_equal "terminations" "$(terminations)" "$before"
  refute_contains "the CUDA process" "$(cat "$MG/out/g")" CUDA_ERROR
}

# killed_all_the_same ID WHY: kill works, and the engine's log says what was left out.
killed_all_the_same() {
  try_oci kill "$1" KILL
  assert_equal "stderr of kill" "$stderr" ""
  assert_equal "level of the line in --log" "$(jq -r .level "$MG/log/oci.json")" warning
  assert_contains "line in --log" "$(jq -r .msg "$MG/log/oci.json")" \
    "container \"$1\" is killed without ending its GPU work at the MPS server first" "$2"
  wait_for 10 "state stopped" stopped "$1"
}

@test "a daemon that is gone does not stop a kill" {
  cuda g
  daemon_stop KILL
  killed_all_the_same g "mpsgated is not running"
  daemon_start
  wait_for 10 "the grant's end" not_granted g
}

@test "a daemon that hangs does not stop a kill, and a control daemon that hangs does not either" {
  local pid control
  pid=$(<"$MG/mpsgated.pid") control=$(card 0 .mps.pid)
  cuda g
  kill -STOP "$pid" "$control"
  killed_all_the_same g "did not answer"
  kill -CONT "$pid" "$control"
  wait_for 10 "the grant's end" not_granted g
  delete g
  # The daemon is there, its channel is not.
  cuda g
  kill -STOP "$control"
  killed_all_the_same g "MPS control daemon"
  assert_equal "kills without" "$(count kills_unprepared)" 1
}

@test "a container without a grant is killed without a look at anything" {
  bundle p --args sleep 600
  create p
  start p
  cuda g
  kill -STOP "$(<"$MG/mpsgated.pid")"
  try_oci kill p KILL
  wait_for 10 "state stopped" stopped p
  [[ ! -s $MG/log/oci.json ]] || fail "something was logged: $(cat "$MG/log/oci.json")"
}

docker_is() { [[ $(docker inspect -f '{{.State.Status}}' "$1") == "$2" ]]; }

# docker_cuda: a container with a CUDA process as its init.
docker_cuda() {
  [[ -f $MG/docker.pid ]] || docker_start --add-runtime mpsgate=/usr/bin/mpsgate-runtime --default-runtime mpsgate
  try_docker run -d --network none --ipc=host -e MPSGATE_GPU_MEM=2Gi --name cuda bb nvidia-cuda-mps-control client
  wait_for 20 "the CUDA process" attached_times 1
}
attached_times() { [[ $(docker logs cuda | grep -c ^attached) == "$1" ]]; }
docker_says_terminated() {
  wait_for 10 "the container's end" docker_is cuda exited
  assert_contains "last words" "$(docker logs cuda)" CUDA_ERROR_MPS_CLIENT_TERMINATED
}

@test "docker kill: a CUDA process that ends before its SIGKILL counts as killed" {
  docker_cuda
  try_docker kill cuda
  docker_says_terminated
}

@test "docker stop without a grace period: a CUDA process that ends before its SIGKILL counts as stopped" {
  docker_cuda
  try_docker stop -t 0 cuda
  docker_says_terminated
}

@test "docker restart without a grace period: the CUDA process runs again" {
  docker_cuda
  try_docker restart -t 0 cuda
  wait_for 20 "it attaches again" attached_times 2
}

@test "docker rm -f of a container with a CUDA process frees its memory" {
  docker_cuda
  try_docker rm -f cuda
  assert_free
}

# --- mps ------------------------------------------------------------------------------------------

@test "mps stop and mps restart list the processes that would be terminated, and do nothing without --yes" {
  local pid action
  cuda g
  pid=$(card 0 .mps.pid)
  for action in stop restart; do
    try 1 mpsgate mps "$action" 0
    assert_contains "list" "$stdout" "mps $action of GPU 0 ($(uuid 0))" "g " "2 GiB" "nvidia-cuda-mps" \
      "Nothing was done" "mpsgate mps $action 0 --yes"
    try 1 mpsgate mps "$action" 0 -o json
    assert_equal "container of the client" "$(jq -r '.servers[0].clients[0].container_id' <<<"$stdout")" g
  done
  assert_equal "control daemon" "$(card 0 .mps.pid)" "$pid"
  refute_contains "the CUDA process" "$(cat "$MG/out/g")" CUDA_ERROR
}

@test "mps stop closes the card over a restart of mpsgated, and mps restart opens it" {
  cuda g
  try mpsgate mps stop 0 --yes
  assert_contains "answer" "$stdout" "is stopped, and 1 grant is broken" "mpsgate mps restart $(uuid 0)"
  wait_for 10 "the CUDA process' end" grep -q CUDA_ERROR "$MG/out/g"
  assert_equal "compute mode" "$(card 0 .compute_mode)" DEFAULT
  delete g
  daemon_stop
  daemon_start
  assert_equal "state" "$(card 0 .state)" "was stopped by the operator"
  refused r E_GPU_UNHEALTHY --ann mpsgate.io/gpu-mem=1Gi --ann mpsgate.io/gpu=0
  assert_contains "refusal" "$stderr" "was stopped by the operator" "mpsgate mps restart"
  refused v E_VISIBLE_DEVICES --env "NVIDIA_VISIBLE_DEVICES=$(uuid 0)"
  allowed o --ann mpsgate.io/gpu-mem=1Gi --ann mpsgate.io/gpu=1
  try mpsgate mps restart 0 --yes
  assert_contains "answer" "$stdout" "is started"
  cuda g
}

@test "mps restart starts another control daemon; the grants that were there are broken, new ones work" {
  local pid other
  cuda g
  pid=$(card 0 .mps.pid) other=$(card 1 .mps.pid)
  try mpsgate mps restart 0 --yes
  assert_contains "answer" "$stdout" "is restarted, and 1 grant is broken"
  [[ $(card 0 .mps.pid) != "$pid" ]] || fail "the same control daemon"
  assert_equal "the other card's control daemon" "$(card 1 .mps.pid)" "$other"
  assert_equal "compute mode" "$(card 0 .compute_mode)" EXCLUSIVE_PROCESS
  assert_equal "state of the grant" "$(grant g .state)" broken
  cuda h
  # A broken grant has nobody to ask for.
  try_oci kill g KILL
  wait_for 10 "the grant's end" not_granted g
}

@test "mps names what it cannot act on" {
  try 1 mpsgate mps stop 7 --yes
  assert_contains "stderr" "$stderr" "there is no GPU" "[E_UNKNOWN_GPU]"
}

# --- reload ---------------------------------------------------------------------------------------

# changed SED SCRIPT: the settings, changed until the end of the test.
changed() {
  [[ -f $MG/settings.good ]] || cp /etc/mpsgate/config.toml "$MG/settings.good"
  sed "$1" "$MG/settings.good" >/etc/mpsgate/config.toml
}

@test "reload takes what it can and says what waits for what" {
  try mpsgate reload
  assert_equal "answer" "$stdout" "no setting has changed"
  changed 's/^\[mps\]$/[log]\nlevel = "debug"\n[trust]\nlocal = "off"\n[run]\ngroup = "root"\n[mps]/'
  try mpsgate reload
  assert_equal "answer" "$stdout" \
    $'trust.local: taken\nrun.group: takes effect after: systemctl restart mpsgated\nlog.level: taken'
  refused r E_UNCONFIRMED --ann mpsgate.io/gpu-mem=1Gi
  changed ''
  try mpsgate reload
  assert_contains "answer" "$stdout" "trust.local: taken"
  allowed a --ann mpsgate.io/gpu-mem=1Gi
}

@test "reload names a mistake with its line and keeps the settings" {
  changed 's/^manage = .*/manage = "everything"/'
  try 1 mpsgate reload
  assert_contains "stderr" "$stderr" "/etc/mpsgate/config.toml:4: " "gpus.manage" "[E_CONFIG]" "hint: " \
    "goes on with the settings that it has"
  assert_equal "card" "$(card 0 .state)" ready
}

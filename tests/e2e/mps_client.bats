#!/usr/bin/env bats
# NVIDIA's own client library in containers, below NVIDIA's own control daemon: whom it reaches, as
# whom and from where. The server is the tests' own: what comes after a server's first words is for
# a card (tests/gpu).

load suite
load gate

SETTINGS=$GATE_SETTINGS

setup_file() {
  gate_files
  [[ -f $MG/skip ]] || node_start
}

teardown_file() {
  [[ -f $MG/skip ]] || node_stop
}

setup() {
  gate_needed
  log=/run/mpsgate/mps/0/log
  # What a server tells its clients from now on.
  echo "$WORD" >"$log/fake-server-status"
}

teardown() {
  [[ ! -f $MG/skip ]] || return 0
  explain_failure
  node_reset
}

# clients: how many the control daemon has seen. It answers after its log has all that came before.
clients() {
  # One front-end at a time: mpsgated may be asking.
  wait_for 20 "the control daemon answers" asked
  grep -c 'NEW CLIENT' "$log/control.log" || true
}

asked() { mps_asks 0 get_server_list; }

# attaches ID [EXEC OPTION...]: the library in an exec'd process is served, and the daemon has seen
# one more.
attaches() {
  local id=$1 before
  shift
  before=$(clients)
  try_oci 0 exec "$@" "$id" cuda-client "$LIBCUDA"
  assert_equal "cuInit" "${stdout##* }" "$WORD"
  wait_for 10 "the daemon's log has it" seen $((before + 1))
}

seen() { [[ $(clients) == "$1" ]]; } # COUNT

# client_of ID: a container whose own program is a client that stays.
client_of() {
  local id=$1
  shift
  granted "$id" 2Gi --ann mpsgate.io/gpu=0 "$@" --args sh -c "sleep 600 | cuda-client $LIBCUDA"
}

served() { grep -q " $WORD\$" "$MG/out/$1"; } # ID

# bats test_tags=runtime
@test "a granted container's client is served, and the gate knows its true pid, and the control daemon its uid" {
  local uid ipc pid
  for uid in 0 1000; do for ipc in host own; do
    own=()
    if [[ $ipc == own ]]; then own_ipc_does; own=(--private-ipc); fi
    client_of "as$uid" "${own[@]}" --jq ".process.user = {uid: $uid, gid: $uid}"
    wait_for 20 "it is served" served "as$uid"
    clients >/dev/null
    assert_contains "the daemon's line" "$(grep 'NEW CLIENT' "$log/control.log" | tail -n 1)" "NEW CLIENT $(gate_pid) from user $uid:"
    pid=$(grep "client handed over container=as$uid " "$log/gate.log" | tail -n 1 | sed 's/.* pid=\([0-9]*\) .*/\1/')
    assert_equal "its program" "$(cat "/proc/$pid/comm")" cuda-client
    assert_equal "its cgroups" "$(cat "/proc/$pid/cgroup")" "$(cat "/proc/$(pid_of "as$uid")/cgroup")"
    client_row "$(basename "$REAL")" "$uid" "$ipc"
    delete "as$uid"
    assert_free
    [[ $ipc == host ]] || own_ipc_ends
  done; done
}

@test "an exec'd process is served too, after mpsgated's restart and after its death" {
  granted c 2Gi --ann mpsgate.io/gpu=0
  attaches c
  daemon_stop
  daemon_start
  attaches c
  daemon_stop KILL
  daemon_start
  attaches c
}

@test "without a grant it reaches no control daemon, and cuInit is 100" {
  local before
  before=$(clients)
  bundle plain
  create plain
  start plain
  try_oci 0 exec plain cuda-client "$LIBCUDA"
  assert_equal "cuInit" "${stdout##* }" 100
  try_oci 0 exec --env PATH=/usr/bin --env CUDA_MPS_PIPE_DIRECTORY=/run/mpsgate/mps plain cuda-client "$LIBCUDA"
  assert_equal "cuInit" "${stdout##* }" 100
  assert_equal "clients" "$(clients)" "$before"
}

@test "below a new control daemon a new container is served" {
  granted old 2Gi --ann mpsgate.io/gpu=0
  attaches old
  delete old
  mpsgate mps restart 0 --yes >/dev/null
  wait_for 30 "the card is ready" card_is ready 0
  echo "$WORD" >"$log/fake-server-status"
  granted new 2Gi --ann mpsgate.io/gpu=0
  attaches new
}

@test "what the server needs in /dev/shm is there with the host's mount, and not with another" {
  # It is made with the server, which comes with the first grant.
  mpsgate mps restart 0 --yes >/dev/null
  wait_for 30 "the card is ready" card_is ready 0
  echo named >"$log/fake-server-region"
  echo 0 >"$log/fake-server-status"
  granted host 2Gi --ann mpsgate.io/gpu=0
  try_oci 0 exec host cuda-client "$LIBCUDA"
  # The region was found, and only the card is missing.
  assert_equal "cuInit" "${stdout##* }" 100
  granted read 2Gi --ann mpsgate.io/gpu=0 --jq '(.mounts[] | select(.destination == "/dev/shm")).options = ["rbind", "ro"]'
  try_oci 0 exec read cuda-client "$LIBCUDA"
  assert_equal "cuInit with a read-only one" "${stdout##* }" 205
  granted own 2Gi --ann mpsgate.io/gpu=0 --jq '(.mounts[] | select(.destination == "/dev/shm")) |= {destination, type: "tmpfs", source: "shm"}'
  try_oci 0 exec own cuda-client "$LIBCUDA"
  assert_equal "cuInit: CUDA_ERROR_MAP_FAILED" "${stdout##* }" 205
  rm -f "$log/fake-server-region" /dev/shm/cuda.shm.*
}

# bats test_tags=runtime
@test "from a user namespace of its own it is served, as the uid that it has on the host" {
  # It has the sandbox's /proc, and with it the PID namespace.
  cp /etc/mpsgate/config.toml "$MG/config.before"
  printf '[policy]\nhost_pid = "warn"\n' >>/etc/mpsgate/config.toml
  bundle u --ann mpsgate.io/gpu-mem=2Gi --ann mpsgate.io/gpu=0 --jq "$USERNS"
  userns_rootfs u
  create u
  start u
  assert_equal "uid of the grant" "$(grant u .uid)" 100000
  attaches u
  assert_contains "the daemon's line" "$(grep 'NEW CLIENT' "$log/control.log" | tail -n 1)" " from user 100000:"
  cp "$MG/config.before" /etc/mpsgate/config.toml
}

@test "after disable nobody is there for it, and after enable it is served again" {
  local before
  daemon_with "$SETTINGS; s/^manage = .*/manage = []/"
  try mpsgate enable 0
  wait_for 20 "the card is ready" card_is ready 0
  granted c 2Gi --ann mpsgate.io/gpu=0
  echo "$WORD" >"$log/fake-server-status"
  attaches c
  delete c
  wait_for 10 "it is released" not_granted c
  try mpsgate disable 0
  refused late E_GPU_UNMANAGED --ann mpsgate.io/gpu-mem=2Gi --ann mpsgate.io/gpu=0
  bundle plain
  create plain
  start plain
  try_oci 0 exec --env PATH=/usr/bin --env CUDA_MPS_PIPE_DIRECTORY=/run/mpsgate/mps plain cuda-client "$LIBCUDA"
  assert_equal "cuInit" "${stdout##* }" 100
  try mpsgate enable 0
  wait_for 20 "the card is ready" card_is ready 0
  echo "$WORD" >"$log/fake-server-status"
  granted again 2Gi --ann mpsgate.io/gpu=0
  attaches again
  delete_all
  daemon_with
}

@test "nodes that it makes itself open no card, and none is left on the host" {
  local before opened
  before=$(ls -R /dev)
  granted root 2Gi --ann mpsgate.io/gpu=0 --jq '.process.capabilities |= map_values(. + ["CAP_MKNOD"] | unique)'
  attaches root --cap CAP_MKNOD
  try_oci any exec --cap CAP_MKNOD root sh -c 'for node in /dev/nvidia[0-9]; do cat "$node" 2>&1; done; ls /dev'
  opened=$stdout
  refute_contains "the other card" "$opened" "nvidia1"
  assert_equal "the host's /dev" "$(ls -R /dev)" "$before"
}

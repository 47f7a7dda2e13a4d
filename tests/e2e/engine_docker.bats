#!/usr/bin/env bats
# Docker 20.10 with mpsgate-runtime as its default runtime. It has no annotations: requests are
# environment variables.

load suite

setup_file() {
  runtime_below
  node_start
  # dockerd offers --gpus where it finds this program.
  install -m 755 /bin/true /usr/bin/nvidia-container-runtime-hook
  docker_start --add-runtime mpsgate=/usr/bin/mpsgate-runtime --default-runtime mpsgate
}

teardown_file() {
  docker_stop
  node_stop
}

teardown() {
  explain_failure
  docker_clear
  node_reset
}

WANT=(--network none --ipc host --env MPSGATE_GPU_MEM=7Gi)

docker_id() { docker inspect -f '{{.Id}}' "$1"; }

@test "ordinary containers: the same lifecycle as on plain Docker" {
  docker_life ordinary
}

@test "7 GiB granted: the container sees its limit, status names the container" {
  try_docker run --rm "${WANT[@]}" bb env
  assert_contains "environment" "$stdout" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M" "CUDA_MPS_PIPE_DIRECTORY=/"
  try_docker run -d --name got "${WANT[@]}" bb sleep 600
  assert_equal "memory" "$(grant "$(docker_id got)" .memory_mib)" 7168
  try_docker rm -f got
  assert_free
}

@test "docker exec has the limit" {
  try_docker run -d --name got "${WANT[@]}" bb sleep 600
  try_docker exec got env
  assert_contains "environment" "$stdout" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M"
  try_docker exec --env CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=15G got env
  assert_contains "environment" "$stdout" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M"
  refute_contains "environment" "$stdout" "0=15G"
}

@test "NVIDIA's own client library is served, as root and as another user, with the host's IPC namespace and its own" {
  rootfs_libcuda "$MG/client" 2>"$MG/why" || skip "$(tail -n 1 "$MG/why")"
  local uid ipc word=4711 words
  mkdir -p "$MG/gated"
  cp "$(control_program)" "$MG_OUT/fakes/nvidia-cuda-mps-server" "$MG/gated/"
  daemon_stop
  mps_kill
  settings "s|^control = .*|control = \"$MG/gated/nvidia-cuda-mps-control\"\norphan = \"kill\"|"
  daemon_start
  echo "$word" >/run/mpsgate/mps/0/log/fake-server-status
  own_ipc_does
  for uid in 0 1000; do for ipc in host own; do
    words=("${WANT[@]}")
    [[ $ipc == host ]] || words+=(--ipc private)
    try_docker run --rm "${words[@]}" --env MPSGATE_GPU=0 --user "$uid" --volume "$MG/client:/mnt:ro" bb sh -c "$(libcuda_command /mnt)"
    assert_equal "cuInit" "${stdout##* }" "$word"
    wait_for 10 "the daemon's log has the client" grep -q "NEW CLIENT [0-9]* from user $uid:" /run/mpsgate/mps/0/log/control.log
    assert_free
    client_row "docker-20.10 (runc)" "$uid" "$ipc"
  done; done
  own_ipc_ends
  daemon_stop
  mps_kill
  settings
  daemon_start
}

@test "docker restart, and stop and start: one grant each time, none in between" {
  try_docker run -d --name got "${WANT[@]}" bb sleep 600
  local id first
  id=$(docker_id got) first=$(grant "$(docker_id got)" .instance)
  try_docker restart -t 0 got
  assert_equal "grants" "$(granted_ids)" "$id"
  [[ $(grant "$id" .instance) != "$first" ]] || fail "the instance was used again"
  try_docker exec got env
  assert_contains "environment after restart" "$stdout" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M"
  try_docker stop -t 0 got
  assert_free
  try_docker start got
  assert_equal "grants" "$(granted_ids)" "$id"
}

@test "a container that ends frees, before docker rm" {
  try_docker run --name got "${WANT[@]}" bb true
  assert_free
}

@test "without --ipc=host: docker shows the sentence and the hint" {
  try_docker fail run --rm --network none --env MPSGATE_GPU_MEM=7Gi bb true
  assert_contains "stderr" "$stderr" "mpsgate: refused container" "[E_NO_HOST_IPC]" "hint: " "--ipc=host"
  try_docker run --rm --network none bb true
}

@test "NVIDIA_VISIBLE_DEVICES=all is refused, void is not" {
  try_docker fail run --rm --network none --env NVIDIA_VISIBLE_DEVICES=all bb true
  assert_contains "stderr" "$stderr" "[E_VISIBLE_DEVICES]" "hint: "
  try_docker run --rm --network none --env NVIDIA_VISIBLE_DEVICES=void bb true
}

@test "--gpus is refused without a request, and closed with one" {
  try_docker fail run --rm --network none --gpus all bb true
  assert_contains "stderr" "$stderr" "[E_NVIDIA_HOOK]" "hint: "
  try_docker run --rm --gpus all "${WANT[@]}" bb env
  assert_contains "environment" "$stdout" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M" "NVIDIA_VISIBLE_DEVICES=GPU-"
  refute_contains "environment" "$stdout" "NVIDIA_VISIBLE_DEVICES=all"
}

@test "--device of a card is refused without a request" {
  try_docker fail run --rm --network none --device /dev/nvidia0 bb true
  assert_contains "stderr" "$stderr" "[E_DEVICE_NODE]"
  try_docker fail run --rm --network none --device-cgroup-rule 'c 195:* rwm' bb true
  assert_contains "stderr" "$stderr" "[E_DEVICE_RULE]"
  try_docker run --rm --network none --device /dev/zero bb true
}

@test "--privileged lives without the cards' nodes, and is refused with a request" {
  try_docker run --rm --privileged --network none bb ls /dev
  assert_contains "nodes" "$stdout" null
  refute_contains "nodes" "$stdout" nvidia0 nvidia1
  try_docker fail run --rm --privileged "${WANT[@]}" bb true
  assert_contains "stderr" "$stderr" "[E_PRIVILEGED]"
}

@test "more than is left: docker shows who holds it" {
  try_docker run -d --name one --network none --ipc host --env MPSGATE_GPU_MEM=15Gi bb sleep 600
  try_docker run -d --name two --network none --ipc host --env MPSGATE_GPU_MEM=15Gi bb sleep 600
  try_docker fail run --rm "${WANT[@]}" bb true
  assert_contains "stderr" "$stderr" "[E_NO_CAPACITY]" "$(docker_id one | cut -c1-12)" "$(docker_id two | cut -c1-12)"
}

@test "a bad value reaches the user's eyes, quoted" {
  try_docker fail run --rm --network none --ipc host --env MPSGATE_GPU_MEM=7GB bb true
  assert_contains "stderr" "$stderr" "[E_REQUEST]" 7GB
}

@test "a command that does not exist: Docker's own error, and no grant left" {
  try_docker 127 run --rm "${WANT[@]}" bb /no/such/program
  assert_contains "stderr" "$stderr" "/no/such/program"
  assert_free
}

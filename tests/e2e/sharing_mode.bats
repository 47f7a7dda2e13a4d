#!/usr/bin/env bats
# Cards that are shared by agreement alone: what a container gets without MPS and without the host's
# IPC namespace, and how the node goes from one schedule to the other.
#
# Two cards for a container, and one that is not its:
# sandbox: MG_GPUS=3

load suite

teardown() {
  explain_failure
  delete_all
  settings
  [[ -f $MG/mpsgated.pid ]] || daemon_start
  mpsgate reload >/dev/null
  wait_for 20 "the cards are shared" holds share
  wait_for 20 "the cards are prepared" settled
  assert_free
}

SETTINGS='/^manage/a schedule = "share"'

schedule() { status_json | jq -r .schedule; }
holds() { [[ $(schedule) == "$1" ]]; }
no_mps() { [[ -z $(mps_pids) ]]; }
mode() { jq -r --argjson i "$1" '.cards[$i].compute_mode' "$NVML/nvml.json"; }

# inside ID CMD...: CMD in the running container.
inside() {
  local id=$1
  shift
  try_oci any exec "$id" "$@"
}

# bats test_tags=runtime
@test "two cards without the host's IPC: both open, no third, and nothing of MPS" {
  bundle two --private-ipc --ann aliyun.com/gpu-mem=8 --ann aliyun.com/gpu-count=2 \
    --env CUDA_MPS_PIPE_DIRECTORY=/tmp/other --env ALIYUN_COM_GPU_MEM_CONTAINER=4 \
    --jq '.process.capabilities |= map_values(. + ["CAP_MKNOD"])'
  create two
  start two
  assert_equal "memory on each" "$(grant two .memory_mib)" $'4096\n4096'
  assert_equal "guarantee" "$(grant two .guarantee | sort -u)" none
  local first second other
  first=$(grant two .card_index | head -1) second=$(grant two .card_index | tail -1)
  [[ $first != "$second" ]] || fail "one card twice: $first"
  for card in "$first" "$second"; do
    inside two sh -c ": </dev/nvidia$card"
    # Where there is no driver behind the node, the cgroup let it through.
    [[ $status == 0 ]] || assert_contains "open of card $card" "$stderr" "No such device"
  done
  for other in $(seq 0 $((MG_GPUS - 1))); do
    [[ $other != "$first" && $other != "$second" ]] || continue
    inside two sh -c "mknod /tmp/other c 195 $other && : </tmp/other"
    assert_contains "open of a node made for card $other" "$stderr" "Operation not permitted"
  done
  assert_equal "visible" "$(env_in two NVIDIA_VISIBLE_DEVICES)" "$(uuid "$first"),$(uuid "$second")"
  assert_equal "pipe directory" "$(env_in two CUDA_MPS_PIPE_DIRECTORY)" ""
  assert_equal "seed's variable" "$(env_in two ALIYUN_COM_GPU_MEM_CONTAINER)" 4
  inside two test -e /run/mpsgate/mps
  [[ $status != 0 ]] || fail "the MPS directory is there"
  no_mps || fail "MPS runs: $(mps_pids)"
  assert_equal "compute mode" "$(mode "$first")" DEFAULT
}

@test "what is refused under MPS is refused without, but for the IPC namespace" {
  refused x E_VISIBLE_DEVICES --env NVIDIA_VISIBLE_DEVICES=all
  refused x E_REQUEST --ann aliyun.com/gpu-mem=7 --ann aliyun.com/gpu-count=2
  refused x E_REQUEST --ann aliyun.com/gpu-mem=7 --ann mpsgate.io/gpu-compute=30
  refused x E_TOO_LARGE --ann aliyun.com/gpu-mem=9 --ann aliyun.com/gpu-count=9
  allowed y --private-ipc --ann aliyun.com/gpu-mem=7
}

@test "a switch to MPS waits for the container and is then done" {
  bundle one --private-ipc --ann aliyun.com/gpu-mem=1
  create one
  start one
  settings ''
  mpsgate reload
  assert_equal "wanted" "$(status_json | jq -r .schedule_wanted)" mps
  assert_equal "waits for" "$(status_json | jq -r '.schedule_waits_for | join(" ")')" one
  refused x E_SCHEDULE --ann aliyun.com/gpu-mem=1
  assert_contains "who is in the way" "$stderr" "one ["
  no_mps || fail "MPS runs beside it: $(mps_pids)"
  inside one true
  assert_equal "it goes on: $stderr" "$status" 0

  delete one
  wait_for 20 "MPS holds" holds mps
  wait_for 20 "the cards are prepared" settled
  no_mps && fail "MPS does not run"
  assert_equal "compute mode" "$(mode 0)" EXCLUSIVE_PROCESS
  refused x E_NO_HOST_IPC --private-ipc --ann aliyun.com/gpu-mem=1
  granted y 1Gi
  assert_equal "guarantee" "$(env_in y CUDA_MPS_PINNED_DEVICE_MEM_LIMIT)" "0=1024M"
  # And back, in the same way.
  settings
  mpsgate reload
  delete y
  wait_for 20 "the cards are shared" holds share
  wait_for 20 "MPS ends" no_mps
  assert_equal "compute mode" "$(mode 0)" DEFAULT
}

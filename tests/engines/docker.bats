#!/usr/bin/env bats
# What only Docker has: --gpus, requests as env, BuildKit, CDI devices.

load engine.bash

WANT=(--ipc --gpu 7Gi)
LIMIT_SEEN=CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M

@test "a request as env counts with every version" {
  engine_once got --ipc --env MPSGATE_GPU_MEM=7Gi -- env
  assert_contains "environment" "$stdout" "$LIMIT_SEEN"
}

@test "--gpus is refused without a request, and closed with one" {
  refusal E_NVIDIA_HOOK gpus --gpus all -- true
  engine_once gpus --gpus all "${WANT[@]}" -- env
  assert_contains "environment" "$stdout" "$LIMIT_SEEN" "NVIDIA_VISIBLE_DEVICES=GPU-"
  refute_contains "environment" "$stdout" "NVIDIA_VISIBLE_DEVICES=all"
}

@test "a CDI device of a card is refused without a request" {
  docker info 2>/dev/null | grep -q 'CDI spec directories' || skip "this Docker has no CDI"
  mkdir -p /etc/cdi
  jq -n --arg uuid "$(uuid 0)" '{cdiVersion: "0.5.0", kind: "nvidia.com/gpu", devices: [{name: $uuid,
    containerEdits: {deviceNodes: [{path: "/dev/nvidia0"}]}}]}' >/etc/cdi/nvidia.json
  wait_for 10 "Docker finds the device" finds_cdi
  refusal E_DEVICE_NODE cdi --device "nvidia.com/gpu=$(uuid 0)" -- true
  rm /etc/cdi/nvidia.json
}
# Its cache follows the folder.
finds_cdi() { ! docker run --rm --network none --device "nvidia.com/gpu=$(uuid 0)" bb true 2>&1 | grep -q 'unresolvable'; }

# build NAME LINE...: an image from bb with BuildKit; `try` keeps what it says.
build() {
  local want rest
  want "$@"
  mkdir -p "$MG/build"
  printf '%s\n' "FROM bb" "${rest[@]:1}" >"$MG/build/Dockerfile"
  try "$want" env DOCKER_BUILDKIT=1 "${DOCKER[@]}" build --progress plain --no-cache --network none --tag "${rest[0]}" "$MG/build"
}

@test "BuildKit: a step of a build sees no card and opens none, whatever runs it" {
  # shellcheck disable=SC2016
  build card 'RUN ls /dev >/dev.seen; busybox mknod /tmp/card c 195 0; (: </tmp/card) 2>/open.seen; true'
  try "${DOCKER[@]}" run --rm --network none card cat /dev.seen /open.seen
  assert_contains "what a step saw" "$stdout" null "Operation not permitted"
  refute_contains "what a step saw" "$stdout" nvidia0
}

@test "BuildKit: a step that could reach a card is refused in the builder's sight" {
  # It runs the runc of its PATH, whatever the default runtime is, unless this variable names
  # another.
  grep -qa DOCKER_BUILDKIT_RUNC_COMMAND "$(type -P dockerd)" || skip "this Docker's BuildKit runs runc alone"
  build fail all 'ENV NVIDIA_VISIBLE_DEVICES=all' 'RUN true'
  assert_contains "what the build says" "$stderr" "[E_VISIBLE_DEVICES]"
}

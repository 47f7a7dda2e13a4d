#!/usr/bin/env bats
# Docker Compose, with README's file. $MG_COMPOSE is its plugin, of version 2.

load engine.bash

setup_file() {
  cell_start
  if [[ -x ${MG_COMPOSE:-} ]]; then ln -sf "$MG_COMPOSE" "$DOCKER_CONFIG/cli-plugins/docker-compose"; fi
}

setup() { [[ -x ${MG_COMPOSE:-} ]] || skip "there is no Docker Compose: ${MG_COMPOSE:-none was looked for}"; }

teardown() {
  [[ ! -f $MG/compose/compose.yaml ]] || docker compose -f "$MG/compose/compose.yaml" down -t 0 >/dev/null 2>&1 || true
  cell_teardown
}

compose() { # [STATUS] ARG...
  local want rest
  want "$@"
  try "$want" "${DOCKER[@]}" compose -f "$MG/compose/compose.yaml" "${rest[@]}"
}
# services: a file of them, from stdin.
services() { mkdir -p "$MG/compose"; { echo services:; cat; } >"$MG/compose/compose.yaml"; }
grants() { status_json | jq '.grants | length'; }
are_granted() { [[ $(grants) == "$1" ]]; }

@test "the lines of the README: up, exec, scale, restart, stop, start, run and down, and the grants go along" {
  { printf '  infer:\n    command: sleep 600\n    network_mode: none\n'
    sed -n '/Docker Compose/,/^```$/p' "$MG_REPO/README.md" | sed -n '/^```yaml$/,/^```$/{//!p}' | sed 's/IMAGE/bb/; s/7Gi/4Gi/'; } | services
  assert_contains "README's lines" "$(<"$MG/compose/compose.yaml")" "ipc: host" "MPSGATE_GPU_MEM: 4Gi"
  compose up -d
  compose exec -T infer env
  assert_contains "environment" "$stdout" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M
  compose up -d --scale infer=3
  assert_equal "grants" "$(grants)" 3
  compose up -d --scale infer=1
  wait_for 10 "one is left" are_granted 1
  compose restart -t 0
  assert_equal "grants after a restart" "$(grants)" 1
  compose stop -t 0
  assert_free
  compose start
  assert_equal "grants after a start" "$(grants)" 1
  compose run -T --rm -e MPSGATE_GPU_MEM=2Gi infer env
  assert_contains "environment of a run" "$stdout" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M
  compose down -t 0
  assert_free
}

@test "without ipc: host, with every card, and with deploy's devices it is refused, and the hint has Compose's word" {
  services <<'YAML'
  infer: {image: bb, command: "true", network_mode: none, environment: [MPSGATE_GPU_MEM=4Gi]}
YAML
  compose fail up
  assert_contains "what Compose shows" "$stdout$stderr" "[E_NO_HOST_IPC]" "ipc: host"
  compose down
  services <<'YAML'
  infer: {image: bb, command: "true", network_mode: none, environment: {NVIDIA_VISIBLE_DEVICES: all}}
YAML
  compose fail up
  assert_contains "what Compose shows" "$stdout$stderr" "[E_VISIBLE_DEVICES]"
  compose down
  services <<'YAML'
  infer:
    image: bb
    command: "true"
    network_mode: none
    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: all, capabilities: [gpu]}]}}}
YAML
  compose fail up
  assert_contains "what Compose shows" "$stdout$stderr" "[E_NVIDIA_HOOK]"
}

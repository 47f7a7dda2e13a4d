#!/usr/bin/env bats
# What tests/engines/suite.bats does not ask of Podman and Docker on crun, as Debian has them today:
# cgroup v2, scopes made by systemd. After live.bats, on the same node.

load live

setup_file() {
  sed -i '/^\[runtime\]/,/^\[/s|^path = .*|path = "crun"|' /etc/mpsgate/config.toml
  systemctl reload mpsgated
  wait_for 20 "the runtime is crun" bash -c '[[ $(readlink /run/mpsgate/runtime) == */crun ]]'
  docker_start --exec-opt native.cgroupdriver=systemd --add-runtime mpsgate=/usr/bin/mpsgate-runtime --default-runtime mpsgate
  tar -C "$MG/rootfs" -c . | /usr/bin/podman import - bb >/dev/null
}

teardown_file() { docker_stop; }

teardown() {
  explain_live
  podman rm -af -t 0 >/dev/null
  docker_clear
  assert_free
}

PODMAN=(/usr/bin/podman --runtime /usr/bin/mpsgate-runtime)
podman() { "${PODMAN[@]}" "$@"; }
WANT=(--network none --ipc host --annotation mpsgate.io/gpu-mem=7Gi)

@test "Podman on crun: the hook's veto says why, though crun gives hooks nothing to write to" {
  mkdir -p "$MG/hooks"
  jq -n '{version: "1.0.0", when: {annotations: {"^veto$": "^yes$"}}, stages: ["prestart"],
    hook: {path: "/bin/sh", args: ["sh", "-c", "rm -f /run/mpsgate/grants/*"]}}' >"$MG/hooks/forget.json"
  try fail "${PODMAN[@]}" --hooks-dir "$MG/hooks" run --rm "${WANT[@]}" --annotation veto=yes bb true
  assert_contains "stderr" "$stderr" "[E_NO_RESERVATION]" "hint: "
}

@test "Docker on crun: granted, exec, restart, stop and start" {
  local id first pid
  try_docker run -d --name got "${WANT[@]}" bb sleep 600
  id=$(docker inspect -f '{{.Id}}' got) first=$(grant "$id" .instance)
  assert_equal "state" "$(grant "$id" '"\(.state) \(.memory_mib)"')" "active 7168"
  pid=$(docker inspect -f '{{.State.Pid}}' got)
  assert_contains "cgroup" "$(<"/proc/$pid/cgroup")" ".scope"
  try_docker exec got env
  assert_contains "environment of exec" "$stdout" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M" PATH=
  try_docker exec --env CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=15G got env
  refute_contains "environment of exec" "$stdout" "0=15G"
  try_docker restart -t 0 got
  assert_equal "grants after restart" "$(granted_ids)" "$id"
  [[ $(grant "$id" .instance) != "$first" ]] || fail "the instance was used again"
  try_docker exec got env
  assert_contains "environment after restart" "$stdout" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M"
  try_docker stop -t 0 got
  assert_free
  try_docker start got
  assert_equal "grants after start" "$(granted_ids)" "$id"
  try_docker rm -f got
  assert_free
}

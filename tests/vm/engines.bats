#!/usr/bin/env bats
# Podman with crun and Docker with runc, as Debian has them today, on the live node: cgroup v2,
# scopes made by systemd, annotations, every capability. After live.bats, on the same node.

load live

setup_file() {
  use_runtime crun
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

# use_runtime NAME: below mpsgate-runtime from now on.
use_runtime() {
  sed -i "/^\[runtime\]/,/^\[/s|^path = .*|path = \"$1\"|" /etc/mpsgate/config.toml
  systemctl reload mpsgated
  wait_for 20 "the runtime is $1" bash -c "[[ \$(readlink /run/mpsgate/runtime) == */$1 ]]"
}

PODMAN=(/usr/bin/podman --runtime /usr/bin/mpsgate-runtime)
podman() { "${PODMAN[@]}" "$@"; }
try_podman() { # [STATUS] ARG...
  local want=0
  if [[ $1 =~ ^([0-9]+|any|fail)$ ]]; then want=$1; shift; fi
  try "$want" "${PODMAN[@]}" "$@"
}
WANT=(--network none --ipc host --annotation mpsgate.io/gpu-mem=7Gi)

# engine_lives ENGINE: granted, exec, restart, refused, privileged; the same for both.
engine_lives() {
  local try=try_$1 engine=$1 id first pid
  $try run -d --name got "${WANT[@]}" bb sleep 600
  id=$($engine inspect -f '{{.Id}}' got) first=$(grant "$id" .instance)
  assert_equal "state" "$(grant "$id" '"\(.state) \(.memory_mib)"')" "active 7168"
  pid=$($engine inspect -f '{{.State.Pid}}' got)
  assert_contains "cgroup" "$(<"/proc/$pid/cgroup")" ".scope"
  $try exec got env
  assert_contains "environment of exec" "$stdout" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M" PATH=
  $try exec --env CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=15G got env
  refute_contains "environment of exec" "$stdout" "0=15G"
  $try restart -t 0 got
  assert_equal "grants after restart" "$(granted_ids)" "$id"
  [[ $(grant "$id" .instance) != "$first" ]] || fail "the instance was used again"
  $try exec got env
  assert_contains "environment after restart" "$stdout" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M"
  $try stop -t 0 got
  assert_free
  $try start got
  assert_equal "grants after start" "$(granted_ids)" "$id"
  $try rm -f got
  assert_free
}

engine_refusals() {
  local try=try_$1
  $try fail run --rm --network none --annotation mpsgate.io/gpu-mem=7Gi bb true
  assert_contains "stderr" "$stderr" "mpsgate: refused container" "[E_NO_HOST_IPC]" "hint: " "--ipc=host"
  $try fail run --rm --network none --env NVIDIA_VISIBLE_DEVICES=all bb true
  assert_contains "stderr" "$stderr" "[E_VISIBLE_DEVICES]" "hint: "
  $try fail run --rm --network none --device /dev/nvidia0 bb true
  assert_contains "stderr" "$stderr" "[E_DEVICE_NODE]"
  $try fail run --rm --network none --ipc host --annotation mpsgate.io/gpu-mem=7GB bb true
  assert_contains "stderr" "$stderr" "[E_REQUEST]" 7GB
  $try run --rm --network none --env NVIDIA_VISIBLE_DEVICES=void --device /dev/zero bb true
}

engine_privileged() {
  local try=try_$1
  $try run --rm --privileged --network none bb sh -c 'ls /dev; grep CapEff /proc/self/status'
  assert_contains "nodes" "$stdout" null "$(grep CapEff /proc/self/status)"
  refute_contains "nodes" "$stdout" nvidia0 nvidia1
  $try fail run --rm --privileged "${WANT[@]}" bb true
  assert_contains "stderr" "$stderr" "[E_PRIVILEGED]"
}

@test "Podman on crun: granted, exec, restart, stop and start" { engine_lives podman; }
@test "Podman on crun: refused with code, sentence and hint; neighbours run" { engine_refusals podman; }
@test "Podman on crun: --privileged with every capability lives without the cards' nodes" { engine_privileged podman; }

@test "Podman on crun: the hook's veto says why, though crun gives hooks nothing to write to" {
  mkdir -p "$MG/hooks"
  jq -n '{version: "1.0.0", when: {annotations: {"^veto$": "^yes$"}}, stages: ["prestart"],
    hook: {path: "/bin/sh", args: ["sh", "-c", "rm -f /run/mpsgate/grants/*"]}}' >"$MG/hooks/forget.json"
  try fail "${PODMAN[@]}" --hooks-dir "$MG/hooks" run --rm "${WANT[@]}" --annotation veto=yes bb true
  assert_contains "stderr" "$stderr" "[E_NO_RESERVATION]" "hint: "
}

@test "Docker on runc: granted, exec, restart, stop and start" { use_runtime runc; engine_lives docker; }
@test "Docker on runc: refused with code, sentence and hint; neighbours run" { engine_refusals docker; }
@test "Docker on runc: --privileged with every capability lives without the cards' nodes" { engine_privileged docker; }
@test "Docker on crun: granted, exec, restart, stop and start" { use_runtime crun; engine_lives docker; }

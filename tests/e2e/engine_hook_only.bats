#!/usr/bin/env bats
# Engines that keep their runtime: Podman 4.3 with its precreate hook, which has the whole grant;
# and the createRuntime hook alone, which can only veto. Plain runc below, never mpsgate-runtime.
# What the precreate hook gives and refuses: tests/engines, in the cell podman-hook-4.3.

load suite

HOOKS=$MG_REPO/hooks

setup_file() {
  command -v podman >/dev/null || skip "no podman"
  node_start
  rootfs "$MG/rootfs"
  tar -C "$MG/rootfs" -c . | podman import - bb >/dev/null
}

teardown_file() {
  podman rm -af -t 0 >/dev/null
  node_stop
}

teardown() {
  explain_failure
  podman rm -af -t 0 >/dev/null
  settings
  rm -rf "$MG/hooks.d"
  node_reset
}

PODMAN=(/usr/bin/podman --root "$MG/p" --runroot "$MG/p.run" --storage-driver vfs --runtime "$REAL"
  --cgroup-manager cgroupfs --events-backend file --hooks-dir "$MG/hooks.d")
# No CAP_SYS_RESOURCE is needed for these limits.
RUN=(run --network host --cgroup-parent "$MG_CGROUP" --ulimit nofile=1024:1024 --ulimit nproc=1000:1000)
podman() { mkdir -p "$MG/hooks.d"; "${PODMAN[@]}" "$@"; }
try_podman() { # [STATUS] ARG...
  local want=0
  if [[ $1 =~ ^([0-9]+|any|fail)$ ]]; then want=$1; shift; fi
  mkdir -p "$MG/hooks.d"
  try "$want" "${PODMAN[@]}" "$@"
}
use() { mkdir -p "$MG/hooks.d"; cp "$HOOKS/$1.json" "$MG/hooks.d/"; } # FILE
ASK=(--ipc host --annotation mpsgate.io/gpu-mem=7Gi)

@test "the shipped hooks name installed programs, with an environment of their own, in the 1.0.0 schema" {
  local file
  for file in "$HOOKS"/*.json; do
    jq -e '.version == "1.0.0" and (keys - ["hook", "stages", "version", "when"] == [])
      and (.hook | keys - ["args", "env", "path", "timeout"] == []) and (.hook.env | length > 0)
      and (.hook.args | length > 1) and (.when == {always: true}) and (.stages | length == 1)' "$file" >/dev/null ||
      fail "$file is not as the schema has it"
    [[ -x $(jq -r .hook.path "$file") ]] || fail "$file names $(jq -r .hook.path "$file"), which is not installed"
  done
}

@test "precreate: ordinary containers live as before, also when everything of ours is broken" {
  use podman-precreate
  try_podman "${RUN[@]}" --rm --env SEEN=yes bb sh -c 'echo "out: $SEEN"'
  assert_equal "output" "$stdout" "out: yes"
  daemon_stop
  echo '[[[' >/etc/mpsgate/config.toml
  try_podman 7 "${RUN[@]}" --rm bb sh -c 'exit 7'
}

@test "precreate and the runtime both: one grant, and exec has its variables" {
  use podman-precreate
  PODMAN[8]=/usr/bin/mpsgate-runtime
  [[ ${PODMAN[7]} == --runtime ]] || fail "not the runtime: ${PODMAN[7]}"
  try_podman "${RUN[@]}" -d --name got "${ASK[@]}" bb sleep 600
  assert_equal "grants" "$(granted_ids)" "$stdout"
  try_podman exec got env
  assert_contains "environment of exec" "$stdout" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M"
}

@test "createRuntime alone, in Podman: requests and ways past us are refused, others run" {
  use podman-createruntime
  try_podman fail "${RUN[@]}" --rm "${ASK[@]}" bb true
  assert_contains "stderr" "$stderr" "[E_HOOK_ONLY]" "mpsgate-runtime"
  try_podman fail "${RUN[@]}" --rm --env NVIDIA_VISIBLE_DEVICES=all bb true
  assert_contains "stderr" "$stderr" "[E_VISIBLE_DEVICES]"
  try_podman fail "${RUN[@]}" --rm --device /dev/nvidia0 bb true
  assert_contains "stderr" "$stderr" "[E_DEVICE_NODE]"
  try_podman "${RUN[@]}" --rm bb true
  try_podman "${RUN[@]}" --rm --device /dev/zero --env NVIDIA_VISIBLE_DEVICES=void bb true
}

# hooked ID [BUNDLE OPTION...]: a bundle with the hook of hooks/crio.json, for plain runc.
hooked() {
  bundle "$@" --jq "$(jq -c '.hook | ".hooks.createRuntime += [\(.)]"' "$HOOKS/crio.json" | jq -r .)"
}
plain_create() { # STATUS ID
  try "$1" "$REAL" --root "$RUNC_ROOT" "${FLAGS[@]}" create --bundle "$MG/b/$2" "$2"
}

@test "the hook alone, by runc: vetoes what opens a card by any way, and stops nobody else" {
  hooked plain
  plain_create 0 plain
  hooked asks --ann mpsgate.io/gpu-mem=1Gi
  plain_create fail asks
  assert_contains "stderr" "$stderr" "[E_HOOK_ONLY]" "hint: "
  # A hook before ours opens a card; the spec shows a CUDA image that asks for nothing.
  if [[ -d /sys/fs/cgroup/devices ]]; then
    cat >"$MG/opens" <<'SH'
#!/bin/sh
pid=$(sed 's/.*"pid"://; s/[^0-9].*//')
echo 'c 195:0 rw' >"/sys/fs/cgroup/devices$(sed -n 's/^[0-9]*:[a-z_,]*devices[a-z_,]*://p' "/proc/$pid/cgroup")/devices.allow"
SH
    chmod +x "$MG/opens"
    hooked opened --env NVIDIA_VISIBLE_DEVICES=void --jq ".hooks.createRuntime = [{path: \"$MG/opens\", env: [\"PATH=/usr/bin:/bin\"]}]"
    plain_create fail opened
    assert_contains "stderr" "$stderr" "[E_DEVICE_OPEN]" /dev/nvidia0
  fi
  hooked void --env NVIDIA_VISIBLE_DEVICES=void
  plain_create 0 void
  hooked privileged --caps-all
  plain_create 0 privileged
}

@test "the hook alone, with everything of ours broken: ordinary containers live, cards stay refused" {
  daemon_stop
  echo '[[[' >/etc/mpsgate/config.toml
  hooked plain
  plain_create 0 plain
  hooked x --env NVIDIA_VISIBLE_DEVICES=all
  plain_create fail x
  assert_contains "stderr" "$stderr" "[E_VISIBLE_DEVICES]"
}

@test "the hook alone beside the runtime: the grant is the runtime's" {
  hooked g --ann mpsgate.io/gpu-mem=1Gi
  create g
  assert_equal "grant" "$(grant g .state)" active
  assert_equal "hooks of ours at createRuntime" "$(jq '[.hooks.createRuntime[] | select(.path == "/usr/bin/mpsgate-hook")] | length' "$MG/b/g/config.json")" 1
}

@test "containerd's base spec with our hook is a spec, and vetoes" {
  command -v ctr >/dev/null || skip "no ctr"
  ctr oci spec | jq -f "$HOOKS/containerd-base-spec.jq" >"$MG/base.json"
  local ask
  for ask in '.' '.annotations["mpsgate.io/gpu-mem"] = "1Gi"'; do
    bundle base
    jq --arg cgroup "$(cgroup_of base)" "$ask"' | .process.terminal = false | .process.args = ["/bin/sleep", "600"] | .linux.cgroupsPath = $cgroup
      | .process.rlimits = [] | .root.path = "rootfs"' "$MG/base.json" >"$MG/b/base/config.json"
    plain_create any base
    if [[ $ask == . ]]; then
      assert_equal "exit status of a plain container: $stderr" "$status" 0
      delete_all
    else
      assert_contains "stderr" "$stderr" "[E_HOOK_ONLY]"
    fi
  done
}

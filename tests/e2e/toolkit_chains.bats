#!/usr/bin/env bats
# mpsgate-runtime in a chain: above nvidia-container-runtime, below it, with CDI, alone. Whatever
# brings the card in, the container ends with the granted one and no other: in the last config.json,
# and from inside.
#
# nvidia-container-runtime is not in Debian. MPSGATE_NVIDIA_RUNTIME=FILE is NVIDIA's own, which then
# has the chains but the legacy hook's, for which it needs libnvidia-container and a driver. Without
# it, the stand-ins here do to config.json what its source does (NVIDIA/nvidia-container-toolkit
# v1.20.0, d34b304): internal/runtime (find `create`, edit in place, exec the low-level runtime with
# the same argv), pkg/nvcdi and internal/modifier (jit-cdi: nodes, rules, mounts, a createContainer
# hook, NVIDIA_VISIBLE_DEVICES=void), internal/modifier/stable.go (legacy: the prestart hook),
# cmd/nvidia-container-runtime-hook (which reads the bundle's config.json anew). They stand in for
# files and rules, not for a driver.

load suite

setup_file() {
  mkdir -p "$MG/driver" "$MG/bin"
  echo driver >"$MG/driver/libcuda.so.550.163.01"
  nvidia_runtime
  node_start
}

teardown() {
  explain_failure
  rm -rf /etc/cdi /run/cdi /etc/nvidia-container-runtime
  node_reset
}

# nvidia_runtime: the stand-in and its legacy hook, in $MG/bin. LOW: the runtime below it. MODE:
# jit-cdi, legacy.
nvidia_runtime() {
  cat >"$MG/bin/nvidia-container-runtime" <<'SH'
#!/bin/bash
bundle=. create='' before=''
for word; do
  case $before in -b | --bundle | -bundle | --b) bundle=$word ;; *) [[ $word != create ]] || create=1 ;; esac
  [[ $word != --bundle=* ]] || bundle=${word#*=}
  before=$word
done
read -r low mode <"$MG/bin/chain"
if [[ -n $create ]]; then
  spec=$bundle/config.json
  names=$(jq -r '[.process.env[]? | select(startswith("NVIDIA_VISIBLE_DEVICES="))][-1] // "" | sub("^[^=]*="; "")' "$spec")
  if [[ $mode == legacy ]]; then
    edited=$(jq --arg hook "$MG/bin/nvidia-container-runtime-hook" '.hooks.prestart += [{path: $hook,
      args: ["nvidia-container-runtime-hook", "prestart"], env: ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "MG=/run/t"]}]' "$spec")
    echo "$edited" >"$spec"
  elif [[ -n $names && $names != *void* ]]; then
    if [[ $names == all ]]; then minors=(0 1); else minors=("${names: -1}"); fi
    edited=$(jq --arg lib "$MG/driver/libcuda.so.550.163.01" --argjson uvm "$MG_UVM_MAJOR" '
      [($ARGS.positional[] | tonumber | {path: "/dev/nvidia\(.)", major: 195, minor: .}),
       {path: "/dev/nvidiactl", major: 195, minor: 255}, {path: "/dev/nvidia-uvm", major: $uvm, minor: 0},
       {path: "/dev/nvidia-uvm-tools", major: $uvm, minor: 1}] as $nodes
      | .linux.devices += [$nodes[] | . + {type: "c"}]
      | .linux.resources.devices += [$nodes[] | {allow: true, type: "c", major, minor, access: "rwm"}]
      | .mounts += [{destination: "/usr/lib/libcuda.so.550.163.01", source: $lib, type: "bind",
          options: ["ro", "nosuid", "nodev", "rbind", "rprivate"]}]
      | .hooks.createContainer += [{path: "/bin/true", args: ["nvidia-cdi-hook", "update-ldcache"], env: ["NVIDIA_CTK_DEBUG=false"]}]
      | .process.env |= (map(select(startswith("NVIDIA_VISIBLE_DEVICES=") | not)) + ["NVIDIA_VISIBLE_DEVICES=void"])
      ' "$spec" --args "${minors[@]}")
    echo "$edited" >"$spec"
  fi
fi
exec "$low" "$@"
SH
  # libnvidia-container binds the nodes and opens them in the device cgroup; of that, the cgroup.
  cat >"$MG/bin/nvidia-container-runtime-hook" <<'SH'
#!/bin/bash
state=$(cat)
bundle=$(jq -r .bundle <<<"$state") pid=$(jq -r .pid <<<"$state")
names=$(jq -r '[.process.env[]? | select(startswith("NVIDIA_VISIBLE_DEVICES="))][-1] // "" | sub("^[^=]*="; "")' "$bundle/config.json")
echo "$names" >"$MG/legacy-hook-saw"
[[ -n $names && $names != *void* ]] || exit 0
cgroup=/sys/fs/cgroup/devices$(sed -n 's/^[0-9]*:[a-z_,]*devices[a-z_,]*://p' "/proc/$pid/cgroup")
if [[ $names == all ]]; then minors=(0 1); else minors=("${names: -1}"); fi
for minor in "${minors[@]}" 255; do echo "c 195:$minor rw" >"$cgroup/devices.allow"; done
for minor in 0 1; do echo "c 510:$minor rw" >"$cgroup/devices.allow"; done
SH
  chmod +x "$MG/bin/"*
  [[ -z ${MPSGATE_NVIDIA_RUNTIME:-} ]] || install "$MPSGATE_NVIDIA_RUNTIME" "$MG/bin/nvidia-container-runtime"
}

# chain LOW MODE: what NVIDIA's runtime, or the stand-in, hands over to, and how it injects.
chain() {
  echo "$1 $2" >"$MG/bin/chain"
  [[ -n ${MPSGATE_NVIDIA_RUNTIME:-} ]] || return 0
  [[ $2 != legacy ]] || skip "NVIDIA's own hook needs libnvidia-container and a driver"
  # What it would make up from a driver is given to it.
  cdi_spec /etc/cdi '.devices += [{name: "all", containerEdits: {deviceNodes: [.devices[].containerEdits.deviceNodes[]]}}]
    | .devices += [.devices[:2] | to_entries[] | .value + {name: "\(.key)"}]'
  mkdir -p /etc/nvidia-container-runtime
  printf '[nvidia-container-runtime]\nmode = "cdi"\nruntimes = ["%s"]\n' "$1" >/etc/nvidia-container-runtime/config.toml
}

# use_settings [SED]: the daemon on changed settings, from here on.
use_settings() {
  daemon_with "${1:-}"
}
ABOVE="s|^path = .*|path = \"$MG/bin/nvidia-container-runtime\"|; s|^mode = .*|mode = \"auto\"|"
AUTO='s|^mode = .*|mode = "auto"|'

# cdi_spec DIR [JQ]: as `nvidia-ctk cdi generate --device-name-strategy=uuid` names two cards.
cdi_spec() {
  mkdir -p "$1"
  jq -n --arg a "$(uuid 0)" --arg b "$(uuid 1)" --arg lib "$MG/driver/libcuda.so.550.163.01" --argjson uvm "$MG_UVM_MAJOR" '
    def card(name; minor): {name: name, containerEdits: {deviceNodes: [{path: "/dev/nvidia\(minor)", type: "c", major: 195, minor: minor}]}};
    {cdiVersion: "0.5.0", kind: "nvidia.com/gpu", devices: [card($a; 0), card($b; 1)], containerEdits: {
      env: ["NVIDIA_VISIBLE_DEVICES=void"],
      deviceNodes: [{path: "/dev/nvidiactl"}, {path: "/dev/nvidia-uvm"}, {path: "/dev/nvidia-uvm-tools"}],
      hooks: [{hookName: "createContainer", path: "/bin/true", args: ["nvidia-cdi-hook", "update-ldcache"], env: ["NVIDIA_CTK_DEBUG=false"]}],
      mounts: [{hostPath: $lib, containerPath: "/usr/lib/libcuda.so.550.163.01", options: ["ro", "nosuid", "nodev", "rbind", "rprivate"]}]}}' |
    jq "${2:-.}" >"$1/nvidia.json"
}

# asks ID [BUNDLE OPTION...]: a bundle that asks for memory of card 1 and may make nodes.
asks() {
  bundle "$@" --ann mpsgate.io/gpu-mem=2Gi --ann mpsgate.io/gpu=1 \
    --jq '.process.capabilities |= map_values(. + ["CAP_MKNOD"])'
}

# only_card_1 ID: in the last config.json, and from inside.
only_card_1() {
  local spec=$MG/b/$1/config.json
  assert_equal "cards in linux.devices" "$(jq -r '[.linux.devices[]? | select(.major == 195 and .minor < 254) | .minor] | join(" ")' "$spec")" "${2-1}"
  assert_equal "open cards in the rules" "$(jq -r '[.linux.resources.devices[]? | select(.allow and (.major == 195) and ((.minor // 0) < 254)) | .minor] | join(" ")' "$spec")" "${2-1}"
  start "$1"
  only_card_1_opens "$1"
}

only_card_1_opens() {
  try_oci any exec "$1" sh -c 'mknod /tmp/mine c 195 1; : </tmp/mine'
  refute_contains "open of the granted card" "$stderr" "not permitted"
  try_oci fail exec "$1" sh -c 'mknod /tmp/other c 195 0 && : </tmp/other'
  assert_contains "open of the other card" "$stderr" "Operation not permitted"
}

has_library() {
  try_oci exec "$1" cat /usr/lib/libcuda.so.550.163.01
  assert_equal "the driver's library" "$stdout" driver
}

@test "above nvidia-container-runtime (jit-cdi): it is told the granted card" {
  use_settings "$ABOVE"
  chain "$REAL" jit-cdi
  asks a --env NVIDIA_VISIBLE_DEVICES=all
  create a
  only_card_1 a
  has_library a
  assert_equal "variable" "$(env_in a NVIDIA_VISIBLE_DEVICES)" void
  # Nothing granted, nothing injected.
  bundle plain --env NVIDIA_VISIBLE_DEVICES=void
  create plain
  assert_equal "cards of a container without a request" "$(jq '[.linux.devices[]?] | length' "$MG/b/plain/config.json")" 0
  refused all E_VISIBLE_DEVICES --env NVIDIA_VISIBLE_DEVICES=all
}

@test "above nvidia-container-runtime (legacy): its hook reads the granted card from the bundle" {
  [[ -d /sys/fs/cgroup/devices ]] || skip "the stand-in's hook writes rules of cgroup v1"
  use_settings "$ABOVE"
  chain "$REAL" legacy
  asks a --env NVIDIA_VISIBLE_DEVICES=all
  create a
  assert_equal "what NVIDIA's hook read" "$(<"$MG/legacy-hook-saw")" "$(uuid 1)"
  start a
  only_card_1_opens a
  # A legacy image would get every card.
  bundle old --env CUDA_VERSION=9.0
  create old
  assert_equal "what NVIDIA's hook read of a legacy image" "$(<"$MG/legacy-hook-saw")" void
}

# below ID: created through nvidia-container-runtime, with us below it.
below() {
  TRY_OUT=$MG/out/$1 try "${2:-0}" "$MG/bin/nvidia-container-runtime" --root "$RUNC_ROOT" --log "$MG/log/oci.json" --log-format json \
    "${FLAGS[@]}" create --bundle "$MG/b/$1" --pid-file "$MG/b/$1/pid" "$1"
}

@test "below nvidia-container-runtime (jit-cdi): of what it injected only the granted card stays" {
  use_settings "$AUTO"
  chain /usr/bin/mpsgate-runtime jit-cdi
  asks a --env NVIDIA_VISIBLE_DEVICES=all
  below a
  only_card_1 a
  has_library a
  assert_equal "variable" "$(env_in a NVIDIA_VISIBLE_DEVICES)" void
  # The same, where the other card alone was asked for above.
  asks b --env NVIDIA_VISIBLE_DEVICES=0
  below b
  only_card_1 b
  rm -f "$MG/log/oci.json"
  bundle all --env NVIDIA_VISIBLE_DEVICES=all
  below all fail
  assert_refusal_text all E_DEVICE_NODE
  bundle plain
  below plain
}

@test "below nvidia-container-runtime (legacy): its hook re-reads our variable" {
  [[ -d /sys/fs/cgroup/devices ]] || skip "the stand-in's hook writes rules of cgroup v1"
  use_settings "$AUTO"
  chain /usr/bin/mpsgate-runtime legacy
  asks a --env NVIDIA_VISIBLE_DEVICES=all
  below a
  assert_equal "what NVIDIA's hook read" "$(<"$MG/legacy-hook-saw")" "$(uuid 1)"
  start a
  only_card_1_opens a
  rm -f "$MG/log/oci.json"
  bundle all --env NVIDIA_VISIBLE_DEVICES=all
  below all fail
  assert_refusal_text all E_NVIDIA_HOOK
  bundle plain
  below plain
}

@test "with CDI: /etc/cdi and /var/run/cdi, several vendors, versions" {
  use_settings "$AUTO"
  local directory
  for directory in /etc/cdi /var/run/cdi; do
    cdi_spec "$directory"
    asks a --env NVIDIA_VISIBLE_DEVICES=all
    create a
    only_card_1 a
    has_library a
    assert_equal "hooks of the specification" "$(jq '[.hooks.createContainer[]] | length' "$MG/b/a/config.json")" 1
    delete a
    rm -rf /etc/cdi /run/cdi
  done
  # What a tool generates wins over what lies in /etc; other vendors are not asked.
  cdi_spec /etc/cdi '.containerEdits.env += ["FROM=etc"]'
  cdi_spec /var/run/cdi '.containerEdits.env += ["FROM=run"]'
  echo '{"cdiVersion": "0.3.0", "kind": "vendor.com/net", "devices": [{"name": "eth0", "containerEdits": {"env": ["NET=1"]}}]}' >/var/run/cdi/net.json
  asks a --ann cdi.k8s.io/x=vendor.com/net=eth0,nvidia.com/gpu=0
  create a
  only_card_1 a
  assert_equal "the later directory" "$(env_in a FROM)" run
  assert_equal "another vendor's device in the annotation" "$(jq -r '.annotations["cdi.k8s.io/x"]' "$MG/b/a/config.json")" vendor.com/net=eth0
  delete a
  # A version that does not have what the file uses, which other readers refuse, and one from the
  # future.
  rm -rf /etc/cdi /run/cdi
  for version in 0.4.0 1.2.0; do
    cdi_spec /etc/cdi ".cdiVersion = \"$version\" | .containerEdits.deviceNodes[0].hostPath = \"/dev/nvidiactl\""
    refused x E_NO_DRIVER_LIBS --ann mpsgate.io/gpu-mem=2Gi --ann mpsgate.io/gpu=1
    assert_contains "sentence" "$stderr" "$version"
  done
  cdi_spec /etc/cdi '.containerEdits.deviceNodes[0].hostPath = "/dev/nvidiactl"'
  allowed y --ann mpsgate.io/gpu-mem=2Gi --ann mpsgate.io/gpu=1
  # One from before the driver's modules were all loaded.
  rm -rf /etc/cdi
  cdi_spec /etc/cdi 'del(.containerEdits.deviceNodes)'
  asks a
  create a
  only_card_1 a
  try_oci exec a sh -c 'ls /dev/nvidia-uvm /dev/nvidiactl'
  delete a
}

@test "CDI that the engine applied: its driver's files count, its other cards do not stay" {
  use_settings "$AUTO"
  # As `podman --device nvidia.com/gpu=all` and `docker --gpus` (from 29.2) leave it: everything is
  # there.
  asks a --jq '.linux.devices += [{path: "/dev/nvidia0", type: "c", major: 195, minor: 0}, {path: "/dev/nvidia1", type: "c", major: 195, minor: 1}]' \
    --jq '.linux.resources.devices += [{allow: true, type: "c", major: 195, minor: 0, access: "rwm"}, {allow: true, type: "c", major: 195, minor: 1, access: "rwm"}]' \
    --jq ".mounts += [{destination: \"/usr/lib/libcuda.so.550.163.01\", source: \"$MG/driver/libcuda.so.550.163.01\", type: \"bind\", options: [\"rbind\", \"ro\"]}]"
  create a
  only_card_1 a
  has_library a
}

@test "alone: auto never gives bare nodes" {
  use_settings "$AUTO"
  refused x E_NO_DRIVER_LIBS --ann mpsgate.io/gpu-mem=2Gi
  assert_contains "the ways out" "$stderr" "nvidia-ctk cdi generate" "nvidia-container-runtime" 'inject.mode = "devices"'
  allowed y
}

@test "alone with inject.mode = \"devices\": the granted card's nodes" {
  use_settings
  asks a
  create a
  only_card_1 a
  try_oci exec a sh -c 'ls /dev | grep nvidia | sort | tr "\n" " "'
  assert_equal "nodes" "$stdout" "nvidia-uvm nvidia-uvm-tools nvidia1 nvidiactl "
}

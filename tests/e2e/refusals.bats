#!/usr/bin/env bats
# Containers that break the rules: refused with code, sentence and hint, on stderr and in --log,
# with nothing changed; and beside each refusal a neighbour that is let in.

load suite

teardown() {
  explain_failure
  node_reset
  # With what `on_node` has mounted there.
  remove_bundles "${MG:?}/on"
}

node() { # PATH MINOR: a device entry as jq text
  printf '.linux.devices += [{path: "%s", type: "c", major: 195, minor: %d, fileMode: 438}]' "$1" "$2"
}
# overlay OPTION...: an overlay at /x as jq text.
overlay() {
  printf '.mounts += [{destination: "/x", type: "overlay", source: "overlay", options: %s}]' "$(json_list "$@")"
}
NVIDIA_HOOK='.hooks.prestart = [{path: "/usr/bin/nvidia-container-runtime-hook", args: ["nvidia-container-runtime-hook", "prestart"], env: ["PATH=/bin"]}]'

@test "no host IPC with a request" {
  refused x E_NO_HOST_IPC --ann mpsgate.io/gpu-mem=1Gi --private-ipc
  assert_contains "hint" "$stderr" "--ipc=host"
  allowed y --ann mpsgate.io/gpu-mem=1Gi
  allowed z --private-ipc
}

@test "another container's IPC namespace with a request; the host's by path is allowed" {
  bundle other --private-ipc
  create other
  local pid
  pid=$(oci state other | jq .pid)
  refused x E_NO_HOST_IPC --ann mpsgate.io/gpu-mem=1Gi --private-ipc \
    --jq "(.linux.namespaces[] | select(.type == \"ipc\")).path = \"/proc/$pid/ns/ipc\""
  allowed y --ann mpsgate.io/gpu-mem=1Gi --private-ipc \
    --jq '(.linux.namespaces[] | select(.type == "ipc")).path = "/proc/1/ns/ipc"'
}

@test "NVIDIA_VISIBLE_DEVICES without a request: all, index, UUID; the last one counts, void anywhere wins" {
  local value
  for value in all 0 "$(uuid 1)" 0,1 nvidia.com/gpu=all; do
    refused x E_VISIBLE_DEVICES --env "NVIDIA_VISIBLE_DEVICES=$value"
    assert_contains "the value found" "$stderr" "$value"
  done
  refused x E_VISIBLE_DEVICES --env NVIDIA_VISIBLE_DEVICES=void --env NVIDIA_VISIBLE_DEVICES=all
  for value in void none '' 0,void; do
    allowed y --env "NVIDIA_VISIBLE_DEVICES=$value"
  done
  allowed y --env NVIDIA_VISIBLE_DEVICES=all --env NVIDIA_VISIBLE_DEVICES=void
}

@test "privileged with a request; privileged alone loses the cards' nodes only" {
  refused x E_PRIVILEGED --ann mpsgate.io/gpu-mem=1Gi --caps-all
  bundle p --caps-all --jq "$(node /dev/nvidia0 0)" --jq "$(node /dev/nvidiactl 255)" \
    --jq '.linux.devices += [{path: "/dev/mine", type: "c", major: 1, minor: 3}]' --args sh -c 'ls /dev; sleep 600'
  create p
  start p
  wait_for 10 "output" grep -q mine "$MG/out/p"
  refute_contains "nodes" "$(<"$MG/out/p")" nvidia0
}

@test "a card's node without a request, under any name; another driver's node is allowed" {
  refused x E_DEVICE_NODE --jq "$(node /dev/nvidia0 0)"
  refused x E_DEVICE_NODE --jq "$(node /dev/innocent 1)"
  allowed y --jq '.linux.devices += [{path: "/dev/nvidia-like", type: "c", major: 1, minor: 5, fileMode: 438}]'
}

@test "a device rule that opens the cards without a request" {
  refused x E_DEVICE_RULE --jq '.linux.resources.devices += [{allow: true, type: "c", major: 195, access: "rwm"}]'
  refused x E_DEVICE_RULE --jq '.linux.resources.devices += [{allow: true, type: "c", major: 195, minor: 1, access: "r"}]'
  allowed y --jq '.linux.resources.devices += [{allow: true, type: "c", major: 10, minor: 229, access: "rwm"}]'
  allowed y --jq '.linux.resources.devices += [{allow: false, type: "c", major: 195, access: "rwm"}]'
}

@test "NVIDIA's prestart hook with cards to inject, without a request; the hook alone is allowed" {
  install -m 755 /bin/true /usr/bin/nvidia-container-runtime-hook
  refused x E_NVIDIA_HOOK --jq "$NVIDIA_HOOK" --env NVIDIA_VISIBLE_DEVICES=all
  allowed y --jq "$NVIDIA_HOOK" --env NVIDIA_VISIBLE_DEVICES=void
  allowed y --jq '.hooks.prestart = [{path: "/bin/true", env: ["PATH=/bin"]}]'
  rm /usr/bin/nvidia-container-runtime-hook
}

@test "device lists as volume mounts, CDI annotations, IMEX channels" {
  refused x E_VOLUME_DEVICES --jq '.mounts += [{destination: "/var/run/nvidia-container-devices/0", type: "bind", source: "/dev/null", options: ["bind"]}]'
  allowed y --jq '.mounts += [{destination: "/var/run/harmless", type: "bind", source: "/dev/null", options: ["bind"]}]'
  refused x E_CDI_ANNOTATION --ann cdi.k8s.io/plugin=nvidia.com/gpu=all
  refused x E_CDI_ANNOTATION --ann nvidia.cdi.k8s.io/container.x=nvidia.com/gpu=0
  allowed y --ann cdi.k8s.io/plugin=example.com/nic=0
  refused x E_IMEX_CHANNEL --env NVIDIA_IMEX_CHANNELS=0
}

@test "our own directories as a mount, under any name; an ancestor is allowed" {
  granted g 1Gi
  local dir
  dir=$(jq -r '.mounts[] | select(.source | startswith("/run/mpsgate")) | .source' "$MG/b/g/config.json" | head -1)
  [[ -d $dir ]] || fail "no client directory in the spec of a grant: $dir"
  refused x E_MPS_MOUNT --jq ".mounts += [{destination: \"/x\", type: \"bind\", source: \"$dir\", options: [\"bind\"]}]"
  refused x E_MPS_MOUNT --jq '.mounts += [{destination: "/x", type: "bind", source: "/run/mpsgate", options: ["rbind"]}]'
  ln -s "$dir" "$MG/alias"
  refused x E_MPS_MOUNT --jq ".mounts += [{destination: \"/x\", type: \"bind\", source: \"$MG/alias\", options: [\"bind\"]}]"
  refused x E_MPS_MOUNT --ann mpsgate.io/gpu-mem=1Gi --jq ".mounts += [{destination: \"/x\", type: \"bind\", source: \"$dir\", options: [\"bind\"]}]"
  allowed y --jq '.mounts += [{destination: "/x", type: "bind", source: "/run", options: ["rbind", "ro"]}]'
  # As the root file system, too.
  local root
  for root in "$dir" /run/mpsgate "$MG/alias" "../../../../../../../..$dir"; do
    refused x E_MPS_MOUNT --jq ".root.path = \"$root\""
  done
  allowed y --jq ".root.path = \"$MG/b/y/rootfs\""
  rm "$MG/alias"
}

# bats test_tags=runtime
@test "our own directories as a layer of an overlay, however it is written; other layers are allowed" {
  local dir=/run/mpsgate/mps low=$MG/low layers='' n
  mkdir -p "$low"/{a,b,u,w,c:d}
  echo below >"$low/a/file"
  for layer in "lowerdir=$dir:$low/a" "lowerdir=$low/a:$dir" "lowerdir=$low/a::$dir" "lowerdir+=$dir" "datadir+=$dir" \
    "lowerdir=$low/a,upperdir=$dir,workdir=$low/w" 'lowerdir=/run/mps\gate:/tmp' "lowerdir=../../../../../../../..$dir:/tmp"; do
    refused x E_MPS_MOUNT --jq "$(overlay "$layer")"
    refused x E_MPS_MOUNT --ann mpsgate.io/gpu-mem=1Gi --jq "$(overlay "$layer")"
  done
  ln -sfn "$dir" "$low/c:d/alias"
  refused x E_MPS_MOUNT --jq "$(overlay "lowerdir=$low/c\\:d/alias:/tmp")"
  for n in {1..499}; do layers+=$low/a:; done
  refused x E_MPS_MOUNT --jq "$(overlay "lowerdir=$layers$dir")"
  # A backslash takes the next option in, whatever it is.
  # shellcheck disable=SC1003 # no quote is meant
  refused x E_MPS_MOUNT --ann mpsgate.io/gpu-mem=1Gi --jq "$(overlay 'lowerdir=/tmp\' "/..$dir")"
  assert_contains "what, and what to do" "$stderr" "ends in a backslash" "lowerdir=/tmp\\" "take the backslash"
  grep -qw overlay /proc/filesystems || skip "this kernel has no overlay"
  see y --jq "$(overlay "lowerdir=$low/a:$low/b")" --args cat /x/file
  assert_equal "the layer" "$stdout" below
  delete y
  granted z 1Gi --jq "$(overlay "lowerdir=$low/a:$low/b")"
  try_oci exec z cat /x/file
  assert_equal "the layer with a grant" "$stdout" below
}

# on_node NAME OPTIONS: an overlay of the node's at $MG/on/NAME.
on_node() {
  mkdir -p "$MG/on/$1"
  mount -t overlay -o "$2" overlay "$MG/on/$1"
}
bound() { printf '.mounts += [{destination: "/x", type: "bind", source: "%s", options: ["rbind"]}]' "$1"; } # SOURCE

@test "an overlay that the node has mounted counts by its layers, also below another; other overlays are allowed" {
  grep -qw overlay /proc/filesystems || skip "this kernel has no overlay"
  local low=$MG/low on=$MG/on source
  mkdir -p "$low"/{a,b}
  echo below >"$low/a/file"
  on_node ours "lowerdir=/run/mpsgate:$low/a"
  on_node run "lowerdir=/run:/usr/lib"
  on_node plain "lowerdir=$low/a:$low/b"
  for source in "$on/ours" "$on/ours/mps" "$on/run/mpsgate" "$on/run/mpsgate/mps"; do
    refused x E_MPS_MOUNT --jq "$(bound "$source")"
    refused x E_MPS_MOUNT --ann mpsgate.io/gpu-mem=1Gi --jq "$(bound "$source")"
  done
  refused x E_MPS_MOUNT --jq "$(overlay "lowerdir=$on/ours:$low/b")"
  refused x E_MPS_MOUNT --ann mpsgate.io/gpu-mem=1Gi --jq "$(overlay "lowerdir=$on/ours:$low/b")"
  # What holds ours is refused with a request alone.
  refused x E_MPS_MOUNT --ann mpsgate.io/gpu-mem=1Gi --jq "$(bound "$on/run")"
  allowed y --jq "$(bound "$on/run")"
  see y --jq "$(bound "$on/plain")" --args cat /x/file
  assert_equal "the layer" "$stdout" below
  delete y
  granted z 1Gi --jq "$(bound "$on/plain")"
  try_oci exec z cat /x/file
  assert_equal "the layer with a grant" "$stdout" below
  delete z
  # Where the sandbox itself is no overlay, as the kernel takes two.
  on_node nested "lowerdir=$on/ours:$low/b" || skip "overlays lie too deep here"
  for source in "$on/nested" "$on/nested/mps"; do
    refused x E_MPS_MOUNT --jq "$(bound "$source")"
    refused x E_MPS_MOUNT --ann mpsgate.io/gpu-mem=1Gi --jq "$(bound "$source")"
  done
  on_node beside "lowerdir=$on/plain:$low/b"
  allowed y --jq "$(bound "$on/beside")"
}

@test "a file system that is not looked into: refused with a request, noted without" {
  local disk='.mounts += [{destination: "/x", type: "ext4", source: "/dev/no-such-disk", options: ["ro"]}]'
  refused x E_MPS_MOUNT --ann mpsgate.io/gpu-mem=1Gi --jq "$disk"
  assert_contains "what, and what to do" "$stderr" /dev/no-such-disk ext4 "bind that directory"
  # The runtime finds no such disk.
  bundle y --jq "$disk"
  create any y
  refute_contains "without a request" "$stderr" "[E_"
  wait_for 10 "the note" grep -q "it mounts /dev/no-such-disk at /x with the type ext4" "$MG/log/mpsgated.log"
  remove_bundles "$MG/b/y"
}

# bats test_tags=runtime
@test "row 33a: a GPU's files in sysfs are refused with a request by any mount, and noted without; other parts of sysfs are allowed" {
  [[ -d /sys/bus/pci/drivers && $(stat -fc %T /sys) == sysfs ]] || skip "no sysfs with PCI here"
  local source
  ln -sfn /sys/bus "$MG/alias"
  for source in /sys/bus /sys/bus/pci /sys/bus/pci/drivers /sys/bus/pci/rescan "$MG/alias" /proc/1/root/sys/bus/pci; do
    [[ -e $source ]] || continue
    refused x E_DEVICE_NODE --ann mpsgate.io/gpu-mem=1Gi --jq "$(bound "$source")"
    refused x E_DEVICE_NODE --ann mpsgate.io/gpu-mem=1Gi --jq "$(bound "$source") | .mounts[-1].options = [\"bind\", \"ro\"]"
  done
  # All of it, without what is mounted below.
  refused x E_DEVICE_NODE --ann mpsgate.io/gpu-mem=1Gi --jq "$(bound /sys) | .mounts[-1].options = [\"bind\"]"
  assert_contains "what, and what to do" "$stderr" "mounts /sys, which holds files of GPUs" "mount what it needs"
  rm "$MG/alias"
  allowed y --jq "$(bound /sys/bus)"
  wait_for 10 "the note" grep -q "it mounts /sys/bus, which holds files of GPUs in sysfs.*row 33a" "$MG/log/mpsgated.log"
  for source in /sys/devices/system/node /sys/devices/system/cpu /sys/class/net /sys/fs/bpf; do
    [[ -e $source ]] || continue
    allowed z --ann mpsgate.io/gpu-mem=1Gi --jq "$(bound "$source")"
  done
}

# bats test_tags=runtime
@test "row 33b: a procfs without readonlyPaths is refused with a request, and noted without; one as engines close it is allowed" {
  local path open='.linux.readonlyPaths = [] | .linux.maskedPaths = []'
  refused x E_CAPABILITY --ann mpsgate.io/gpu-mem=1Gi --jq "$open"
  assert_contains "what, and what to do" "$stderr" "may write /proc/sys" "systempaths=unconfined"
  for path in /proc/sys /proc/bus; do
    refused x E_CAPABILITY --ann mpsgate.io/gpu-mem=1Gi --jq ".linux.readonlyPaths -= [\"$path\"]"
    assert_contains "which" "$stderr" "may write $path,"
  done
  allowed y --jq "$open"
  wait_for 10 "the note" grep -q "it may write /proc/sys.*row 33b" "$MG/log/mpsgated.log"
  allowed z --ann mpsgate.io/gpu-mem=1Gi \
    --jq '.linux.readonlyPaths = ["/proc/bus", "/proc/sys"] | .linux.maskedPaths = []'
}

@test "annotations that make the runtime open devices or files" {
  refused x E_ANNOTATION --ann "org.systemd.property.DeviceAllow=[('/dev/nvidia0', 'rw')]"
  refused x E_ANNOTATION --ann run.oci.hooks.stdout=/etc/shadow --ann mpsgate.io/gpu-mem=1Gi
  refused x E_ANNOTATION --ann run.oci.delegate-cgroup=inner --ann mpsgate.io/gpu-mem=1Gi
  allowed y --ann com.example/property=x
}

@test "more than is left: the sentence says who holds what" {
  granted holder1 15Gi
  granted holder2 15Gi
  refused x E_NO_CAPACITY --ann mpsgate.io/gpu-mem=1Gi
  assert_contains "holders" "$stderr" holder1 holder2
  delete holder2
  wait_for 10 "holder2 is released" not_granted holder2
  allowed y --ann mpsgate.io/gpu-mem=1Gi
}

@test "more than is left on the named card, though another has room" {
  granted holder 15Gi --ann mpsgate.io/gpu=0
  refused x E_NO_CAPACITY --ann mpsgate.io/gpu-mem=1Gi --ann mpsgate.io/gpu=0
  assert_contains "holder" "$stderr" holder
  allowed y --ann mpsgate.io/gpu-mem=1Gi --ann mpsgate.io/gpu=1
}

@test "more than the largest card; all of a card is allowed" {
  refused x E_TOO_LARGE --ann mpsgate.io/gpu-mem=16Gi
  allowed y --ann mpsgate.io/gpu-mem=15Gi
}

@test "an unknown card; a known one is allowed" {
  refused x E_UNKNOWN_GPU --ann mpsgate.io/gpu-mem=1Gi --ann mpsgate.io/gpu=7
  refused x E_UNKNOWN_GPU --ann mpsgate.io/gpu-mem=1Gi --ann mpsgate.io/gpu=GPU-ffffffff-0000-4000-8000-000000000000
  allowed y --ann mpsgate.io/gpu-mem=1Gi --ann mpsgate.io/gpu=1
}

@test "values that cannot be taken literally, each quoted" {
  local value
  for value in 0 -1 7.5 7GB 1e9 '' 18446744073709551616Mi 7 '7Gi;rm' 0Mi 1.0001Mi; do
    refused x E_REQUEST --ann "mpsgate.io/gpu-mem=$value"
    assert_contains "the value, quoted" "$stderr" "\"$value\""
  done
  for value in 0 -1 7.5 7GB 1e9 '' 18446744073709551616; do
    refused x E_REQUEST --ann "aliyun.com/gpu-mem=$value"
  done
  for value in 0 101 -5 x; do
    refused x E_REQUEST --ann mpsgate.io/gpu-mem=1Gi --ann "mpsgate.io/gpu-compute=$value"
  done
  allowed y --ann mpsgate.io/gpu-mem=1024Mi --ann mpsgate.io/gpu-compute=100
}

@test "two values that differ; two that agree are allowed" {
  refused x E_REQUEST --ann mpsgate.io/gpu-mem=7Gi --ann aliyun.com/gpu-mem=3
  assert_contains "both values" "$stderr" 7Gi 3
  allowed y --ann mpsgate.io/gpu-mem=3Gi --ann aliyun.com/gpu-mem=3
}

@test "several cards in one request" {
  refused x E_MULTI_CARD --ann aliyun.com/gpu-mem=2 --ann aliyun.com/gpu-count=2
  allowed y --ann aliyun.com/gpu-mem=2 --ann aliyun.com/gpu-count=1
}

@test "another uid than the card's server has; the same is allowed" {
  granted root 1Gi --ann mpsgate.io/gpu=0
  bundle user --ann mpsgate.io/gpu-mem=1Gi --ann mpsgate.io/gpu=0 --jq '.process.user.uid = 1000'
  create any user
  # A control daemon with -multiuser-server serves both; this one says no by name.
  if [[ $status == 0 ]]; then
    assert_equal "the grant of user" "$(grant user .state)" active
    skip "this control daemon serves several users"
  fi
  assert_refusal_text user E_UID
  assert_contains "both uids" "$stderr" 1000 root
  allowed y --ann mpsgate.io/gpu-mem=1Gi --ann mpsgate.io/gpu=1 --jq '.process.user.uid = 1000'
}

@test "restore with a request" {
  bundle x --ann mpsgate.io/gpu-mem=1Gi
  try_oci fail restore --bundle "$MG/b/x" --image-path "$MG" x
  assert_refusal_text x E_RESTORE
}

@test "the log is written in the format that the engine asked for" {
  bundle x --ann mpsgate.io/gpu-mem=1Gi --private-ipc
  try fail mpsgate-runtime --root "$RUNC_ROOT" --log "$MG/log/text" create --bundle "$MG/b/x" x
  assert_contains "text log" "$(<"$MG/log/text")" 'level=error' 'E_NO_HOST_IPC' 'time='
  try fail mpsgate-runtime --root "$RUNC_ROOT" --log-format json --log "$MG/log/none/x" create --bundle "$MG/b/x" x
  assert_contains "stderr, with a log that cannot be opened" "$stderr" E_NO_HOST_IPC
}

@test "explain says the same without daemon or root" {
  bundle x --env NVIDIA_VISIBLE_DEVICES=all
  try any mpsgate explain "$MG/b/x/config.json"
  assert_contains "explain" "$stdout" E_VISIBLE_DEVICES
  try any bash -c "setpriv --reuid 65534 --clear-groups mpsgate explain - <$MG/b/x/config.json"
  assert_contains "explain on standard input, as nobody" "$stdout" E_VISIBLE_DEVICES
  bundle y
  try mpsgate explain "$MG/b/y/config.json"
  refute_contains "explain of an ordinary container" "$stdout" "E_"
}

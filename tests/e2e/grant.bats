#!/usr/bin/env bats
# A container asks for GPU memory and gets it: what it finds inside, what it cannot do from there,
# and when the memory is free again. A real runtime; the real control daemon where it can be had.

load suite

setup_file() {
  rootfs "$MG/rootfs"
  node_start
}

# inside ID CMD...: CMD in the running container; $stdout is what it saw.
inside() {
  local id=$1
  shift
  try_oci exec "$id" "$@"
}

# bats test_tags=runtime
@test "7 GiB granted: the environment says so, once" {
  granted g 7Gi
  assert_equal "limit" "$(env_in g CUDA_MPS_PINNED_DEVICE_MEM_LIMIT)" "0=7168M"
  assert_equal "card" "$(env_in g NVIDIA_VISIBLE_DEVICES)" "$(grant g .card)"
  [[ $(env_in g CUDA_MPS_PIPE_DIRECTORY) == /* ]] || fail "no pipe directory"
  local names
  names=$(environment_of "$(oci state g | jq .pid)" | cut -d= -f1 | sort | uniq -d)
  assert_equal "variables set twice" "$names" ""
}

@test "status shows the grant, the card's rest and that the cards are simulated" {
  granted g 7Gi
  assert_equal "memory" "$(grant g .memory_mib)" 7168
  assert_equal "state" "$(grant g .state)" active
  assert_equal "pid" "$(grant g .pid)" "$(oci state g | jq .pid)"
  local index
  index=$(grant g .card_index)
  assert_equal "free" "$(card "$index" .free_mib)" $((CARD_MEMORY - 7168))
  assert_equal "granted" "$(card "$index" .granted_mib)" 7168
  try mpsgate status
  assert_contains "table" "$stdout" "SIMULATED" "g" "7 GiB"
}

@test "the client directory is read-only and holds control alone, a socket of the container's own" {
  granted g 7Gi
  local dir index
  dir=$(env_in g CUDA_MPS_PIPE_DIRECTORY) index=$(grant g .card_index)
  inside g ls -A "$dir"
  assert_equal "files" "$stdout" control
  try_oci fail exec g touch "$dir/mine"
  assert_contains "touch" "$stderr" "Read-only file system"
  try_oci fail exec g rm -f "$dir/control"
  assert_contains "rm" "$stderr" "Read-only file system"
  inside g stat -c %i "$dir/control"
  local inode=$stdout
  find "/run/mpsgate/mps/$index/containers" -inum "$inode" -name control | grep -q . || fail "control in the container is not its door"
  [[ $(find "/run/mpsgate/mps/$index" -inum "$inode" | wc -l) == 1 ]] || fail "it is the daemon's, too"
}

# bats test_tags=runtime
@test "the granted card's nodes are there and open, another card's are not" {
  granted g 7Gi --ann mpsgate.io/gpu=0 --jq '.process.capabilities |= map_values(. + ["CAP_MKNOD"])'
  inside g sh -c 'ls /dev | grep nvidia | sort | tr "\n" " "'
  assert_equal "nodes" "$stdout" "nvidia-uvm nvidia-uvm-tools nvidia0 nvidiactl "
  try_oci any exec g sh -c ': </dev/nvidia0'
  # Simulated: no driver behind the node, but the kernel let us through to look for one.
  [[ $status == 0 ]] || assert_contains "open of nvidia0" "$stderr" "No such device"
  try_oci any exec g sh -c ': </dev/nvidiactl'
  refute_contains "open of nvidiactl" "$stderr" "not permitted"
  try_oci fail exec g sh -c 'mknod /tmp/other c 195 1 && : </tmp/other'
  assert_contains "open of a node made for another card" "$stderr" "Operation not permitted"
}

# bats test_tags=runtime
@test "exec in its argv form has the limit, and cannot raise it" {
  granted g 7Gi
  inside g env
  assert_contains "environment of exec" "$stdout" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M" "CUDA_MPS_PIPE_DIRECTORY=/"
  local flag
  # One form at a time: runc takes no two in one call.
  for flag in --env -e; do
    try_oci exec "$flag" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=15G "$flag" CUDA_MPS_PIPE_DIRECTORY=/tmp "$flag" MINE=1 "$flag" PATH=/bin g env
    assert_contains "environment of exec $flag" "$stdout" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M" \
      "CUDA_MPS_PIPE_DIRECTORY=$(env_in g CUDA_MPS_PIPE_DIRECTORY)" MINE=1
    refute_contains "environment of exec $flag" "$stdout" "0=15G" "CUDA_MPS_PIPE_DIRECTORY=/tmp"
  done
  try_oci exec --tty=false --cwd /tmp --user 0:0 g sh -c 'echo $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT in $PWD'
  assert_equal "output" "$stdout" "0=7168M in /tmp"
}

# bats test_tags=runtime
@test "exec with --process has the limit, and the document keeps what else is in it" {
  granted g 7Gi
  jq '.process | .args = ["env"] | .env += ["MINE=1"] | .unknownField = {"kept": [1, 2]}' "$MG/b/g/config.json" |
    jq '.env |= map(select(startswith("CUDA_") or startswith("NVIDIA_") | not))' >"$MG/process.json"
  try_oci exec --process "$MG/process.json" g
  assert_contains "environment of exec" "$stdout" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M" "MINE=1"
  try_oci exec -p "$MG/process.json" g
  assert_contains "environment of exec -p" "$stdout" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M"
}

@test "exec into a neighbour without a grant is passed on as it is" {
  granted g 7Gi
  bundle neighbour
  create neighbour
  start neighbour
  inside neighbour env
  refute_contains "environment" "$stdout" "CUDA_MPS" "NVIDIA_VISIBLE_DEVICES"
  jq '.process | .args = ["env"] | .env += ["CUDA_MPS_X=1"]' "$MG/b/neighbour/config.json" >"$MG/process.json"
  local before
  before=$(sha256sum <"$MG/process.json")
  try_oci exec --process "$MG/process.json" neighbour
  assert_equal "process document" "$(sha256sum <"$MG/process.json")" "$before"
}

@test "the container's own CUDA_MPS_*, CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES give way" {
  granted g 7Gi --env CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=15G --env CUDA_MPS_PIPE_DIRECTORY=/tmp/mine \
    --env CUDA_VISIBLE_DEVICES=1 --env NVIDIA_VISIBLE_DEVICES=all --env CUDA_MPS_LOG_DIRECTORY=/tmp/mine
  assert_equal "limit" "$(env_in g CUDA_MPS_PINNED_DEVICE_MEM_LIMIT)" "0=7168M"
  assert_equal "card" "$(env_in g NVIDIA_VISIBLE_DEVICES)" "$(grant g .card)"
  refute_contains "pipe directory" "$(env_in g CUDA_MPS_PIPE_DIRECTORY)" /tmp/mine
  assert_equal "CUDA_VISIBLE_DEVICES" "$(env_in g CUDA_VISIBLE_DEVICES)" ""
}

@test "a lower limit of the container's own is kept, as a number" {
  granted g 7Gi --env CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2G
  assert_equal "limit" "$(env_in g CUDA_MPS_PINNED_DEVICE_MEM_LIMIT)" "0=2048M"
  assert_equal "memory" "$(grant g .memory_mib)" 7168
}

@test "other forms of a request: ACK's annotation, environment, MiB, a certain card, a share" {
  bundle ack --ann aliyun.com/gpu-mem=3
  create ack
  assert_equal "ACK: whole GiB" "$(grant ack .memory_mib)" 3072
  bundle env --env MPSGATE_GPU_MEM=512Mi --env MPSGATE_GPU=1
  create env
  assert_equal "environment" "$(grant env '"\(.memory_mib) on \(.card_index)"')" "512 on 1"
  granted share 1000Mi --ann mpsgate.io/gpu="$(uuid 1)" --ann mpsgate.io/gpu-compute=30
  assert_equal "card by UUID" "$(grant share .card)" "$(uuid 1)"
  assert_equal "share" "$(env_in share CUDA_MPS_ACTIVE_THREAD_PERCENTAGE)" 30
  assert_equal "limit" "$(env_in share CUDA_MPS_PINNED_DEVICE_MEM_LIMIT)" "0=1000M"
}

@test "two containers share a card; the next goes where it fits" {
  granted a 7Gi
  granted b 7Gi
  granted c 7Gi
  assert_equal "cards of a and b" "$(grant b .card_index)" "$(grant a .card_index)"
  [[ $(grant c .card_index) != "$(grant a .card_index)" ]] || fail "three times 7 GiB on one card of 15"
}

@test "config.json: our edits are in, the unknown survives, the order of keys stays" {
  bundle g --ann mpsgate.io/gpu-mem=1Gi --jq '.zebra = {"b": 1, "a": ["LARGE", "SMALL", 0.5]}' \
    --jq '.linux.notYet = "x"'
  # As text, because jq would round them.
  sed -i 's/"LARGE"/18446744073709551615/; s/"SMALL"/-9223372036854775808/' "$MG/b/g/config.json"
  cp "$MG/b/g/config.json" "$MG/before.json"
  chmod 640 "$MG/b/g/config.json"
  create g
  assert_contains "numbers" "$(<"$MG/b/g/config.json")" 18446744073709551615 -9223372036854775808
  assert_equal "an unknown field" "$(jq -r .linux.notYet "$MG/b/g/config.json")" x
  assert_equal "order of keys" "$(jq -c 'keys_unsorted - ["hooks"]' "$MG/b/g/config.json")" "$(jq -c keys_unsorted "$MG/before.json")"
  assert_equal "mode" "$(stat -c %a "$MG/b/g/config.json")" 640
  assert_equal "hooks" "$(jq -r '[.hooks.createRuntime[-1].path, .hooks.poststop[-1].path] | unique | .[]' "$MG/b/g/config.json")" /usr/bin/mpsgate-hook
  assert_equal "devices equal rules" "$(jq -c '[.linux.devices[] | select(.path | test("nvidia"))] | length' "$MG/b/g/config.json")" 4
}

# bats test_tags=runtime
@test "run, and flags in every place that runc takes them" {
  bundle r --ann mpsgate.io/gpu-mem=1Gi --args sh -c 'echo $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT'
  try_oci run -b "$MG/b/r" r
  assert_equal "output of run" "$stdout" "0=1024M"
  bundle here --ann mpsgate.io/gpu-mem=1Gi --args sh -c 'echo $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT'
  try env -C "$MG/b/here" mpsgate-runtime "--root=$RUNC_ROOT" "${FLAGS[@]}" run here
  assert_equal "output of run in the bundle" "$stdout" "0=1024M"
}

# bats test_tags=runtime
@test "resize: what runs gets more of its card, exec starts with it, and what cannot be is refused" {
  granted g 7Gi --ann mpsgate.io/gpu=0
  granted other 2Gi --ann mpsgate.io/gpu=0
  try mpsgate resize g 9Gi
  assert_contains "answer" "$stdout" "container g has 9 GiB of GPU 0 now, and had 7 GiB" "created anew"
  assert_equal "granted" "$(grant g .memory_mib) $(card 0 .granted_mib)" "9216 11264"
  local form
  # As engines start it, and by hand. Without --env a runtime by hand takes its own copy.
  jq '.process | .args = ["env"]' "$MG/b/g/config.json" >"$MG/process.json"
  # crun's single --env is the whole environment.
  for form in "--process $MG/process.json g" "--env PATH=/bin g env"; do
    # shellcheck disable=SC2086 # words
    try_oci exec $form
    assert_contains "environment of exec" "$stdout" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=9216M" MPSGATE_GPU_MEM_MIB=9216
  done
  assert_equal "of what runs" "$(env_in g CUDA_MPS_PINNED_DEVICE_MEM_LIMIT) $(env_in g MPSGATE_GPU_MEM_MIB)" "0=7168M 7168"
  local wish
  for wish in "g 14Gi:1:4 GiB left" "g 99Gi:1:15 GiB in all" "g 1Gi:1:lowers none afterwards" \
    "nobody 1Gi:1:no container" "g 9:64:unit" "g 0Gi:64:0" "g -- -1Gi:64:negative"; do
    # shellcheck disable=SC2086 # two words
    try any mpsgate resize ${wish%%:*}
    assert_equal "status of $wish" "$status" "$(cut -d: -f2 <<<"$wish")"
    assert_contains "answer to $wish" "$stderr" "${wish##*:}"
  done
  assert_equal "granted" "$(grant g .memory_mib) $(card 0 .granted_mib)" "9216 11264"
  # Over a restart of mpsgated, and not over one of the container.
  daemon_stop
  daemon_start
  assert_equal "granted" "$(grant g .memory_mib)" 9216
  delete g
  wait_for 10 "all of it is free" eval '[[ $(card 0 .granted_mib) == 2048 ]]'
}

@test "delete frees" {
  granted g 7Gi
  delete g
  assert_free
}

# bats test_tags=runtime
@test "a process that ends frees, without delete" {
  bundle g --ann mpsgate.io/gpu-mem=7Gi --args true
  create g
  assert_equal "state before start" "$(grant g .state)" active
  start g
  assert_free
}

# bats test_tags=runtime
@test "killed with SIGKILL: free, and the runtime's exit status is its own" {
  granted g 7Gi
  try_oci kill g KILL
  assert_free
}

@test "deleted behind our back by the plain runtime: free" {
  granted g 7Gi
  try "$REAL" --root "$RUNC_ROOT" delete --force g
  assert_free
}

# bats test_tags=runtime
@test "a create that fails in the runtime leaves no reservation" {
  bundle g --ann mpsgate.io/gpu-mem=7Gi --jq '.mounts += [{destination: "/x", type: "bind", source: "/no/such/source", options: ["bind"]}]'
  create fail g
  assert_contains "stderr" "$stderr" "/no/such/source"
  assert_free
}

@test "a later hook's veto leaves no grant" {
  bundle g --ann mpsgate.io/gpu-mem=7Gi --jq '.hooks.createRuntime = [{path: "/bin/false", env: ["PATH=/bin"]}]'
  create fail g
  assert_free
}

# bats test_tags=runtime
@test "our hook's veto says why, on stderr and in --log, also where the runtime throws a hook's words away" {
  bundle g --ann mpsgate.io/gpu-mem=7Gi --jq '.hooks.prestart = [{path: "/bin/sh", args: ["sh", "-c", "rm -f /run/mpsgate/grants/*"], env: ["PATH=/bin"]}]'
  create fail g
  assert_contains "stderr" "$stderr" "[E_NO_RESERVATION]" "hint: "
  assert_contains "--log" "$(<"$MG/log/oci.json")" "[E_NO_RESERVATION]" "hint: "
  assert_free
}

@test "created and never started holds its memory until deleted" {
  bundle g --ann mpsgate.io/gpu-mem=7Gi
  create g
  assert_equal "state" "$(grant g .state)" active
  delete g
  assert_free
}

# bats test_tags=runtime
@test "the same id again is a new grant, counted once" {
  granted g 7Gi
  local first
  first=$(grant g .instance)
  delete g
  granted g 5Gi
  assert_equal "grants" "$(granted_ids)" g
  assert_equal "memory" "$(grant g .memory_mib)" 5120
  [[ $(grant g .instance) != "$first" ]] || fail "the instance was used again"
}

@test "the same id under two roots is two grants" {
  granted g 2Gi
  bundle g2 --ann mpsgate.io/gpu-mem=2Gi
  mv "$MG/b/g2" "$MG/b/other"
  try mpsgate-runtime --root "$MG/runc2" "${FLAGS[@]}" create --bundle "$MG/b/other" g
  assert_equal "grants" "$(granted_ids)" "g g"
  try mpsgate-runtime --root "$MG/runc2" delete --force g
  wait_for 10 "one grant" bash -c '[[ $(mpsgate status -o json | jq ".grants | length") == 1 ]]'
  assert_equal "root of what is left" "$(grant g .runtime_root)" "$RUNC_ROOT"
}

# bats test_tags=runtime
@test "restart of the daemon keeps grants and control daemons" {
  granted g 7Gi
  local pids before
  pids=$(mps_pids) before=$(recorded_grants)
  for signal in TERM KILL; do
    daemon_stop "$signal"
    inside g true
    daemon_start
    assert_equal "grants after $signal" "$(recorded_grants)" "$before"
    wait_for 10 "the control daemons after $signal" mps_pids_are "$pids"
  done
  delete g
}

@test "what ended while the daemon was away is released when it is back" {
  granted gone 7Gi
  granted stays 5Gi
  daemon_stop KILL
  try "$REAL" --root "$RUNC_ROOT" delete --force gone
  daemon_start
  wait_for 10 "gone is released" not_granted gone
  assert_equal "grants" "$(granted_ids)" stays
}

@test "disable of a card that the settings name is refused, and the hint names the settings" {
  try fail mpsgate disable 1
  assert_contains "stderr" "$stderr" "gpus.manage" "hint: "
  assert_equal "managed" "$(card 1 .managed)" true
}

mode_is() { [[ $(jq -r --argjson card "$2" '.cards[$card].compute_mode' "$NVML/nvml.json") == "$1" ]]; } # MODE CARD

# The last one: it leaves other settings where it fails.
@test "disable is refused while grants live, frees the card after; enable takes it back" {
  daemon_with 's/^manage = .*/manage = []/'
  assert_equal "managed" "$(card 1 .managed)" false
  # Its new instance gives back what the one before had taken, after it has answered.
  wait_for 20 "card 1 is given back" mode_is DEFAULT 1
  try mpsgate enable 1
  wait_for 20 "card 1 is ready" card_is ready 1
  granted g 1Gi --ann mpsgate.io/gpu=1
  try fail mpsgate disable 1
  assert_contains "stderr" "$stderr" "g"
  delete g
  wait_for 10 "g is released" not_granted g
  try mpsgate disable 1
  assert_equal "managed" "$(card 1 .managed)" false
  assert_equal "compute mode" "$(jq -r '.cards[1].compute_mode' "$NVML/nvml.json")" DEFAULT
  try mpsgate enable 1
  wait_for 20 "card 1 is ready" card_is ready 1
  assert_equal "compute mode" "$(jq -r '.cards[1].compute_mode' "$NVML/nvml.json")" EXCLUSIVE_PROCESS
  daemon_with
}

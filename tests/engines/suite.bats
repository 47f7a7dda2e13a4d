#!/usr/bin/env bats
# What every engine has to show, the same for all: tests/engines/run gives the cell. It proves
# itself first. Tests tagged `machine` also run in whole machines, where emulation is slow.

load engine.bash

WANT=(--ipc --gpu 7Gi)
LIMIT_SEEN=CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M

# bats test_tags=machine
@test "the engine is the one that the cell names" {
  local version
  version=$(engine_version)
  echo "# $MG_CELL: $version" >&3
  [[ $version == "${MG_CELL##*-}".* ]] || fail "the cell is $MG_CELL" "the engine says $version"
}

# bats test_tags=machine
@test "plain runc: output, exit status, exec, stop, start" {
  UNDER=plain engine_life lifecycle
}

@test "an ordinary container: the same lifecycle, and the same config.json as with plain runc" {
  local plain
  UNDER=plain engine_up same --env A=b --mount /usr/share -- sleep 600
  plain=$(spec_of same)
  engine_remove same
  engine_up same --env A=b --mount /usr/share -- sleep 600
  diff <(echo "$plain") <(spec_of same) >&2 || fail "config.json differs from plain runc's"
  engine_life lifecycle
}

# bats test_tags=machine
@test "granted: limit, card, client directory and nodes, of init and of what is exec'd" {
  local id card other dir node
  engine_up got "${WANT[@]}" -- sleep 600
  id=$(engine_id got)
  assert_equal "grant" "$(grant "$id" '"\(.state) \(.memory_mib) \(.pid)"')" "active 7168 $(engine_pid got)"
  card=$(grant "$id" .card_index) other=$((1 - $(grant "$id" .card_index)))
  assert_equal "limit of init" "$(init_env got CUDA_MPS_PINNED_DEVICE_MEM_LIMIT)" 0=7168M
  dir=$(init_env got CUDA_MPS_PIPE_DIRECTORY)
  exec_limit got "CUDA_MPS_PIPE_DIRECTORY=$dir" PATH=
  engine_exec got ls "$dir"
  assert_equal "client directory" "$stdout" control
  engine_exec fail got touch "$dir/new"
  assert_contains "writing there" "$stderr" "Read-only"
  engine_exec got ls /dev
  for node in "nvidia$card" nvidiactl nvidia-uvm; do
    grep -qx "$node" <<<"$stdout" || fail "no /dev/$node:" "$stdout"
  done
  refute_contains "nodes" "$stdout" "nvidia$other"
  # No driver behind a simulated node: the device cgroup let it through, and nobody is there.
  engine_exec any got sh -c ": </dev/nvidia$card"
  [[ $status == 0 ]] || assert_contains "opening the granted card" "$stderr" "No such device"
  engine_exec fail got sh -c "busybox mknod /tmp/other c 195 $other && : </tmp/other"
  assert_contains "opening the other card" "$stderr" "Operation not permitted"
}

# bats test_tags=machine
@test "NVIDIA's own client is served through its container's door, as whom it is, with the host's IPC namespace and its own" {
  rootfs_libcuda "$MG/client" 2>"$MG/why" || skip "$(tail -n 1 "$MG/why")"
  local uid ipc words dir
  mkdir -p "$MG/gated"
  cp "$(control_program)" "$MG_OUT/fakes/nvidia-cuda-mps-server" "$MG/gated/"
  control_anew "$SETTINGS"$'\n'"s|^control = .*|control = \"$MG/gated/nvidia-cuda-mps-control\"\norphan = \"kill\"|"
  for dir in /run/mpsgate/mps/[0-9]*; do echo "$WORD" >"$dir/log/fake-server-status"; done
  own_ipc_does
  for uid in 0 1000; do
    for ipc in host own; do
      words=(--gpu 7Gi --mount "$MG/client")
      if [[ $uid != 0 ]]; then
        [[ -z ${NO_UID:-} ]] || { echo "# client: $MG_CELL, uid $uid: not tried, $NO_UID" >&3; continue; }
        words+=(--uid "$uid")
      fi
      [[ $ipc == own ]] || words+=(--ipc)
      engine_up got "${words[@]}" -- sleep 600
      engine_exec got ls -A "$(init_env got CUDA_MPS_PIPE_DIRECTORY)"
      assert_equal "its directory" "$stdout" control
      engine_client got "$uid"
      client_row "$MG_CELL" "$uid" "$ipc"
      engine_remove got
      assert_free
    done
  done
  wait_for 10 "its door is closed" bash -c '[[ -z $(ls -A /run/mpsgate/mps/*/clients/ | grep json) ]]'
  own_ipc_ends
  control_anew "$SETTINGS"
}

# bats test_tags=machine
@test "stop, start, end: one grant for each instance, none in between" {
  local id first
  engine_up got "${WANT[@]}" -- sleep 600
  id=$(engine_id got) first=$(grant "$(engine_id got)" .instance)
  engine_halt got
  assert_free
  engine_again got
  id=$(engine_id got)
  assert_equal "grants" "$(granted_ids)" "$id"
  [[ $(grant "$id" .instance) != "$first" ]] || fail "the instance was used again"
  exec_limit got
  kill_init got
  assert_free
  engine_remove got
  engine_once ended "${WANT[@]}" -- env
  assert_contains "environment" "$stdout" "$LIMIT_SEEN"
  assert_free
}

# bats test_tags=machine
@test "without the host's IPC namespace: refused, and the hint says how to share it" {
  refusal E_NO_HOST_IPC lone --gpu 7Gi -- true
  assert_contains "hint" "$stderr" "$IPC_HINT"
  engine_once ordinary -- true
}

# bats test_tags=machine
@test "attempts to reach a card without a grant are refused, their neighbours are not" {
  refusal E_VISIBLE_DEVICES all --env NVIDIA_VISIBLE_DEVICES=all -- true
  refusal E_VISIBLE_DEVICES uuid --env NVIDIA_VISIBLE_DEVICES="$(uuid 1)" -- true
  refusal E_DEVICE_NODE node --device /dev/nvidia0 -- true
  mkdir -p "$MG/elsewhere"
  mount --bind /run/mpsgate "$MG/elsewhere"
  refusal E_MPS_MOUNT alias --mount "$MG/elsewhere" -- true
  umount "$MG/elsewhere"
  engine_once neighbour --env NVIDIA_VISIBLE_DEVICES=void --device /dev/zero --mount "$MG/elsewhere" -- true
}

# bats test_tags=machine
@test "privileged: lives without the cards' nodes, is refused with a request" {
  engine_once free --privileged -- ls /dev
  assert_contains "nodes" "$stdout" null
  refute_contains "nodes" "$stdout" nvidia0 nvidia1
  refusal E_PRIVILEGED greedy --privileged "${WANT[@]}" -- true
}

@test "with a grant: what the user set to get more is closed" {
  engine_once mine "${WANT[@]}" --env NVIDIA_VISIBLE_DEVICES=all --env CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=15G \
    --env CUDA_MPS_PIPE_DIRECTORY=/tmp -- env
  assert_contains "environment" "$stdout" "$LIMIT_SEEN" "NVIDIA_VISIBLE_DEVICES=GPU-"
  refute_contains "environment" "$stdout" "=all" "0=15G" "DIRECTORY=/tmp"
}

@test "more than is left: refused, and it is said who holds it" {
  gigs one 15Gi
  gigs two 15Gi
  refusal E_NO_CAPACITY three "${WANT[@]}" -- true
  assert_contains "who" "$stderr" "$(engine_id one | cut -c1-12)" "$(engine_id two | cut -c1-12)"
  engine_remove two
  wait_for 10 "room again" bash -c '[[ $(mpsgate status -o json | jq ".grants | length") == 1 ]]'
  engine_once three "${WANT[@]}" -- true
}

@test "a bad value reaches the user's eyes, quoted" {
  refusal E_REQUEST bad --ipc --gpu 7GB -- true
  assert_contains "the value" "$stderr" 7GB
}

@test "a program that does not exist: the runtime's own error, and no grant left" {
  engine_once fail missing "${WANT[@]}" -- /no/such/program
  assert_contains "what the engine shows" "$stderr" /no/such/program
  assert_free
}

@test "mpsgated away: requests and attempts refused, everything else lives on, exec has its limit" {
  engine_up got "${WANT[@]}" -- sleep 600
  local pid
  pid=$(engine_pid got)
  daemon_stop
  refusal E_DAEMON_AWAY more "${WANT[@]}" -- true
  refusal E_VISIBLE_DEVICES all --env NVIDIA_VISIBLE_DEVICES=all -- true
  engine_once ordinary -- true
  exec_limit got
  daemon_start
  assert_equal "grants" "$(granted_ids)" "$(engine_id got)"
  assert_equal "init" "$(engine_pid got)" "$pid"
  engine_once more "${WANT[@]}" -- true
}

# bats test_tags=machine
@test "kill -9 of the engine: container, grant and limit stay, and end together" {
  local pid id
  engine_up got "${WANT[@]}" -- sleep 600
  id=$(engine_id got) pid=$(engine_pid got)
  engine_kill got
  granted_pid "$id" "$pid" || fail "the grant went with the engine"
  [[ -d /proc/$pid ]] || fail "the container went with the engine"
  engine_back
  wait_for 20 "the engine knows it again" knows got "$pid"
  exec_limit got
  assert_equal "grants" "$(granted_ids)" "$id"
  engine_halt got
  assert_free
}
knows() { [[ $(engine_pid "$1") == "$2" ]]; } # NAME PID

# bats test_tags=machine
@test "kill -9 of the engine's shim: a grant exactly as long as the container lives, then a new one" {
  local pid id shim
  engine_up got "${WANT[@]}" -- sleep 600
  id=$(engine_id got) pid=$(engine_pid got) shim=$(shim_of got)
  [[ $(</proc/"$shim"/comm) == @(containerd-shim|conmon) ]] || fail "$(</proc/"$shim"/comm) is no shim"
  kill -KILL "$shim"
  wait_for 10 "the shim ends" gone "$shim"
  if [[ $SHIM_ENDS == yes ]]; then
    wait_for 20 "the engine ends the container" gone "$pid"
    assert_free
  else
    granted_pid "$id" "$pid" || fail "the grant went with the shim"
    [[ -d /proc/$pid ]] || fail "the container went with the shim"
  fi
  engine_remove any got
  # Podman 5.4 on crun did not remove it at the first try (seen in a machine).
  [[ $status == 0 ]] || engine_remove any got
  wait_for 10 "init ends" gone "$pid"
  assert_free
  engine_up got "${WANT[@]}" -- sleep 600
  assert_equal "grants" "$(granted_ids)" "$(engine_id got)"
}

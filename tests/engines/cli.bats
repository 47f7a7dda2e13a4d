#!/usr/bin/env bats
# What the command lines of Docker and Podman have in common besides the suite: restart policies,
# options that open devices or show the host, exec's own environment.

load engine.bash

teardown() {
  mount --make-rprivate /
  cell_teardown
}

WANT=(--ipc --gpu 7Gi)
LIMIT_SEEN=CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M

@test "exec with another limit: the grant's counts" {
  [[ $EXEC_LIMIT == yes ]] || skip "the precreate hook has no part in exec"
  engine_up got "${WANT[@]}" -- sleep 600
  engine_exec --env CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=15G got env
  assert_contains "environment of exec" "$stdout" "$LIMIT_SEEN" PATH=
  refute_contains "environment of exec" "$stdout" "0=15G"
}

@test "restart on-failure:2: three lives, one grant at a time, none at the end" {
  engine_up got "${WANT[@]}" --restart on-failure:2 -- sh -c 'env >&2; sleep 0.3; exit 3'
  local id now end=$((SECONDS + 30 * ${MG_PATIENCE:-1}))
  id=$(engine_id got)
  until [[ $("${CLI[@]}" inspect -f '{{.RestartCount}} {{.State.Running}}' got) == "2 false" ]]; do
    now=$(granted_ids)
    [[ -z $now || $now == "$id" ]] || fail "grants: $now"
    ((SECONDS < end)) || fail "still restarting"
  done
  assert_equal "lives with the limit" "$("${CLI[@]}" logs got 2>&1 | grep -c "^$LIMIT_SEEN")" 3
  assert_free
}

@test "restart always: killed, it is back with a grant of its own" {
  engine_up got "${WANT[@]}" --restart always -- sleep 600
  local id first
  id=$(engine_id got) first=$(grant "$(engine_id got)" .instance)
  kill_init got
  wait_for 20 "another instance has the grant" another_instance "$id" "$first"
  assert_equal "grants" "$(granted_ids)" "$id"
  assert_equal "free" "$(free_total)" $((CARD_MEMORY * 2 - 7168))
}
another_instance() { # ID INSTANCE
  local now
  now=$(grant "$1" .instance)
  [[ -n $now && $now != "$2" ]] && granted_pid "$1" "$(engine_pid got)"
}

@test "device rules that open a card are refused, others are not" {
  refusal E_DEVICE_RULE major --device-cgroup-rule 'c 195:* rwm' -- true
  refusal E_DEVICE_RULE every --device-cgroup-rule 'c *:* rwm' -- true
  engine_once zero --device-cgroup-rule 'c 1:5 rwm' -- true
}

@test "--pid=host: with a request it is a PID namespace of its own; without, the host's" {
  engine_up got "${WANT[@]}" --pid=host -- sleep 600
  own_pids got
  granted_pid "$(engine_id got)" "$(engine_pid got)" || fail "its grant: $(mpsgate status)"
  assert_equal "its limit" "$(init_env got CUDA_MPS_PINNED_DEVICE_MEM_LIMIT)" 0=7168M
  engine_up plain --pid=host -- sleep 600
  assert_equal "the neighbour's PID namespace" "$(readlink "/proc/$(engine_pid plain)/ns/pid")" "$(readlink /proc/self/ns/pid)"
}

@test "-v /dev:/dev: the cards' nodes are seen, and do not open; with a grant its own does" {
  engine_once fail seen -v /dev:/dev -- sh -c 'ls /dev/nvidia0; : </dev/nvidia0'
  assert_contains "nodes" "$stdout" /dev/nvidia0
  assert_contains "opening one" "$stderr" "Operation not permitted"
  local card
  engine_up got "${WANT[@]}" -v /dev:/dev -- sleep 600
  card=$(grant "$(engine_id got)" .card_index)
  engine_exec any got sh -c ": </dev/nvidia$card"
  [[ $status == 0 ]] || assert_contains "opening the granted one" "$stderr" "No such device"
  engine_exec fail got sh -c ": </dev/nvidia$((1 - card))"
  assert_contains "opening the other one" "$stderr" "Operation not permitted"
}

@test "-v /:/host and -v /run:/host with every propagation: it lives, and the host's view is the same afterwards" {
  local before how source seen code
  mount --make-rshared / # as systemd makes it; without, engines refuse shared and slave
  before=$(mounts)
  for how in private rprivate shared rshared slave rslave; do
    for source in / /run; do
      [[ $source != / || " $ROOT_PROPAGATIONS " == *" $how "* ]] || continue
      # By name: a search would also walk the host's /proc, where processes end meanwhile.
      [[ $source == / ]] && seen=/host/run/mpsgate || seen=/host/mpsgate
      engine_once "host-$how" -v "$source:/host:$how" -- ls -d "$seen"
      assert_equal "$source in $how" "$stdout" "$seen"
      # With the root come the processes of the node, which no limit survives.
      engine_once fail "no-$how" "${WANT[@]}" -v "$source:/host:$how" -- env
      [[ $source == / ]] && code=E_HOST_PID || code=E_MPS_MOUNT
      assert_contains "a request with $source in $how" "$stderr" "[$code]"
      assert_equal "mounts after $source in $how" "$(mounts)" "$before"
    done
  done
}
# Not what belongs to containers that live: none does.
mounts() { awk '{ print $5, $6 }' /proc/self/mountinfo | sort; }

@test "an update of other resources leaves the grant's devices" {
  local card
  engine_up got "${WANT[@]}" -- sleep 600
  card=$(grant "$(engine_id got)" .card_index)
  try "${CLI[@]}" update --cpu-shares 512 got
  engine_exec any got sh -c ": </dev/nvidia$card"
  [[ $status == 0 ]] || assert_contains "opening the granted card" "$stderr" "No such device"
}

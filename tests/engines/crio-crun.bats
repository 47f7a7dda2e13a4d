#!/usr/bin/env bats
# CRI-O as it comes: no handler is named, and it runs crun.

load engine.bash

teardown() {
  users_gone
  cell_teardown
}

WANT=(--ipc --gpu 7Gi)

@test "the README's lines: pods of before are kept and can be small, the default handler is led, and --undo keeps the pods too" {
  local small=(--memory $((8 << 20)))
  sed -i 's|^#\?path = .*|path = "crun"|' /etc/mpsgate/config.toml
  mpsgate reload
  user 10-user.conf </dev/null
  UNDER='' engine_up old "${small[@]}" -- sleep 600
  try mpsgate configure crio --write
  refute_contains "--write" "$stdout" drain
  assert_contains "the drop-in, with what CRI-O's own handler has" "$(<"$D/zz-mpsgate.conf")" devices.crio.io io.containers.trace-syscall container_min_memory
  restart
  try mpsgate configure crio --check
  assert_contains "--check" "$stdout" "ok     default handler mpsgate: through mpsgate" "ok     handler crun: through mpsgate"
  assert_equal "the pod of before" "$(state_of old)" CONTAINER_RUNNING
  engine_exec old true
  # The least that CRI-O takes for crun is a key of its own handler.
  UNDER='' engine_up new "${small[@]}" -- sleep 600
  for UNDER in '' crun; do refusal E_VISIBLE_DEVICES all --env NVIDIA_VISIBLE_DEVICES=all -- true; done
  UNDER='' engine_up got "${WANT[@]}" -- sleep 600
  exec_limit got
  try mpsgate configure crio --undo
  restart
  for name in old new got; do
    assert_equal "$name" "$(state_of "$name")" CONTAINER_RUNNING
    engine_exec "$name" true
  done
  assert_equal "grants" "$(granted_ids)" "$(engine_id got)"
}

#!/usr/bin/env bats
# What `mpsgate configure crio` makes of a CRI-O that runs, and what only its pods have.

load engine.bash
load ../e2e/token.bash

setup_file() {
  load engine.bash
  cell_start
}

teardown_file() {
  load engine.bash
  cell_stop
}

teardown() {
  rm -rf /var/lib/kubelet
  # By the handlers that made them.
  engine_clear || true
  if [[ -f $MG/users ]]; then
    mpsgate configure crio --undo >/dev/null || true
    rm -rf "$D" "$MG/users"
    mkdir "$D"
    crio_settings >/etc/crio/crio.conf
    restart
  fi
  cell_teardown
}

WANT=(--ipc --gpu 7Gi)
D=/etc/crio/crio.conf.d
ALL=(--env NVIDIA_VISIBLE_DEVICES=all)
restart() { engine_stop; engine_back "$@"; }
# user NAME: settings of a user's own, the drop-in NAME from stdin; CRI-O runs by them.
user() {
  touch "$MG/users"
  crio_node >/etc/crio/crio.conf
  mkdir -p "$(dirname "$D/$1")"
  cat >"$D/$1"
  restart
}
runc() { printf '[crio.runtime]\ndefault_runtime = "runc"\n[crio.runtime.runtimes.runc]\nruntime_path = "%s"\n' "$REAL"; }
# configured: written, whatever this machine has besides runc, and loaded.
configured() {
  try mpsgate configure crio --write --all-handlers
  restart
}
round() { # HANDLER: --check says so, and a pod proves it
  UNDER=$1 engine_once round "${ALL[@]}" -- true
  try 1 mpsgate configure crio --check
  assert_contains "--check" "$stdout" ROUND
}
state_of() { "$CRI" call ContainerStatus "container_id: \"$(engine_id "$1")\"" | grep -o 'CONTAINER_[A-Z]*'; }

@test "--check before, stale and after; every handler leads through; --undo puts the byte back" {
  runc | user 10-user.conf
  cp -a /etc/crio "$MG/users.before"
  round ''
  try mpsgate configure crio --write --all-handlers
  try 1 mpsgate configure crio --check --all-handlers
  assert_contains "not loaded yet" "$stdout" "was started before $D/zz-mpsgate.conf was last changed: systemctl restart crio"
  restart
  try mpsgate configure crio --check --all-handlers
  assert_contains "after" "$stdout" "ok     default handler mpsgate: through mpsgate" "ok     handler runc: through mpsgate" "ok     handler crun: through mpsgate"
  for UNDER in '' runc crun; do refusal E_VISIBLE_DEVICES all "${ALL[@]}" -- true; done
  UNDER='' engine_once got "${WANT[@]}" -- env
  assert_contains "environment" "$stdout" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M
  try mpsgate configure crio --undo
  assert_contains "undo" "$stdout" "names the handler that was added"
  diff -r "$MG/users.before" /etc/crio
  rm -r "$MG/users.before"
}

@test "a pod that ran before is known, has its processes and is exec'd into afterwards, where nobody named a root" {
  runc | user 10-user.conf
  UNDER='' engine_up old -- sleep 600
  UNDER=runc engine_up named -- sleep 600
  configured
  for name in old named; do
    assert_equal "$name" "$(state_of "$name")" CONTAINER_RUNNING
    engine_exec "$name" true
  done
  UNDER='' engine_up got "${WANT[@]}" -- sleep 600
  assert_equal "grants" "$(granted_ids)" "$(engine_id got)"
}

@test "a drop-in behind ours, in a folder too: --write is refused with its name, and --check tells" {
  for name in zzz-user.conf zzz.d/x.conf; do
    runc | user 10-user.conf
    configured
    runc | user "$name"
    round ''
    assert_contains "--check" "$stdout" "$D/$name is read after $D/zz-mpsgate.conf"
    try fail mpsgate configure crio --write
    assert_contains "--write" "$stderr" "$D/$name is read after" "hint: "
    rm -r "${D:?}/${name%%/*}"
  done
}

@test "a program for a platform: --check tells, and --write leads it" {
  { runc; echo "platform_runtime_paths = { \"linux/amd64\" = \"$REAL\", \"linux/arm64\" = \"$REAL\" }"; } | user 10-user.conf
  round ''
  configured
  UNDER='' refusal E_VISIBLE_DEVICES all "${ALL[@]}" -- true
  UNDER=runc refusal E_VISIBLE_DEVICES all "${ALL[@]}" -- true
}

@test "flags of the CRI-O that runs: --check tells, and --write names them" {
  runc | user 10-user.conf
  configured
  restart --runtimes "round:$REAL:/run/runc" --default-runtime round
  round ''
  try fail mpsgate configure crio --write
  assert_contains "--write" "$stderr" "crio is started with --default-runtime round"
}

@test "an exempt image, named by its id as kubelet does: let through, and not for what a pod writes" {
  kubelet_socket
  wait_for 30 "mpsgated has seen the kubelet" grep -q 'kubelet=true' "$MG/log/mpsgated.log"
  wait_for 30 "the device plugin serves" jq -e .device_plugin /run/mpsgate/node.json
  printf '[[policy.exempt]]\nnamespace = "default"\nimage = "docker.io/library/bb"\n' >>/etc/mpsgate/config.toml
  mpsgate reload
  CRI_IMAGE=$(image_id) engine_once exempt "${ALL[@]}" -- true
  sed -i 's|^image = .*|image = "evil.io/x"|' /etc/mpsgate/config.toml
  mpsgate reload
  export CRI_IMAGE
  CRI_IMAGE=$(image_id)
  refusal E_VISIBLE_DEVICES forged --pod-ann io.kubernetes.cri-o.ImageName=evil.io/x:1 --pod-ann io.kubernetes.cri-o.ImageRepoDigests=evil.io/x@sha256:0 "${ALL[@]}" -- true
  unset CRI_IMAGE
  sed -i '/^\[\[policy/,$d' /etc/mpsgate/config.toml
  mpsgate reload
}

@test "conmon-rs runs ours: granted, refused, and exec has the limit" {
  [[ -x $CRIO_BIN/conmonrs ]] || skip "CRIO_BIN has no conmonrs"
  { runc; printf 'runtime_type = "pod"\nmonitor_path = "%s"\n' "$CRIO_BIN/conmonrs"; } | user 10-user.conf
  configured
  UNDER='' refusal E_VISIBLE_DEVICES all "${ALL[@]}" -- true
  UNDER='' engine_up got "${WANT[@]}" -- sleep 600
  exec_limit got
}

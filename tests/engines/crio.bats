#!/usr/bin/env bats
# What `mpsgate configure crio` makes of a CRI-O that runs, and what only its pods have.

load engine.bash
load ../e2e/token.bash

setup_file() {
  SETTINGS+="\n[metrics]\nlisten = \"127.0.0.1:$(free_port)\""
  cell_start
}

teardown() {
  api_stop
  kubelet_goes
  users_gone
  cell_teardown
}

WANT=(--ipc --gpu 7Gi)
ALL=(--env NVIDIA_VISIBLE_DEVICES=all)
runc() { printf '[crio.runtime]\ndefault_runtime = "runc"\n[crio.runtime.runtimes.runc]\nruntime_path = "%s"\n' "$REAL"; }
# configured: written, whatever this machine has besides runc, and loaded.
configured() {
  try mpsgate configure crio --write --all-handlers
  restart
}
round() { # HANDLER: --check says so, and a pod proves it
  UNDER=$1 engine_once round "${ALL[@]}" -- true
  try 1 mpsgate configure crio --check
  assert_contains "--check" "$stdout" BYPASS
}
# says TEXT...: mpsgated, in its last line on the handlers.
says() {
  local line text
  line=$(grep 'handlers of the engine' "$MG/log/mpsgated.log" | tail -1)
  echo "$line"
  for text; do [[ $line == *" $text "* ]] || return 1; done
}
# led HANDLER VALUE...: its metrics, and no others.
led() {
  local found
  found=$(curl -s "http://$(sed -n 's/^listen = "\(127.*\)"/\1/p' /etc/mpsgate/config.toml)/metrics" | sed -n 's/^mpsgate_handler_led{handler="\(.*\)"} /\1 /p' | sort | xargs)
  echo "$found"
  [[ $found == "$*" ]]
}

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

@test "CRI-O as it comes, which runs crun: --write wants to be told so, or says whose pods have to be drained" {
  user 10-user.conf </dev/null
  try 78 mpsgate configure crio --write
  assert_contains "--write" "$stderr" "the default handler crun runs crun" 'path = "crun"'
  configured
  assert_contains "--write --all-handlers" "$stdout" "handler crun ran crun and now runs" "drain the node before CRI-O is restarted"
}

@test "a pod that names our handler: after --undo CRI-O cannot end it, with the drop-in back it can" {
  runc | user 10-user.conf
  configured
  UNDER=mpsgate engine_up named "${WANT[@]}" -- sleep 600
  try mpsgate configure crio --undo
  assert_contains "undo" "$stdout" "names the handler that was added"
  restart
  try fail "$CRI" down named
  assert_contains "CRI-O" "$stderr" "failed to find runtime handler mpsgate"
  assert_equal "grants" "$(granted_ids)" "$(engine_id named)"
  configured
  engine_remove named
  assert_free
}

@test "a drop-in behind ours, in a folder or an editor's backup: --write is refused with its name, and --check tells" {
  for name in zzz-user.conf zzz.d/x.conf zz-mpsgate.conf~; do
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

@test "mpsgated tells by CRI-O's own word what bypasses mpsgate, by a folder's drop-in and by flags, in its log and its metrics" {
  runc | user 10-user.conf
  configured
  kubelet_appears
  wait_for 90 "all are led" says engine=crio by=engine led=crun,mpsgate,runc round=\"\"
  wait_for 10 "the metrics" led crun 1 mpsgate 1 runc 1
  runc | user zzz.d/x.conf
  mpsgate reload
  wait_for 90 "runc bypasses mpsgate" says by=engine led=crun,mpsgate round=runc
  wait_for 10 "the metrics" led crun 1 mpsgate 1 runc 0
  rm -r "$D/zzz.d"
  restart --runtimes "flag:$REAL:/run/runc" --default-runtime flag
  mpsgate reload
  wait_for 90 "the flag's handler bypasses mpsgate" says by=engine led=crun,mpsgate,runc round=flag
  wait_for 10 "the metrics" led crun 1 flag 0 mpsgate 1 runc 1
}

# The API server: a node of its own, which mpsgated follows.
api_start() {
  "$MG_REPO/tests/k8s/api-server" "$MG/api" >"$MG/api.log" 2>&1 </dev/null 3>&- &
  echo $! >"$MG/api.pid"
  disown # a shell reports the end of its children
  wait_for 180 "the API server is ready" grep -qx ready "$MG/api.log"
  echo '{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1", "labels": {"ack.node.gpu.schedule": "mps"}}}' | api create -f - >/dev/null
  printf '[kubernetes]\nkubeconfig = "%s"\nnode_name = "node1"\n' "$MG/api/admin.kubeconfig" >>/etc/mpsgate/config.toml
  daemon_stop
  daemon_start
}
api() { "${MG_K8S_PATH%%:*}/kubectl" --kubeconfig "$MG/api/admin.kubeconfig" "$@"; }
api_stop() {
  local pid
  [[ -f $MG/api.pid ]] || return 0
  pid=$(<"$MG/api.pid")
  rm "$MG/api.pid"
  kill "$pid"
  wait_for 60 "the API server ends" gone "$pid"
  sed -i '/^\[kubernetes\]/,$d' /etc/mpsgate/config.toml
  daemon_stop
  daemon_start
}
# node_shows JQ STATUS: its annotation on handlers, and its condition.
node_shows() {
  api get node node1 -o json | jq -e --arg status "$2" "(.metadata.annotations[\"mpsgate.io/handlers\"] | fromjson | $1)
    and any(.status.conditions[]; .type == \"GPUMemorySharingBypass\" and .status == \$status)"
}

@test "the node's object says so too, by CRI-O's own word" {
  [[ -n ${MG_K8S_PATH:-} ]] || skip "MPSGATE_K8S_BIN names no whole Kubernetes"
  runc | user 10-user.conf
  configured
  kubelet_appears
  api_start
  wait_for 90 "all are led" node_shows '.engine == "crio" and .by == "engine" and .default == "mpsgate" and .led == ["crun", "mpsgate", "runc"] and .round == []' False
  runc | user zzz.d/x.conf
  mpsgate reload
  wait_for 90 "runc bypasses mpsgate" node_shows '.by == "engine" and .default == "runc" and .led == ["crun", "mpsgate"] and .round == ["runc"]' True
}

@test "an exempt image, named by its id as kubelet does: let through, and not for what a pod writes" {
  kubelet_appears
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
  round ''
  configured
  try mpsgate configure crio --check
  assert_contains "--check" "$stdout" "ok     handler runc: through mpsgate"
  UNDER='' refusal E_VISIBLE_DEVICES all "${ALL[@]}" -- true
  UNDER='' engine_up got "${WANT[@]}" -- sleep 600
  exec_limit got
}

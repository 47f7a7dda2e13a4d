#!/usr/bin/env bats
# Verbs that decide nothing: argv, exit status and output as from the plain runtime. `restore` is
# decided.

load suite

# same WORD...: the plain runtime and ours, by one name, answer alike: status, stdout and stderr.
same() {
  local want
  try any env -C "$MG/same" "$REAL" --root "$RUNC_ROOT" "$@"
  want="$status|$stdout|${stderr//"$REAL"/RUNTIME}"
  rm -f "$MG/same/config.json"
  # The runtimes print the name by which they were called.
  try any env -C "$MG/same" bash -c 'exec -a "$0" /usr/bin/mpsgate-runtime "$@"' "$REAL" --root "$RUNC_ROOT" "$@"
  # Times and the pid of the runtime itself differ from call to call.
  assert_equal "$*" "$(tidy <<<"$status|$stdout|${stderr//"$REAL"/RUNTIME}")" "$(tidy <<<"$want")"
}
tidy() { sed -E 's/time="[^"]*"/time/; s/"(usage|kernel|user|total|current|usec|raw|percpu|cache)":[^}]*/USAGE/g; s/[0-9]{2}:[0-9]{2}:[0-9]{2}/CLOCK/g'; }

# bats test_tags=runtime
@test "features, --version, spec, state, ps, events, update and checkpoint answer as the plain runtime" {
  mkdir -p "$MG/same"
  granted g 1Gi
  bundle c
  create c
  start c
  local id
  same features
  same --version
  same spec
  for id in g c none; do
    same state "$id"
    same ps --format json "$id"
    same update --pids-limit 200 "$id"
    same checkpoint --image-path "$MG/same/image" --leave-running "$id"
  done
  for id in c none; do same events --stats "$id"; done
  same update --pids-limit nonsense c
  same events
}

@test "what the runtime gets is byte for byte what we got, for each of these verbs" {
  cat >"$MG/recorder" <<'SH'
#!/bin/sh
for a; do printf '<%s>' "$a"; done >"$MG/recorded"
exit 43
SH
  chmod +x "$MG/recorder"
  daemon_with "s|^path = .*|path = \"$MG/recorder\"|"
  local verb want
  for verb in features --version spec state ps events update checkpoint start pause resume list; do
    want=$(printf '<%s>' --root "$MG/a b" --log= "$verb" --new-flag=$'\xff\n' "" -- "create")
    try 43 mpsgate-runtime --root "$MG/a b" --log= "$verb" --new-flag=$'\xff\n' "" -- create
    assert_equal "argv of $verb" "$(<"$MG/recorded")" "$want"
  done
  daemon_with
}

# bats test_tags=runtime
@test "restore: with a request refused, signals as at create, without both untouched" {
  bundle x --ann mpsgate.io/gpu-mem=1Gi
  try_oci fail restore --bundle "$MG/b/x" --image-path "$MG" x
  assert_refusal_text x E_RESTORE
  bundle y --env NVIDIA_VISIBLE_DEVICES=all
  try_oci fail restore --bundle "$MG/b/y" --image-path "$MG" y
  assert_refusal_text y E_VISIBLE_DEVICES
  bundle z
  local before want
  before=$(sha256sum <"$MG/b/z/config.json")
  try any "$REAL" --root "$RUNC_ROOT" --log "$MG/log/plain.json" --log-format json "${FLAGS[@]}" restore --bundle "$MG/b/z" --image-path "$MG/none" z
  want=$status
  # crun keeps a state of what it could not restore.
  "$REAL" --root "$RUNC_ROOT" delete --force z >/dev/null 2>&1 || true
  try_oci any restore --bundle "$MG/b/z" --image-path "$MG/none" z
  assert_equal "exit status" "$status" "$want"
  assert_equal "msg" "$(jq -r .msg "$MG/log/oci.json")" "$(jq -r .msg "$MG/log/plain.json")"
  assert_equal "config.json" "$(sha256sum <"$MG/b/z/config.json")" "$before"
}

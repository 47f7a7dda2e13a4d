#!/usr/bin/env bats
# Containers that ask for nothing and show nothing: through the shim as if it were not there, also
# when everything of ours is broken.

load mpsgate

teardown() {
  explain_failure
  node_stop
  rm -rf /etc/mpsgate/*
}

# untouched ID [BUNDLE OPTION...]: create, and the spec is the same file, byte for byte.
untouched() {
  local id=$1 before inode
  bundle "$@"
  before=$(sha256sum <"$MG/b/$id/config.json") inode=$(stat -c '%i %Y %a' "$MG/b/$id/config.json")
  create "$id"
  assert_equal "config.json" "$(sha256sum <"$MG/b/$id/config.json")" "$before"
  assert_equal "inode, mtime and mode" "$(stat -c '%i %Y %a' "$MG/b/$id/config.json")" "$inode"
}

@test "with the daemon: the same lifecycle as on the plain runtime" {
  node_start
  lifecycle ordinary
  lifecycle create
  assert_equal "grants" "$(granted_ids)" ""
}

@test "without daemon, settings or directories: the same lifecycle" {
  rm -rf /etc/mpsgate /run/mpsgate /var/lib/mpsgate
  lifecycle ordinary
  [[ ! -e /run/mpsgate && ! -e /var/lib/mpsgate ]] || fail "a pass-through made directories"
  mkdir -p /etc/mpsgate /var/lib/mpsgate
}

@test "the spec is untouched, byte for byte" {
  node_start
  untouched plain
  untouched formatted --jq '.annotations = {"com.example/note": "7Gi", "empty": ""}'
}

@test "broken settings: ordinary containers live" {
  for text in '[[[ not toml' 'unknown_key = 1' ''; do
    echo "$text" >/etc/mpsgate/config.toml
    lifecycle ordinary
  done
  head -c 4096 /dev/urandom >/etc/mpsgate/config.toml
  lifecycle ordinary
}

@test "a hung daemon: ordinary containers do not notice" {
  node_start
  kill -STOP "$(<"$MG/mpsgated.pid")"
  lifecycle ordinary
}

@test "a container with a device of its own, and a privileged one, are ordinary" {
  node_start
  untouched own --jq '.linux.devices += [{path: "/dev/mine", type: "c", major: 1, minor: 3, fileMode: 438}]'
  untouched privileged --caps-all
}

@test "the runtime's own errors come through: exit status, stderr and log" {
  node_start
  bundle ghost --args /no/such/program
  rm -f "$MG/log/oci.json"
  try any "$REAL" --root "$RUNC_ROOT" --log "$MG/log/oci.json" --log-format json "${FLAGS[@]}" run --bundle "$MG/b/ghost" ghost
  local want_status=$status want_stderr=$stderr want_msg
  want_msg=$(jq -r .msg "$MG/log/oci.json")
  delete ghost
  bundle ghost --args /no/such/program
  try_oci any run --bundle "$MG/b/ghost" ghost
  assert_equal "exit status" "$status" "$want_status"
  assert_equal "stderr" "$stderr" "$want_stderr"
  assert_equal "msg in --log" "$(jq -r .msg "$MG/log/oci.json")" "$want_msg"
}

@test "verbs of the runtime answer through the shim: --version, --help, list, an unknown one, none" {
  node_start
  local args
  for args in --version --help list 'no-such-verb' ''; do
    # shellcheck disable=SC2086 # the empty one is no argument
    try any "$REAL" --root "$RUNC_ROOT" $args
    local want_status=$status want_stdout=$stdout
    # shellcheck disable=SC2086
    try any mpsgate-runtime --root "$RUNC_ROOT" $args
    assert_equal "exit status of '$args'" "$status" "$want_status"
    # It prints the name by which it was called; nothing else may differ.
    local name=${REAL##*/}
    assert_equal "stdout of '$args'" "${stdout//mpsgate-runtime/$name}" "${want_stdout//mpsgate-runtime/$name}"
  done
}

@test "exec, kill and delete of a container that was made without us" {
  node_start
  bundle foreign
  try "$REAL" --root "$RUNC_ROOT" "${FLAGS[@]}" create --bundle "$MG/b/foreign" foreign
  start foreign
  try_oci exec foreign hostname
  assert_equal "output of exec" "$stdout" foreign
  try_oci kill foreign KILL
  wait_for 10 "state stopped" state_is foreign stopped
  try_oci delete foreign
}

@test "argv, environment, working directory and descriptors reach the runtime as they came" {
  cat >"$MG/recorder" <<'SH'
#!/bin/sh
{ for a; do printf 'arg %s\n' "$a"; done; env | grep -v '^_=' | sort; pwd; readlink /proc/$$/fd/7; } >/run/t/recorded
# Of the shell's own: the file that it writes (1) and this script (10).
for fd in /proc/$$/fd/*; do printf '%s ' "${fd##*/}"; done >>/run/t/recorded
exit 42
SH
  chmod +x "$MG/recorder"
  printf '[runtime]\npath = "%s"\n' "$MG/recorder" >/etc/mpsgate/config.toml
  bundle plain
  cd "$MG/b/plain"
  mkdir -p "$MG/log"
  # shellcheck disable=SC2016 # for the inner shell
  local call='exec 7<config.json; exec "$0" --root /r --log=/run/t/log/x create --pid-file "p q" -- plain' want
  try 42 env SEEN='a b' bash -c "$call" "$MG/recorder"
  want=$(<"$MG/recorded")
  assert_contains "the record" "$want" "arg p q" "SEEN=a b" "$MG/b/plain/config.json"
  try 42 env SEEN='a b' bash -c "$call" mpsgate-runtime
  assert_equal "what the runtime got" "$(<"$MG/recorded")" "$want"
}

@test "real runtime missing: its absence is named, with a hint" {
  printf '[runtime]\npath = "/no/such/runtime"\n' >/etc/mpsgate/config.toml
  bundle orphan
  create fail orphan
  assert_contains "stderr" "$stderr" "/no/such/runtime" "hint: "
}

#!/usr/bin/env bats
# Bad bundles, bad settings, a bad daemon, a bad disk: a clear error each, and nothing lost.

load mpsgate

setup() { node_start; }

teardown() {
  explain_failure
  if [[ -f $MG/fake.pid ]]; then
    kill "$(<"$MG/fake.pid")" 2>/dev/null || true
    rm "$MG/fake.pid"
  fi
  delete_all
  if mountpoint -q "$MG/small"; then umount -l "$MG/small"; fi
  if mountpoint -q /run/mpsgate; then
    daemon_stop KILL
    mps_kill
    while mountpoint -q /run/mpsgate; do umount -l /run/mpsgate; done
  fi
  node_stop
  rm -rf /etc/mpsgate/*
}

# spec ID FILTER: its config.json, changed by a program that reads and writes text.
spec() {
  local id=$1 dir=$MG/b/$1
  shift
  bundle "$id"
  "$@" <"$dir/config.json" >"$dir/new"
  mv "$dir/new" "$dir/config.json"
}

# bad ID PART...: create fails in a way that names PART, leaves the spec, makes no container.
bad() {
  local id=$1 before
  shift
  before=$(sha256sum "$MG/b/$id/config.json" 2>&1) || true
  create fail "$id"
  assert_contains "stderr" "$stderr" "$@"
  assert_equal "config.json" "$(sha256sum "$MG/b/$id/config.json" 2>&1 || true)" "$before"
  assert_equal "containers" "$(container_ids)" ""
  assert_equal "grants" "$(granted_ids)" ""
}

with_request() { jq '.annotations["mpsgate.io/gpu-mem"] = "1Gi"'; }
WANTS="mpsgate.io/gpu-mem=1Gi"

@test "no bundle" {
  mkdir -p "$MG/out"
  create fail nowhere
  assert_contains "stderr" "$stderr" nowhere
}

# bats test_tags=runtime
@test "a bundle without config.json, and config.json as a directory" {
  mkdir -p "$MG/b/none" "$MG/b/dir/config.json" "$MG/out"
  create fail none
  assert_contains "stderr" "$stderr" config.json
  create fail dir
  assert_contains "stderr" "$stderr" dir
}

@test "config.json empty, cut off, not JSON, not an object" {
  spec x true
  bad x
  spec x head -c 400
  bad x
  spec x sh -c 'with=$(cat); echo "${with%\}*}, oops}"'
  bad x
  spec x echo '[1, 2]'
  bad x
  assert_contains "some sentence" "$stderr" " "
}

@test "config.json with 100 MB: refused or run, never a hang; the spec stays" {
  bundle x --ann "$WANTS"
  { sed '$d' "$MG/b/x/config.json"; printf ',"padding":"'; head -c 100000000 /dev/zero | tr '\0' x; echo '"}'; } >"$MG/b/x/new"
  mv "$MG/b/x/new" "$MG/b/x/config.json"
  bad x E_BUNDLE "hint: "
}

@test "config.json that is not UTF-8, holds a key twice, or is nested too deep, with a request" {
  spec x sh -c 'jq ".annotations[\"mpsgate.io/gpu-mem\"] = \"1Gi\" | .x = \"MARK\"" | sed "s/MARK/\xff/"'
  bad x E_BUNDLE "UTF-8"
  spec x sh -c 'jq ".annotations[\"mpsgate.io/gpu-mem\"] = \"1Gi\"" | sed "1s/{/{\"annotations\": {},/"'
  bad x E_BUNDLE "annotations" twice
  spec x sh -c 'jq ".annotations[\"mpsgate.io/gpu-mem\"] = \"1Gi\"" | sed "1s/{/{\"deep\": $(printf "[%.0s" $(seq 300))$(printf "]%.0s" $(seq 300)),/"'
  bad x E_BUNDLE "127"
}

# bats test_tags=runtime
@test "unknown fields and enum values are no error" {
  granted g 1Gi --jq '.future = {"a": [null, true]} | .process.user.newField = 1 | .linux.seccomp = {"defaultAction": "SCMP_ACT_ALLOW", "flags": [], "listenerX": "new"}'
  assert_equal "an unknown field" "$(jq -c .future "$MG/b/g/config.json")" '{"a":[null,true]}'
  delete g
}

# bats test_tags=runtime
@test "process, linux, mounts or env missing or null, with a request: an error or a container, no panic" {
  local part what
  for part in .process .linux .mounts .process.env; do
    for what in "del($part)" "$part = null" "$part = 7" "$part = \"x\""; do
      bundle x --ann "$WANTS" --jq "$what"
      cp "$MG/b/x/config.json" "$MG/before.json"
      create any x
      refute_contains "stderr after $what" "$stderr" panicked "index out of"
      if [[ $status != 0 ]]; then
        [[ $status != 124 ]] || fail "a hang after $what"
        [[ -n $stderr ]] || fail "no word after $what"
        if [[ $REAL == *crun && $status == 255 ]]; then
          # crun's own where a hook says no, which ours does with 1 and words, not by a signal.
          assert_contains "stderr after $what" "$stderr" "error executing hook" "(exit code: 1)" "mpsgate: refused" "hint: "
        else
          ((status < 128)) || fail "ended by a signal after $what: $status"
        fi
      fi
      try_oci any delete --force x
      wait_for 10 "x is released after $what" not_granted x
      # crun goes on without a mount namespace, and leaves the container's mounts to the next one.
      remove_bundles "$MG/b/x"
    done
  done
}

# bats test_tags=runtime
@test "entries of env without = and of no string type" {
  bundle g --ann "$WANTS" --jq '.process.env += ["NOEQUALS", "=x", ""]'
  create any g
  # runc takes no such entry, and says so itself; crun hands it on. Ours is not to touch it.
  if [[ $REAL == *crun ]]; then
    assert_equal "status" "$status" 0
  else
    [[ $status != 0 ]] || fail "created"
    assert_contains "stderr" "$stderr" 'invalid environment variable'
  fi
  refute_contains "stderr" "$stderr" "mpsgate: "
  assert_contains "env" "$(jq -c .process.env "$MG/b/g/config.json")" '"NOEQUALS","=x",""'
  delete_all
  assert_free
  bundle x --ann "$WANTS" --jq '.process.env += [7, null]'
  # As with the entries above; crun takes these for empty.
  create any x
  [[ $REAL == *crun || $status != 0 ]] || fail "created"
  ((status < 128)) || fail "ended by a signal: $status"
  refute_contains "stderr" "$stderr" panicked
}

@test "a card that is MIG, pre-Volta, or lost" {
  delete_all
  daemon_stop
  mps_kill
  sim_cards 2 '.cards[0].mig = "enabled" | .cards[1].compute_capability = "6.1"'
  daemon_start
  refused x E_GPU_UNFIT --ann "$WANTS" --ann mpsgate.io/gpu=0
  assert_contains "sentence" "$stderr" MIG
  refused x E_GPU_UNFIT --ann "$WANTS" --ann mpsgate.io/gpu=1
  assert_contains "sentence" "$stderr" 6.1
}

@test "an unhealthy card: named, the other is used; back when it is back" {
  sim_cards 2 '.cards[0].error = "GPU_IS_LOST"'
  wait_for 30 "card 0 is not ready" bash -c '[[ $(mpsgate status -o json | jq -r ".cards[] | select(.index == 0).state") != ready ]]'
  refused x E_GPU_UNHEALTHY --ann "$WANTS" --ann mpsgate.io/gpu=0
  allowed y --ann "$WANTS"
  sim_cards 2
  wait_for 30 "card 0 is ready" bash -c '[[ $(mpsgate status -o json | jq -r ".cards[] | select(.index == 0).state") == ready ]]'
  allowed y --ann "$WANTS" --ann mpsgate.io/gpu=0
}

@test "an unmanaged card" {
  daemon_with 's/^manage = .*/manage = []/'
  try mpsgate enable 0
  wait_for 20 "card 0 is ready" card_is ready 0
  refused x E_GPU_UNMANAGED --ann "$WANTS" --ann mpsgate.io/gpu=1
  allowed y --env "NVIDIA_VISIBLE_DEVICES=$(uuid 1)"
}

@test "daemon absent: a request is refused with the command to look, the rest goes on" {
  daemon_stop
  refused x E_DAEMON_AWAY --ann "$WANTS"
  assert_contains "the refusal" "$stderr" "mpsgated is down or restarting" "systemctl status mpsgated"
  refused x E_VISIBLE_DEVICES --env NVIDIA_VISIBLE_DEVICES=all
  allowed y
}

@test "daemon hung: a request is refused, the rest goes on" {
  kill -STOP "$(<"$MG/mpsgated.pid")"
  LIMIT=20 refused x E_DAEMON_SILENT --ann "$WANTS"
  allowed y
  kill -CONT "$(<"$MG/mpsgated.pid")"
  assert_free
}

# fake REPLY: in place of mpsgated.
fake() {
  [[ ! -f $MG/fake.pid ]] || { kill "$(<"$MG/fake.pid")"; wait_for 10 "the fake ends" gone "$(<"$MG/fake.pid")"; }
  rm -f /run/mpsgate/mpsgated.sock
  "$BATS_TEST_DIRNAME/fake_daemon.pl" /run/mpsgate/mpsgated.sock "$1" 3>&- &
  echo $! >"$MG/fake.pid"
  wait_for 10 "the fake listens" perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Peer => "/run/mpsgate/mpsgated.sock") or exit 1'
}

@test "a daemon of another version, one that answers garbage, one that hangs up" {
  daemon_stop
  fake '{"version":{"daemon":9}}'
  refused x E_DAEMON_VERSION --ann "$WANTS"
  fake 'no JSON at all'
  refused x E_DAEMON_VERSION --ann "$WANTS"
  fake 'raw:HTTP/1.1 400 Bad Request'
  refused x E_DAEMON_VERSION --ann "$WANTS"
  fake 'raw:'
  bundle x --ann "$WANTS"
  create fail x
  assert_contains "stderr" "$stderr" "[E_DAEMON_" "hint: "
  allowed y
}

@test "the socket's path is a plain file, or a socket that nobody serves" {
  daemon_stop
  rm -f /run/mpsgate/mpsgated.sock
  echo plain >/run/mpsgate/mpsgated.sock
  refused x E_DAEMON_AWAY --ann "$WANTS"
  rm /run/mpsgate/mpsgated.sock
  perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Local => "/run/mpsgate/mpsgated.sock", Listen => 1)'
  refused x E_DAEMON_AWAY --ann "$WANTS"
  rm -f /run/mpsgate/mpsgated.sock
  daemon_start
  allowed y --ann "$WANTS"
}

# bats test_tags=runtime
@test "a second mpsgated does not take over from the first" {
  LIMIT=10 try fail mpsgated
  [[ -n $stderr ]] || fail "no word"
  allowed y --ann "$WANTS"
}

# bats test_tags=runtime
@test "the hook's standard input empty, huge or not JSON" {
  local input args="--root=$RUNC_ROOT --instance=0123456789abcdef0123456789abcdef"
  for input in true 'echo "not json"' 'echo "{\"id\": 7}"' 'head -c 100000000 /dev/zero | tr "\0" "["'; do
    LIMIT=20 try fail bash -c "$input | mpsgate-hook createRuntime $args"
    assert_contains "stderr after $input" "$stderr" E_HOOK_STATE "hint: "
    refute_contains "stderr after $input" "$stderr" panicked
    # A poststop that fails would keep a runtime from deleting.
    LIMIT=20 try bash -c "$input | mpsgate-hook poststop $args"
    refute_contains "stderr after $input" "$stderr" panicked
  done
  # shellcheck disable=SC2086 # two arguments
  for input in '' no-such-stage "createRuntime --root=/x" "createRuntime --instance=1"; do
    try fail mpsgate-hook $input
    assert_contains "stderr of '$input'" "$stderr" "usage: mpsgate-hook"
  done
  # Without either it is the hook alone, which evaluates the container itself.
  try fail mpsgate-hook createRuntime
  assert_contains "stderr of the hook alone" "$stderr" E_HOOK_STATE "hint: "
}

@test "settings with an unknown key: named with file, line and the nearest known one; requests refused" {
  printf '[gpus]\nmange = "all"\n' >/etc/mpsgate/config.toml
  refused x E_CONFIG --ann "$WANTS"
  assert_contains "sentence" "$stderr" /etc/mpsgate/config.toml mange manage
  refused x E_VISIBLE_DEVICES --env NVIDIA_VISIBLE_DEVICES=all
  allowed y
  try 78 mpsgated
  assert_contains "mpsgated" "$stderr" /etc/mpsgate/config.toml mange manage
}

@test "settings that others can write are not trusted" {
  chmod 666 /etc/mpsgate/config.toml
  refused x E_CONFIG --ann "$WANTS"
  allowed y
  chmod 644 /etc/mpsgate/config.toml
  allowed y --ann "$WANTS"
}

@test "ledger cut off or of a newer format: mpsgated does not start and keeps the file" {
  granted g 1Gi
  daemon_stop
  local ledger=/run/mpsgate/ledger/ledger.json good
  good=$(cat "$ledger")
  for text in "${good:0:60}" '{"format": 999, "generation": 1}' ''; do
    printf %s "$text" >"$ledger"
    LIMIT=20 try fail mpsgated
    assert_contains "mpsgated" "$stderr" "$ledger"
    assert_equal "the ledger" "$(cat "$ledger")" "$text"
  done
  printf %s "$good" >"$ledger"
  daemon_start
  assert_equal "grants" "$(granted_ids)" g
  delete g
}

@test "/run full: a request is refused, nothing is lost, and it works again when there is room" {
  daemon_stop
  mps_kill
  rm -rf /run/mpsgate
  mkdir /run/mpsgate
  mount -t tmpfs -o size=512k,mode=711 small /run/mpsgate
  daemon_start
  granted keeps 1Gi
  dd if=/dev/zero of=/run/mpsgate/fill bs=4k status=none 2>/dev/null || true
  bundle x --ann "$WANTS"
  local before
  before=$(sha256sum <"$MG/b/x/config.json")
  create fail x
  assert_contains "stderr" "$stderr" "[E_" "hint: "
  assert_equal "config.json" "$(sha256sum <"$MG/b/x/config.json")" "$before"
  assert_equal "grants" "$(granted_ids)" keeps
  allowed y
  rm /run/mpsgate/fill
  allowed z --ann "$WANTS"
  delete keeps
  assert_free
}

@test "/run read-only: a request is refused, ordinary containers live" {
  daemon_stop
  mps_kill
  rm -rf /run/mpsgate
  mkdir /run/mpsgate
  mount -t tmpfs -o mode=711 small /run/mpsgate
  daemon_start
  # A mount above it, made elsewhere: one with files open for writing cannot become read-only.
  mkdir "$MG/ro"
  mount --bind /run/mpsgate "$MG/ro"
  mount -o remount,bind,ro "$MG/ro"
  mount --move "$MG/ro" /run/mpsgate
  bundle x --ann "$WANTS"
  create fail x
  assert_contains "stderr" "$stderr" "[E_" "hint: "
  allowed y
  umount /run/mpsgate
  assert_free
}

# bats test_tags=runtime
@test "the bundle on a full disk: refused, the spec untouched, the reservation gone" {
  mkdir -p "$MG/small"
  mount -t tmpfs -o size=64k small "$MG/small"
  bundle x --ann "$WANTS" --jq ".root.path = \"$MG/b/x/rootfs\""
  cp "$MG/b/x/config.json" "$MG/small/"
  dd if=/dev/zero of="$MG/small/fill" bs=4k status=none 2>/dev/null || true
  local before
  before=$(sha256sum <"$MG/small/config.json")
  try_oci fail create --bundle "$MG/small" x
  assert_refusal_text x E_WRITE
  assert_equal "config.json" "$(sha256sum <"$MG/small/config.json")" "$before"
  assert_equal "files" "$(cd "$MG/small" && echo *)" "config.json fill"
  assert_free
}

# crun writes down its container after the hooks: killed between the two, it leaves an init that it
# does not know and that waits for its start for ever. Such a grant is truly held.
free_without_orphans() {
  local id pid
  while read -r id pid; do
    "$REAL" --root "$RUNC_ROOT" state "$id" >/dev/null 2>&1 || kill -KILL "$pid" 2>/dev/null || true
  done < <(status_json | jq -r '.grants[] | select(.state == "active") | "\(.container_id) \(.pid)"')
  is_free
}

# bats test_tags=runtime
@test "the shim killed in the middle: config.json is the old or the new one, the reservation expires" {
  local i pid
  for i in {1..20}; do
    bundle "k$i" --ann "$WANTS"
    cp "$MG/b/k$i/config.json" "$MG/before.json"
    mpsgate-runtime --root "$RUNC_ROOT" "${FLAGS[@]}" create --bundle "$MG/b/k$i" "k$i" >/dev/null 2>&1 3>&- &
    pid=$!
    # A different moment each time: from the exec to the running runtime.
    busybox usleep $((i * 1500))
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    jq -e .ociVersion "$MG/b/k$i/config.json" >/dev/null || fail "half a config.json after $i"
    "$REAL" --root "$RUNC_ROOT" delete --force "k$i" >/dev/null 2>&1 || true
  done
  if [[ $REAL == *crun ]]; then
    wait_for 10 "what crun left has ended, and all memory is free" free_without_orphans
  fi
  assert_free
}

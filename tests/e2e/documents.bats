#!/usr/bin/env bats
# Documents that no engine writes and a runtime takes all the same: what opens a card in any
# spelling, size or depth is refused, beside it the same document without that is started as it is;
# and `mpsgate explain` says so of each.

load suite

OPEN='{allow: true, type: "c", major: 195, access: "rwm"}'

# probe [BUNDLE OPTION...]: a bundle x whose program makes a card's node and reads it.
probe() {
  rm -rf "${MG:?}/b/x"
  bundle x --jq '.process.capabilities |= map_values(. + ["CAP_MKNOD"])' "$@" \
    --args sh -c 'busybox mknod /tmp/n c 195 1; cat /tmp/n'
}

# changed CMD...: the config.json of x, changed by a program that reads and writes text.
changed() {
  "$@" <"$MG/b/x/config.json" >"$MG/b/new"
  mv "$MG/b/new" "$MG/b/x/config.json"
}

# below: what comes out where the runtime is called without mpsgate. ENXIO: the device cgroup let
# the open through.
below() {
  try any "$REAL" "${FLAGS[@]}" --root "$MG/below.state" run --bundle "$MG/b/x" below
  case $stdout$stderr in
    *"No such device or address"*) echo open ;;
    *"Operation not permitted"*) echo closed ;;
    *) echo "$stdout$stderr" | head -c 300 ;;
  esac
}

explained() { try any mpsgate explain --node /run/mpsgate/node.json "$MG/b/x/config.json"; }

# stopped CODE [WHAT]: x opens a card in the runtime below; mpsgate refuses it, and explain says so.
stopped() {
  local before
  before=$(sha256sum <"$MG/b/x/config.json")
  assert_equal "in the runtime below: ${2:-}" "$(below)" open
  create fail x
  assert_refusal_text x "$1"
  explained
  assert_equal "explain's exit status: $stderr" "$status" 1
  assert_contains "explain" "$stdout" "decision: refuse [$1]"
  assert_equal "config.json" "$(sha256sum <"$MG/b/x/config.json")" "$before"
}

# passed [WHAT]: x is started as it is, with every card closed, and explain says so.
passed() {
  local before
  before=$(sha256sum <"$MG/b/x/config.json")
  assert_equal "in the runtime below: ${1:-}" "$(below)" closed
  try "$RUNTIME" "${FLAGS[@]}" --root "$RUNC_ROOT" run --bundle "$MG/b/x" x || {
    # The program's own failure.
    assert_contains "output of ${1:-}" "$stdout$stderr" "Operation not permitted"
  }
  explained
  assert_equal "explain's exit status: $stderr" "$status" 0
  assert_contains "explain" "$stdout" "decision: start it as it is"
  assert_equal "config.json" "$(sha256sum <"$MG/b/x/config.json")" "$before"
}

deep() { sed "1s/{/{\"deep\": $(printf '[%.0s' $(seq 300))$(printf ']%.0s' $(seq 300)),/"; }
twice() { sed '1s/{/{"x": 1, "x": 2,/'; }
bad_utf8() { jq '.x = "MARK"' | sed 's/MARK/\xff\xe2\x82/'; }
half_surrogate() { jq '.x = "MARK"' | sed 's/MARK/\\ud800/'; }
large() { jq '.annotations.note = ("x" * 17000000)'; }
other_case() { jq '.Hostname = "m"'; }

@test "a document that is too large, too deep, no UTF-8 or has a key twice is decided by what it shows" {
  local how
  for how in large deep twice bad_utf8 half_surrogate other_case; do
    probe
    changed "$how"
    passed "$how"
    probe --jq ".linux.resources.devices += [$OPEN]"
    changed "$how"
    stopped E_BUNDLE "$how"
  done
}

@test "keys in every spelling that the runtime takes" {
  local from to
  while read -r from to; do
    probe --jq ".linux.resources.devices += [$OPEN]"
    changed sed "s/\"$from\"/\"$to\"/"
    stopped E_BUNDLE "$to"
    probe
    changed sed "s/\"$from\"/\"$to\"/"
    passed "$to"
  done <<'END'
linux Linux
linux l\\u0049nux
resources Re\xc5\xbfource\xc5\xbf
devices DEVICES
devices device\xc5\xbf
devices device\\u017f
allow Allow
END
}

@test "a second list under another spelling, and fields that are merged into an earlier one" {
  probe --jq ".linux.resources.DEVICES = (.linux.resources.devices + [$OPEN])"
  stopped E_BUNDLE "a second list"
  # Go reads the second list into the elements of the first.
  probe --jq '.linux.resources.devices = [{allow: false, access: "rwm"}, {allow: true, type: "c", major: 1, access: "rwm"}]
    | .linux.resources.Devices = [{allow: false, access: "rwm"}, {major: 195}]'
  stopped E_BUNDLE "merged fields"
  probe --jq '.linux.resources.Devices = .linux.resources.devices'
  passed "the same list twice"
}

@test "numbers as the kernel gets them" {
  local numbers major minor
  for numbers in "4294967491 1" "4291 1" "-3901 1" "195 1048577"; do
    read -r major minor <<<"$numbers"
    rm -rf "${MG:?}/b/x"
    bundle x --jq ".linux.devices += [{path: \"/dev/x\", type: \"c\", major: $major, minor: $minor, fileMode: 438}]" \
      --args stat -c 'it is %t:%T' /dev/x
    try any "$REAL" "${FLAGS[@]}" --root "$MG/below.state" run --bundle "$MG/b/x" below
    assert_contains "the node of $numbers" "$stdout$stderr" "it is c3:1"
    create fail x
    assert_refusal_text x E_DEVICE_NODE
    explained
    assert_contains "explain" "$stdout" "decision: refuse [E_DEVICE_NODE]"
  done
  rm -rf "${MG:?}/b/x"
  allowed y --jq '.linux.devices += [{path: "/dev/x", type: "c", major: 4294967297, minor: 3, fileMode: 438}]'
}

@test "deny rules, letter by letter and number by number" {
  local rules
  while read -r rules; do
    probe --jq ".linux.resources.devices += [$rules]"
    stopped E_DEVICE_RULE "$rules"
  done <<END
$OPEN, {allow: false, type: "c", major: 195, access: "w"}
$OPEN, {allow: false, type: "c", major: 195, access: "wm"}
{allow: true, type: "c", major: 195, minor: 1, access: "rwm"}, {allow: false, type: "c", major: 195, access: "rwm"}
{allow: true, type: "c", major: 195, minor: 1, access: "r"}, {allow: false, type: "c", access: "rwm"}
{allow: true, type: "a", major: 1, minor: 3, access: "r"}
{allow: true, access: "m"}
END
  while read -r rules; do
    probe --jq ".linux.resources.devices += [$rules]"
    passed "$rules"
  done <<END
{allow: false, type: "c", major: 195, access: "rwm"}
{allow: true, type: "c", major: 10, minor: 229, access: "rwm"}
{allow: true, type: "c", major: 195, access: "m"}
END
}

# marked STAGE WORDS: jq text for a hook entry of ours that nobody of ours made.
marked() {
  printf '.hooks.%s = [{path: "/usr/bin/mpsgate-hook", args: %s}]' "$1" "$(json_list mpsgate-hook "${@:2}")"
}

@test "a mark of ours without our record counts for nothing" {
  granted g 1Gi
  local instance
  instance=$(jq -r '.hooks.createRuntime[0].args[] | select(startswith("--instance="))' "$MG/b/g/config.json")
  [[ -n $instance ]] || fail "no instance in the hook of a grant"
  local words
  for words in "poststop x --by=precreate" "createRuntime createRuntime --by=precreate" \
    "createRuntime createRuntime --root=$RUNC_ROOT $instance --by=precreate" \
    "createRuntime createRuntime --root=$RUNC_ROOT --instance=00000000000000000000000000000000 --by=precreate"; do
    # shellcheck disable=SC2086 # words
    probe --jq ".linux.resources.devices += [$OPEN]" --jq "$(marked $words)"
    create fail x
    assert_refusal_text x E_DEVICE_RULE
    explained
    assert_contains "explain" "$stdout" "decision: refuse [E_DEVICE_RULE]"
  done
  # The hook alone, where an engine runs nothing else of mpsgate.
  jq -n --arg bundle "$MG/b/x" '{ociVersion: "1.0.2", id: "x", status: "creating", bundle: $bundle}' >"$MG/state.json"
  local code=0
  mpsgate-hook createRuntime <"$MG/state.json" 2>"$MG/veto" || code=$?
  assert_equal "the hook's exit status" "$code" 1
  assert_contains "its words" "$(<"$MG/veto")" E_DEVICE_RULE
  delete g
}

@test "mounts of ours in a document that cannot be parsed" {
  probe --jq '.mounts += [{destination: "/m", type: "bind", source: "/run/mpsgate", options: ["rbind"]}]'
  changed twice
  create fail x
  assert_refusal_text x E_BUNDLE
  assert_contains "the reason" "$stderr" /run/mpsgate
  probe --jq '.mounts += [{destination: "/tmp", type: "bind", source: "/var/empty", options: ["rbind"]}]'
  mkdir -p /var/empty
  changed twice
  passed "another mount"
}

@test "what no runtime makes a container of is refused, and explain says why" {
  probe
  changed head -c 400
  create fail x
  assert_refusal_text x E_BUNDLE
  explained
  assert_equal "explain's exit status" "$status" 2
  probe
  changed sh -c 'cat; echo "{}"'
  create fail x
  assert_refusal_text x E_BUNDLE
  explained
  assert_equal "explain's exit status" "$status" 2
}

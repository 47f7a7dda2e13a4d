#!/usr/bin/env bats
# `mpsgate qualify` while something else happens: a client, the gate, mpsgated or who asks is
# killed, or somebody else has the card or comes for it. Which answers count then. The end of the
# control daemon, and processes of nobody: src/daemon/tests/daemon/qualify.rs.
# sandbox: MG_GPUS=1
# shellcheck disable=SC2030,SC2031 # bats runs each test in a subshell

load qualify

@test "a client that somebody kills is asked a second time, and that answer counts" {
  local asks
  fake hang
  mpsgate qualify 0 --library "$MG/fakes/libcuda.so.1" -o json >"$BATS_TEST_TMPDIR/asked" 2>"$BATS_TEST_TMPDIR/said" 3>&- &
  asks=$!
  wait_for 20 "its client is there" one_is_active
  # It comes to the library a moment later.
  sleep 2
  kill -KILL "$(mpsgate status -o json | jq '.grants[0].pid')"
  rm /usr/bin/fake-libcuda.word
  wait "$asks" || true
  stdout=$(<"$BATS_TEST_TMPDIR/asked")
  assert_equal "attach" "$(answer attach)" yes
  assert_contains "what was before" "$(jq -r '.answers[0].evidence' <<<"$stdout")" "asked a second time, because at first: the client ended: "
  granted web 1Gi
}

@test "a no while the gate ends is none: nothing is refused, and it is asked again" {
  local asks
  fake hang
  mpsgate qualify 0 --library "$MG/fakes/libcuda.so.1" -o json >"$BATS_TEST_TMPDIR/asked" 2>"$BATS_TEST_TMPDIR/said" 3>&- &
  asks=$!
  wait_for 20 "its client is there" one_is_active
  pkill -KILL -f "^/usr/bin/mpsgate-gate --card 0 "
  wait "$asks" || true
  stdout=$(<"$BATS_TEST_TMPDIR/asked")
  assert_equal "attach" "$(answer attach): $(seen attach)" "unanswered: no answer in time"
  assert_contains "what was seen meanwhile" "$(jq -r '.answers[0].meanwhile' <<<"$stdout")" gate
  wait_for 20 "the card is ready" card_is ready 0
  assert_contains "it is due" "$(card 0 .qualify)" "no answer counts to attach" "meanwhile"
}
one_is_active() { [[ $(mpsgate status -o json | jq '[.grants[] | select(.state == "active")] | length') == 1 ]]; }

@test "a card with grants is not asked, and a container that comes meanwhile waits, also under the name of one that asks" {
  local late
  granted web 1Gi
  LIMIT=20 try 1 mpsgate qualify 0
  assert_contains "the refusal" "$stderr" E_GPU_IN_USE "a container has a grant on it"
  delete web
  mpsgate qualify 0 --library "$MG/fakes/libcuda.so.1" >"$BATS_TEST_TMPDIR/asked" 2>&1 3>&- &
  wait_for 10 "the card is being asked" card_is qualifying 0
  LIMIT=20 try fail mpsgate qualify 0
  assert_contains "a second one" "$stderr" "another mpsgate qualify is at work"
  wait_for 20 "its client is there" one_is_active
  late=$(mpsgate status -o json | jq -r '.grants[0].container_id')
  granted "${late%-*}x" 1Gi
  assert_equal "when it came" "$(card 0 .state)" ready
  wait $! || true
  assert_contains "what was asked" "$(<"$BATS_TEST_TMPDIR/asked")" "attach     yes"
}

@test "killed in the middle, of another driver, torn, or another's: no answer counts that was not given" {
  local file=/var/lib/mpsgate/qualification/$CARD.json asks
  mpsgate qualify 0 --library "$MG/fakes/libcuda.so.1" >"$BATS_TEST_TMPDIR/asked" 2>&1 3>&- &
  asks=$!
  wait_for 10 "the card is being asked" card_is qualifying 0
  kill -TERM "$asks"
  wait "$asks" && fail "it ended as if nothing had been"
  assert_contains "what it says" "$(<"$BATS_TEST_TMPDIR/asked")" "ended by a signal"
  nothing_is_left
  [[ ! -e $file ]] || fail "half of the answers were kept"
  mpsgate qualify 0 --library "$MG/fakes/libcuda.so.1" >"$BATS_TEST_TMPDIR/asked" 2>&1 3>&- &
  asks=$!
  wait_for 10 "the card is being asked" card_is qualifying 0
  daemon_stop KILL
  daemon_start
  wait "$asks" && fail "its answers were taken"
  assert_contains "what it says" "$(<"$BATS_TEST_TMPDIR/asked")" "no card is being asked by that name any more"
  [[ ! -e $file ]] || fail "answers were kept of which mpsgated knows nothing"
  mkdir -p "${file%/*}"
  echo '{"format": 2}' >"$file"
  wait_for 20 "status says why" status_has "its answers cannot be read: $file: it has format 2"
  assert_equal "the file" "$(<"$file")" '{"format": 2}'
}

#!/usr/bin/env bats
# What tenants of a cluster can put into mpsgated ends no service and shows nobody else's secrets:
# records of tokens that are damaged or have no end, and processes whose arguments hold passwords.

load pods

TOKENS=/var/lib/mpsgate/tokens

@test "a record of tokens that is damaged and too large lets known containers go on, and gives no token to two" {
  local of mine unused record fresh
  mine=$(token 2048)
  unused=$(token 1024)
  of pod-1 main "$mine"
  podded first "${of[@]}"
  delete first
  record=$TOKENS/$(jq -r '.keys[-1].id' "$TOKENS/keys.json").uses
  daemon_stop KILL
  # A line of 65 MiB that is none.
  { head -c 68157440 /dev/zero; echo; } >>"$record"
  daemon_start
  of pod-1 main "$mine"
  podded second "${of[@]}"
  of pod-2 main "$mine"
  refused third E_UNCONFIRMED "${of[@]}"
  assert_contains "whose it is" "$stderr" "first brought by container main of pod pod-1"
  of pod-2 main "$unused"
  refused third E_UNCONFIRMED "${of[@]}"
  assert_contains "what to do" "$stderr" "create the pod anew"
  assert_equal "keys" "$(jq '.keys | length' "$TOKENS/keys.json")" 2
  fresh=$(token 1024)
  of pod-2 main "$fresh"
  podded fourth "${of[@]}"
  [[ -s $record.damaged ]] || fail "no copy is kept"
  (($(stat -c %s "$record") < 4096)) || fail "the record is not short: $(ls -l "$TOKENS")"
  assert_contains "the log" "$(<"$MG/log/mpsgated.log")" "a line of a record of tokens is damaged"
}

@test "what a process was told is in no log, no status and no bundle" {
  local of stranger
  of pod-3 main "$(token 1024)"
  podded good "${of[@]}"
  bash -c 'while :; do sleep 1; done' ./t --db-pass hunter2 --hf-token hf_SECRET 3>&- &
  stranger=$!
  uses "$stranger" 9000 "$(pid_of good)" 100
  seen() { status_json | jq -e '.actions | length > 0' >/dev/null; }
  wait_for 20 "it is reported" seen
  kill -KILL "$stranger"
  assert_contains "why" "$(status_json | jq -r '.actions[0].why')" "pid $stranger (bash)"
  mpsgate doctor --bundle "$MG/bundle.tar.gz" >/dev/null || true
  mkdir "$MG/bundle"
  tar -xzf "$MG/bundle.tar.gz" -C "$MG/bundle"
  if grep -rlE 'hunter2|hf_SECRET' "$MG/log/mpsgated.log" "$MG/bundle" <(mpsgate status) <(mpsgate status -o json); then
    fail "an argument is shown"
  fi
}

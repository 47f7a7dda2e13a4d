#!/usr/bin/env bats
# tests/env/tally.sh: what it counts, what it names, and which skips it takes. No root.

bats_require_minimum_version 1.5.0

setup() {
  tally=$BATS_TEST_DIRNAME/tally.sh
  logs=$BATS_TEST_TMPDIR/logs expected=$BATS_TEST_TMPDIR/expected
  mkdir "$logs"
  cat >"$logs/e2e.log" <<'TAP'
1..4
ok 1 a lock: held | twice in 34ms # skip this kernel has none
not ok 2 it breaks in 14ms
# (in test file x.bats, line 2)
ok 3 later in 2ms # skip
ok 4 it works in 18ms
TAP
  cat >"$logs/unit.log" <<'NEXTEST'
        PASS [   0.010s] (1/3) mpsgate-mps run::tests::ends
        FAIL [   0.013s] (2/3) mpsgate-daemon::daemon grants::one
  stderr ───
    its words
     Summary [   0.100s] 4 tests run: 3 passed, 1 failed, 0 skipped
        FAIL [   0.013s] (2/3) mpsgate-daemon::daemon grants::one
SKIPPED: daemon::limits::first: no cgroup v2
SKIPPED: daemon::limits::second: no cgroup v2
NEXTEST
}

says() { # LINE...: among the last lines, in this order
  local line rest=$output
  for line; do
    [[ $'\n'$rest$'\n' == *$'\n'"$line"$'\n'* ]] || { echo "no line \"$line\" here or after the one before:" "$output"; return 1; }
    rest=${rest#*"$line"}
  done
}

@test "each skipped test counts by its name, and the last lines name what failed" {
  echo clippy >"$logs/failed-stages"
  run -1 "$tally" "$logs"
  says "  |     its words" "skipped: e2e: a lock: held | twice | this kernel has none" "skipped: e2e: later | no reason" \
    "skipped: unit: daemon::limits::first | no cgroup v2" "skipped: unit: daemon::limits::second | no cgroup v2" "4 skipped" \
    "failed: e2e: it breaks in 14ms" "failed: unit: mpsgate-daemon::daemon grants::one" "failed: clippy" "2 passed, 3 failed"
  [[ ${lines[-1]} == "2 passed, 3 failed" ]]
}

@test "a skip that nobody expects on such a machine fails and is named; one that no longer skips is mentioned" {
  sed -i '/^not ok/d' "$logs/e2e.log"
  sed -i -e '/FAIL/d' -e 's/3 passed, 1 failed/4 passed/' "$logs/unit.log"
  printf '%s\n' '# why' '[any]' 'e2e: a lock: held ? twice | this kernel*' 'e2e: later | no reason' 'e2e: gone | *' 'k8s: not here | *' '[nowhere]' \
    'unit: *' '[any]' 'unit: daemon::limits::[f]irst | no cgroup v2' >"$expected"
  run -1 "$tally" "$logs" "$expected"
  says "no longer skipped: e2e: gone | *" "failed: not an expected skip (tests/expected-skips): unit: daemon::limits::second | no cgroup v2" "3 passed, 1 failed"
  [[ $output != *"no longer skipped: k8s"* && $output != *"expected-skips): unit: daemon::limits::first"* ]]
  sed -i "s/nowhere/$("$tally" --traits | paste -sd' ')/" "$expected"
  run -0 "$tally" "$logs" "$expected"
  [[ ${lines[-1]} == "3 passed, 0 failed" ]]
}

@test "what was not run again is named and counts neither as passed nor as skipped" {
  rm "$logs"/*
  echo "not run again: k8s: same inputs as on 2026-11-24 (70 passed, 2 skipped)" >"$logs/k8s.log"
  run -1 "$tally" "$logs"
  says "not run again: k8s: same inputs as on 2026-11-24 (70 passed, 2 skipped)" "0 passed, 0 failed"
}

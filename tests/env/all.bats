#!/usr/bin/env bats
# tests/env/all.sh with a `make` that only writes logs: which stages it runs, which it does not run
# again, and what it says. No root.

bats_require_minimum_version 1.5.0

# One run in which everything passed is what most tests begin with: $FIRST is what it said.
setup_file() {
  export top LOGS=$BATS_FILE_TMPDIR/logs FIRST=$BATS_FILE_TMPDIR/first
  top=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  git -C "$top" rev-parse --git-dir >/dev/null 2>&1 || return 0
  export XDG_CACHE_HOME=$BATS_FILE_TMPDIR/cache MG_SELECT=ci MG_UNCHANGED=skip
  mkdir "$BATS_FILE_TMPDIR/bin"
  export PATH=$BATS_FILE_TMPDIR/bin:$PATH
  cat >"$BATS_FILE_TMPDIR/bin/make" <<'SH'
#!/bin/bash
shift 2 # -o man
stage=${1#test-}
echo "$stage begins"
sleep 0.1
[[ $stage != "${BREAKS:-}" ]] || { echo "not ok 1 it breaks" >"$LOGS/$stage.log"; exit 1; }
{ echo "ok 1 it works"; [[ $stage != "${SKIPS:-}" ]] || echo "ok 2 new # skip for a reason that nobody expects"; } >"$LOGS/$stage.log"
echo "$stage ends"
SH
  chmod +x "$BATS_FILE_TMPDIR/bin/make"
  all
  echo "$output" >"$FIRST"
}

setup() {
  git -C "$top" rev-parse --git-dir >/dev/null 2>&1 || skip "this is no checkout of git"
  cp -r "$XDG_CACHE_HOME" "$LOGS" "$BATS_TEST_TMPDIR/"
  export XDG_CACHE_HOME=$BATS_TEST_TMPDIR/cache LOGS=$BATS_TEST_TMPDIR/logs
  output=$(<"$FIRST")
}

all() { # the long stages as CI has them; sets $output
  rm -rf "$LOGS"
  mkdir "$LOGS"
  run -0 "$top/tests/env/all.sh" "$LOGS"
}
ran() { grep -oE '^[a-z0-9]+ begins' <<<"$output" | cut -d' ' -f1 | sort | paste -sd' '; }
EVERY="chart crun engines gpu hosts image k8s packages vm"

@test "what has passed on the same inputs is named with its counts and not run again; other inputs run everything" {
  [[ $(ran) == "$EVERY" ]]
  # In one piece each, however they overlap.
  (($(grep -A1 ' begins$' <<<"$output" | grep -c ' ends$') == 9))
  all
  [[ -z $(ran) ]]
  (($(grep -c "^not run again: .*: same inputs as on ....-..-.. (1 passed, 0 failed)$" <<<"$output") == 9))
  [[ $(<"$LOGS/k8s.log") == "not run again: k8s: same inputs as on "* ]]
  MG_OTHER=yes all
  [[ $(ran) == "$EVERY" ]]
}

@test "before a release everything runs, and so it does where nobody asks for less" {
  MG_UNCHANGED=run all
  [[ $(ran) == "$EVERY" ]]
  MG_UNCHANGED='' all
  [[ $(ran) == "$EVERY" ]]
}

@test "CI names what it leaves to the night, and the night has it: together they are everything" {
  local by_day by_night
  by_day=$(ran)
  [[ $output == *"left out: MG_SELECT=nightly has it"*"tests/bench/gate.bats: "*"tests/e2e/old_kernel.bats: "*"tests/k8s/restarts.bats: "* ]]
  [[ $(<"$LOGS/left-out") == *"test-restarts: 100 "*"test-engines: "*"docker-28"* ]]
  MG_SELECT=nightly MG_UNCHANGED='' all
  by_night=$(ran)
  [[ $by_night == "bench differential e2e engines faults hosts k8s restarts vm vm" && $output != *"left out"* ]]
  MG_SELECT='' MG_UNCHANGED='' all
  # The first two are of make test otherwise.
  # shellcheck disable=SC2086 # words
  [[ $(printf '%s\n' $by_day $by_night | grep -vxE 'e2e|faults' | sort -u) == "$(ran | tr ' ' '\n' | sort -u)" ]]
}

@test "each file of a suite is run by day or by night" {
  local folder day night
  # shellcheck source=tests/env/side_by_side.bash
  source "$top/tests/env/side_by_side.bash"
  for folder in e2e hosts k8s; do
    day=$(MG_SELECT=ci selected "$top/tests/$folder"/*.bats) night=$(MG_SELECT=nightly selected "$top/tests/$folder"/*.bats)
    [[ -n $day && -n $night && $(sort <<<"$day"$'\n'"$night") == "$(MG_SELECT='' selected "$top/tests/$folder"/*.bats | sort)" ]]
  done
}

@test "what is broken off is not silent: it shows what it had said, and counts as failed" {
  cat >"$BATS_TEST_TMPDIR/two" <<SH
source "$top/tests/env/side_by_side.bash"
one() { echo "ok 1 of \$1"; [[ \$1 != long ]] || { printf 'half a line'; touch "$BATS_TEST_TMPDIR/said"; exec sleep 600 3>&-; }; }
MG_JOBS=2 side_by_side one long short
SH
  bash "$BATS_TEST_TMPDIR/two" >"$BATS_TEST_TMPDIR/out" 2>&1 3>&- &
  local end=$((SECONDS + 30)) rc=0
  until [[ -e $BATS_TEST_TMPDIR/said ]] && grep -q "of short" "$BATS_TEST_TMPDIR/out"; do
    ((SECONDS < end))
    sleep 0.05
  done
  kill -TERM $!
  wait $! || rc=$?
  ((rc == 130))
  [[ $(<"$BATS_TEST_TMPDIR/out") == $'ok 1 of short\nok 1 of long\nhalf a line\nnot ok 2 long: broken off' ]]
}

@test "a stage that failed, or had a skip that nobody expects, runs again" {
  rm -rf "$XDG_CACHE_HOME"
  BREAKS=k8s SKIPS=image all
  [[ $output == *"test-k8s "*FAILED* && $(<"$LOGS/failed-stages") == k8s ]]
  all
  [[ $(ran) == "image k8s" ]]
  all
  [[ -z $(ran) ]]
}

@test "a record of more than a week ago counts no more" {
  find "$XDG_CACHE_HOME" -type f -path '*/unchanged/*' -exec touch -d '8 days ago' {} +
  all
  [[ $(ran) == "$EVERY" ]]
}

#!/usr/bin/env bash
# tally.sh DIR: sums the logs of the test runners in DIR (nextest, cargo test, TAP), names what failed
# and what was skipped, and ends with the line `N passed, N failed`. A Rust test that skips itself passes
# for its runner; by its line `SKIPPED: NAME needs root` it counts as skipped here.
# What a failed test said stands there, too: who reads only the end of a long log wants it.
# DIR/failed-stages names stages that failed, one a line. A stage whose log STAGE*.log shows no failed
# test (it did not compile, say) is one failure itself. Exits 1 when something failed or nothing ran.
set -euo pipefail
shopt -s nullglob
dir=$1
passed=0 failed=0 skipped=0 ignored=0
declare -A failures_of

sum() { # PATTERN with one \(group\): the sum of what it finds on standard input
  sed -n "s/.*$1.*/\1/p" | awk '{ n += $1 } END { print n + 0 }'
}

said() { # what each failed test of a log printed, 40 lines of it at most: TAP's comments, nextest's blocks
  awk '/^not ok [0-9]/ { left = 40; tap = 1; print; next }
    /^ +(FAIL|TIMEOUT|SIG[A-Z]+) \[/ { tap = left = 0; if (!seen[$NF]++) { left = 40; print }; next }
    tap && !/^#/ || !tap && (/^ +(PASS|SLOW|TRY|SKIP) \[/ || /^-{3,}|^ *Summary \[|^ +Cancelling/) { left = 0 }
    left > 0 { left--; print "  | " $0 }'
}

for log in "$dir"/*.log; do
  text=$(sed 's/\x1b\[[0-9;]*m//g' "$log")
  # nextest: "Summary [ 1.2s] 45 tests run: 44 passed (1 slow), 1 failed, 1 timed out, 2 skipped"
  next=$(grep -E '^ *Summary \[' <<<"$text" || true)
  # cargo test: "test result: ok. 3 passed; 0 failed; 1 ignored; ..."
  cargo=$(grep -E '^test result:' <<<"$text" || true)
  ok=$(grep -cE '^ok [0-9]' <<<"$text" || true)
  skip=$(grep -cE '^ok [0-9].* # skip' <<<"$text" || true)
  selves=$(grep -E '^SKIPPED: ' <<<"$text" | sort -u || true)
  self=$(grep -c . <<<"$selves" || true)
  bad=$(grep -cE '^not ok [0-9]' <<<"$text" || true)
  for kind in failed 'timed out' 'exec failed'; do bad=$((bad + $(sum "[ ,]\([0-9]\+\) $kind" <<<"$next"))); done
  bad=$((bad + $(sum ' \([0-9]\+\) failed' <<<"$cargo")))
  passed=$((passed + ok - skip - self + $(sum ' \([0-9]\+\) passed' <<<"$next") + $(sum ' \([0-9]\+\) passed' <<<"$cargo")))
  skipped=$((skipped + skip + self))
  # Marked #[ignore] in the source, for a reason that stands there: measurements, helper programs.
  ignored=$((ignored + $(sum ' \([0-9]\+\) skipped' <<<"$next") + $(sum ' \([0-9]\+\) ignored' <<<"$cargo")))
  failed=$((failed + bad))
  ((bad == 0)) || said <<<"$text"
  stage=$(basename "$log" .log)
  failures_of[${stage%%-*}]=$((${failures_of[${stage%%-*}]:-0} + bad))
  grep -E '^ok [0-9].* # skip|^SKIPPED: |^test .* FAILED$' <<<"$text" | sort -u || true
done
if [[ -f $dir/failed-stages ]]; then
  while read -r stage; do
    ((${failures_of[$stage]:-0} > 0)) && continue
    echo "failed: $stage"
    failed=$((failed + 1))
  done <"$dir/failed-stages"
fi
((ignored == 0)) || echo "$ignored ignored (#[ignore] in the source)"
((skipped == 0)) || echo "$skipped skipped"
echo "$passed passed, $failed failed"
((failed == 0 && passed > 0))

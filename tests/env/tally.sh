#!/usr/bin/env bash
# tally.sh DIR [EXPECTED]: sums the logs of the test runners in DIR (nextest, cargo test, TAP),
# names what was skipped and what failed, and ends with the line `N passed, N failed`. A Rust test
# that skips itself passes for its runner; by its line `SKIPPED: NAME: REASON` it counts as skipped
# here. What a failed test said stands there, too, and just before the last line once more the names
# alone: who reads only the end of a long log wants them. DIR/failed-stages names stages that
# failed, one a line. A stage whose log STAGE*.log shows no failed test (it did not compile, say) is
# one failure itself. Exits 1 when something failed or nothing ran. With EXPECTED
# (tests/expected-skips, which says how it is read) a skip that is not expected fails.
#
# tally.sh --traits: what this machine is, in that file's words.
set -euo pipefail
shopt -s nullglob

traits() {
  ((EUID)) && echo user || echo root
  # shellcheck source=/dev/null
  (. /etc/os-release && echo "$ID-${VERSION_ID:-none}") 2>/dev/null || true
  [[ $(stat -fc %T /sys/fs/cgroup) == cgroup2fs ]] && echo cgroup-v2 || echo cgroup-v1
  (($(awk '/^CapEff:/ { print "0x" $2 }' /proc/self/status) >> 24 & 1)) || echo no-sys-resource
  grep -q ' nvidia$' /proc/devices || echo no-gpu
  [[ ${CI:-} != true ]] || echo ci
}
if [[ ${1:-} == --traits ]]; then
  traits
  exit
fi
dir=$1 expected=${2:-}
passed=0 failed=0 skipped=0 ignored=0
names=() skips=() # "STAGE: NAME", "STAGE: NAME | REASON"
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
  stage=$(basename "$log" .log)
  # nextest: "Summary [ 1.2s] 45 tests run: 44 passed (1 slow), 1 failed, 1 timed out, 2 skipped"
  next=$(grep -E '^ *Summary \[' <<<"$text" || true)
  # cargo test: "test result: ok. 3 passed; 0 failed; 1 ignored; ..."
  cargo=$(grep -E '^test result:' <<<"$text" || true)
  ok=$(grep -cE '^ok [0-9]' <<<"$text" || true)
  # TAP: "ok 3 NAME in 12ms # skip REASON"
  tap=$(sed -nE 's/^ok [0-9]+ (.*) # skip ?(.*)/\1 | \2/p' <<<"$text" | sed -E -e 's/ in [0-9]+ms \| / | /' -e 's/ \| $/ | no reason/')
  self=$(sed -nE 's/^SKIPPED: //; T; s/^([^ ]+): /\1 | /; p' <<<"$text" | sort -u)
  skip=$(grep -c . <<<"$tap" || true) selves=$(grep -c . <<<"$self" || true)
  mapfile -t -O "${#skips[@]}" skips < <(grep -h . <<<"$tap"$'\n'"$self" | sed "s/^/${stage%%-*}: /")
  bad=$(grep -cE '^not ok [0-9]' <<<"$text" || true)
  for kind in failed 'timed out' 'exec failed'; do bad=$((bad + $(sum "[ ,]\([0-9]\+\) $kind" <<<"$next"))); done
  bad=$((bad + $(sum ' \([0-9]\+\) failed' <<<"$cargo")))
  passed=$((passed + ok - skip - selves + $(sum ' \([0-9]\+\) passed' <<<"$next") + $(sum ' \([0-9]\+\) passed' <<<"$cargo")))
  skipped=$((skipped + skip + selves))
  # Marked #[ignore] in the source, for a reason that stands there: measurements, helper programs.
  ignored=$((ignored + $(sum ' \([0-9]\+\) skipped' <<<"$next") + $(sum ' \([0-9]\+\) ignored' <<<"$cargo")))
  failed=$((failed + bad))
  ((bad == 0)) || said <<<"$text"
  mapfile -t -O "${#names[@]}" names < <(sed -nE -e 's/^not ok [0-9]+ (.*)/\1/p' -e 's/^ +(FAIL|TIMEOUT|SIG[A-Z]+) \[[^]]*\] +(\([^)]*\) +)?//p' \
    -e 's/^test (.*) \.\.\. FAILED$/\1/p' <<<"$text" | sort -u | sed "s/^/${stage%%-*}: /")
  failures_of[${stage%%-*}]=$((${failures_of[${stage%%-*}]:-0} + bad))
  grep '^not run again: ' <<<"$text" || true
done
if [[ -f $dir/failed-stages ]]; then
  while read -r stage; do
    ((${failures_of[$stage]:-0} > 0)) && continue
    names+=("$stage")
    failed=$((failed + 1))
  done <"$dir/failed-stages"
fi
((${#skips[@]} == 0)) || printf '%s\n' "${skips[@]}" | sort | uniq -c | sed -E 's/^ *1 /skipped: /; s/^ *([0-9]+) (.*)/skipped: \2 (\1 times)/'

if [[ -n $expected ]]; then
  patterns=() here=" any $(traits | tr '\n' ' ') " counts=yes
  while read -r line; do
    case $line in
      '' | '#'*) ;;
      \[*\]) counts=yes; for trait in ${line//[\[\]]/}; do [[ $here == *" $trait "* ]] || counts=''; done ;;
      *) [[ -z $counts ]] || patterns+=("$line") ;;
    esac
  done <"$expected"
  declare -A met=()
  for skip in "${skips[@]}"; do
    for pattern in "${patterns[@]}"; do
      # shellcheck disable=SC2053 # it is a pattern
      [[ $skip != $pattern ]] || { met[$pattern]=1; continue 2; }
    done
    names+=("not an expected skip (tests/expected-skips): $skip")
    failed=$((failed + 1))
  done
  for pattern in "${patterns[@]}"; do
    logs=("$dir/${pattern%%:*}"*.log)
    [[ -v met[$pattern] || ${#logs[@]} == 0 ]] || grep -q '^not run again: ' "${logs[@]}" || echo "no longer skipped: $pattern"
  done
fi
((ignored == 0)) || echo "$ignored ignored (#[ignore] in the source)"
((skipped == 0)) || echo "$skipped skipped"
((${#names[@]} == 0)) || printf 'failed: %s\n' "${names[@]}"
echo "$passed passed, $failed failed"
((failed == 0 && passed > 0))

# side_by_side.bash: what tests/*/run have in common: sets of tests, each in a sandbox of its own,
# some at a time.
# shellcheck shell=bash

# side_by_side CMD NAME...: runs `CMD NAME` for each, MG_JOBS at a time (default: one more than
# twice the processors, as tests wait most of their time), and prints what each said, whole, when
# it has ended. What took longest the last time goes first. A file with a line "# first: WHY" runs
# before the others, one with "# alone: WHY" after them, each by itself. Returns 1 when one of them
# failed. Ended by a signal, as by `timeout`, it prints what the others have said until then, each
# with a failed test more.
side_by_side() {
  local run_one=$1 at_once=${MG_JOBS:-$((2 * $(nproc) + 1))} said_in name ended any_failed=0
  local lasted=${XDG_CACHE_HOME:-$HOME/.cache}/mpsgate/seconds first=() together=() alone=()
  local -A running=() # pid: name
  shift
  [[ ${MG_REAL_GPU:-0} != 1 ]] || at_once=1 # there is one set of cards
  mkdir -p "$lasted"
  for name; do
    if marked first "$name"; then first+=("$name")
    elif (($# == 1 || at_once == 1)) || marked alone "$name"; then alone+=("$name")
    else together+=("$name"); fi
  done
  for name in "${first[@]}"; do timed "$name" || any_failed=1; done
  said_in=$(mktemp -d)
  trap 'side_by_side_stop; exit 130' INT TERM
  while read -r name; do
    ((${#running[@]} < at_once)) || one_has_ended
    # In a process group of its own, which can be ended as a whole.
    set -m
    timed "$name" >"$said_in/${name##*/}" 2>&1 </dev/null &
    set +m
    running[$!]=$name
  done < <(for name in "${together[@]}"; do echo "$(cat "$lasted/${name##*/}" 2>/dev/null || echo 9999) $name"; done | sort -rn | cut -d' ' -f2-)
  while ((${#running[@]})); do one_has_ended; done
  trap - INT TERM
  rm -rf "$said_in"
  for name in "${alone[@]}"; do timed "$name" || any_failed=1; done
  return "$any_failed"
}

# selected FILE...: those that $MG_SELECT takes, one a line: `ci` all but those with a line
# "# nightly: WHY", `nightly` these alone, else all.
selected() {
  local file
  for file; do
    case ${MG_SELECT:-} in
      ci) marked nightly "$file" || echo "$file" ;;
      nightly) ! marked nightly "$file" || echo "$file" ;;
      *) echo "$file" ;;
    esac
  done
}

# Parts of it, which see its variables.
marked() { [[ -f $2 ]] && grep -q "^# $1: " "$2"; } # MARK NAME
timed() { # NAME
  local begin=$SECONDS rc=0
  "$run_one" "$1" || rc=1
  echo $((SECONDS - begin)) >"$lasted/${1##*/}"
  return "$rc"
}
one_has_ended() {
  wait -n -p ended "${!running[@]}" || any_failed=1
  cat "$said_in/${running[$ended]##*/}"
  unset "running[$ended]"
}
side_by_side_stop() {
  local pid
  for pid in "${!running[@]}"; do kill -TERM -- "-$pid" 2>/dev/null || true; done
  for pid in "${!running[@]}"; do broken_off "${running[$pid]##*/}"; done
  rm -rf "$said_in"
}
# broken_off NAME: what it said until then, if that was anything. A last line without an end would
# take in the `not ok`.
broken_off() {
  cat "$said_in/$1" 2>/dev/null || true
  end_line "$said_in/$1"
  echo "not ok $(($(ran_in "$said_in/$1") + 1)) $1: broken off"
}
# Of a file with TAP. ran_in: how many tests have ended in it. end_line: an end of its last line,
# where that has none.
ran_in() { grep -cE '^(not )?ok [0-9]' "$1" 2>/dev/null || true; }
end_line() { [[ -z $(tail -c 1 "$1" 2>/dev/null) ]] || echo; }

# whole NAME TAP STATUS: a set of tests that could not be set up, or that died, is a failure even if
# no test says so.
whole() {
  local planned ran
  planned=$(sed -n 's/^1\.\.\([0-9]*\).*/\1/p' "$2" | head -1)
  ran=$(ran_in "$2")
  if [[ ${planned:-none} != "$ran" || $ran == 0 ]] || { (($3)) && ! grep -q '^not ok' "$2"; }; then
    end_line "$2" | tee -a "$2"
    echo "not ok $((ran + 1)) $1: ${planned:-no} tests planned, $ran ran, exit status $3" | tee -a "$2"
    return 1
  fi
  return "$3"
}

#!/usr/bin/env bash
# all.sh LOGS: the long tests, which `make test` leaves out: each a target of its own, with its
# minutes and the sum at the end. What `make test-all` does after the build. Some run beside each
# other; what a target said comes when it has ended.
# MG_SELECT=ci: of each kind what fits into a CI run of less than an hour. MG_SELECT=nightly: what
# that leaves to the night; LOGS/left-out names it.
# MG_STAGES="k8s engines": of these targets those alone.
# MG_UNCHANGED=skip: what passed on the same inputs is named and not run again (unchanged.sh); =run:
# only remembers what passed.
set -euo pipefail
logs=$1
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$logs"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

target() { # NAME MAKE-ARGUMENT...
  local name=$1 stage=${1#test-} begin=$SECONDS verdict=ok key='' last
  shift
  [[ -z ${MG_STAGES:-} || " $MG_STAGES " == *" $stage "* ]] || return 0
  [[ -z ${MG_UNCHANGED:-} ]] || key=$("$here/unchanged.sh" key "$stage") || key=''
  if [[ ${MG_UNCHANGED:-} == skip ]] && last=$("$here/unchanged.sh" ask "$stage" "$key"); then
    echo "not run again: $stage: same inputs as on $last" >"$logs/$stage.log"
    verdict="not run again: same inputs as on $last"
    said "$(<"$logs/$stage.log")" </dev/null
  else
    # The manual pages are there; made anew, another stage could read half of one.
    make -o man "$name" "$@" >"$work/$name" 2>&1 </dev/null || { verdict=FAILED; echo "$stage" >>"$logs/failed-stages"; }
    said "=== $name $*" <"$work/$name"
    [[ $verdict == FAILED || -z $key ]] || passed "$stage" "$key"
  fi
  printf '%-14s %3d:%02d  %s\n' "$name" $(((SECONDS - begin) / 60)) $(((SECONDS - begin) % 60)) "$verdict" >>"$work/times"
}

said() { # TITLE: and standard input, in one piece
  (
    flock 9
    echo "$1"
    cat
  ) 9>>"$work/lock"
}

passed() { # STAGE KEY: remembers that, unless its log shows a skip that nobody expects
  local alone=$work/logs-$1 last
  mkdir -p "$alone"
  cp "$logs/$1"*.log "$alone/"
  last=$("$here/tally.sh" "$alone" "$here/../expected-skips") || return 0
  "$here/unchanged.sh" passed "$1" "$2" "$(tail -n 1 <<<"$last")"
}

select=${MG_SELECT:-}
# First what has to meet limits of seconds, with both processors to itself: beside the emulated
# machines a cluster lost containers that were just being started. Two files of clusters at a time
# wait more than they compute; engines stay alone: ctr 1.6 loses the output of a program that ends
# at once on a busy machine. MG_JOBS=N has N files of a suite side by side.
jobs=${MG_JOBS:-}
export MG_JOBS=${jobs:-2}
[[ $select != nightly ]] || target test-e2e
target test-k8s
MG_JOBS=${jobs:-1}
target test-engines ${select:+MG_CELLS=$select}
if [[ $select != ci ]]; then for name in differential bench restarts; do target "test-$name"; done; fi
# gpu, crun and hosts wait more than they compute: chart, image and packages begin beside them.
MG_JOBS=${jobs:-3}
if [[ $select != nightly ]]; then
  {
    renice -n 10 -p "$BASHPID" >/dev/null
    for name in chart image packages; do target "test-$name"; done
  } &
fi
if [[ $select == nightly ]]; then
  target test-faults
else
  target test-gpu &
  gpu=$!
  target test-crun
  wait "$gpu"
fi
target test-hosts
MG_JOBS=1
# Then the machines, which are patient, too.
if [[ $select == ci ]]; then
  # What systemd has a part in, and no more.
  target test-vm VM=live
else
  target test-vm
  target test-vm MG_VM_SUITE=sid VM="scheduler live engines packages"
fi
wait
echo "=== minutes per target"
sort "$work/times"
if [[ $select == ci ]]; then
  {
    grep -rH '^# nightly: ' "$here"/../*/*.bats | sed -E 's|.*/tests/env/\.\./|tests/|; s|:# nightly: |: |' | sort
    echo "test-faults: 80 of 100 restarts"
    echo "test-differential: 5,000 documents besides those of make test"
    echo "test-restarts: 100 restarts each of mpsgated, gate and holder, of which make test has 4, 4 and 1"
    echo "test-engines: $("$here/../engines/run" --list nightly | paste -sd' ')"
    echo "test-vm: the machine of the package and its upgrade, what is tagged nightly, 15 of 20 restarts of the gate's unit, its reboots, the end-to-end files and generated documents on its crun and runc, plain processes, JupyterHub, the scheduler's unit, the crash points, the engines' own tests in the machine, the machine of sid"
  } >"$logs/left-out"
  echo "=== left out: MG_SELECT=nightly has it"
  cat "$logs/left-out"
fi

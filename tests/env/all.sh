#!/usr/bin/env bash
# all.sh LOGS: the long tests, which `make test` leaves out: each a target of its own, with its minutes and
# the sum at the end. What `make test-all` does after the build.
# MG_SELECT=ci: of each kind only what fits into a CI run of an hour; what is left out is named.
set -euo pipefail
logs=$1
mkdir -p "$logs"
times=()

target() { # NAME MAKE-ARGUMENT...
  local name=$1 begin=$SECONDS verdict=ok
  shift
  echo "=== $name $*"
  make "$name" "$@" || { verdict=FAILED; echo "${name#test-}" >>"$logs/failed-stages"; }
  times+=("$(printf '%-14s %3d:%02d  %s' "$name" $(((SECONDS - begin) / 60)) $(((SECONDS - begin) % 60)) "$verdict")")
}

target test-differential
target test-gpu
target test-image
target test-chart
target test-packages
target test-k8s
if [[ ${MG_SELECT:-} == ci ]]; then
  target test-engines MG_CELLS=ci
  target test-vm VM="crun-grant crun-differential runc-systemd-limits_memory live reboot packages"
  left="test-engines: other versions of each engine; test-vm: the other end-to-end files on crun and on cgroup v2, others
  and crun under systemd, the crash points there, the engines' own tests in the machine, the machine of sid"
else
  target test-engines
  target test-vm
  target test-vm MG_VM_SUITE=sid VM="live engines packages"
fi
echo "=== minutes per target"
printf '%s\n' "${times[@]}"
[[ -z ${left:-} ]] || printf 'left out: %s\n' "$left"

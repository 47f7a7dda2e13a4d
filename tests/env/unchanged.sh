#!/usr/bin/env bash
# unchanged.sh key STAGE | ask STAGE KEY | passed STAGE KEY SUMMARY: whether a long stage of
# tests/env/all.sh has passed on just these inputs before.
#
# `key` prints their sum: by content, of all files that git knows or would take, but for the folders
# of other suites and the pages that the stage does not read; of this machine's kernel, packages and
# compiler; of the variables that steer the tests. `ask` prints `DATE (SUMMARY)` of the run that
# passed with it, or ends with 1: then the stage has to run. A record is good for a week, since what
# Debian's servers hand out changes too. They lie in ~/.cache/mpsgate/unchanged, so a fresh machine
# runs everything.
set -euo pipefail
cd "$(dirname "$0")/../.."
records=${XDG_CACHE_HOME:-$HOME/.cache}/mpsgate/unchanged

# What a stage reads in tests/, and which pages. `tests/env`, the fakes and the programs among the
# tests belong to each.
of_stage() {
  case $1 in
    differential) echo tests/e2e ;;
    gpu) echo tests/e2e tests/gpu docs/gpu-report.md ;;
    image) echo tests/container ;;
    chart) echo tests/chart ;;
    packages) echo tests/packages tests/e2e SPECIFICATION.md CHANGELOG.md README.md docs ;;
    k8s) echo tests/k8s tests/e2e tests/engines README.md docs/kubernetes.md ;;
    engines) echo tests/engines tests/e2e tests/k8s README.md ;;
    hosts) echo tests/hosts tests/engines tests/e2e README.md SECURITY.md docs ;;
    vm) echo tests packaging SPECIFICATION.md SECURITY.md CHANGELOG.md docs ;;
    *) echo "unchanged.sh: no inputs are known of the stage $1" >&2; return 64 ;;
  esac
}

key() { # STAGE
  local own files
  own=$(of_stage "$1")
  files=$(
    git ls-files --cached --others --exclude-standard -- ':!tests' ':!docs' ':!*.md' ':!.github'
    # shellcheck disable=SC2086 # words
    git ls-files --cached --others --exclude-standard -- tests/env tests/fakes tests/client tests/escape tests/differential tests/faults $own
  )
  {
    sort -u <<<"$files" | xargs -d '\n' sha256sum
    uname -srm
    cat /etc/os-release
    rustc -vV
    dpkg-query -W
    env | grep -E '^(CI=|MG_|MPSGATE_|CRIO_BIN|SHIM_TARGET|RUSTFLAGS|BATS_)' | grep -vE '^MG_(JOBS|UNCHANGED)=' | sort || true
  } | sha256sum | cut -d' ' -f1
}

case ${1:-} in
  key)
    git rev-parse --git-dir >/dev/null 2>&1 || exit 1
    key "$2"
    ;;
  ask)
    [[ -n $(find "$records/$2" -mtime -7 2>/dev/null) ]] || exit 1
    { read -r of; read -r what; } <"$records/$2"
    [[ $of == "$3" ]] || exit 1
    echo "$what"
    ;;
  passed)
    mkdir -p "$records"
    printf '%s\n' "$3" "$(date +%F) ($4)" >"$records/$2.new"
    mv "$records/$2.new" "$records/$2"
    ;;
  *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 64 ;;
esac

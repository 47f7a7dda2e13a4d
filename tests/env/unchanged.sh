#!/usr/bin/env bash
# unchanged.sh key STAGE | linked STAGE | ask STAGE KEY | passed STAGE KEY SUMMARY: whether a long
# stage of tests/env/all.sh has passed on just these inputs before.
#
# `key` prints their sum: by content, of all files that git knows or would take, but for the crates
# that no program of the stage links, the folders of other suites, the crates' own tests, and the
# pages that the stage does not read; of this machine's kernel, packages and compiler; of the
# variables that steer the tests. `linked` prints the folders of the crates that a stage's programs
# link. `ask` prints `DATE (SUMMARY)` of the run that passed with it, or ends with 1: then the stage
# has to run. A record is good for a week, since what Debian's servers hand out changes too. They
# lie in ~/.cache/mpsgate/unchanged, so a fresh machine runs everything.
set -euo pipefail
cd "$(dirname "$0")/../.."
records=${XDG_CACHE_HOME:-$HOME/.cache}/mpsgate/unchanged

# What a stage reads in tests/, and which pages. `tests/env` and the fakes belong to each.
of_stage() {
  case $1 in
    crun | differential | restarts) echo tests/e2e ;;
    bench) echo tests/bench ;;
    gpu) echo tests/e2e tests/gpu src/mps/tests docs/gpu-report.md ;;
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

# The crates of the programs that a stage starts.
programs_of() {
  local node="mpsgate-shim mpsgate-gate mpsgate-daemon mpsgate-cli fake-nvml fake-mps-control cuda-client mpsgate-escape mpsgate-differential"
  case $1 in
    chart) echo mpsgate-cli ;;
    crun | differential | engines | gpu | hosts | restarts) echo "$node" ;;
    bench) echo "$node mpsgate-bench" ;;
    image | k8s) echo "$node mpsgate-scheduler mpsgate-inspect" ;;
    packages) echo "$node mpsgate-scheduler mpsgate-inspect mpsgate-pages" ;;
    vm) echo "$node mpsgate-scheduler mpsgate-inspect mpsgate-pages mpsgate-faults" ;;
  esac
}

# crates STAGE linked|others: folders of the workspace's crates. What is needed for tests alone is
# not linked; what some feature only needs is.
crates() {
  local programs
  programs=$(programs_of "$1")
  cargo metadata --no-deps --offline --locked --format-version 1 | jq -r --arg programs "$programs" --arg which "$2" '
    . as $workspace
    | (.packages | map({key: .name, value: [.dependencies[] | select(.path and .kind != "dev") | .name]}) | from_entries) as $needs
    | def closure: (. + map($needs[.] // error("no crate \(.)") | .[]) | unique) as $more | if $more == . then . else $more | closure end;
    ($programs / " " | unique | closure) as $linked
    | .packages[] | select((.name | IN($linked[])) == ($which == "linked"))
    | .manifest_path | ltrimstr($workspace.workspace_root + "/") | rtrimstr("/Cargo.toml")'
}

key() { # STAGE
  local own others files
  own=$(of_stage "$1")
  others=$(crates "$1" others)
  # Of tests/env what only lints and other stages read is left out.
  # shellcheck disable=SC2046,SC2086 # words
  files=$(
    git ls-files --cached --others --exclude-standard -- ':!tests' ':!docs' ':!*.md' ':!.github' ':!.ci' ':!deny.toml' ':!rustfmt.toml' ':!.editorconfig' \
      ':(exclude,glob)src/*/tests/**' $(printf ':!%s ' $others)
    git ls-files --cached --others --exclude-standard -- tests/env tests/fakes $(crates "$1" linked | grep '^tests/' || true) \
      ':!tests/env/*.bats' ':!tests/env/prose.py' ':!tests/env/rights.py' ':!tests/env/deny.sh' ':!tests/env/unit.sh' ':!tests/env/test.sh' ':!tests/env/nextest.toml' \
      $(printf ':!%s ' $others)
    git ls-files --cached --others --exclude-standard -- $own
    # Programs are built together: what one of them asks of a dependency the others get too.
    git ls-files --cached --others --exclude-standard -- '*Cargo.toml'
  )
  {
    sort -u <<<"$files" | xargs -d '\n' sha256sum
    uname -srm
    cat /etc/os-release
    rustc -vV
    dpkg-query -W
    env | grep -E '^(CI=|MG_|MPSGATE_|CRIO_BIN|SHIM_TARGET|RUSTFLAGS|BATS_TEST_TIMEOUT=)' | grep -vE '^MG_(JOBS|UNCHANGED)=' | sort || true
  } | sha256sum | cut -d' ' -f1
}

case ${1:-} in
  key)
    git rev-parse --git-dir >/dev/null 2>&1 || exit 1
    key "$2"
    ;;
  linked) crates "$2" linked ;;
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

#!/usr/bin/env bats
# tests/env/unchanged.sh: which files make the long stages run again. On a copy of this checkout. No
# root.

bats_require_minimum_version 1.5.0

setup_file() {
  local top
  top=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  git -C "$top" rev-parse --git-dir >/dev/null 2>&1 || return 0
  export COPY=$BATS_FILE_TMPDIR/copy
  mkdir "$COPY"
  git -C "$top" ls-files -z --cached --others --exclude-standard | (cd "$top" && xargs -0 ls -d 2>/dev/null) | tar -C "$top" -c -T - | tar -C "$COPY" -x
  git -C "$COPY" init -q
  git -C "$COPY" add .
}

setup() {
  [[ -n ${COPY:-} ]] || skip "this is no checkout of git"
  cd "$COPY" || return
}

key() { tests/env/unchanged.sh key "$1"; } # STAGE

declare -gA BEFORE=() # the key of a stage while nothing is changed
before() { [[ -n ${BEFORE[$1]:-} ]] || BEFORE[$1]=$(key "$1"); } # STAGE

# counts STAGE FILE, counts_not: whether a change of FILE changes the stage's key.
counts() {
  local after
  before "$1"
  [[ -f $2 ]] || { echo "there is no $2"; return 1; }
  cp "$2" "$BATS_TEST_TMPDIR/kept"
  echo >>"$2"
  after=$(key "$1")
  cp "$BATS_TEST_TMPDIR/kept" "$2"
  [[ -n ${BEFORE[$1]} && -n $after && ${BEFORE[$1]} != "$after" ]] || { echo "$1 does not see a change of $2"; return 1; }
}
counts_not() {
  before "$1"
  run ! counts "$@"
  [[ $output == *"does not see a change"* ]] || { echo "$1 and $2: $output"; return 1; }
}

@test "a file of a crate that a stage's programs link counts, one of another crate does not" {
  local stage
  # The stages of a node have their programs from one line of unchanged.sh.
  for stage in engines restarts; do
    counts "$stage" src/policy/src/lib.rs
    counts "$stage" tests/fakes/nvml/src/lib.rs
    counts_not "$stage" src/scheduler/src/lib.rs
    counts_not "$stage" src/cluster/src/lib.rs
  done
  for stage in k8s vm image packages; do counts "$stage" src/scheduler/src/lib.rs; done
  # By way of another crate.
  counts engines src/kubelet/src/lib.rs
  counts_not k8s tests/bench/src/cases.rs
  counts bench tests/bench/src/gate.rs
  counts restarts tests/e2e/mps_gate.bats
  counts_not restarts tests/bench/src/gate.rs
}

@test "a crate's own tests, and what only lints read, make no stage run again" {
  counts_not engines src/policy/tests/catalogue/fixture.rs
  counts_not engines deny.toml
  counts_not hosts tests/env/prose.py
}

@test "what is built with everything, and what a stage's tests read, counts" {
  local file
  for file in Cargo.lock Cargo.toml Makefile src/scheduler/Cargo.toml config/config.toml packaging/shim-flags tests/env/sandbox.sh \
    tests/e2e/helpers.bash tests/engines/suite.bats tests/fakes/cuda/libcuda.c; do counts engines "$file"; done
  counts_not engines tests/hosts/run
  counts_not engines docs/glossary.md
  counts hosts docs/jupyterhub.md
}

@test "a stage has the crate of each program that its files take from out/" {
  local stage name crate linked folder
  while read -r name crate; do
    for stage in chart engines gpu hosts k8s packages vm; do
      folder=tests/$stage
      if grep -rhE 'MG_OUT|\$programs|\bout/' "$folder" | grep -qwF -- "$name"; then
        linked=$(tests/env/unchanged.sh linked "$stage")
        grep -qxF "$crate" <<<"$linked" || { echo "$stage starts $name, and $crate is none of its crates"; return 1; }
      fi
    done
  done < <(cargo metadata --no-deps --offline --locked --format-version 1 | jq -r '.workspace_root as $root | .packages[]
    | (.manifest_path | ltrimstr($root + "/") | rtrimstr("/Cargo.toml")) as $crate | .targets[] | select(.kind[] == "bin") | "\(.name) \($crate)"')
}

@test "no crate takes a file of another crate, of tests/ or of the pages into its program" {
  local line file path members
  members=$(cargo metadata --no-deps --offline --locked --format-version 1 | jq -r '.workspace_root as $root | .packages[].manifest_path | ltrimstr($root + "/") | rtrimstr("Cargo.toml")')
  while IFS=: read -r file line; do
    path=$(realpath -m --relative-to . "$(dirname "$file")/$(sed -E 's/.*include[a-z_]*!\("([^"]*)".*/\1/' <<<"$line")")
    [[ $path != docs/* && $path != *.md ]] || { echo "$file: $path"; return 1; }
    while read -r member; do
      [[ $path != "$member"* || $file == "$member"* ]] || { echo "$file takes $path"; return 1; }
    done <<<"$members"
  done < <(grep -rE 'include(_str|_bytes)?!\("' --include='*.rs' src packaging tests | grep -vE '^[^:]*/tests(\.rs|/)' | grep -v '/generated/')
}

#!/usr/bin/env bats
# The parts of tests/gpu/run that need neither a GPU nor its fakes: what it skips, its page, what it
# reads. The whole of it runs on fakes in tests/gpu/dry.bats (make test-gpu).

load helpers

GPU=$MG_REPO/tests/gpu

# of the page: the rows of its questions
rows() { grep -E '^\| [a-z]+\.[a-z-]+ \|' "$1"; }

@test "where there is no GPU it says what it skips, with status 77" {
  try 77 "$GPU/run"
  assert_contains "stderr" "$stderr" "tests/gpu: SKIPPED: no nvidia-smi"
}

@test "docs/gpu-report.md has the questions of the script" {
  assert_equal "docs/gpu-report.md (make it with tests/gpu/run --blank, or by a run)" \
    "$(rows "$MG_REPO/docs/gpu-report.md" | cut -d '|' -f 1-4)" "$("$GPU/run" --list | cut -d '|' -f 1-4)"
}

@test "what nvidia-smi prints is read right" {
  local gpu=0 text want
  # shellcheck source=tests/gpu/card.bash
  source "$GPU/card.bash"
  while IFS='|' read -r text want; do
    assert_equal "mode of '$text'" "$(mode_argument "$text" || echo none)" "$want"
  done <<<$'Default|DEFAULT\nExclusive_Process|EXCLUSIVE_PROCESS\nE. Process|EXCLUSIVE_PROCESS\nExclusive_Thread|EXCLUSIVE_THREAD\nProhibited|PROHIBITED\n[N/A]|none\n|none'
  while IFS='|' read -r text want; do
    assert_equal "driver of '$text'" "$(driver_major "$text" || echo none)" "$want"
  done <<<$'550.163.01|550\n615.71|615\n[N/A]|none\n|none'
  while IFS='|' read -r text want; do
    assert_equal "memory in '$text'" "$(mib_of_pid 12 <<<"$text")" "$want"
  done <<<$'12, 418|418\n12, 418 MiB|418\n12, [N/A]|\n112, 418|\n12, [Insufficient Permissions]|\nNo running processes found|'
  assert_equal "memory of the second" "$(mib_of_pid 12 <<<$'1, 2\n12, 3\n12, 4')" 3
}

@test "differences to the fake are found line by line" {
  # shellcheck source=tests/gpu/contract.bash
  source "$GPU/contract.bash"
  printf 'used\tps\tCLIENT 0 x\nused\tps\tone\nidle\tps\t\n' >"$BATS_TEST_TMPDIR/a"
  printf 'used\tps\tCLIENT 0 x\nused\tps\ttwo\nidle\tps\t\n' >"$BATS_TEST_TMPDIR/b"
  assert_equal "used" "$(differences used "$BATS_TEST_TMPDIR/a" "$BATS_TEST_TMPDIR/b")" 'ps: "one", the fake "two"'
  assert_equal "idle" "$(differences idle "$BATS_TEST_TMPDIR/a" "$BATS_TEST_TMPDIR/b")" ""
  head -n 1 "$BATS_TEST_TMPDIR/a" >"$BATS_TEST_TMPDIR/c"
  assert_contains "broken off" "$(differences used "$BATS_TEST_TMPDIR/c" "$BATS_TEST_TMPDIR/b")" 'ps: "no answer", the fake "two"'
  assert_contains "nothing asked" "$(differences served "$BATS_TEST_TMPDIR/a" "$BATS_TEST_TMPDIR/b")" '0 answers, the fake 0'
}

@test "a test of the suite that skipped itself is not told as passed" {
  # shellcheck source=tests/gpu/contract.bash
  source "$GPU/contract.bash"
  # Its two outputs may come in one line.
  printf '%s\n' 'SKIPPED: contract::a: needs x' 'test b ... SKIPPED: contract::c: needs y' 'ok' \
    'test d ... FAILED' 'test result: FAILED. 5 passed; 1 failed; 0 ignored' >"$BATS_TEST_TMPDIR/suite"
  assert_equal "told" "$(of_suite "$BATS_TEST_TMPDIR/suite")" \
    $'test d ... FAILED\ntest result: FAILED. 3 passed; 2 skipped; 1 failed; 0 ignored'
}

#!/usr/bin/env bats
# tests/gpu/run without a GPU: every question asked once, of fakes, so that its first run on a GPU
# does not end at a typing error. What the fakes answer shows nothing about a GPU. Its quick parts
# are tested in tests/e2e/gpu_script.bats.
# sandbox: MG_GPUS=1

load ../e2e/helpers

setup_file() {
  export GPU=$MG_REPO/tests/gpu
  # One run for all that looks at it.
  MG_GPU_DRY=1 MG_GPU_SECONDS=0.1 MG_GPU_ROUNDS=1 MG_GPU_CLIENTS="1 2" "$GPU/run" "$MG/report.md" >"$MG/run.out" 2>&1 3>&- && echo 0 >"$MG/run.rc" || echo $? >"$MG/run.rc"
}

# of the page: the rows of its questions
rows() { grep -E '^\| [a-z]+\.[a-z-]+ \|' "$1"; }

clean() {
  assert_equal "compute mode" "$(jq -r '.cards[0].compute_mode' "$MG/nvml/nvml.json")" DEFAULT
  assert_equal "processes" "$(pgrep -a 'nvidia-cuda-mps|mpsgate|cuda-client' || true)" ""
}

@test "the script runs to its end, and every question has an answer" {
  local unasked
  assert_equal "exit status" "$(<"$MG/run.rc")" 0 || { tail -n 60 "$MG/run.out" >&2; return 1; }
  assert_equal "rows of the report" "$(rows "$MG/report.md" | cut -d '|' -f 2)" "$("$GPU/run" --list | cut -d '|' -f 2)"
  # What a node with cgroup v1 or a pack that was not made cannot ask, it says.
  unasked=$(rows "$MG/report.md" | grep -F 'NOT ASKED' | cut -d ' ' -f 2 | grep -vE '^(qualify\.(detour|cgroup)|limits\.cgroup-(reads|holds)|contract\.suite)$') || true
  assert_equal "questions without an answer" "$unasked" "" || { tail -n 60 "$MG/run.out" >&2; return 1; }
  refute_contains "report" "$(<"$MG/report.md")" "not asked yet" "@rows" "@table"
  assert_contains "report" "$(<"$MG/report.md")" "A dry run on simulated cards" "Simulated H200" "| mpsgate | 1 |" "| bare MPS | 2 |" "| time-slicing | 2 |"
}

@test "no answer of a fake counts, and each is what the question expects but where fakes cannot know" {
  local failed
  assert_equal "verdicts that count" "$(rows "$MG/report.md" | grep -vcF '| DRY (')" 0
  # No double knows that the card is exclusive. On a busy machine mpsgated has no time for
  # terminate_client.
  failed=$(rows "$MG/report.md" | grep -F 'DRY (FAIL)' | cut -d ' ' -f 2 | grep -vE '^(qualify\.processes|around\.detour|sum\.order)$') || true
  assert_equal "questions that the fakes fail" "$failed" "" || { rows "$MG/report.md" | grep -F 'DRY (FAIL)' >&2; return 1; }
}

@test "the card has its compute mode back, and nothing is left" {
  assert_contains "who set it" "$(<"$MG/nvml/nvml.json.writes")" "EXCLUSIVE_PROCESS" "DEFAULT"
  clean
}

@test "where the compute mode is not this run's to change, nothing sets it, and what takes it is not asked" {
  local writes
  writes=$(<"$MG/nvml/nvml.json.writes")
  MG_GPU_DRY=1 MG_GPU_LEAVE_MODE=1 LIMIT=100 try any "$GPU/run" --only attach --only adoption "$MG/left.md"
  assert_equal "what was set" "$(cat "$MG/nvml/nvml.json.writes" 2>/dev/null)" "$writes"
  assert_contains "report" "$(<"$MG/left.md")" "and left so" "| the card's compute mode is left as it is (MG_GPU_LEAVE_MODE) | DRY (NOT ASKED) |"
  # Also by an mpsgated that was started anew.
  assert_equal "ready, before and after" "$(rows "$MG/left.md" | grep -cE '^\| (attach.ready|adoption.grants|adoption.new) .*DRY \(PASS\)')" 3
  clean
}

@test "a run that is broken off in a stage gives the compute mode back too" {
  local run
  MG_GPU_DRY=1 "$GPU/run" --only adoption >"$MG/broken.out" 2>&1 3>&- &
  run=$!
  wait_for 60 "the card is exclusive" grep -q EXCLUSIVE_PROCESS "$MG/nvml/nvml.json"
  kill -TERM "$run"
  wait_for 60 "it ends" gone "$run"
  clean
}

@test "a stage that takes too long is ended, and what there is no time for is not begun: both are said" {
  # It takes 3 s with fakes.
  MG_GPU_DRY=1 MG_GPU_STAGE=1 LIMIT=100 try 1 "$GPU/run" --only users "$MG/short.md"
  assert_contains "report" "$(<"$MG/short.md")" "| its stage took longer than 1 s | DRY (NOT ASKED) |" "| its stage was not begun |"
  MG_GPU_DRY=1 MG_GPU_LIMIT=40 try "$GPU/run" --only users "$MG/short.md"
  assert_contains "report" "$(<"$MG/short.md")" "| no time was left: tests/gpu/run --only users | DRY (NOT ASKED) |"
  clean
  MG_GPU_DRY=1 MG_GPU_LIMIT=51 LIMIT=100 try any "$GPU/run" --only attach --only throughput "$MG/short.md"
  assert_contains "report" "$(<"$MG/short.md")" "| no time was left: tests/gpu/run --only throughput | DRY (NOT ASKED) |"
}

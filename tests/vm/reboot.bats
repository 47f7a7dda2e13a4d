#!/usr/bin/env bats
# What stands before a reboot of the live node, and what after it: MG_REBOOT=before, then after.

load ../e2e/helpers
load ../e2e/mpsgate
load live

teardown() { explain_live; }

@test "before: a grant, an exclusive card, and a lease that remembers its mode" {
  [[ $MG_REBOOT == before ]] || skip "this is after"
  assert_equal "compute mode" "$(jq -r '.cards[0].compute_mode' "$NVML/nvml.json")" EXCLUSIVE_PROCESS
  granted g 7Gi --ann mpsgate.io/gpu=0
  ls -R /var/lib/mpsgate >&2
}

@test "after: mpsgated is up, nothing is granted, the cards are leased anew" {
  [[ $MG_REBOOT == after ]] || skip "this is before"
  wait_for 60 "mpsgated is active" unit_is mpsgated ActiveState active
  wait_for 60 "card 0 is ready" card_is ready 0
  assert_equal "grants" "$(granted_ids)" ""
  assert_equal "free" "$(free_total)" $((2 * CARD_MEMORY))
  assert_equal "compute mode" "$(jq -r '.cards[0].compute_mode' "$NVML/nvml.json")" EXCLUSIVE_PROCESS
  assert_equal "main process" "$(unit_of mpsgate-mps@0 MainPID)" "$(card 0 .mps.pid)"
  granted h 7Gi --ann mpsgate.io/gpu=0
  delete h
  wait_for 30 "h is released" not_granted h
}

@test "after: disable gives the mode back that the card had when it came up" {
  [[ $MG_REBOOT == after ]] || skip "this is before"
  try mpsgate disable 0
  assert_equal "compute mode" "$(jq -r '.cards[0].compute_mode' "$NVML/nvml.json")" DEFAULT
}

#!/usr/bin/env bats
# What stands before a reboot of the live node, and what after it: the tests tagged `before`, then
# those tagged `after`.

load live

# bats test_tags=before
@test "before: a grant, an exclusive card, and a lease that remembers its mode" {
  assert_equal "compute mode" "$(jq -r '.cards[0].compute_mode' "$NVML/nvml.json")" EXCLUSIVE_PROCESS
  granted g 7Gi --ann mpsgate.io/gpu=0
  assert_contains "the lease" "$(<"/var/lib/mpsgate/compute-mode/$(uuid 0)")" '"default"'
}

# bats test_tags=after
@test "after: mpsgated is up, nothing is granted, the cards are leased anew" {
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

# bats test_tags=after
@test "after: disable gives the mode back that the card had when it came up" {
  try mpsgate disable 0
  assert_equal "compute mode" "$(jq -r '.cards[0].compute_mode' "$NVML/nvml.json")" DEFAULT
}

#!/usr/bin/env bats
# The bench's part of the gate, as short as it can be: that it comes to its end and prints its
# figures, whatever they are; those of a whole run are `make bench`'s. After `make build`; root.
#
# nightly: the bench is compiled for it, and mps_gate.bats attaches through a gate each time

bats_require_minimum_version 1.5.0

@test "the bench's part of the gate comes to its end and prints each of its figures" {
  ((EUID == 0)) || skip "needs root"
  local line times='\[[0-9]+, [0-9]+, [0-9]+\]'
  run -0 "$BATS_TEST_DIRNAME/run" --runs 1 --gate </dev/null 3>&-
  for line in "an attach, 100 times each in turns; .*" "the control daemon's own socket +$times" "a door +$times" "a door, with a limit to set +$times" \
    "one after the other: [0-9]+ a second" "added at 50 %: [0-9]+ µs, budget [0-9]+" "with a limit to set: [0-9]+ µs, budget [0-9]+" \
    "resident with [0-9]+ clients: [0-9]+ KiB, budget [0-9]+"; do
    grep -qxE "$line" <<<"$output" || { echo "no line: $line"; return 1; }
  done
}

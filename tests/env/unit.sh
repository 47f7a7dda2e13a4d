#!/usr/bin/env bash
# unit.sh LOGS: unit, property and contract tests of all crates, and the documentation's examples.
# A test that cannot run here says so, `SKIPPED: NAME: needs root`, and passes: those lines are
# shown at the end and stand in the log, where tally.sh counts them.
set -euo pipefail
logs=$1 rc=0
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$logs"
# The contract tests want both; those that cannot be had they name.
for major in 550 535; do
  "$here/nvidia-cuda-mps.sh" "$major" >/dev/null || true
  "$here/nvidia-libcuda.sh" "$major" >/dev/null || true
done
# As tests/faults needs them, so that everything is compiled once: without a file of root's that
# names a point, they do nothing.
points=(--features "mpsgate-shim/crash-points,mpsgate-daemon/crash-points")
# Once for all tests: each is a process of its own below, and would ask cargo for them.
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
cargo build -q --locked --workspace "${points[@]}" --examples --bin nvidia-cuda-mps-control --bin nvidia-cuda-mps-server --bin cuda-client --bin mpsgate-gate --bin mpsgated
export MPSGATE_TEST_FAKES=$target/debug
if cargo nextest --version >/dev/null 2>&1; then
  # More than there are processors: most of their time they wait for each other's programs.
  cargo nextest run --config-file "$here/nextest.toml" --locked --workspace "${points[@]}" --no-fail-fast -j "$(($(nproc) + 2))" 2>&1 | tee "$logs/unit.log" || rc=1
  sed -nE "s/.*(SKIPPED: .*)/\1/; T; s/&apos;/'/g; s/&quot;/\"/g; s/&lt;/</g; s/&gt;/>/g; s/&amp;/\&/g; p" \
    "$target/nextest/default/junit.xml" | sort -u | tee -a "$logs/unit.log"
else
  cargo test --locked --workspace "${points[@]}" --no-fail-fast --lib --bins --tests -- --show-output 2>&1 | tee "$logs/unit.log" || rc=1
fi
cargo test --locked --workspace "${points[@]}" --no-fail-fast --doc 2>&1 | tee "$logs/unit-doc.log" || rc=1
exit "$rc"

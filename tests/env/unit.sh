#!/usr/bin/env bash
# unit.sh LOGS: unit, property and contract tests of all crates, and the documentation's examples.
set -euo pipefail
logs=$1 rc=0
mkdir -p "$logs"
if cargo nextest --version >/dev/null 2>&1; then
  cargo nextest run --locked --workspace --no-fail-fast 2>&1 | tee "$logs/unit.log" || rc=1
else
  cargo test --locked --workspace --no-fail-fast --lib --bins --tests 2>&1 | tee "$logs/unit.log" || rc=1
fi
cargo test --locked --workspace --no-fail-fast --doc 2>&1 | tee "$logs/unit-doc.log" || rc=1
exit "$rc"

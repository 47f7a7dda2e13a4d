#!/usr/bin/env bash
# test.sh LOGS: every test that this machine can run, then the sum. What `make test` does after the
# build. MG_SELECT=ci: without what is marked for the night. MG_STAGES="unit e2e": these alone.
set -euo pipefail
logs=$1
here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$logs"
mkdir -p "$logs"
skips() { [[ -n ${MG_STAGES:-} && " $MG_STAGES " != *" $1 "* ]]; }
skips unit || "$here/unit.sh" "$logs" || echo unit >>"$logs/failed-stages"
skips e2e || "$here/../e2e/run" 2>&1 | tee "$logs/e2e.log" || echo e2e >>"$logs/failed-stages"
skips release || bats --formatter tap "$here" "$here/../release" </dev/null 2>&1 | tee "$logs/release.log" || echo release >>"$logs/failed-stages"
skips faults || "$here/../faults/run" points 2>&1 | tee "$logs/faults.log" || echo faults >>"$logs/failed-stages"
restarts=100
[[ ${MG_SELECT:-} != ci ]] || restarts=20
skips faults || "$here/../faults/run" restarts "$restarts" 2>&1 | tee "$logs/faults-restarts.log" || echo faults >>"$logs/failed-stages"
"$here/tally.sh" "$logs"

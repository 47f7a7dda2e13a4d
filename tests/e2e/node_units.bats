#!/usr/bin/env bats
# The units, without a systemd that runs: no fault, and no weaker than SPECIFICATION.md says.
# tests/vm/live.bats starts them.

load helpers

units=$BATS_TEST_DIRNAME/../../packaging/systemd

setup() {
  command -v systemd-analyze >/dev/null || skip "systemd-analyze is not installed (Debian's package systemd)"
  local version
  version=$(systemd-analyze --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
  ((${version:-0} >= 250)) || skip "systemd ${version:-of no version} does not evaluate units offline (250 does)"
}

# exposure UNIT: its score, in tenths
exposure() {
  systemd-analyze security --offline=true --no-pager "$units/$1" | sed -n 's/.*exposure level for .*: \([0-9]*\)\.\([0-9]\) .*/\1\2/p'
}

@test "systemd-analyze finds no fault in the units" {
  # Programs are looked for, which need not be installed here.
  mkdir "$BATS_TEST_TMPDIR/units"
  sed 's|^ExecStart=/usr/bin/mpsgated|ExecStart=/bin/true|' "$units/mpsgated.service" >"$BATS_TEST_TMPDIR/units/mpsgated.service"
  sed 's|^ExecStart=/usr/bin/mpsgate-scheduler|ExecStart=/bin/true|' "$units/mpsgate-scheduler.service" >"$BATS_TEST_TMPDIR/units/mpsgate-scheduler.service"
  sed 's|^ExecStart=/usr/bin/mpsgate-gate|ExecStart=/bin/true|' "$units/mpsgate-gate@.service" >"$BATS_TEST_TMPDIR/units/mpsgate-gate@.service"
  sed 's|^ExecStart=/usr/bin/mpsgate |ExecStart=/bin/true |' "$units/mpsgate-qualify.service" >"$BATS_TEST_TMPDIR/units/mpsgate-qualify.service"
  sed 's|^ExecStart=/usr/bin/mpsgated|ExecStart=/bin/true|' "$units/mpsgate-mps@.service" >"$BATS_TEST_TMPDIR/units/mpsgate-mps@.service"
  sed 's|^ExecStart=/usr/bin/mpsgated|ExecStart=/bin/true|' "$units/mpsgate-hold.service" >"$BATS_TEST_TMPDIR/units/mpsgate-hold.service"
  cp "$units/mpsgate-qualify.timer" "$BATS_TEST_TMPDIR/units/"
  try systemd-analyze verify --man=no "$BATS_TEST_TMPDIR"/units/*.{service,timer}
  assert_equal "output" "$stdout$stderr" ""
}

@test "the units are exposed no more than SPECIFICATION.md says" {
  local unit limit found
  for unit in mpsgated.service mpsgate-mps@.service mpsgate-gate@.service mpsgate-hold.service mpsgate-scheduler.service; do
    limit=$(sed -n "s/^| exposure of \`$unit\`[^|]*| ≤ \([0-9]*\)\.\([0-9]\) .*/\1\2/p" "$BATS_TEST_DIRNAME/../../SPECIFICATION.md")
    [[ -n $limit ]] || fail "SPECIFICATION.md has no number for $unit"
    found=$(exposure "$unit")
    [[ -n $found ]] || fail "systemd-analyze gives no number for $unit"
    ((found <= limit)) || fail "$unit: $found tenths, at most $limit"
  done
}

@test "no unit has systemd remove what has to stay when mpsgated ends" {
  # Before 235 systemd does not know RuntimeDirectoryPreserve=, and removes the directory with the
  # ledger.
  ! grep -n '^RuntimeDirectory' "$units"/*.service || fail "mpsgated makes /run/mpsgate itself"
}

@test "what would close the driver's devices or part MPS from its clients is in no unit that touches them" {
  local setting
  for setting in PrivateDevices DevicePolicy DeviceAllow ProtectClock PrivateTmp PrivateIPC MemoryDenyWriteExecute PrivateUsers ProtectProc; do
    ! grep -n "^$setting=" "$units"/mpsgated.service "$units"/mpsgate-mps@.service || fail "$setting= is not proven on a GPU"
  done
}

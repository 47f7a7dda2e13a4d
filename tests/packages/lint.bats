#!/usr/bin/env bats
# What the distributions' own checkers say. Overrides with reasons: deb/mpsgate.lintian-overrides,
# rpm/rpmlint.toml.

@test "lintian finds nothing in the debs" {
  command -v lintian >/dev/null || skip "lintian is missing: tests/env/install.sh packages"
  run lintian --allow-root --tag-display-limit 0 --fail-on error,warning "$MG_PACKAGES"/first/*.deb
  echo "$output"
  [ "$status" -eq 0 ]
}

@test "rpmlint finds nothing in the rpms" {
  command -v rpmlint >/dev/null || skip "rpmlint is missing: tests/env/install.sh packages"
  run rpmlint --strict --config "$BATS_TEST_DIRNAME/../../rpm/rpmlint.toml" "$MG_PACKAGES"/first/*.rpm
  echo "$output"
  [ "$status" -eq 0 ]
}

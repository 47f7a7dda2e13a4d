#!/usr/bin/env bash
# deny.sh CARGO-DENY: runs all checks of deny.toml. The advisory database comes from the net; where
# it cannot be fetched and no copy is cached, that one check is named as skipped (an error in
# deny.toml's other parts is one in any case).
set -euo pipefail
deny=$1
# A wrapper list says who may use a crate, not who does: an unmatched wrapper is no finding.
flags=(--hide-inclusion-graph --allow unmatched-wrapper)
"$deny" --log-level error --locked check "${flags[@]}" bans licenses sources
if "$deny" --log-level error --locked fetch db 2>/dev/null; then
  "$deny" --log-level error --locked check "${flags[@]}" --disable-fetch advisories
elif compgen -G "${CARGO_HOME:-$HOME/.cargo}/advisory-dbs/*/crates" >/dev/null; then
  echo "deny: the advisory database cannot be fetched; the cached copy is used"
  "$deny" --log-level error --locked check "${flags[@]}" --disable-fetch advisories
else
  echo "deny: SKIPPED advisories: the database (https://github.com/RustSec/advisory-db) cannot be fetched"
fi

#!/usr/bin/env bats
# What packaging/build made. MG_PACKAGES has two builds of one version, and one of a newer: tests/packages/run.

bats_require_minimum_version 1.5.0

@test "the same bytes twice, from another folder at another time" {
  cd "$MG_PACKAGES/first"
  packed=(*.deb *.rpm)
  [ "${#packed[@]}" -eq 2 ]
  sha256sum "${packed[@]}" >"$BATS_TEST_TMPDIR/sums"
  (cd ../second && sha256sum --strict -c "$BATS_TEST_TMPDIR/sums")
  cd ../newer
  ls mpsgate_"$NEWER"-1_*.deb mpsgate-"$NEWER"-1.*.rpm
}

@test "the licences of all linked crates are in it" {
  dpkg-deb --fsys-tarfile "$MG_PACKAGES"/first/*.deb | tar -xO ./usr/share/doc/mpsgate/THIRD-PARTY.gz | gzip -dc >"$BATS_TEST_TMPDIR/text"
  for crate in tokio serde_json nvml-wrapper clap; do grep -q "^  $crate [0-9]" "$BATS_TEST_TMPDIR/text"; done
  grep -q 'Permission is hereby granted' "$BATS_TEST_TMPDIR/text"
  grep -q 'TERMS AND CONDITIONS FOR USE, REPRODUCTION' "$BATS_TEST_TMPDIR/text"
}

@test "both formats come from the one list: same files but for those that it gives to one" {
  cd "$MG_PACKAGES/first"
  dpkg-deb --contents ./*.deb | awk '!/^d/ { print $6 }' | sed 's/^\.//; s|^/lib/systemd|/usr/lib/systemd|' | sort >"$BATS_TEST_TMPDIR/deb"
  rpm -qp --qf '[%{FILEMODES:perms} %{FILENAMES}\n]' ./*.rpm 2>/dev/null | awk '!/^d/ { print $2 }' | sort >"$BATS_TEST_TMPDIR/rpm"
  only=$(comm -3 "$BATS_TEST_TMPDIR/deb" "$BATS_TEST_TMPDIR/rpm" | tr -d '\t' | sort)
  want=$(sort <<'LIST'
/usr/lib/systemd/system-preset/80-mpsgate.preset
/usr/share/doc/mpsgate/CHANGELOG.md
/usr/share/doc/mpsgate/THIRD-PARTY.gz
/usr/share/doc/mpsgate/changelog.Debian.gz
/usr/share/doc/mpsgate/changelog.gz
/usr/share/doc/mpsgate/copyright
/usr/share/licenses/mpsgate/LICENSE
/usr/share/licenses/mpsgate/THIRD-PARTY
/usr/share/lintian/overrides/mpsgate
/usr/share/zsh/site-functions/_mpsgate
/usr/share/zsh/site-functions/_mpsgated
/usr/share/zsh/vendor-completions/_mpsgate
/usr/share/zsh/vendor-completions/_mpsgated
LIST
)
  diff <(echo "$want") <(echo "$only")
}

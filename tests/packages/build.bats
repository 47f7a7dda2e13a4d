#!/usr/bin/env bats
# What packaging/build made. MG_PACKAGES has two builds of one version, and one of a newer:
# tests/packages/run.

bats_require_minimum_version 1.5.0

@test "the same bytes twice, from another folder at another time" {
  cd "$MG_PACKAGES/first"
  packed=(*.deb *.rpm)
  [ "${#packed[@]}" -eq 6 ]
  sha256sum "${packed[@]}" >"$BATS_TEST_TMPDIR/sums"
  (cd ../second && sha256sum --strict -c "$BATS_TEST_TMPDIR/sums")
  cd ../newer
  for name in mpsgate mpsgate-scheduler kubectl-inspect-cgpu; do ls "${name}_$NEWER"-1_*.deb "$name-$NEWER"-1.*.rpm; done
}

@test "the licences of all linked crates are in it" {
  for name in mpsgate mpsgate-scheduler kubectl-inspect-cgpu; do
    dpkg-deb --fsys-tarfile "$MG_PACKAGES/first/$name"_*.deb | tar -xO "./usr/share/doc/$name/THIRD-PARTY.gz" | gzip -dc >"$BATS_TEST_TMPDIR/text"
    for crate in tokio serde_json nvml-wrapper clap kube axum; do grep -q "^  $crate [0-9]" "$BATS_TEST_TMPDIR/text"; done
  done
  grep -q 'Permission is hereby granted' "$BATS_TEST_TMPDIR/text"
  grep -q 'TERMS AND CONDITIONS FOR USE, REPRODUCTION' "$BATS_TEST_TMPDIR/text"
}

@test "both formats come from the one list: same files but for those that it gives to one" {
  cd "$MG_PACKAGES/first"
  for deb in *.deb; do dpkg-deb --contents "$deb"; done | awk '!/^d/ { print $6 }' | sed 's/^\.//; s|^/lib/systemd|/usr/lib/systemd|' | sort >"$BATS_TEST_TMPDIR/deb"
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
/usr/share/doc/mpsgate-scheduler/CHANGELOG.md
/usr/share/doc/mpsgate-scheduler/THIRD-PARTY.gz
/usr/share/doc/mpsgate-scheduler/changelog.Debian.gz
/usr/share/doc/mpsgate-scheduler/changelog.gz
/usr/share/doc/mpsgate-scheduler/copyright
/usr/share/licenses/mpsgate-scheduler/LICENSE
/usr/share/licenses/mpsgate-scheduler/THIRD-PARTY
/usr/share/lintian/overrides/mpsgate-scheduler
/usr/share/zsh/site-functions/_mpsgate-gate
/usr/share/zsh/site-functions/_mpsgate-scheduler
/usr/share/zsh/vendor-completions/_mpsgate-gate
/usr/share/zsh/vendor-completions/_mpsgate-scheduler
/usr/share/doc/kubectl-inspect-cgpu/CHANGELOG.md
/usr/share/doc/kubectl-inspect-cgpu/THIRD-PARTY.gz
/usr/share/doc/kubectl-inspect-cgpu/changelog.Debian.gz
/usr/share/doc/kubectl-inspect-cgpu/changelog.gz
/usr/share/doc/kubectl-inspect-cgpu/copyright
/usr/share/licenses/kubectl-inspect-cgpu/LICENSE
/usr/share/licenses/kubectl-inspect-cgpu/THIRD-PARTY
/usr/share/lintian/overrides/kubectl-inspect-cgpu
/usr/share/zsh/site-functions/_kubectl-inspect-cgpu
/usr/share/zsh/vendor-completions/_kubectl-inspect-cgpu
/usr/share/zsh/site-functions/_mpsgate
/usr/share/zsh/site-functions/_mpsgated
/usr/share/zsh/vendor-completions/_mpsgate
/usr/share/zsh/vendor-completions/_mpsgated
LIST
)
  diff <(echo "$want") <(echo "$only")
}

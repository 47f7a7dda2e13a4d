#!/usr/bin/env bats
# packaging/release on a small repository of its own, with stand-ins for what takes minutes
# (programs, packages, cargo-cyclonedx) and for rustc, a machine's with both architectures: what it
# refuses, what it makes, and that two runs give the same bytes. No root, no network.

setup() {
  top=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  repository=$BATS_TEST_TMPDIR/repository
  export XDG_CACHE_HOME=$BATS_TEST_TMPDIR/cache GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
  export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.org GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.org
  mkdir -p "$repository"/{packaging,config,src/{shim,daemon,cli,inspect,scheduler}} "$XDG_CACHE_HOME/mpsgate/bin"
  cp "$top"/packaging/{release,changelog} "$repository/packaging"
  printf '#!/bin/sh\necho "floors of $1"\n' >"$repository/packaging/floors"
  chmod +x "$repository/packaging/floors"
  touch "$repository"/{README.md,config/config.toml} "$repository"/src/{shim,daemon,cli,inspect,scheduler}/lib.rs
  printf '[workspace]\nmembers = []\n[workspace.package]\nversion = "1.2.3"\nedition = "2024"\n' >"$repository/Cargo.toml"
  printf '# Changelog\n\n## Unreleased\n\n## 1.2.3 - 2026-01-31\n\n### Added\n- This.\n\n## 1.2.2\n- That.\n' >"$repository/CHANGELOG.md"
  echo /out >"$repository/.gitignore"
  cat >"$repository/Makefile" <<'END'
dist: into = out/dist$(if $(filter aarch64,$(ARCH)),-aarch64)
dist:
	@mkdir -p $(into) && for p in mpsgate-runtime mpsgate-hook mpsgate-gate mpsgated mpsgate; do echo $$p of $(ARCH) >$(into)/$$p; done
packages: arch = $(if $(findstring aarch64,$(OUT)),aarch64,x86_64)
packages:
	@rm -rf out/tree && mkdir -p $(PACKAGES) out/tree/DEBIAN out/tree/usr/bin out/tree/lib/systemd/system out/tree/etc/mpsgate
	@cp $(OUT)/mpsgate* out/tree/usr/bin && chmod 755 out/tree/usr/bin/*
	@echo unit >out/tree/lib/systemd/system/mpsgated.service; echo settings >out/tree/etc/mpsgate/config.toml
	@printf 'Package: mpsgate\nVersion: 1.2.3-1\nArchitecture: all\nMaintainer: t <t@example.org>\nDescription: t\n' >out/tree/DEBIAN/control
	@chmod -R u=rwX,go=rX out/tree && dpkg-deb --root-owner-group --build out/tree $(PACKAGES)/mpsgate_1.2.3-1_$(arch).deb >/dev/null
	@echo rpm >$(PACKAGES)/mpsgate-1.2.3-1.$(arch).rpm
END
  # As the real one: a file beside each Cargo.toml, with the time, a serial number and the folder.
  cat >"$XDG_CACHE_HOME/mpsgate/bin/cargo-cyclonedx" <<'END'
#!/bin/sh
for crate in shim daemon cli inspect scheduler; do
  printf '{"serialNumber":"%s","metadata":{"timestamp":"%s","component":"%s"},"components":[{"purl":"path+file://%s/src"}]}' \
    "$(cat /proc/sys/kernel/random/uuid)" "$(date +%N)" "$8" "$PWD" >src/$crate/sbom.json
done
END
  mkdir -p "$BATS_TEST_TMPDIR/bin" "$BATS_TEST_TMPDIR/sysroot/lib/rustlib/aarch64-unknown-linux-"{gnu,musl}/lib
  printf '#!/bin/sh\ncase $1 in -vV) echo "host: x86_64-unknown-linux-gnu" ;; *) echo %s ;; esac\n' "$BATS_TEST_TMPDIR/sysroot" >"$BATS_TEST_TMPDIR/bin/rustc"
  chmod +x "$XDG_CACHE_HOME/mpsgate/bin/cargo-cyclonedx" "$BATS_TEST_TMPDIR/bin/rustc"
  export PATH=$BATS_TEST_TMPDIR/bin:$PATH
  git -C "$repository" init -q
  commit
}

commit() {
  git -C "$repository" add -A
  git -C "$repository" commit -qm test
}

refused() { # TEXT
  run "$repository/packaging/release"
  ((status == 1)) || { echo "status $status: $output"; return 1; }
  [[ $output == *"$1"* ]] || { echo "no \"$1\" in: $output"; return 1; }
  [[ ! -e $repository/out ]]
}

@test "a release has packages, archives and bills of materials of both architectures, changelog and sums of them all" {
  run "$repository/packaging/release"
  ((status == 0)) || { echo "$output"; false; }
  cd "$repository/out/release"
  diff <(LC_ALL=C ls) - <<END
CHANGELOG-1.2.3.md
SHA256SUMS
mpsgate-1.2.3-1.aarch64.rpm
mpsgate-1.2.3-1.x86_64.rpm
mpsgate-1.2.3-linux-aarch64.tar.gz
mpsgate-1.2.3-linux-x86_64.tar.gz
mpsgate-cli-1.2.3-linux-aarch64.cdx.json
mpsgate-cli-1.2.3-linux-x86_64.cdx.json
mpsgate-daemon-1.2.3-linux-aarch64.cdx.json
mpsgate-daemon-1.2.3-linux-x86_64.cdx.json
mpsgate-inspect-1.2.3-linux-aarch64.cdx.json
mpsgate-inspect-1.2.3-linux-x86_64.cdx.json
mpsgate-scheduler-1.2.3-linux-aarch64.cdx.json
mpsgate-scheduler-1.2.3-linux-x86_64.cdx.json
mpsgate-shim-1.2.3-linux-aarch64.cdx.json
mpsgate-shim-1.2.3-linux-x86_64.cdx.json
mpsgate_1.2.3-1_aarch64.deb
mpsgate_1.2.3-1_x86_64.deb
END
  sha256sum --check --strict --quiet SHA256SUMS
  (($(wc -l <SHA256SUMS) == $(find . -type f | wc -l) - 1))
  diff CHANGELOG-1.2.3.md - <<<$'### Added\n- This.'
  for arch in x86_64 aarch64; do
    name=mpsgate-1.2.3-linux-$arch
    # Root's, readable, and laid out as on a node; what was checked against the floors is what the
    # package has.
    [[ $output == *"floors of "*"/$name/usr/bin"* ]]
    tar -tvzf "$name.tar.gz" >"$BATS_TEST_TMPDIR/list"
    grep -E "^-rwxr-xr-x 0/0 .* $name/usr/bin/mpsgated$" "$BATS_TEST_TMPDIR/list"
    grep -E "^-rw-r--r-- 0/0 .*/usr/lib/systemd/system/mpsgated.service$" "$BATS_TEST_TMPDIR/list"
    grep -E "^-rw-r--r-- 0/0 .*/usr/share/doc/mpsgate/config.toml$" "$BATS_TEST_TMPDIR/list"
    # tar would put a folder in place of /lib, a link on a merged /usr, and settings over the
    # operator's.
    [[ $(tar -tzf "$name.tar.gz" | cut -d/ -f2 | sort -u | xargs) == usr ]]
    [[ $(tar -xOzf "$name.tar.gz" "$name/usr/bin/mpsgated") == "mpsgated of $arch" ]]
    jq -e --arg target "$arch-unknown-linux-gnu" '.components[0].purl == "path+file:///mpsgate/src" and (has("serialNumber") | not)
      and .metadata == {component: $target}' "mpsgate-cli-1.2.3-linux-$arch.cdx.json"
  done
}

@test "an architecture that cannot be built is left out and named, and refused where it was asked for" {
  rmdir "$BATS_TEST_TMPDIR/sysroot/lib/rustlib/aarch64-unknown-linux-musl/lib"
  ARCHS="x86_64 aarch64" refused "rustup target add aarch64-unknown-linux-musl"
  run "$repository/packaging/release"
  ((status == 0)) || { echo "$output"; false; }
  [[ $output == *"aarch64 is left out of this release: rustup target add aarch64-unknown-linux-musl"* ]]
  [[ -z $(find "$repository/out/release" -name '*aarch64*') ]]
  (cd "$repository/out/release" && sha256sum --check --strict --quiet SHA256SUMS)
}

@test "two runs give the same bytes, whatever the umask, the time zone and the clock" {
  run "$repository/packaging/release"
  ((status == 0)) || { echo "$output"; false; }
  cp "$repository/out/release/SHA256SUMS" "$BATS_TEST_TMPDIR/first"
  rm -rf "$repository/out"
  find "$repository" -name .git -prune -o -type f -exec touch -d '2001-01-01' {} +
  (umask 077 && TZ=Asia/Tokyo "$repository/packaging/release")
  diff "$BATS_TEST_TMPDIR/first" "$repository/out/release/SHA256SUMS"
}

@test "a tree that is not what was committed is refused, and named" {
  echo change >>"$repository/README.md"
  refused " M README.md"
  git -C "$repository" checkout -q README.md
  echo new >"$repository/new"
  refused "?? new"
}

@test "a version that the changelog does not have is refused" {
  sed -i 's/1\.2\.3/1.2.4/' "$repository/Cargo.toml"
  commit
  refused 'has no section "## 1.2.4"'
}

@test "a section with nothing in it is refused" {
  sed -i 's/^## 1\.2\.3.*/## 1.2.3\n\n## 1.2.2/' "$repository/CHANGELOG.md"
  commit
  refused 'has no section "## 1.2.3", or nothing in it'
}

@test "a tag of another version is refused, the version's own is not" {
  git -C "$repository" tag v1.2.2
  refused "this commit is tagged v1.2.2, Cargo.toml says 1.2.3"
  git -C "$repository" tag v1.2.3
  run "$repository/packaging/release"
  ((status == 0)) || { echo "$output"; false; }
}

@test "without packages there is no release" {
  sed -i '/^packages:/,$d' "$repository/Makefile"
  commit
  refused "there is no \`make packages\` yet"
}

@test "packages that were not made are missed" {
  sed -i '/^packages:/,$d' "$repository/Makefile"
  printf 'packages:\n\t@true\n' >>"$repository/Makefile"
  commit
  run "$repository/packaging/release"
  ((status == 1))
  [[ $output == *"left 0 packages mpsgate_1.2.3*.deb"* ]]
}

@test "a package whose programs are above the floors stops it, before there are sums" {
  printf '#!/bin/sh\nexit 1\n' >"$repository/packaging/floors"
  commit
  run "$repository/packaging/release"
  ((status == 1))
  [[ ! -e $repository/out/release/SHA256SUMS ]]
}

@test "the changelog's section is the version's and no other's" {
  section() { "$top/packaging/changelog" "$1" "$BATS_TEST_TMPDIR/log"; }
  printf '## [2.0.0] - 2027-01-01\n\nNew.\n\n- a\n\n## 1.0.0\nOld.\n' >"$BATS_TEST_TMPDIR/log"
  [[ $(section 2.0.0) == $'New.\n\n- a' ]]
  [[ $(section 1.0.0) == Old. ]]
  run section 1.0
  ((status == 1))
}

#!/usr/bin/env bats
# packaging/krew/build on stand-ins for the programs: the manifest as krew's schema wants it, with
# the archives' own sums. No root, no network.

bats_require_minimum_version 1.5.0

setup() {
  top=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  export KREW=$BATS_TEST_TMPDIR/krew VERSION=1.2.3 SOURCE_DATE_EPOCH=1700000000
  programs x86_64 62
  programs aarch64 183
}

programs() { # NAME MACHINE: a file with an ELF header's machine
  mkdir -p "$BATS_TEST_TMPDIR/$1"
  # shellcheck disable=SC2059 # the byte is part of the format
  printf "\177ELF\2\1\1\0\0\0\0\0\0\0\0\0\2\0\\$(printf %o "$2")\0" >"$BATS_TEST_TMPDIR/$1/kubectl-inspect-cgpu"
  chmod +x "$BATS_TEST_TMPDIR/$1/kubectl-inspect-cgpu"
}

# manifest: as JSON.
manifest() { python3 -c 'import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)' "$KREW/inspect-cgpu.yaml"; }

@test "the manifest has what krew asks for, and the sums of the archives" {
  python3 -c 'import yaml' 2>/dev/null || skip "python3-yaml is missing"
  run "$top/packaging/krew/build" "$BATS_TEST_TMPDIR/x86_64" "$BATS_TEST_TMPDIR/aarch64"
  ((status == 0)) || { echo "$output"; false; }
  run ! grep -n '@' "$KREW/inspect-cgpu.yaml"
  # krew pkg/index/validation: names, a version with a v, a short description, for each platform a
  # selector, https, sha256 and bin.
  manifest | jq -e '.apiVersion == "krew.googlecontainertools.github.com/v1alpha2" and .kind == "Plugin"
    and (.metadata.name | test("^[a-z0-9]+(-[a-z0-9]+)*$")) and .spec.version == "v1.2.3"
    and (.spec.shortDescription | length > 0 and length <= 50 and (contains("\n") | not)) and (.spec.description | length > 0)
    and (.spec | keys - ["version", "homepage", "shortDescription", "description", "caveats", "platforms"] == [])
    and ([.spec.platforms[].selector.matchLabels] == [{os: "linux", arch: "amd64"}, {os: "linux", arch: "arm64"}])
    and all(.spec.platforms[]; (keys - ["selector", "uri", "sha256", "bin", "files"] == []) and .bin == "kubectl-inspect-cgpu"
      and (.uri | startswith("https://")) and (.sha256 | test("^[0-9a-f]{64}$")))'
  while read -r uri sum; do
    [[ $(sha256sum "$KREW/${uri##*/}" | cut -d' ' -f1) == "$sum" ]]
    diff <(tar -tzf "$KREW/${uri##*/}" | sort) - <<<$'./\n./LICENSE\n./THIRD-PARTY\n./kubectl-inspect-cgpu'
    tar -tvzf "$KREW/${uri##*/}" | grep -E '^-rwxr-xr-x 0/0 .* ./kubectl-inspect-cgpu$'
  done < <(manifest | jq -r '.spec.platforms[] | "\(.uri) \(.sha256)"')
}

@test "the same bytes twice, whatever the umask and the clock" {
  run "$top/packaging/krew/build" "$BATS_TEST_TMPDIR/x86_64"
  ((status == 0)) || { echo "$output"; false; }
  (cd "$KREW" && sha256sum -- *) >"$BATS_TEST_TMPDIR/first"
  rm -r "$KREW"
  touch "$BATS_TEST_TMPDIR/x86_64/kubectl-inspect-cgpu"
  (umask 077 && TZ=Asia/Tokyo "$top/packaging/krew/build" "$BATS_TEST_TMPDIR/x86_64")
  (cd "$KREW" && sha256sum -c --strict --quiet "$BATS_TEST_TMPDIR/first")
}

@test "a program that is not there, for another machine, or twice, stops it" {
  run "$top/packaging/krew/build" "$BATS_TEST_TMPDIR/nowhere"
  ((status == 1)) && [[ $output == *"is missing: make dist"* ]]
  programs other 8
  run "$top/packaging/krew/build" "$BATS_TEST_TMPDIR/other"
  ((status == 1)) && [[ $output == *"for a machine that krew is given none for"* ]]
  run "$top/packaging/krew/build" "$BATS_TEST_TMPDIR/x86_64" "$BATS_TEST_TMPDIR/x86_64"
  ((status == 1)) && [[ $output == *"two programs for amd64"* ]]
}

#!/usr/bin/env bash
# packages.sh SUITE: containerd, Docker, its BuildKit client, Compose and etcd as another Debian
# release has them, unpacked into ~/.cache/mpsgate and never installed; prints the folder. They are
# Go programs that need glibc 2.34 and run here as they are, with this machine's runc.
#
# apt's own settings are read, never changed (tests/env/apt-sources.sh); lists and state live in a
# folder that is removed at the end. Works without root. Exits 3 with a sentence where they cannot
# be had.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
packages=(containerd docker.io docker-cli docker-buildx docker-compose etcd-server)
suite=${1:?usage: packages.sh SUITE}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/mpsgate

unavailable() {
  echo "the engines of $suite cannot be had here: $1" >&2
  exit 3
}

target=$cache/engines-$suite-$(echo "${packages[*]}" | sha256sum | cut -c1-8)
if [[ -d $target ]]; then
  echo "$target"
  exit 0
fi
command -v dpkg-deb >/dev/null || unavailable "there is no dpkg-deb, so this is no Debian machine"
mkdir -p "$cache" || unavailable "the cache folder $cache cannot be made"
work=$(mktemp -d "$cache/.engines.XXXXXX") # beside its final place, because the last step is a rename
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{sources,state/lists/partial,archives/partial,download,root,keep}
: >"$work/status" # empty: a version that happens to be installed must not become the candidate

why=$("$here/../env/apt-sources.sh" "$suite" main "$work/sources" 2>&1) || unavailable "$why"

private_apt() {
  # The lists of a suite that no longer changes may be past their date.
  apt-get -q -o Acquire::Check-Valid-Until=false -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$work/sources" \
    -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null -o APT::Default-Release= \
    -o "Dir::State=$work/state" -o "Dir::State::lists=$work/state/lists" -o "Dir::State::status=$work/status" \
    -o "Dir::Cache=$work" -o "Dir::Cache::archives=$work/archives" -o APT::Sandbox::User= "$@" >&2
}

private_apt update || unavailable "apt-get update failed"
(cd "$work/download" && private_apt download "${packages[@]}") || unavailable "it does not serve ${packages[*]} for this architecture"
for deb in "$work"/download/*.deb; do
  dpkg-deb -x "$deb" "$work/root" || unavailable "$(basename "$deb") does not unpack"
  echo "$(dpkg-deb -f "$deb" Package) $(dpkg-deb -f "$deb" Version)" >>"$work/keep/versions"
done
# The programs alone: their documents and units are of no use.
mkdir "$work/keep/bin"
find "$work/root" -type f \( -path '*/bin/*' -o -path '*/sbin/*' -o -path '*/cli-plugins/*' \) -perm -u+x -exec mv -t "$work/keep/bin" {} +
[[ -x $work/keep/bin/containerd && -x $work/keep/bin/dockerd ]] || unavailable "their packages hold no containerd and dockerd"
# Another run may have been quicker; its result is as good.
mv -T "$work/keep" "$target" 2>/dev/null || [[ -x $target/bin/dockerd ]] || unavailable "$target is in the way"
echo "$target"

#!/bin/sh
# Usage: nvidia-package.sh nvidia-cuda-mps|libcuda1 [535|550|555]
#
# Unpacks a package of NVIDIA's (Debian's archive area non-free; 535 is bookworm's, 550 trixie's)
# into the cache folder of the user, without installing it, and prints the path of the file that the
# tests use as the last line on stdout: the control program, or libcuda.so.1. Neither needs a GPU.
#
# apt's own settings are read, never changed: the sources are a private copy of the machine's, with
# suite and component replaced, and lists and state live in a folder that is removed at the end.
# No release of Debian has 555: its library is the file that MPSGATE_LIBCUDA_555 names, or
# libcuda1-555.*/usr/lib/*/nvidia/current/libcuda.so.1 in the cache.
# Works without root. Exits 3 with a sentence when the file cannot be had, 64 on wrong usage.
set -u

usage() {
    echo "usage: $0 nvidia-cuda-mps|libcuda1 [535|550|555]" >&2
    exit 64
}

package=${1:-}
cache=${XDG_CACHE_HOME:-${HOME:?"HOME is not set"}/.cache}/mpsgate
major=${2:-535}
case $package in
nvidia-cuda-mps) what=program; pattern=usr/bin/nvidia-cuda-mps-control ;;
libcuda1) what=library; pattern="usr/lib/*/nvidia/current/libcuda.so.1" ;;
*) usage ;;
esac
case $major in
535) suite=bookworm ;;
550) suite=trixie ;;
555) [ "$package" = libcuda1 ] || usage; suite="" ;;
*) usage ;;
esac

found() { # FOLDER: the file in an unpacked package, if it is there
    # shellcheck disable=SC2231  # the pattern is ours, and a pattern
    for file in "$1"/$pattern; do
        [ -e "$file" ] && echo "$file" && return
    done
    return 1
}

unavailable() {
    echo "$package $major cannot be had here: $1" >&2
    exit 3
}

echo "note: $package is NVIDIA's $what, under NVIDIA's licence (see usr/share/doc/$package/copyright" \
    "in the unpacked folder); it is not part of mpsgate." >&2

if [ "$major" = 555 ] && [ -n "${MPSGATE_LIBCUDA_555:-}" ]; then
    [ -f "$MPSGATE_LIBCUDA_555" ] || unavailable "MPSGATE_LIBCUDA_555 names no file: $MPSGATE_LIBCUDA_555"
    echo "$MPSGATE_LIBCUDA_555"
    exit 0
fi

for folder in "$cache/$package-$major".*; do
    found "$folder" && exit 0
done

[ -n "$suite" ] || unavailable "no release of Debian serves it; MPSGATE_LIBCUDA_555=FILE names one"

command -v dpkg-deb >/dev/null || unavailable "there is no dpkg-deb, so this is no Debian machine"

mkdir -p "$cache" || unavailable "the cache folder $cache cannot be made"
# Beside its final place, because the last step is a rename.
work=$(mktemp -d "$cache/.$package.XXXXXX") || unavailable "the cache folder $cache cannot be written"
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir -p "$work/sources" "$work/state/lists/partial" "$work/archives/partial" "$work/download" "$work/root"
: >"$work/status"

why=$("$(dirname "$0")/apt-sources.sh" "$suite" non-free "$work/sources" 2>&1) || unavailable "$why"

private_apt() {
    # An empty status file: a version that happens to be installed must not become the candidate.
    apt-get -q -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$work/sources" \
        -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
        -o APT::Default-Release= -o "Dir::State=$work/state" -o "Dir::State::lists=$work/state/lists" \
        -o "Dir::State::status=$work/status" -o "Dir::Cache=$work" -o "Dir::Cache::archives=$work/archives" \
        -o APT::Sandbox::User= "$@" >&2
}

private_apt update || unavailable "apt-get update failed for the non-free area of $suite"
(cd "$work/download" && private_apt download "$package") ||
    unavailable "the non-free area of $suite does not serve $package for this architecture"
deb=$(find "$work/download" -name "${package}_*.deb" | head -n 1)
[ -f "$deb" ] || unavailable "apt-get download left no file"
dpkg-deb -x "$deb" "$work/root" || unavailable "the package does not unpack"
found "$work/root" >/dev/null || unavailable "the package holds no $pattern"

version=$(dpkg-deb -f "$deb" Version) || unavailable "the package names no version"
version=${version##*:}
version=${version%%-*}
target="$cache/$package-$version"
case $version in
"$major".*) ;;
*) unavailable "$suite serves version $version" ;;
esac
chmod 0755 "$work/root"
# Another run may have been quicker; its result is as good as ours.
mv -T "$work/root" "$target" 2>/dev/null || found "$target" >/dev/null || unavailable "$target is in the way"
found "$target"

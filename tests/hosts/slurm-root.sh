#!/usr/bin/env bash
# slurm-root.sh SUITE: a root directory with the Slurm of another Debian release, made once by
# mmdebstrap from this machine's own apt sources, in ~/.cache/mpsgate; prints the folder. Its
# programs need its own C library, so slurm.bash runs them in it. Exits 3 with a sentence where
# there can be none.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
packages=slurmd,slurmctld,slurm-client,munge
suite=${1:?usage: slurm-root.sh SUITE}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/mpsgate

unavailable() {
  echo "the Slurm of $suite cannot be had here: $1" >&2
  exit 3
}

target=$cache/slurm-$suite-$(sha256sum "$0" | cut -c1-8)
if [[ ! -d $target ]]; then
  [[ $EUID == 0 ]] || unavailable "making a root needs root"
  command -v mmdebstrap >/dev/null || unavailable "mmdebstrap is missing: tests/env/install.sh packages"
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/.slurm.XXXXXX") # beside its final place, because the last step is a rename
  trap 'rm -rf "$work"' EXIT
  mkdir "$work/sources" "$work/root"
  why=$("$here/../env/apt-sources.sh" "$suite" main "$work/sources" 2>&1) || unavailable "$why"
  # The lists of a suite may be past their date on a mirror.
  why=$(mmdebstrap --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' --include="$packages" "$suite" "$work/root.tar" "$work/sources"/* 2>&1 </dev/null) ||
    unavailable "$(tail -1 <<<"$why")"
  tar -xpf "$work/root.tar" -C "$work/root" --exclude='./dev/*'
  # Another run may have been quicker; its result is as good.
  mv -T "$work/root" "$target" 2>/dev/null || [[ -d $target ]] || unavailable "$target is in the way"
fi
echo "$target"

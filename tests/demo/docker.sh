#!/usr/bin/env bash
# docker.sh [--unpack]: prints the PATH in which Docker with Compose (v2) is: the machine's own,
# else what tests/engines/packages.sh has unpacked. With --unpack it has that done where there is
# none, for a minute at most: some 100 MB of Debian's packages, once, and never installed.
#
# Exits 3 with a sentence where there is none.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/mpsgate
suite=trixie # a release that no longer changes

# complete PATH: dockerd, its containerd, and a client that has Compose.
complete() {
  local program
  for program in dockerd containerd docker; do [[ -n $(PATH=$1 type -P "$program") ]] || return 1; done
  # As a plugin of the system's, or in PATH, where docker itself does not look. v1 is none.
  DOCKER_CONFIG=/nonexistent PATH=$1 docker compose version >/dev/null 2>&1 || PATH=$1 docker-compose docker-cli-plugin-metadata >/dev/null 2>&1
}

found() { # prints the first that is
  local bin
  for bin in '' "$cache"/engines-{"$suite",sid}-*/bin; do
    ! complete "${bin:+$bin:}$PATH:/usr/sbin:/sbin" || { echo "${bin:+$bin:}$PATH:/usr/sbin:/sbin"; return; }
  done
  return 1
}

found && exit
if [[ ${1:-} == --unpack ]]; then
  timeout 60 "$here/../engines/packages.sh" "$suite" >/dev/null 2>&1 && found && exit
fi
echo "there is no Docker with Compose; tests/engines/packages.sh $suite unpacks one into $cache (100 MB)" >&2
exit 3

#!/usr/bin/env bash
# install.sh [build|demo|test|engines|packages|lint]...: installs what these steps need and this machine lacks, from
# Debian's packages, rustup and crates.io. Runs again without harm. Without root it names what is
# missing and how to get it, and exits 1.
#
# No service is started or enabled by it: the tests start their own dockerd.
# MPSGATE_NO_INSTALL=1: only look.
set -euo pipefail

declare -A packages=(
  [build]=""
  [demo]="runc:runc pgrep:procps jq:jq busybox:busybox-static"
  [test]="runc:runc crun:crun pgrep:procps jq:jq busybox:busybox-static bats:bats dockerd:docker.io man:man-db mandoc:mandoc podman:podman curl:curl openssl:openssl promtool:prometheus"
  [engines]="runc:runc pgrep:procps jq:jq busybox:busybox-static bats:bats dockerd:docker.io containerd:containerd podman:podman conmon:conmon curl:curl openssl:openssl protoc:protobuf-compiler"
  [packages]="dpkg-deb:dpkg rpmbuild:rpm strip:binutils jq:jq bats:bats lintian:lintian rpmlint:rpmlint mmdebstrap:mmdebstrap"
  [lint]="shellcheck:shellcheck"
)
steps=("$@")
((${#steps[@]})) || steps=(build demo test lint)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/mpsgate
missing=0
service_units=(docker.service docker.socket containerd.service podman.service podman.socket
  podman-restart.service podman-auto-update.service podman-auto-update.timer prometheus.service)

say() { echo "install: $*"; }
may_install() { [[ $EUID == 0 && ${MPSGATE_NO_INSTALL:-0} != 1 ]]; }

# Debian's maintainer scripts start services unless a policy-rc.d forbids it, and enable them.
# Where the machine has no policy of its own, ours stands in for the moment of the installation.
apt_install() {
  local policy=/usr/sbin/policy-rc.d own=0 unit before=""
  if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    own=1
    # shellcheck disable=SC2064 # its path is known now
    trap "rm -f $policy" EXIT
  fi
  for unit in "${service_units[@]}"; do
    [[ -e /lib/systemd/system/$unit ]] && before+=" $unit "
  done
  export DEBIAN_FRONTEND=noninteractive
  # Another apt may hold the lock for a moment; a fresh machine may have no lists yet.
  local apt=(apt-get -o DPkg::Lock::Timeout=300 -q -y)
  "${apt[@]}" install --no-install-recommends "$@" </dev/null ||
    { "${apt[@]}" update && "${apt[@]}" install --no-install-recommends "$@" </dev/null; }
  for unit in "${service_units[@]}"; do
    [[ $before == *" $unit "* || ! -e /lib/systemd/system/$unit ]] && continue
    systemctl disable "$unit" >/dev/null 2>&1 || rm -f /etc/systemd/system/*.wants/"$unit"
    [[ $unit != docker.service ]] || update-rc.d docker disable
  done
  if ((own)); then rm -f "$policy"; trap - EXIT; fi
}

want_packages() {
  local pair tool package list=()
  for pair in "$@"; do
    tool=${pair%%:*} package=${pair#*:}
    command -v "$tool" >/dev/null || PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null || list+=("$package")
  done
  # busybox has to be static: it is the whole root of the test containers.
  if [[ " $* " == *:busybox-static* ]] && command -v busybox >/dev/null && ldd "$(command -v busybox)" >/dev/null 2>&1; then
    list+=(busybox-static)
  fi
  ((${#list[@]})) || return 0
  if ! command -v apt-get >/dev/null; then
    say "missing: ${list[*]} (Debian's names; this machine has no apt-get)"
    missing=1
  elif may_install; then
    say "packages ${list[*]}"
    apt_install "${list[@]}" >&2
  else
    say "missing: ${list[*]}; as root: apt-get install --no-install-recommends ${list[*]}"
    missing=1
  fi
}

want_musl() {
  local host musl
  command -v rustc >/dev/null || { say "missing: rust (https://rustup.rs)"; missing=1; return; }
  host=$(rustc -vV | sed -n 's/^host: //p')
  musl=${host%-gnu}-musl
  [[ -d $(rustc --print sysroot)/lib/rustlib/$musl/lib ]] && return
  if command -v rustup >/dev/null && [[ ${MPSGATE_NO_INSTALL:-0} != 1 ]] && rustup target add "$musl" >&2; then
    say "rust target $musl"
  else
    say "no rust target $musl: shim and hook are linked with static glibc instead (slower to start)"
  fi
}

want_cargo_deny() {
  command -v cargo-deny >/dev/null || [[ -x $cache/bin/cargo-deny ]] && return
  if [[ ${MPSGATE_NO_INSTALL:-0} == 1 ]]; then
    say "missing: cargo-deny; cargo install --locked cargo-deny"
    missing=1
    return
  fi
  say "cargo-deny into $cache/bin (some minutes, once)"
  # It runs for a second: what counts is that it is built quickly.
  CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
    CARGO_TARGET_DIR=$cache/build-cargo-deny cargo install --locked --quiet --root "$cache" cargo-deny >&2
  rm -rf "$cache/build-cargo-deny"
}

for step in "${steps[@]}"; do
  [[ -v packages[$step] ]] || { echo "usage: install.sh [build|demo|test|engines|packages|lint]..." >&2; exit 64; }
  # shellcheck disable=SC2086 # a list
  want_packages ${packages[$step]}
  case $step in
    build) want_musl ;;
    lint) want_cargo_deny ;;
  esac
done
exit "$missing"

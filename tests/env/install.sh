#!/usr/bin/env bash
# install.sh [build|demo|test|engines|hosts|k8s|packages|chart|jupyterhub|jupyterhub-machine|lint|
# docs|release]...: installs what these steps need and this machine lacks, from Debian's packages,
# rustup, crates.io and PyPI. Runs again without harm. Without root it names what is missing and how
# to get it, and exits 1.
#
# `install.sh zig` prints the folder that has what packaging/build-tools.txt pins, once `release`
# has put it there; `install.sh chart-tools` the one of tests/chart/tools.txt, after `chart`;
# `install.sh jupyterhub-tools` the one of tests/hosts/jupyterhub-tools.txt, after `jupyterhub`;
# `install.sh jupyterhub-machine-tools` the same for the Python of tests/vm's machine, after
# `jupyterhub-machine`.
#
# No service is started or enabled by it: the tests start their own dockerd.
# MPSGATE_NO_INSTALL=1: only look.
set -euo pipefail

declare -A packages=(
  [build]=""
  [demo]="runc:runc pgrep:procps jq:jq busybox:busybox-static"
  [test]="runc:runc crun:crun pgrep:procps jq:jq busybox:busybox-static bats:bats dockerd:docker.io man:man-db mandoc:mandoc podman:podman curl:curl openssl:openssl promtool:prometheus strace:strace protoc:protobuf-compiler"
  [engines]="runc:runc pgrep:procps jq:jq busybox:busybox-static bats:bats dockerd:docker.io containerd:containerd podman:podman conmon:conmon crun:crun curl:curl openssl:openssl protoc:protobuf-compiler"
  [hosts]="runc:runc pgrep:procps jq:jq busybox:busybox-static bats:bats dockerd:docker.io podman:podman conmon:conmon podman-compose:podman-compose /usr/lib/cni/bridge:containernetworking-plugins iptables:iptables slurmctld:slurmctld slurmd:slurmd munged:munge sbatch:slurm-client gcc:gcc /usr/include/slurm/spank.h:libslurm-dev mmdebstrap:mmdebstrap"
  [k8s]="runc:runc pgrep:procps jq:jq busybox:busybox-static bats:bats containerd:containerd dockerd:docker.io openssl:openssl ip:iproute2 /usr/lib/cni/bridge:containernetworking-plugins haproxy:haproxy socat:socat curl:curl podman:podman dpkg-source:dpkg-dev gcc:gcc"
  [packages]="dpkg-deb:dpkg rpmbuild:rpm strip:binutils jq:jq bats:bats lintian:lintian rpmlint:rpmlint mmdebstrap:mmdebstrap"
  [chart]="pip3:python3-pip jq:jq bats:bats"
  [jupyterhub]="pip3:python3-pip runc:runc pgrep:procps jq:jq busybox:busybox-static bats:bats dockerd:docker.io curl:curl"
  [jupyterhub-machine]="pip3:python3-pip"
  [lint]="shellcheck:shellcheck python3:python3"
  [docs]="git:git"
  [release]="pip3:python3-pip readelf:binutils jq:jq git:git"
)
steps=("$@")
((${#steps[@]})) || steps=(build demo test lint)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/mpsgate
root=$(cd "$(dirname "$0")/../.." && pwd)
zig=$cache/zig-$(sha256sum "$root/packaging/build-tools.txt" | cut -c1-12)
chart_tools=$cache/chart-tools-$(sha256sum "$root/tests/chart/tools.txt" | cut -c1-12)
jupyterhub_tools=$cache/jupyterhub-tools-$(sha256sum "$root/tests/hosts/jupyterhub-tools.txt" | cut -c1-12)
# Of Debian trixie.
machine_python=3.13
jupyterhub_machine_tools=$cache/jupyterhub-machine-$machine_python-${jupyterhub_tools##*-}
missing=0
service_units=(docker.service docker.socket containerd.service podman.service podman.socket
  podman-restart.service podman-auto-update.service podman-auto-update.timer prometheus.service haproxy.service
  munge.service slurmctld.service slurmd.service)

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
    # Those that come with a script for init, too.
    case $unit in docker.service | munge.service | slurm*.service) update-rc.d "${unit%.service}" disable ;; esac
  done
  if ((own)); then rm -f "$policy"; trap - EXIT; fi
}

want_packages() {
  local pair tool package list=()
  for pair in "$@"; do
    tool=${pair%%:*} package=${pair#*:}
    [[ $tool != /*.h || ! -e $tool ]] || continue
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

# The other architecture's libraries of Rust. zig and Rust's own linker have the rest.
want_cross() {
  local host other target
  host=$(rustc -vV | sed -n 's/^host: //p')
  case $host in x86_64-*) other=aarch64 ;; *) other=x86_64 ;; esac
  for target in "$other-unknown-linux-gnu" "$other-unknown-linux-musl"; do
    [[ -d $(rustc --print sysroot)/lib/rustlib/$target/lib ]] && continue
    if command -v rustup >/dev/null && [[ ${MPSGATE_NO_INSTALL:-0} != 1 ]] && rustup target add "$target" >&2; then
      say "rust target $target"
    else
      say "no rust target $target: make release leaves $other out"
    fi
  done
}

cargo_tool() { # CRATE[@VERSION] [OPTION...]
  # It runs for a second: what counts is that it is built quickly.
  CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
    CARGO_TARGET_DIR=$cache/build-${1%@*} cargo install --locked --quiet --root "$cache" "$@" >&2
  rm -rf "$cache/build-${1%@*}"
}

want_cargo_deny() {
  command -v cargo-deny >/dev/null || [[ -x $cache/bin/cargo-deny ]] && return
  if [[ ${MPSGATE_NO_INSTALL:-0} == 1 ]]; then
    say "missing: cargo-deny; cargo install --locked cargo-deny"
    missing=1
    return
  fi
  say "cargo-deny into $cache/bin (some minutes, once)"
  cargo_tool cargo-deny
}

# From PyPI, by their hashes; another list of pins is another folder.
want_pinned() { # FOLDER PINS WHAT SIZE [PIP OPTION...]
  local folder=$1 pins=$2 what=$3 size=$4 work
  shift 4
  [[ -d $folder ]] && return
  if [[ ${MPSGATE_NO_INSTALL:-0} == 1 ]]; then
    say "missing: $what; python3 -m pip install --require-hashes --no-deps --target $folder -r $pins${*:+ $*}"
    missing=1
    return
  fi
  say "$what into $folder ($size, once)"
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/.pinned.XXXXXX") # beside its final place: half of it is never taken for the whole
  # shellcheck disable=SC2064 # its path is known now
  trap "rm -rf $work" EXIT
  python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --require-hashes --no-deps --only-binary :all: \
    --target "$work" -r "$root/$pins" "$@" >&2 || { rm -rf "$work"; say "$what cannot be had from PyPI"; missing=1; return; }
  chmod 755 "$work"
  mv -T "$work" "$folder" 2>/dev/null || { rm -rf "$work"; [[ -d $folder ]]; }
}

# For one step of the demo, which goes on without.
want_docker() {
  [[ ${MPSGATE_NO_INSTALL:-0} != 1 ]] || return 0
  ! "$root/tests/demo/docker.sh" >/dev/null 2>&1 || return 0
  say "Docker with Compose into $cache (100 MB, once, not installed)"
  "$root/tests/demo/docker.sh" --unpack >/dev/null 2>&1 || say "it cannot be had within a minute: the demo leaves it out"
}

want_mdbook() {
  command -v mdbook >/dev/null || [[ -x $cache/bin/mdbook ]] && return
  if [[ ${MPSGATE_NO_INSTALL:-0} == 1 ]]; then
    say "missing: mdbook; cargo install --locked mdbook"
    missing=1
    return
  fi
  say "mdbook into $cache/bin (some minutes, once)"
  cargo_tool mdbook@0.5.4 --no-default-features --features search
}

want_cyclonedx() {
  local version=0.5.9 # another one may write other bytes
  [[ -x $cache/bin/cargo-cyclonedx && $("$cache/bin/cargo-cyclonedx" cyclonedx --version) == *" $version" ]] && return
  if [[ ${MPSGATE_NO_INSTALL:-0} == 1 ]]; then
    say "missing: cargo-cyclonedx; cargo install --locked --root $cache cargo-cyclonedx@$version"
    missing=1
    return
  fi
  say "cargo-cyclonedx into $cache/bin (some minutes, once)"
  cargo_tool "cargo-cyclonedx@$version"
}

if [[ ${steps[*]} == zig ]]; then
  [[ -d $zig ]] || { say "no $zig: run tests/env/install.sh release" >&2; exit 1; }
  echo "$zig"
  exit
fi
if [[ ${steps[*]} == chart-tools ]]; then
  [[ -d $chart_tools ]] || { say "no $chart_tools: run tests/env/install.sh chart" >&2; exit 1; }
  echo "$chart_tools"
  exit
fi
if [[ ${steps[*]} == jupyterhub-tools ]]; then
  [[ -d $jupyterhub_tools ]] || { say "no $jupyterhub_tools: run tests/env/install.sh jupyterhub" >&2; exit 1; }
  echo "$jupyterhub_tools"
  exit
fi
if [[ ${steps[*]} == jupyterhub-machine-tools ]]; then
  [[ -d $jupyterhub_machine_tools ]] || { say "no $jupyterhub_machine_tools: run tests/env/install.sh jupyterhub-machine" >&2; exit 1; }
  echo "$jupyterhub_machine_tools"
  exit
fi
for step in "${steps[@]}"; do
  [[ -v packages[$step] ]] || { echo "usage: install.sh [build|demo|test|engines|hosts|k8s|packages|chart|jupyterhub|jupyterhub-machine|lint|docs|release]..., or install.sh zig, chart-tools, jupyterhub-tools or jupyterhub-machine-tools" >&2; exit 64; }
  # shellcheck disable=SC2086 # a list
  want_packages ${packages[$step]}
  case $step in
    build) want_musl ;;
    demo) want_docker ;;
    chart) want_pinned "$chart_tools" tests/chart/tools.txt "Helm and the schemas of Kubernetes" "80 MB" ;;
    jupyterhub) want_pinned "$jupyterhub_tools" tests/hosts/jupyterhub-tools.txt "JupyterHub and its spawners" "200 MB" ;;
    jupyterhub-machine)
      # What this machine's Python would compile is of no use to another one.
      want_pinned "$jupyterhub_machine_tools" tests/hosts/jupyterhub-tools.txt "JupyterHub for Python $machine_python" "160 MB" \
        --python-version "$machine_python" --no-compile
      ;;
    lint) want_cargo_deny ;;
    docs) want_mdbook ;;
    release)
      want_musl
      want_cross
      want_pinned "$zig" packaging/build-tools.txt "cargo-zigbuild and zig" "90 MB"
      want_cyclonedx
      ;;
  esac
done
exit "$missing"

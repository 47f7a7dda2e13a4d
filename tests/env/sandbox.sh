#!/usr/bin/env bash
# sandbox.sh CMD [ARG...]: runs CMD where mpsgate's fixed paths are private, and leaves nothing.
#
# mpsgate trusts no environment: /etc/mpsgate, /run/mpsgate, /var/lib/mpsgate and
# /usr/bin/mpsgate-hook are built in. So CMD gets a mount, a PID and a network namespace of its own:
#   /run           an empty tmpfs; scratch space in $MG (short: socket paths are limited)
#   /etc /usr/bin /var/lib
#                  the host's, through an overlay whose upper half is thrown away
#   /dev           a tmpfs with the host's basic nodes, and nvidia nodes where there is no GPU
#   /proc/devices  with the NVIDIA majors, where there is no GPU
#   the network    loopback alone, so that no port of another sandbox is in the way
#   /usr/bin/mpsgate*  the programs of $MG_OUT (default: out/), where they are built
# When CMD ends, every process that it started ends with the PID namespace, and every mount with
# the mount namespace. The host keeps only cgroups below $MG_CGROUP; they are removed at the end.
#
# MG_GPUS=N     simulated cards (default 2). 0: no nodes.
# MG_REAL_GPU=1 the host's own cards, network and PID namespace (NVML counts in host PIDs); CMD then
#               has to stop what it starts.
# MG_SYSTEMD=1  the host's systemd makes the containers' cgroups: CMD sees it in /run, and has the
#               host's network and PID namespace, because systemd is told pids. Needs cgroup v2,
#               which ends what CMD leaves.
# MG_UNIFIED=1  CMD sees cgroup v2 alone, without systemd, also where the host has both versions.
set -euo pipefail
umask 022

readonly SIM_UVM_MAJOR=510 # free in every kernel's list of assigned majors (234-254, 384-511 are dynamic)

outer() {
  [[ $EUID == 0 ]] || { echo "sandbox.sh: needs root" >&2; exit 77; }
  grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null ||
    { echo "sandbox.sh: this kernel has no overlayfs" >&2; exit 77; }
  local repo own own_ns=(--pid --fork --kill-child --mount-proc --net) rc=0
  repo=$(cd "$(dirname "$0")/../.." && pwd)
  [[ ${MG_REAL_GPU:-0} == 1 || ${MG_SYSTEMD:-0} == 1 ]] && own_ns=()
  export MG_REPO=$repo MG_OUT=${MG_OUT:-$repo/out} MG=/run/t MG_CGROUP=/mg-$$ MG_IN_SANDBOX=1
  [[ ${MG_SYSTEMD:-0} != 1 ]] || MG_CGROUP=/mg$$.slice
  export MG_GPUS=${MG_GPUS:-2} MG_UVM_MAJOR=$SIM_UVM_MAJOR
  trap : INT TERM # the child decides; the clean-up below has to run
  if [[ ${MG_SYSTEMD:-0} == 1 ]]; then
    own=/sys/fs/cgroup/mg$$.own
    mkdir "$own"
    (echo "$BASHPID" >"$own/cgroup.procs"; exec unshare --mount --propagation private -- bash "$0" --inner "$@") || rc=$?
    systemctl stop "${MG_CGROUP#/}" || rc=${rc/#0/1}
    echo 1 >"$own/cgroup.kill"
    until rmdir "$own" 2>/dev/null; do sleep 0.1; done
  else
    unshare --mount --propagation private "${own_ns[@]}" -- bash "$0" --inner "$@" || rc=$?
  fi
  # Deepest first. The kernel needs a moment to forget the last process of a cgroup.
  local try
  for try in {1..50}; do
    find /sys/fs/cgroup -depth -type d \( -path "*$MG_CGROUP" -o -path "*$MG_CGROUP/*" \) -exec rmdir {} + 2>/dev/null || true
    [[ -z $(find /sys/fs/cgroup -type d -path "*$MG_CGROUP" -print -quit) ]] && break
    sleep 0.1
  done
  if ((try == 50)); then echo "sandbox.sh: cgroups left below $MG_CGROUP" >&2; rc=${rc/#0/1}; fi
  exit "$rc"
}

private_dev() {
  local node major minor kind mode
  mkdir "$MG/dev"
  mount -t tmpfs -o mode=755 dev "$MG/dev"
  for node in null zero full random urandom tty ptmx fuse kmsg; do
    [[ -c /dev/$node ]] || continue
    read -r major minor mode <<<"$(stat -Lc '0x%t 0x%T %a' "/dev/$node")"
    mknod -m "$mode" "$MG/dev/$node" c $((major)) $((minor))
  done
  ln -s /proc/self/fd "$MG/dev/fd"
  for kind in 0:stdin 1:stdout 2:stderr; do ln -s "fd/${kind%:*}" "$MG/dev/${kind#*:}"; done
  mkdir "$MG/dev/pts" "$MG/dev/shm" "$MG/dev/mqueue"
  mount --bind /dev/pts "$MG/dev/pts"
  mount -t tmpfs -o mode=1777 shm "$MG/dev/shm"
  mount -t mqueue mqueue "$MG/dev/mqueue"
  if ((MG_GPUS > 0)); then
    for ((minor = 0; minor < MG_GPUS; minor++)); do
      mknod -m 666 "$MG/dev/nvidia$minor" c 195 "$minor"
    done
    mknod -m 666 "$MG/dev/nvidiactl" c 195 255
    mknod -m 666 "$MG/dev/nvidia-uvm" c "$SIM_UVM_MAJOR" 0
    mknod -m 666 "$MG/dev/nvidia-uvm-tools" c "$SIM_UVM_MAJOR" 1
  fi
  mount --move "$MG/dev" /dev
}

inner() {
  local dir name file
  if [[ ${MG_REAL_GPU:-0} != 1 && ${MG_SYSTEMD:-0} != 1 ]]; then
    PATH=$PATH:/usr/sbin:/sbin ip link set lo up 2>/dev/null || busybox ip link set lo up
  fi
  # Docker and runc look into /run for systemd: none here, whatever the host has, unless it is asked
  # for.
  local run
  run=$(mktemp -d)
  mount -t tmpfs -o mode=755 run "$run"
  if [[ ${MG_SYSTEMD:-0} == 1 ]]; then
    for dir in systemd dbus; do
      mkdir "$run/$dir"
      mount --rbind "/run/$dir" "$run/$dir"
    done
  fi
  [[ ${MG_UNIFIED:-0} != 1 ]] || mount -t cgroup2 cgroup2 /sys/fs/cgroup
  mount --no-mtab --move "$run" /run # there is no /run/mount yet
  rmdir "$run"
  mkdir -p "$MG" /run/lock /run/.overlay
  for dir in /etc /usr/bin /var/lib; do
    name=${dir//\//_}
    mkdir -p "/run/.overlay/$name/upper" "/run/.overlay/$name/work"
    mount -t overlay -o "lowerdir=$dir,upperdir=/run/.overlay/$name/upper,workdir=/run/.overlay/$name/work" \
      "mg$name" "$dir"
  done
  # What an installed mpsgate left on this machine is not under test.
  rm -rf /etc/mpsgate /var/lib/mpsgate /etc/cdi /usr/bin/mpsgate*
  mkdir -p /etc/mpsgate /var/lib/mpsgate
  if [[ ${MG_REAL_GPU:-0} != 1 ]]; then
    private_dev
    if ((MG_GPUS > 0)) && ! grep -q ' nvidia' /proc/devices; then
      # The first empty line ends the list of character devices.
      sed "0,/^\$/s/^\$/195 nvidia\\n195 nvidiactl\\n$SIM_UVM_MAJOR nvidia-uvm\\n/" /proc/devices >"$MG/devices"
      mount --bind "$MG/devices" /proc/devices
    fi
  fi
  for file in mpsgate mpsgated mpsgate-runtime mpsgate-hook mpsgate-gate; do
    [[ ! -x $MG_OUT/$file ]] || install -m 755 "$MG_OUT/$file" "/usr/bin/$file"
  done
  # Not exec: as PID 1 this shell also collects what containers and daemons leave behind.
  local rc=0
  "$@" || rc=$?
  exit "$rc"
}

case ${1:-} in
  '' | -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; [[ -n ${1:-} ]] ;;
  --inner) shift; inner "$@" ;;
  *) outer "$@" ;;
esac

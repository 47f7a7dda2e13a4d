#!/usr/bin/env bash
# A whole Debian machine for tests: kernel, systemd, cgroup v2 only, every capability; under KVM
# where a kernel starts there, else under qemu's software emulation. It has no network and is thrown
# away afterwards.
#
#   machine.sh image [SUITE]           makes the image of a Debian suite (default trixie), or finds
#                                      it in
#                                      ~/.cache/mpsgate, and prints its folder. Once: a minute.
#   machine.sh accel IMAGE             prints kvm where the image's kernel starts there, else tcg.
#   machine.sh run IMAGE OUT FILE...   boots a copy with FILEs in /task and runs /task/task there as
#                                      root. Its output is shown here; what it leaves in /task/out
#                                      comes back into OUT, with the console's text. Ends with the
#                                      task's exit status; 124 when the time was up. Where the task
#                                      leaves /task/reboot, the machine is rebooted and the task
#                                      runs again, on the same disk.
#
# Exits 77 with the reason where there can be no machine. Installs qemu and mmdebstrap from Debian's
# packages where they are missing (MPSGATE_NO_INSTALL=1: does not).
# MG_VM_LIMIT=SECONDS (600)  MG_VM_MEMORY=MIB (2048)
# MG_VM_ACCEL=kvm|tcg  KVM (ten times as fast) or emulation, without trying what works.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/mpsgate

# What the machine is made of. The rest of the list: what the tests run there.
packages=(
  systemd systemd-sysv dbus udev kmod procps iproute2 linux-image-cloud-amd64
  runc crun podman docker.io docker-cli containerd curl protobuf-compiler python3 bats jq busybox-static perl bpftool
)

unavailable() { echo "machine: $1" >&2; exit 77; }

# need PROGRAM PACKAGE
need() {
  command -v "$1" >/dev/null && return
  [[ ${MPSGATE_NO_INSTALL:-0} != 1 ]] || unavailable "$1 is missing (Debian's package $2)"
  command -v apt-get >/dev/null || unavailable "$1 is missing, and this machine has no apt-get"
  echo "machine: package $2" >&2
  # No service of theirs is wanted; there may be no lists yet.
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -q -y)
  { "${apt[@]}" install --no-install-recommends "$2" || { "${apt[@]}" update && "${apt[@]}" install --no-install-recommends "$2"; }; } \
    </dev/null >&2 || unavailable "$2 cannot be installed"
}

image() {
  local suite=${1:-trixie} include id dir why
  [[ $EUID == 0 ]] || unavailable "making an image needs root"
  [[ $(uname -m) == x86_64 ]] || unavailable "only written for x86_64"
  include=$(IFS=,; echo "${packages[*]}")
  # A changed list, or a changed recipe, is another image.
  id=machine-$suite-$({ echo "$include"; declare -f build task_unit; } | sha256sum | cut -c1-12)
  dir=$cache/$id
  if [[ ! -f $dir/disk.img ]]; then
    need mmdebstrap mmdebstrap
    need mkfs.ext4 e2fsprogs
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/.machine.XXXXXX") # beside its final place, because the last step is a rename
    trap 'rm -rf "$work"' EXIT
    mkdir "$work/sources"
    why=$("$here/../env/apt-sources.sh" "$suite" main "$work/sources" 2>&1) || unavailable "$why"
    echo "machine: image of $suite" >&2
    build "$suite" "$include"
    # Another run may have been quicker; its result is as good.
    mv -T "$work/made" "$dir" 2>/dev/null || [[ -f $dir/disk.img ]] || unavailable "$dir is in the way"
  fi
  echo "$dir"
}

# build SUITE PACKAGES: $work/made with kernel, initrd and disk.
build() {
  local root=$work/root unit
  mkdir "$root" "$work/made"
  # The lists of a suite that no longer changes may be past their date.
  mmdebstrap --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' --include="$2" "$1" "$work/root.tar" \
    "$work"/sources/* >"$work/build.log" 2>&1 || { tail -5 "$work/build.log" >&2; unavailable "mmdebstrap failed for $1"; }
  tar -xf "$work/root.tar" -C "$root"
  cp "$root"/boot/vmlinuz-* "$work/made/vmlinuz"
  cp "$root"/boot/initrd.img-* "$work/made/initrd"
  rm -rf "${root:?}"/boot/*
  task_unit "$root"
  # Tests start their own; a machine of an hour needs no maintenance.
  for unit in docker.service docker.socket containerd.service podman.socket serial-getty@ttyS0.service \
    getty@tty1.service apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer dpkg-db-backup.timer; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
  done
  echo machine >"$root/etc/hostname"
  : >"$root/etc/machine-id"
  truncate -s 6G "$work/made/disk.img"
  mkfs.ext4 -q -F -d "$root" "$work/made/disk.img"
}

# task_unit ROOT: what runs the task and powers the machine off.
task_unit() {
  cat >"$1/etc/systemd/system/task.service" <<'UNIT'
[Unit]
Description=the task that was handed in
After=multi-user.target
[Service]
Type=exec
ExecStart=/usr/local/sbin/task
# Its own processes may outlive it, as those of a test under way at a reboot.
KillMode=process
[Install]
WantedBy=multi-user.target
UNIT
  cat >"$1/usr/local/sbin/task" <<'TASK'
#!/bin/bash
exec </dev/null >/dev/ttyS1 2>&1
export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
if [[ ! -d /task ]]; then
  mkdir -p /task/out
  tar -xf /dev/vdb -C /task
fi
cd /task
rc=0
./task || rc=$?
if [[ -e reboot ]]; then
  rm reboot
  rc=reboot
fi
echo "$rc" >out/status
tar -cf /dev/vdc -C out .
sync
if [[ $rc == reboot ]]; then exec systemctl reboot; fi
systemctl poweroff --force --force
TASK
  chmod 755 "$1/usr/local/sbin/task"
  ln -s ../task.service "$1/etc/systemd/system/multi-user.target.wants/task.service"
}

run() {
  local image=$1 out=$2 end=$((SECONDS + ${MG_VM_LIMIT:-600})) status=reboot
  shift 2
  need qemu-system-x86_64 qemu-system-x86
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  mkdir "$work/in"
  cp -r "$@" "$work/in/"
  tar -cf "$work/in.tar" -C "$work/in" .
  # Whole blocks for a disk.
  truncate -s %1M "$work/in.tar"
  cp --sparse=always "$image/disk.img" "$work/disk.img"
  mkdir -p "$out"
  : >"$out/console.log"
  accel=${MG_VM_ACCEL:-$(accel "$image")}
  while [[ $status == reboot ]]; do
    # Room for what comes back.
    rm -f "$work/out.tar" "$out/status"
    truncate -s 256M "$work/out.tar"
    boot "$image" $((end - SECONDS)) || true
    cat "$work/console.log" >>"$out/console.log"
    # A disk that it never wrote to is an empty archive.
    if ! tar -xf "$work/out.tar" -C "$out" 2>/dev/null || [[ ! -s $out/status ]]; then
      cat "$work/qemu.log" >&2
      echo "machine: it handed nothing back; the end of its console:" >&2
      tail -5 "$out/console.log" >&2
      ((SECONDS < end)) || exit 124
      exit 1
    fi
    status=$(<"$out/status")
  done
  exit "$status"
}

cpu=${MG_VM_CPU:-max,-cx16,-la57}

# accel IMAGE: kvm where its kernel starts there, else tcg.
accel() {
  need qemu-system-x86_64 qemu-system-x86
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  if [[ -w /dev/kvm ]] && starts "$1" kvm; then echo kvm; else echo tcg; fi
}

# starts IMAGE ACCEL: whether its kernel gets as far as to miss its disk. /dev/kvm opens also where
# no kernel can start, as under a KVM without the processor's help: qemu then says so at once, and
# waits.
starts() {
  local pid end=$((SECONDS + 30)) rc=0
  qemu-system-x86_64 -accel "$2" -cpu "$cpu" -m 512 -display none -nic none -no-reboot -serial "file:$work/trial.log" \
    -kernel "$1/vmlinuz" -append "console=ttyS0 panic=-1" </dev/null >"$work/trial.err" 2>&1 &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    if ((SECONDS >= end)) || grep -q 'KVM internal error' "$work/trial.err"; then kill "$pid" 2>/dev/null || true; fi
    sleep 0.2
  done
  wait "$pid" 2>/dev/null || rc=$?
  [[ $rc == 0 ]] && grep -q 'Kernel panic' "$work/trial.log"
}

# boot IMAGE SECONDS: until it powers off, reboots or panics.
boot() {
  local accel=$accel
  # Seen with qemu 7.2: with a thread for each processor, an int3 that the kernel had just patched
  # away for a static branch was still hit (panic in get_page_from_freelist); and cmpxchg16b, which
  # the allocator uses where it is there, came back with broken flags (double fault in kmalloc). Two
  # machines side by side fill two cores as well. Without 5-level page tables: slower.
  [[ $accel != tcg ]] || accel=tcg,thread=single
  timeout --foreground "$2" qemu-system-x86_64 -accel "$accel" -cpu "$cpu" -smp 2 -m "${MG_VM_MEMORY:-2048}" \
    -display none -nic none -no-reboot -serial "file:$work/console.log" -serial stdio -kernel "$1/vmlinuz" -initrd "$1/initrd" \
    -append "root=/dev/vda rw console=ttyS0 quiet panic=-1 mitigations=off nokaslr audit=0 systemd.show_status=1 ${MG_VM_APPEND:-}" \
    -drive "file=$work/disk.img,if=virtio,format=raw,cache=unsafe" \
    -drive "file=$work/in.tar,if=virtio,format=raw,readonly=on" \
    -drive "file=$work/out.tar,if=virtio,format=raw" </dev/null 2>"$work/qemu.log" | sed -u 's|\r$||'
}

case ${1:-} in
  image) shift; image "$@" ;;
  accel) accel "$2" ;;
  run) (($# >= 4)) || { echo "usage: machine.sh run IMAGE OUT FILE..." >&2; exit 64; }; shift; run "$@" ;;
  *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 64 ;;
esac

# card.bash: what nvidia-smi says of the card $gpu, and its compute mode. Sourced by tests/gpu/run.
# shellcheck shell=bash

# asked FIELD[,FIELD...]: of the card, without units.
asked() { nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits -i "$gpu" 2>&1; }

# The pids of compute processes on the card with their MiB: "PID, MIB" each.
apps() { nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits -i "$gpu" 2>&1; }

# mib_of_pid PID: from lines as of `apps`; nothing where the driver has no figure ("[N/A]").
mib_of_pid() { awk -F', *' -v pid="$1" '$1 == pid && $2 ~ /^[0-9]+( MiB)?$/ { print $2 + 0; exit }'; }

# mode_argument: the mode as `nvidia-smi -c` takes it, from how it prints it.
mode_argument() {
  case ${1//[[:space:]]/} in
    Default) echo DEFAULT ;;
    Exclusive_Process | E.Process) echo EXCLUSIVE_PROCESS ;;
    Exclusive_Thread | E.Thread) echo EXCLUSIVE_THREAD ;;
    Prohibited) echo PROHIBITED ;;
    *) return 1 ;;
  esac
}

# driver_major TEXT: 550 of "550.163.01".
driver_major() { [[ $1 =~ ^([0-9]+)\. ]] && echo "${BASH_REMATCH[1]}"; }

compute_mode() { asked compute_mode; }

# set_mode MODE: as it is printed; checked, because nvidia-smi may say that it did and not have done
# it.
set_mode() {
  local said
  [[ ${MG_GPU_LEAVE_MODE:-0} != 1 ]] || return 0
  [[ $(compute_mode) != "$1" ]] || return 0
  said=$(nvidia-smi -i "$gpu" -c "$(mode_argument "$1")" 2>&1) || true
  [[ $(compute_mode) == "$1" ]] || { echo "cannot set the compute mode $1: $said" >&2; return 1; }
}

# compute_mode_library FILE: compute_mode.c, built against a library that has NVML's name alone.
compute_mode_library() {
  local dir
  dir=$(mktemp -d)
  cc -shared -o "$dir/libnvidia-ml.so.1" -Wl,-soname,libnvidia-ml.so.1 -x c /dev/null &&
    cc -O1 -shared -fPIC -o "$1" "$(dirname "${BASH_SOURCE[0]}")/compute_mode.c" \
      -Wl,--no-as-needed "$dir/libnvidia-ml.so.1" -ldl -Wl,-rpath,"\$ORIGIN/nvml"
  set -- $?
  rm -r "$dir"
  return "$1"
}

# library NAME: its path, from the loader's cache or where drivers put it in containers.
library() {
  local dir found
  found=$(ldconfig -p 2>/dev/null | awk -v name="$1" '$1 == name && /x86-64|AArch64/ { print $NF; exit }')
  [[ -z $found ]] || { echo "$found"; return; }
  for dir in ${LD_LIBRARY_PATH//:/ } /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib64 /usr/lib/*-linux-gnu; do
    [[ ! -e $dir/$1 ]] || { echo "$dir/$1"; return; }
  done
  return 1
}

# cannot_have_containers: why not, in words, where it is so.
cannot_have_containers() {
  local effective dir=/sys/fs/cgroup tool
  effective=$(sed -n 's/^CapEff:\t//p' /proc/self/status)
  (((0x$effective >> 21) & 1)) || { echo "no CAP_SYS_ADMIN: this is a container without it, and no container can be made inside"; return; }
  for tool in unshare mount awk sed find; do
    command -v "$tool" >/dev/null || { echo "no $tool"; return; }
  done
  # A sandbox that came this far has shown the rest.
  [[ ${MG_IN_SANDBOX:-} != 1 ]] || return 1
  grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null || { echo "this kernel has no overlayfs"; return; }
  [[ ! -d $dir/freezer ]] || dir=$dir/freezer
  mkdir "$dir/mg-try-$$" 2>/dev/null || { echo "no cgroup can be made in $dir: it is not mounted, or read-only"; return; }
  rmdir "$dir/mg-try-$$"
  unshare --mount --propagation private true 2>/dev/null || { echo "no mount namespace can be made (seccomp?)"; return; }
  return 1
}

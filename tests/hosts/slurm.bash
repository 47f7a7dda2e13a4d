# slurm.bash: a Slurm of one controller and one node in the sandbox, Debian's packages without
# systemd: munged, slurmctld, slurmd, each in the foreground, with their files below $SLURM and
# their ports on loopback. Two ordinary users, alice and bob, own jobs.
#
# slurm_start, slurm_stop: all of it. slurmd_start, slurmd_stop [SIGNAL]: the node alone, as tests
# restart it. Before slurm_start a file may set:
#   SLURM_LINES     lines added to slurm.conf (PrologFlags, Prolog=, ...); the last one counts
#   SLURM_CGROUP    lines added to cgroup.conf
#   SLURM_SPANK     lines of plugstack.conf
#   SLURM_SHARDS    shards of each card (default: 15, as of a card with 15 GiB)
#   SLURM_SHARING   shard (default) or mps: what shares a card. Slurm has one of them on a card.
#   SLURM_GRES      gres.conf, and with it SLURM_NODE_GRES, what the node has in slurm.conf
# MG_SLURM=SUITE in the environment: the Slurm of that Debian release, whose root slurm-root.sh has
# made. Its programs run in that root, and the jobs; munged is this machine's.
# slurm.conf has Debian's defaults otherwise, cons_tres, and both of the sandbox's cards.
# shellcheck shell=bash

SLURM=$MG/slurm
BEGUN=$SLURM
export SLURM_CONF=$SLURM/slurm.conf
SLURM_NODE=node1
SLURM_ADDRESS=10.89.0.1
SLURM_USERS=(alice bob)
SLURM_LINES=${SLURM_LINES:-} SLURM_CGROUP=${SLURM_CGROUP:-} SLURM_SPANK=${SLURM_SPANK:-}
SLURM_SHARDS=${SLURM_SHARDS:-15} SLURM_SHARING=${SLURM_SHARING:-shard} SLURM_GRES=${SLURM_GRES:-} SLURM_NODE_GRES=${SLURM_NODE_GRES:-}

# A root of the newer Slurm's, and programs that run there.
SLURM_ROOT=$MG/root SLURM_NEWER=$MG/newer
[[ -z ${MG_SLURM:-} ]] || PATH=$SLURM_NEWER/bin:$SLURM_NEWER/sbin:$PATH

# slurm_missing: the programs that this machine lacks.
slurm_missing() {
  local program
  for program in munged slurmctld slurmd sbatch srun scontrol setpriv; do
    PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || echo "$program"
  done
}

slurm_start() {
  local user
  # Slurm resolves names, numeric ones too, only where there is an address that is not 127.*.
  { PATH=$PATH:/usr/sbin:/sbin ip addr add "$SLURM_ADDRESS/32" dev lo || busybox ip addr add "$SLURM_ADDRESS/32" dev lo; } 2>/dev/null || true
  grep -q "^$SLURM_ADDRESS " /etc/hosts || echo "$SLURM_ADDRESS $SLURM_NODE" >>/etc/hosts
  rm -rf "$SLURM"
  mkdir -p "$SLURM"/{log,spool,hooks,home}
  for user in "${SLURM_USERS[@]}"; do
    id "$user" >/dev/null 2>&1 || useradd --no-create-home --home-dir "$SLURM/home/$user" --shell /bin/bash "$user"
    install -d -o "$user" -g "$user" "$SLURM/home/$user"
  done
  install -d -o munge -g munge -m 755 "$SLURM/munge"
  install -d -o slurm -g slurm "$SLURM/state"
  slurm_cgroups || return 1
  [[ -z ${MG_SLURM:-} ]] || slurm_root || return 1
  slurm_settings
  slurm_as_program
  dd if=/dev/urandom of="$SLURM/munge/key" bs=128 count=1 2>/dev/null
  chown munge:munge "$SLURM/munge/key"
  chmod 400 "$SLURM/munge/key"
  begin munged setpriv --reuid munge --regid munge --clear-groups munged --foreground --key-file "$SLURM/munge/key" \
    --socket "$SLURM/munge/socket" --pid-file "$SLURM/munge/pid" --seed-file "$SLURM/munge/seed"
  wait_for 10 "munged answers" munge -n -S "$SLURM/munge/socket" || { slurm_words; return 1; }
  begin slurmctld slurmctld -D -f "$SLURM_CONF"
  wait_for 20 "slurmctld answers" scontrol ping || { slurm_words; return 1; }
  slurmd_start
}

slurmd_start() {
  begin slurmd slurmd -D -N "$SLURM_NODE" -f "$SLURM_CONF"
  wait_for 30 "$SLURM_NODE is there" slurm_node_is IDLE ALLOCATED MIXED || { slurm_words; return 1; }
}
slurmd_stop() { end slurmd "$@"; }

slurm_stop() {
  local rc=0 hierarchy try
  [[ ! -f $SLURM/slurmctld.pid ]] || slurm_cancel
  [[ ! -f $SLURM/slurmd.pid ]] || wait_for 30 "no job is left" slurm_idle || rc=1
  end slurmd || rc=1
  end slurmctld || rc=1
  end munged || rc=1
  ! mountpoint -q "$SLURM_ROOT" || umount --recursive "$SLURM_ROOT" || rc=1
  [[ -d $SLURM/cgroup ]] || return "$rc"
  # What a job's user hid from Slurm, and a slurmstepd, which is nobody's child.
  for ((try = 0; try < 50; try++)); do
    slurm_processes | xargs -r kill -KILL 2>/dev/null || true
    find "$SLURM/cgroup" -mindepth 2 -depth -type d -exec rmdir {} + 2>/dev/null || true
    [[ -n $(find "$SLURM/cgroup" -mindepth 2 -type d -print -quit) ]] || break
    sleep 0.1
  done
  ((try < 50)) || { echo "cgroups are left below $SLURM/cgroup" >&2; rc=1; }
  for hierarchy in "$SLURM"/cgroup/*; do
    ! mountpoint -q "$hierarchy" || umount "$hierarchy" || rc=1
  done
  return "$rc"
}

# slurm_processes [ID]: those in the cgroups of all jobs, or of one.
slurm_processes() {
  find "$SLURM/cgroup" -mindepth 2 -name cgroup.procs -path "*/job_${1:-*}/*" -exec cat {} + 2>/dev/null | sort -nu
}
# slurm_dirs ID: the job's cgroups, from `job_ID` on, in the hierarchy of devices.
slurm_dirs() {
  find "$SLURM/cgroup/devices" -type d -path "*/job_$1*" 2>/dev/null | sed 's|.*/job_|job_|' | sort
}

# slurm_words: the last that each daemon wrote.
slurm_words() { tail -n 20 "$SLURM"/log/*.log >&2; }

# slurm_cgroups: Slurm makes its cgroups at the top of each hierarchy. It gets the sandbox's own as
# the top, which sandbox.sh removes.
slurm_cgroups() {
  local hierarchy own file
  mkdir -p "$SLURM/cgroup"
  if slurm_on_v2; then slurm_unified; return; fi
  for hierarchy in cpuset cpuacct memory devices freezer; do
    own=/sys/fs/cgroup/$hierarchy$MG_CGROUP
    mkdir -p "$own" "$SLURM/cgroup/$hierarchy"
    if [[ $hierarchy == cpuset ]]; then
      for file in cpuset.cpus cpuset.mems; do cat "$own/../$file" >"$own/$file"; done
    fi
    mount --bind "$own" "$SLURM/cgroup/$hierarchy" || return 1
  done
}

slurm_on_v2() { [[ ${MG_UNIFIED:-0} == 1 ]]; }
# slurm_unified: on v2 Slurm takes the parent of PID 1's cgroup for its top. All processes of the
# sandbox go below the sandbox's own. Its daemons are shown v2 alone (unified.c).
slurm_unified() {
  local own=/sys/fs/cgroup$MG_CGROUP pid
  mkdir -p "$own/sandbox" "$own/system.slice" "$SLURM/cgroup/unified"
  # Some have ended meanwhile.
  for pid in $(cd /proc && echo [0-9]*); do echo "$pid" >"$own/sandbox/cgroup.procs" || true; done 2>/dev/null
  gcc -Wall -Werror -shared -fPIC -o "$MG/unified.so" "$MG_REPO/tests/hosts/unified.c" || return 1
  mount --bind "$own/system.slice" "$SLURM/cgroup/unified"
}

# slurm_root: the newer Slurm's root directory, whose changes are thrown away, with this machine's
# users, devices, cgroups and mpsgate, and a program for each of Slurm's that runs in it.
slurm_root() {
  local from name path preload
  from=$("$MG_REPO/tests/hosts/slurm-root.sh" "$MG_SLURM") || return 1
  mkdir -p "$SLURM_ROOT" "$MG/root.upper" "$MG/root.work" "$SLURM_NEWER"/{bin,sbin}
  mount -t overlay -o "lowerdir=$from,upperdir=$MG/root.upper,workdir=$MG/root.work" slurm "$SLURM_ROOT" || return 1
  mkdir -p "$SLURM_ROOT$MG_OUT"
  touch "$SLURM_ROOT/usr/bin/mpsgate" "$SLURM_ROOT/etc/hosts"
  for path in /proc /sys /dev /run /etc/passwd /etc/group /etc/hosts /usr/bin/mpsgate "$MG_OUT"; do
    [[ -e $path ]] || continue
    mount --rbind "$path" "$SLURM_ROOT$path" || return 1
  done
  for name in bin/scontrol bin/sbatch bin/srun bin/squeue bin/scancel sbin/slurmd sbin/slurmctld; do
    preload=''
    [[ $name != sbin/slurmd ]] || ! slurm_on_v2 || preload="LD_PRELOAD='$MG/unified.so' "
    printf '#!/bin/sh\n%sexec chroot "%s" "/usr/%s" "$@"\n' "$preload" "$SLURM_ROOT" "$name" >"$SLURM_NEWER/$name"
    chmod 755 "$SLURM_NEWER/$name"
  done
}

# Where Debian's defaults stay out: a job that is requeued may start once its old credential has
# expired (two minutes); a queue is looked through twice a minute; a job is sent SIGTERM half a
# minute before SIGKILL.
slurm_settings() {
  local card
  cat >"$SLURM_CONF" <<CONF
ClusterName=mg
SlurmctldHost=$(hostname -s)($SLURM_ADDRESS)
AuthInfo=socket=$SLURM/munge/socket,cred_expire=5
SlurmUser=slurm
StateSaveLocation=$SLURM/state
SlurmdSpoolDir=$SLURM/spool
SlurmctldPidFile=$SLURM/slurmctld.own
SlurmdPidFile=$SLURM/slurmd.own
PlugStackConfig=$SLURM/plugstack.conf
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu,$SLURM_SHARING
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=1000,bf_interval=1
KillWait=2
InactiveLimit=0
MpiDefault=none
SlurmdDebug=verbose
SlurmctldDebug=verbose
NodeName=$SLURM_NODE NodeHostname=$(hostname -s) NodeAddr=$SLURM_ADDRESS CPUs=16 RealMemory=1024 Gres=${SLURM_NODE_GRES:-gpu:$MG_GPUS,$SLURM_SHARING:$((SLURM_SHARDS * MG_GPUS))} State=UNKNOWN
PartitionName=main Nodes=$SLURM_NODE Default=YES MaxTime=INFINITE State=UP
$SLURM_LINES
CONF
  for ((card = 0; card < MG_GPUS; card++)); do
    echo "Name=gpu File=/dev/nvidia$card"
    echo "Name=$SLURM_SHARING Count=$SLURM_SHARDS File=/dev/nvidia$card"
  done >"$SLURM/gres.conf"
  [[ -z $SLURM_GRES ]] || echo "$SLURM_GRES" >"$SLURM/gres.conf"
  if slurm_on_v2; then
    printf '%s\n' CgroupPlugin=cgroup/v2 IgnoreSystemd=yes
  else
    printf '%s\n' CgroupPlugin=cgroup/v1 "CgroupMountpoint=$SLURM/cgroup"
  fi >"$SLURM/cgroup.conf"
  printf '%s\n' ConstrainDevices=yes "$SLURM_CGROUP" >>"$SLURM/cgroup.conf"
  echo "$SLURM_SPANK" >"$SLURM/plugstack.conf"
}

# --- as its users see it --------------------------------------------------------------------------

# slurm_as USER CMD...: with that user's ids and a login's environment. `try` wants a program: it is
# $SLURM/as for it.
slurm_as() { "$SLURM/as" "$@"; }
slurm_as_program() {
  cat >"$SLURM/as" <<SH
#!/bin/bash
user=\$1
shift
cd "$SLURM/home/\$user" || exit
root=
case " \$* " in
  *" sbatch "* | *" srun "*) root=${MG_SLURM:+$SLURM_ROOT} ;;
esac
exec \${root:+chroot "\$root" /usr/bin/env -C "\$PWD"} setpriv --reuid "\$user" --regid "\$user" --init-groups env -i HOME="\$PWD" USER="\$user" LOGNAME="\$user" \\
  SHELL=/bin/bash PATH=/usr/bin:/bin SLURM_CONF="$SLURM_CONF" "\$@"
SH
  chmod 755 "$SLURM/as"
}

# slurm_submit USER [OPTION...]: the script on stdin as a batch job; prints its id.
slurm_submit() {
  local user=$1
  shift
  { echo '#!/bin/bash'; cat; } | slurm_as "$user" sbatch --parsable "$@"
}
# slurm_hidden USER: a job that ends, and leaves a process in a cgroup below its task's. Prints its
# id.
slurm_hidden() {
  slurm_submit "$1" --gres=shard:7 <<'SH'
sleep 600 &
for h in devices freezer; do
  d=/sys/fs/cgroup/$h$(sed -n "s/^[0-9]*:$h://p" /proc/self/cgroup)/mine
  mkdir "$d"
  echo $! >"$d/cgroup.procs"
done
SH
}
slurm_output() { cat "$SLURM"/home/*/"slurm-$1.out"; } # ID, or ARRAY_INDEX

# slurm_of ID FIELD: of `scontrol show job`; nothing where it is not known any more.
slurm_of() { scontrol show job -d "$1" 2>/dev/null | grep -oE "(^|[[:space:]])$2=[^[:space:]]*" | sed 's/^[^=]*=//' | head -1; }
slurm_job_is() { # ID STATE...
  local state
  state=$(slurm_of "$1" JobState)
  echo "job $1: $state $(slurm_of "$1" Reason)"
  shift
  [[ " $* " == *" $state "* ]]
}
slurm_runs() { slurm_job_is "$1" RUNNING; }
slurm_ended() { slurm_job_is "$1" COMPLETED FAILED CANCELLED TIMEOUT NODE_FAIL OUT_OF_MEMORY; }
# slurm_wait ID [SECONDS]: until it has ended, whatever way, and its epilog too.
slurm_wait() { wait_for "${2:-30}" "job $1 ends" slurm_ended "$1"; }
slurm_idle() { squeue -h | { ! grep .; }; }
slurm_cancel() { squeue -h -o %A | sort -u | xargs -r scancel 2>/dev/null || true; } # all jobs

slurm_node_is() { # STATE...
  local state
  state=$(scontrol show node "$SLURM_NODE" | grep -oE 'State=[^ ]+' | sed 's/State=//')
  echo "$SLURM_NODE: $state"
  [[ " $* " == *" $state "* ]]
}

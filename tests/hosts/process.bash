# process.bash: what the files on mpsgate run share: a node with two cards and users, of whom alice
# and bob are in run.group and carol is not.
# shellcheck shell=bash disable=SC2034 # read by the suite

here=${BASH_SOURCE[0]%/*}
# shellcheck source=tests/e2e/suite.bash
source "$here/../e2e/suite.bash"
# shellcheck source=tests/e2e/gate.bash
source "$here/../e2e/gate.bash"

SETTINGS=$GATE_SETTINGS
USERS=/run/mpsgate/run.sock

# users_node MAX_MIB MAX_GRANTS: what each user may have.
users_node() {
  into_own_cgroup
  rootfs "$MG/rootfs"
  gate_files
  groupadd --system gpu
  useradd --create-home --groups gpu alice
  useradd --create-home --groups gpu bob
  useradd --create-home carol
  # as USER CMD...: with nothing of the caller's. run_as USER OPTION...: mpsgate run as a user.
  # opens NODE: in a process with a grant on card 0.
  program as 'user=$1; shift; exec setpriv --reuid "$user" --regid "$user" --init-groups --reset-env -- "$@"'
  program run_as 'user=$1; shift; exec as "$user" mpsgate run "$@"'
  program opens 'exec mpsgate run --gpu-mem 1Gi --gpu 0 -- sh -c "exec 2>&1; : <$1"'
  install -m 4755 "$(command -v dash)" /usr/bin/setuid-shell
  [[ ! -f $MG/skip ]] || SETTINGS=''
  sim_cards "$CARDS"
  settings
  printf '[run]\ngroup = "gpu"\nmax_mib = %s\nmax_grants = %s\n' "$1" "$2" >>/etc/mpsgate/config.toml
  daemon_start
  wait_for 10 "users are served" test -S "$USERS"
}

program() { printf '#!/bin/sh\n%s\n' "$2" >"/usr/bin/$1" && chmod +x "/usr/bin/$1"; } # NAME SCRIPT

teardown_file() { node_stop; }

teardown() {
  explain_failure
  status_json | jq -r '.grants[].pid' >>"$MG/strangers"
  kill_listed "$MG/strangers"
  node_reset
  wait_for 10 "no cgroup is left" no_cgroups
}

# into_own_cgroup: all processes of the sandbox, as mpsgate makes its cgroups below that of a
# process, and other sandboxes are in the node's root. Where systemd runs, it makes them elsewhere.
into_own_cgroup() {
  local own pid
  own=$(own_cgroup_at)
  [[ $own != /sys/fs/cgroup ]] || return 0
  mkdir -p "$own"
  # Some have ended meanwhile; who is here has to be in it.
  for pid in $(cd /proc && echo [0-9]*); do echo "$pid" >"$own/cgroup.procs" || true; done 2>/dev/null
  [[ $(cgroup_of self) == "$own" ]]
}
own_cgroup_at() {
  if [[ -d /run/systemd/system ]]; then echo /sys/fs/cgroup
  elif [[ $(stat -fc %T /sys/fs/cgroup) == cgroup2fs ]]; then echo "/sys/fs/cgroup$MG_CGROUP/tests"
  else echo "/sys/fs/cgroup/devices$MG_CGROUP/tests"; fi
}
# cgroups: mpsgate's, of this sandbox, in every hierarchy; under systemd all, as there is one
# sandbox at a time. members: the pids in them.
cgroups() {
  local of=$MG_CGROUP
  [[ ! -d /run/systemd/system ]] || of=''
  find /sys/fs/cgroup -type d -path "*$of/*" -name 'mpsgate-run-*'
}
members() {
  local directory
  while read -r directory; do find "$directory" -name cgroup.procs -exec cat {} + 2>/dev/null; done < <(cgroups) | sort -u
}
no_cgroups() { [[ -z $(cgroups) ]]; }
# running NAME [mpsgate run OPTION...] -- CMD...: in the background; its pid is $stranger.
running() {
  local name=$1
  shift
  stranger setsid mpsgate run --name "$name" "$@"
  wait_for 20 "$name has its grant" grant_is "$name" active
}
cgroup_of() { # PID
  if [[ $(stat -fc %T /sys/fs/cgroup) == cgroup2fs ]]; then
    sed -n 's|^0::|/sys/fs/cgroup|p' "/proc/$1/cgroup"
  else
    sed -n 's|^[0-9]*:[^:]*\bdevices\b[^:]*:|/sys/fs/cgroup/devices|p' "/proc/$1/cgroup"
  fi
}
client() { find "$MG/rootfs/usr/bin" -name libcuda.so.1; }

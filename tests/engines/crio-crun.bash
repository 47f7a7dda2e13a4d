# crio-crun.bash: CRI-O on crun, which is what it runs by itself, and `path = "crun"` for mpsgate.
# shellcheck shell=bash disable=SC2034,SC2154 # read by the suite; LESS is crio.bash's

# shellcheck source=tests/engines/crio.bash
source "$here/crio.bash"
RUNTIME_ROOT=/run/crun

# crun 1.8 knows no OCI version that CRI-O 1.37 writes, and takes a limit of processes only where
# all its cgroups are of one version.
runtime_below() {
  mkdir -p "$MG/below"
  [[ -x $MG/below/crun ]] || cp /usr/bin/crun "$MG/below/crun"
  # By the name that CRI-O looks for; the sandbox's own folder.
  rm /usr/bin/crun
  below /usr/bin/crun "$MG/below/crun" "$LESS | .ociVersion = \"1.0.2\" | del(.linux.resources.pids)"
  export MG_REAL_RUNTIME=/usr/bin/crun
  REAL=$MG_REAL_RUNTIME # what `settings` writes
  if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi
}

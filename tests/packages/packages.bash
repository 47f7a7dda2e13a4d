# packages.bash: an installed mpsgate in a Debian root. The functions of e2e/helpers.bash and
# e2e/mpsgate.bash then mean the programs of that root: `mpsgate`, `mpsgated` and `oci` are the
# installed ones. The test's scratch space has the same path inside.
# shellcheck shell=bash disable=SC2034,SC2317

# shellcheck source=tests/e2e/mpsgate.bash
source "${BASH_SOURCE[0]%/*}/../e2e/mpsgate.bash"

ROOT=/run/root
REPO=$MG_REPO

# root_up: a throw-away copy of $MG_ROOT at $ROOT, with this sandbox's /dev, /proc and cgroups, and
# an empty /run.
root_up() {
  rm -f /usr/bin/mpsgate* # the sandbox's own: not these are under test
  mkdir -p /run/.root/{upper,work} "$ROOT"
  mount -t overlay -o "lowerdir=$MG_ROOT,upperdir=/run/.root/upper,workdir=/run/.root/work" root "$ROOT"
  local dir
  for dir in proc sys dev; do mount --rbind "/$dir" "$ROOT/$dir"; done
  mount -t tmpfs -o mode=755 run "$ROOT/run"
  mkdir -p "$ROOT/run/t" "$ROOT/run/lock"
  mount --bind "$MG" "$ROOT/run/t"
  printf '#!/bin/sh\nexec chroot %s /usr/bin/mpsgate-runtime "$@"\n' "$ROOT" >"$MG/runtime"
  chmod +x "$MG/runtime"
}

in_root() { chroot "$ROOT" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "$@"; }
mpsgate() { in_root /usr/bin/mpsgate "$@"; }
mpsgated() { exec chroot "$ROOT" /usr/bin/mpsgated "$@"; } # always in the background
RUNTIME=$MG/runtime

# simulated: cards in $MG/nvml, and the fake of the control daemon, as the installed settings' first
# edit.
simulated() {
  sim_cards
  mkdir -p "$MG/mps"
  cp "$MG_OUT"/fakes/nvidia-cuda-mps-* "$MG/mps/"
  sed -i '/^ *\(library\|control\|mode\) *=/d' "$ROOT/etc/mpsgate/config.toml"
  sed -i -e "/^\[mps\]/a control = \"$MG/mps/nvidia-cuda-mps-control\"" \
    -e "/^\[inject\]/a mode = \"devices\"" -e "/^\[nvml\]/a library = \"$NVML/libnvidia-ml.so.1\"" "$ROOT/etc/mpsgate/config.toml"
}

# removed_setting: what is said of `mps.channel` in the installed settings, a setting of an older
# version, in which it is the only line of that name.
removed_setting() {
  printf '%s\n%s' "/etc/mpsgate/config.toml:$(grep -n '^channel = ' "$ROOT/etc/mpsgate/config.toml" | cut -d: -f1): there is no \`mps.channel\` any more: each container has a door of its own to MPS, and there is no other way" \
    "hint: remove the line"
}

# mpsgated_refuses_settings UNITS: mpsgated, as its unit starts it, ends with 78 and that sentence,
# and systemd does not start it again.
mpsgated_refuses_settings() {
  local unit=$ROOT$1/mpsgated.service start
  start=$(sed -n 's/^ExecStart=//p' "$unit")
  assert_equal "the arguments that are shipped" "$start" /usr/bin/mpsgated
  # shellcheck disable=SC2086 # words
  try 78 chroot "$ROOT" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin $start
  assert_equal "mpsgated's standard output" "$stdout" ""
  assert_equal "mpsgated" "$stderr" "error: the settings cannot be used
cause: $(removed_setting)"
  grep -qE '^RestartPreventExitStatus=(.* )?78( |$)' "$unit" || fail "systemd starts it again and again"
}

# What the packages' scripts add to that.
DOES_NOT_START="mpsgate: mpsgated does not start with these settings; when they are right: systemctl restart mpsgated"

# listed FORMAT UNITS [PACKAGE]: "MODE PATH" of every file that packaging/files names for a format,
# sorted. Read here a second time, so that what build makes of the list is not its own check.
listed() {
  local source mode path words file name of='' named
  named=$(grep -oE '^[a-z][^ *]* ' "$REPO/packaging/files")
  while read -r source mode path words; do
    if [[ $source == \[* ]]; then of=$source; fi
    [[ $of == "[${3:-mpsgate}]" && -n $source && $source != [\#[]* ]] || continue
    case $1:" $words " in deb:*" rpm "* | rpm:*" deb "*) continue ;; esac
    path=${path/#@unit@/$2}
    for file in $(cd "$REPO" && compgen -G "${source/#out\//$MG_OUT/}" || echo "$source"); do
      # A pattern leaves out what another line names in full.
      if [[ $source == *\** ]] && grep -qxF "${file/#$MG_OUT/out} " <<<"$named"; then continue; fi
      name=$path
      [[ $path != */ ]] || name+=$(basename "$file")
      [[ " $words " != *" gzip "* ]] || name+=.gz
      echo "$mode $name"
    done
  done <"$REPO/packaging/files" | sort -k2
}

# files_now: every file and folder of the root but what is mounted, made by package managers, or a
# cache.
files_now() {
  (cd "$ROOT" && find . -xdev \( -path ./var/lib/dpkg -o -path ./var/lib/apt -o -path ./var/cache -o -path ./var/log -o -path ./tmp \
    -o -path ./var/lib/rpm -o -path ./etc/ld.so.cache \) -prune -o -print | sort)
}

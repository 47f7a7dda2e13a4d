#!/usr/bin/env bats
# Mounts whose source leads elsewhere when the runtime mounts it than when it was evaluated; and
# other names by which mpsgate's directories are reached. A wrapper below mpsgate-runtime exchanges
# two names at just that moment.

load suite

setup_file() { node_below_exchange; }

# node_below_exchange: a node whose runtime exchanges what $MG/exchange names (two paths) before it
# is run.
node_below_exchange() {
  mkdir -p "$MG/below"
  cat >"$MG/below/runc" <<SH
#!/bin/bash
if [[ " \$* " == *" create "* && -f $MG/exchange ]]; then
  mapfile -t paths <$MG/exchange
  # renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE)
  perl -e 'exit(syscall(316, -100, \$ARGV[0], -100, \$ARGV[1], 2) ? 1 : 0)' "\${paths[@]}" || exit 70
  rm $MG/exchange
fi
exec $REAL "\$@"
SH
  chmod +x "$MG/below/runc"
  sim_cards
  settings "s,^path = .*,path = \"$MG/below/runc\","
  daemon_start
}

setup() {
  [[ $(uname -m) == x86_64 ]] || skip "the number of renameat2 is x86_64's"
  rm -rf "${MG:?}/home"
  mkdir -p "$MG/home/u/data/below"
  echo mine >"$MG/home/u/data/file"
  chown -R 1000:1000 "$MG/home/u"
}

teardown() {
  explain_failure
  rm -f "$MG/exchange"
  if mountpoint -q /proc/driver; then umount -l /proc/driver; fi
  node_reset
}

# bind SOURCE [OPTIONS]: a filter for `bundle --jq`.
bind() { echo ".mounts += [{\"destination\": \"/m\", \"type\": \"bind\", \"source\": \"$1\", \"options\": [\"rbind\"${2:+, $2}]}]"; }

# exchanged TARGET: from the runtime's call on, $MG/home/u/data is a link to TARGET.
exchanged() {
  ln -sfn "$1" "$MG/home/u/other"
  printf '%s\n' "$MG/home/u/data" "$MG/home/u/other" >"$MG/exchange"
}

# vetoed ID CODE [BUNDLE OPTION...]: the hook ends it.
vetoed() {
  local id=$1 code=$2
  shift 2
  bundle "$id" "$@"
  create fail "$id"
  assert_contains "stderr of $id" "$stderr" "mpsgate: refused container \"$id\": " "[$code]"
  [[ ! -f $MG/exchange ]] || fail "nothing was exchanged for $id"
  rm -rf "${MG:?}/b/$id" "$MG/home/u/other" "$MG/home/u/data"
  mkdir "$MG/home/u/data"
}

@test "a directory that becomes a link to mpsgate's own is not mounted: without a grant" {
  local target
  for target in /run/mpsgate/mps/0 /run/mpsgate /var/lib/mpsgate /etc/mpsgate; do
    rm -rf "$MG/home/u/data" "$MG/home/u/other"
    mkdir -p "$MG/home/u/data"
    exchanged "$target"
    vetoed flipped E_MPS_MOUNT --jq "$(bind "$MG/home/u/data")"
  done
}

@test "a directory that becomes a link to the node's procfs is not mounted: with a grant" {
  local target
  for target in /proc /proc/1; do
    rm -rf "$MG/home/u/data" "$MG/home/u/other"
    mkdir -p "$MG/home/u/data"
    exchanged "$target"
    vetoed flipped E_HOST_PID --ann mpsgate.io/gpu-mem=1Gi --jq "$(bind "$MG/home/u/data")"
  done
}

@test "a name above the source that becomes a link is no way either" {
  ln -sfn /run "$MG/home/u/other"
  mkdir -p "$MG/home/u/data/mpsgate/mps/0"
  printf '%s\n' "$MG/home/u/data" "$MG/home/u/other" >"$MG/exchange"
  vetoed above E_MPS_MOUNT --jq "$(bind "$MG/home/u/data/mpsgate/mps/0")"
}

@test "a name of a user's in a sticky directory counts as exchangeable" {
  mkdir -m 1777 "$MG/home/tmp"
  mkdir "$MG/home/tmp/data"
  chown 1000 "$MG/home/tmp/data"
  ln -s /run/mpsgate "$MG/home/tmp/other"
  printf '%s\n' "$MG/home/tmp/data" "$MG/home/tmp/other" >"$MG/exchange"
  vetoed sticky E_MPS_MOUNT --jq "$(bind "$MG/home/tmp/data")"
}

# overlay: the user's directory as a layer, as `bind` has it.
overlay() {
  mkdir -p "$MG/low"
  echo ".mounts += [{\"destination\": \"/m\", \"type\": \"overlay\", \"source\": \"overlay\", \"options\": [\"lowerdir=$MG/home/u/data:$MG/low\"]}]"
}

@test "a layer of an overlay that becomes a link to mpsgate's own is not mounted, also where it leads back afterwards" {
  grep -qw overlay /proc/filesystems || skip "this kernel has no overlay"
  local target
  for target in /run/mpsgate/mps/0 /run/mpsgate; do
    rm -rf "$MG/home/u/data" "$MG/home/u/other"
    mkdir -p "$MG/home/u/data"
    exchanged "$target"
    vetoed flipped E_MPS_MOUNT --jq "$(overlay)"
    rm -rf "$MG/home/u/data" "$MG/home/u/other"
    mkdir -p "$MG/home/u/data"
    exchanged "$target"
    vetoed flipped E_MPS_MOUNT --ann mpsgate.io/gpu-mem=1Gi --jq "$(overlay)"
  done
  # A hook of the engine's before ours makes the link a directory again.
  rm -rf "$MG/home/u/data" "$MG/home/u/other"
  mkdir -p "$MG/home/u/data"
  exchanged /run/mpsgate
  vetoed back E_MPS_MOUNT --jq "$(overlay)" \
    --jq ".hooks.createRuntime = [{\"path\": \"/bin/sh\", \"args\": [\"sh\", \"-c\", \"rm $MG/home/u/data && mkdir $MG/home/u/data\"], \"env\": [\"PATH=/usr/bin:/bin\"]}]"
  echo mine >"$MG/home/u/data/file"
  chown -R 1000:1000 "$MG/home/u"
  see home --jq "$(overlay)" --args cat /m/file
  assert_equal "allowed: the file" "$stdout" mine
  granted got 1Gi --jq "$(overlay)"
  try_oci exec got cat /m/file
  assert_equal "allowed: the file with a grant" "$stdout" mine
}

@test "a directory that becomes a link to mpsgate's own is not mounted: with a grant" {
  exchanged /run/mpsgate/mps/1
  vetoed flipped E_MPS_MOUNT --ann mpsgate.io/gpu-mem=1Gi --jq "$(bind "$MG/home/u/data")"
  rm -rf "$MG/home/u/data" "$MG/home/u/other"
  mkdir -p "$MG/home/u/data"
  # Its own door is the runtime's to mount, once and where it belongs.
  exchanged /run/mpsgate/mps/0/containers
  vetoed own E_MPS_MOUNT --ann mpsgate.io/gpu-mem=1Gi --ann mpsgate.io/gpu=0 --jq "$(bind "$MG/home/u/data")"
}

@test "what the runtime mounts is seen where the propagation of the root is shared" {
  local shared='.linux.rootfsPropagation = "rshared"'
  exchanged /run/mpsgate/mps/1
  bundle shared --ann mpsgate.io/gpu-mem=1Gi --jq "$shared" --jq "$(bind "$MG/home/u/data")"
  create fail shared
  assert_contains "stderr" "$stderr" "[E_MPS_MOUNT]"
  remove_bundles "$MG/b/shared"
  rm -rf "$MG/home/u/data" "$MG/home/u/other"
  mkdir -p "$MG/home/u/data"
  granted got 1Gi --jq "$shared" --jq "$(bind "$MG/home/u/data")"
}

@test "what the node has mounted below a root is the container's, too: with a grant" {
  bundle within --ann mpsgate.io/gpu-mem=1Gi
  local below=$MG/b/within/rootfs/mnt
  mkdir -p "$below"
  mount --bind /run/mpsgate/mps "$below"
  create fail within
  assert_contains "stderr" "$stderr" "[E_MPS_MOUNT]"
  umount "$below"
  mount --bind "$MG/home/u/data" "$below"
  create within
  start within
  try_oci exec within cat /mnt/file
  assert_equal "allowed: another directory" "$stdout" mine
}

@test "a directory that becomes a link to the cgroups is not mounted with a grant" {
  exchanged /sys/fs/cgroup
  vetoed flipped E_CGROUP --ann mpsgate.io/gpu-mem=1Gi --jq "$(bind "$MG/home/u/data")"
}

@test "a directory that becomes a link to GPUs' files in sysfs is not mounted with a grant" {
  [[ -d /sys/bus/pci && $(stat -fc %T /sys) == sysfs ]] || skip "no sysfs with PCI here"
  exchanged /sys/bus/pci
  vetoed flipped E_DEVICE_NODE --ann mpsgate.io/gpu-mem=1Gi --jq "$(bind "$MG/home/u/data")"
}

@test "a file that becomes a link to one of a bridge above a GPU is not mounted with a grant" {
  local gpu above target
  gpu=$(realpath /sys/bus/pci/devices/* | awk -F/ 'NF > most { most = NF; deepest = $0 } END { print deepest }')
  [[ -d $gpu && $(stat -fc %T /sys) == sysfs ]] || skip "no sysfs with PCI here"
  # As NVIDIA's driver would show card 0, by a mount of this sandbox alone.
  mount -t tmpfs driver /proc/driver
  mkdir -p "/proc/driver/nvidia/gpus/${gpu##*/}"
  printf 'Device Minor: \t 0\n' >"/proc/driver/nvidia/gpus/${gpu##*/}/information"
  above=${gpu%/*} target=${gpu%/*}/remove
  # What is above the first bus has none.
  [[ -e $target ]] || target=$above/uevent
  rm -rf "$MG/home/u/data"
  echo mine >"$MG/home/u/data"
  exchanged "$target"
  vetoed flipped E_DEVICE_NODE --ann mpsgate.io/gpu-mem=1Gi --jq "$(bind "$MG/home/u/data")"
  assert_contains "what" "$stderr" "holds files of GPUs in sysfs"
  # As the shim decides it for such a source.
  refused above E_DEVICE_NODE --ann mpsgate.io/gpu-mem=1Gi --jq "$(bind "$target")"
  exchanged "$above/power"
  granted got 1Gi --jq "$(bind "$MG/home/u/data")"
  [[ ! -f $MG/exchange ]] || fail "nothing was exchanged"
}

@test "a directory that becomes a link to one that holds mpsgate's own is not mounted with a grant" {
  local target
  for target in /run /var/lib; do
    rm -rf "$MG/home/u/data" "$MG/home/u/other"
    mkdir -p "$MG/home/u/data"
    exchanged "$target"
    vetoed flipped E_MPS_MOUNT --ann mpsgate.io/gpu-mem=1Gi --jq "$(bind "$MG/home/u/data")"
  done
  # As the shim decides it for such a source.
  refused above E_MPS_MOUNT --ann mpsgate.io/gpu-mem=1Gi --jq "$(bind /run)"
  rm -rf "$MG/home/u/data" "$MG/home/u/other"
  mkdir -p "$MG/home/u/data" "$MG/home/u/elsewhere"
  echo there >"$MG/home/u/elsewhere/file"
  exchanged "$MG/home/u/elsewhere"
  granted got 1Gi --jq "$(bind "$MG/home/u/data")"
  [[ ! -f $MG/exchange ]] || fail "nothing was exchanged"
  try_oci exec got cat /m/file
  assert_equal "allowed: an unrelated directory" "$stdout" there
}

@test "a read-only mount of the same last name lets no cgroups through: with a grant" {
  local cgroups=/sys/fs/cgroup two
  [[ ! -d $cgroups/devices ]] || cgroups+=/devices
  two="$(bind "$MG/home/u/data") | .mounts[-1].destination = \"/x/m\"
    | .mounts += [{\"destination\": \"/m\", \"type\": \"tmpfs\", \"source\": \"tmpfs\", \"options\": [\"ro\"]}]"
  exchanged "$cgroups"
  vetoed flipped E_CGROUP --ann mpsgate.io/gpu-mem=1Gi --jq "$two"
  rm -rf "$MG/home/u/data" "$MG/home/u/other"
  mkdir -p "$MG/home/u/data"
  echo mine >"$MG/home/u/data/file"
  granted got 1Gi --jq "$two"
  try_oci exec got cat /x/m/file
  assert_equal "allowed: the same two mounts" "$stdout" mine
}

@test "allowed: a home directory, with a grant and without; it is the hook alone that comes to it" {
  see home --jq "$(bind "$MG/home/u/data")" --args cat /m/file
  assert_equal "the file" "$stdout" mine
  assert_equal "hooks" "$(jq -c '[.hooks[][].args]' "$MG/b/home/config.json")" '[["mpsgate-hook","createRuntime","--mounts"]]'
  local with without
  without=$(jq -cS 'del(.hooks)' "$MG/b/home/config.json")
  delete home
  bundle home --jq "$(bind "$MG/home/u/data")" --args cat /m/file
  with=$(jq -cS . "$MG/b/home/config.json")
  assert_equal "the rest of the document" "$without" "$with"
  see below --jq "$(bind "$MG/home/u/data/below" '"ro"')" --args ls -a /m
  granted got 1Gi --jq "$(bind "$MG/home/u/data")"
  try_oci exec got cat /m/file
  assert_equal "the file with a grant" "$stdout" mine
}

@test "allowed: another link of a user's, to what is not mpsgate's" {
  mkdir -p "$MG/home/u/elsewhere"
  exchanged "$MG/home/u/elsewhere"
  allowed elsewhere --jq "$(bind "$MG/home/u/data")"
  allowed root --jq "$(bind /)"
  allowed run --jq "$(bind /run '"rslave"')"
}

@test "allowed: volumes of engines are theirs alone: their documents stay byte for byte" {
  local source
  for source in docker/volumes/x/_data containers/storage/volumes/x/_data \
    kubelet/pods/1b4e28ba/volumes/kubernetes.io~empty-dir/x kubelet/pods/1b4e28ba/etc-hosts; do
    mkdir -p "$MG/var/lib/$source"
    chmod 0755 "$MG/var/lib"
    chown 999:999 "$MG/var/lib/$source"
    chmod 2777 "$MG/var/lib/$source"
    bundle volume --jq "$(bind "$MG/var/lib/$source")"
    before=$(sha256sum <"$MG/b/volume/config.json")
    create volume
    assert_equal "config.json with a bind of $source" "$(sha256sum <"$MG/b/volume/config.json")" "$before"
    delete volume
  done
}

@test "a relative source begins at the bundle, as in the runtime, wherever the engine stands" {
  bundle relative --jq "$(bind ../../../mpsgate/mps/0)"
  # The same path from elsewhere is nothing.
  mkdir -p /run/t/x
  cd /
  create fail relative
  assert_contains "stderr" "$stderr" "[E_MPS_MOUNT]" "../../../mpsgate/mps/0"
  try any mpsgate explain "$MG/b/relative/config.json"
  assert_contains "explain" "$stdout$stderr" E_MPS_MOUNT
  rm -rf "$MG/b/relative"
  # runc takes `..` out by the text, whatever the name before it leads to.
  mkdir -p "$MG/b/relative"
  ln -s / "$MG/b/relative/up"
  bundle relative --jq "$(bind up/../../../../mpsgate/mps/0)"
  create fail relative
  assert_contains "stderr" "$stderr" "[E_MPS_MOUNT]"
  rm -rf "$MG/b/relative"
  mkdir -p "$MG/b/relative/data"
  echo here >"$MG/b/relative/data/file"
  bundle relative --jq "$(bind data)" --args cat /m/file
  try_oci run --bundle "$MG/b/relative" relative
  assert_equal "the bundle's own file" "$stdout" here
}

@test "a directory above ours is logged under any name, however deep" {
  mkdir -p /run/t/a/b/c
  ln -sfn /run /run/t/a/b/c/link
  bundle deep --jq "$(bind /run/t/a/b/c/link '"rslave"')"
  create deep
  noted() { grep -q "it mounts /run/t/a/b/c/link, which holds mpsgate" "$MG/log/mpsgated.log"; }
  wait_for 10 "the note" noted
  delete deep
}

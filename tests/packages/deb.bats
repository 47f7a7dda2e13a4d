#!/usr/bin/env bats
# The deb's whole lifecycle in a fresh Debian root, in the order of the tests: installed by apt,
# used, not removed while a grant lives, upgraded and downgraded under a running container, removed,
# purged. mpsgated is started by hand, as no systemd runs in a root; what its units do is
# tests/vm's.

load packages

setup_file() {
  root_up
  rootfs "$MG/rootfs"
  mkdir "$MG/p"
  cp "$MG_PACKAGES"/first/mpsgate_*.deb "$MG/p/old.deb"
  cp "$MG_PACKAGES"/first/{mpsgate-scheduler,kubectl-inspect-cgpu}_*.deb "$MG/p/"
  cp "$MG_PACKAGES"/newer/mpsgate_*.deb "$MG/p/new.deb"
  files_now >"$MG/before"
}

teardown_file() {
  oci delete --force kept >/dev/null 2>&1 || true
  daemon_stop
  mps_kill
}

apt() { try "${WANT:-0}" chroot "$ROOT" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends "$@"; }
installed() { in_root dpkg-query -W -f '${db:Status-Abbrev}${Version}' mpsgate 2>/dev/null; }

# life_is: the container, its grant and its control daemon.
life_is() { echo "$(oci state kept | jq -c '[.pid, .status]') $(recorded_grants | jq -c .) $(mps_pids)"; }

@test "apt installs it, and its files and modes are those of packaging/files" {
  apt install "$MG/p/old.deb"
  [[ $(installed) == "ii "* ]] || fail "$(installed)"
  local file
  listed deb /lib/systemd/system >"$MG/want"
  for file in $(in_root dpkg -L mpsgate); do
    [[ -d $ROOT$file ]] || stat -c "%a %n %U:%G" "$ROOT$file" | sed "s| $ROOT| |"
  done | sort -k2 >"$MG/have"
  diff <(sed 's/$/ root:root/' "$MG/want") "$MG/have"
}

@test "dpkg finds every file as it was packed" {
  assert_equal "dpkg --verify" "$(in_root dpkg --verify mpsgate 2>&1)" ""
}

@test "beside its own files it makes only what enables the unit" {
  files_now >"$MG/after"
  comm -13 "$MG/before" "$MG/after" | sed 's/^\.//' | grep -vxF -f <(in_root dpkg -L mpsgate) | grep -vE '^/usr/lib/systemd/system(/|$)|^/etc/systemd|^/var/lib/systemd' >"$MG/more" || true
  assert_equal "made beside" "$(<"$MG/more")" ""
  [[ -L $ROOT/etc/systemd/system/multi-user.target.wants/mpsgated.service ]] || fail "mpsgated is not enabled"
  comm -23 "$MG/before" "$MG/after" >"$MG/less"
  assert_equal "taken away" "$(<"$MG/less")" ""
}

@test "without a driver mpsgated waits, and no card is managed" {
  daemon_start_plain
  assert_contains "status" "$(status_json)" '"cards": []' '"grants": []'
  daemon_stop
}
daemon_start_plain() {
  mkdir -p "$MG/log"
  mpsgated >>"$MG/log/mpsgated.log" 2>&1 3>&- &
  echo $! >"$MG/mpsgated.pid"
  wait_for 30 "mpsgated answers" status_json
}

@test "a card is handed over, and a container gets its grant through the installed runtime" {
  simulated
  daemon_start
  assert_equal "managed" "$(card 0 .managed)" false
  mpsgate enable 0
  wait_for 30 "the card is ready" card_is ready 0
  granted kept 7Gi
  assert_equal "limit" "$(env_in kept CUDA_MPS_PINNED_DEVICE_MEM_LIMIT)" "0=7168M"
  [[ $(readlink "/proc/$(pgrep -x mpsgated)/exe") == */usr/bin/mpsgated ]] || fail "another mpsgated runs"
}

@test "a removal is refused while the grant lives, says how to proceed, and changes nothing" {
  local before
  before=$(life_is)
  WANT=100 apt remove mpsgate
  assert_contains "apt remove" "$stdout$stderr" "mpsgate: not removed: containers have GPU memory: kept" "hint: stop these containers first" "touch /run/mpsgate/remove-forced"
  [[ $(installed) == "ii "* ]] || fail "state: $(installed)"
  assert_equal "the container" "$(life_is)" "$before"
}

@test "it is refused from the ledger, too, where mpsgated is down, and from one that cannot be read" {
  daemon_stop
  WANT=100 apt remove mpsgate
  assert_contains "apt remove" "$stdout$stderr" "containers have GPU memory: kept"
  cp -a "$ROOT/run/mpsgate/ledger/ledger.json" "$MG/ledger"
  echo '{"format":9}' >"$ROOT/run/mpsgate/ledger/ledger.json"
  WANT=100 apt remove mpsgate
  assert_contains "apt remove" "$stdout$stderr" "cannot be read from /run/mpsgate/ledger/ledger.json"
  cp -a "$MG/ledger" "$ROOT/run/mpsgate/ledger/ledger.json"
  daemon_start
}

@test "an upgrade keeps container, grant, control daemon and the edited settings" {
  local before settings
  before=$(life_is) settings=$(sha256sum <"$ROOT/etc/mpsgate/config.toml")
  apt -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold install "$MG/p/new.deb"
  assert_equal "version" "$(installed)" "ii $NEWER-1"
  assert_equal "the container beside the old mpsgated" "$(life_is)" "$before"
  daemon_stop
  daemon_start
  assert_equal "the container beside the new mpsgated" "$(life_is)" "$before"
  assert_equal "settings" "$(sha256sum <"$ROOT/etc/mpsgate/config.toml")" "$settings"
}

# with_channel DEB INTO: the same package, as of an older version: its settings have `mps.channel`.
with_channel() {
  local tree=$BATS_TEST_TMPDIR/older
  dpkg-deb --raw-extract "$1" "$tree"
  sed -i 's/^Version: .*/Version: 0.0.9-1/' "$tree/DEBIAN/control"
  sed -i '/^\[mps\]/a #channel = "auto"' "$tree/etc/mpsgate/config.toml"
  grep -q channel "$tree/etc/mpsgate/config.toml"
  dpkg-deb --root-owner-group -Znone --build "$tree" "$2" >/dev/null
  rm -r "$tree"
}

@test "an upgrade with mps.channel in the settings succeeds, says that the line has to go, and loses nothing" {
  local before ledger value settings=$ROOT/etc/mpsgate/config.toml
  with_channel "$MG/p/old.deb" "$MG/p/older.deb"
  before=$(life_is)
  cp -p "$settings" "$MG/settings.good"
  # Its settings differ from those that are shipped next, so that dpkg has to choose.
  apt -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold --allow-downgrades install "$MG/p/older.deb"
  assert_equal "version" "$(installed)" "ii 0.0.9-1"
  refute_contains "what apt says of good settings" "$stdout$stderr" "any more" "does not start"
  for value in control auto; do # auto, its default, is no less gone
    cp -p "$MG/settings.good" "$settings"
    sed -i "/^\[mps\]/a channel = \"$value\"" "$settings"
    cp -p "$settings" "$MG/settings.theirs"
    apt -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold --allow-downgrades install "$MG/p/older.deb"
    apt -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold install "$MG/p/new.deb"
    assert_equal "version" "$(installed)" "ii $NEWER-1"
    # What a script says on stderr comes out of apt's terminal for dpkg.
    assert_contains "what apt says" "$(tr -d '\r' <<<"$stdout$stderr")" "error: $(removed_setting)
$DOES_NOT_START"
    cmp "$settings" "$MG/settings.theirs"
    assert_equal "whose settings" "$(stat -c '%a %U:%G' "$settings")" "$(stat -c '%a %U:%G' "$MG/settings.theirs")"
    # What was shipped with it lies beside.
    cmp "$settings.dpkg-dist" "$REPO/config/config.toml"
    assert_equal "the container beside the old mpsgated" "$(life_is)" "$before"
  done
  daemon_stop
  ledger=$(sha256sum <"$ROOT/run/mpsgate/ledger/ledger.json")
  mpsgated_refuses_settings /lib/systemd/system
  assert_equal "ledger" "$(sha256sum <"$ROOT/run/mpsgate/ledger/ledger.json")" "$ledger"
  cmp "$settings" "$MG/settings.theirs"
  # Meanwhile the container lives, who asks for nothing starts, and who asks is told the same.
  try_oci exec kept true
  refused asks E_CONFIG --ann mpsgate.io/gpu-mem=1Gi
  assert_contains "the refusal" "$stderr" "mps.channel" "remove the line"
  allowed none
  sed -i '/^channel = /d' "$settings"
  cmp "$settings" "$MG/settings.good"
  daemon_start
  assert_equal "the container beside the new mpsgated" "$(life_is)" "$before"
  rm "$settings.dpkg-dist"
}

@test "a downgrade keeps them as well" {
  local before
  before=$(life_is)
  apt --allow-downgrades install "$MG/p/old.deb"
  [[ $(installed) == "ii "* && $(installed) != *"$NEWER"* ]] || fail "$(installed)"
  daemon_stop
  daemon_start
  assert_equal "the container" "$(life_is)" "$before"
}

@test "a removal gives the card back, undoes configure, and leaves settings" {
  oci delete --force kept
  wait_for 10 "the grant is free" not_granted kept
  mkdir -p "$ROOT/etc/docker"
  echo '{"log-level": "warn"}' >"$ROOT/etc/docker/daemon.json"
  mpsgate configure docker --write >/dev/null
  grep -q mpsgate "$ROOT/etc/docker/daemon.json"
  assert_equal "compute mode before" "$(jq -r '.cards[0].compute_mode' "$NVML/nvml.json")" EXCLUSIVE_PROCESS
  apt remove mpsgate
  assert_equal "Docker's settings" "$(<"$ROOT/etc/docker/daemon.json")" '{"log-level": "warn"}'
  assert_equal "compute mode after" "$(jq -r '.cards[0].compute_mode' "$NVML/nvml.json")" DEFAULT
  assert_equal "control daemons" "$(mps_pids)" ""
  [[ ! -e $ROOT/usr/bin/mpsgate && -e $ROOT/etc/mpsgate/config.toml ]] || fail "programs gone, settings there: no"
  rm -r "$ROOT/etc/docker"
  daemon_stop
}

@test "a container that was started through it can still be stopped when it is gone" {
  apt install "$MG/p/old.deb"
  ln -sfn /usr/sbin/runc "$ROOT/run/mpsgate/runtime"
  # What containerd's shim keeps of a container, and from then on calls (runc.WriteOptions of
  # containerd 1.6 to 2.1).
  local task=$ROOT/run/containerd/io.containerd.runtime.v2.task/k8s.io/lives
  mkdir -p "$task"
  echo '{"binary_name":"/usr/bin/mpsgate-runtime","root":"/run/containerd/runc"}' >"$task/options.json"
  bundle lives
  try_oci run --detach --bundle "$MG/b/lives" lives
  apt remove mpsgate
  assert_contains "what it says" "$stdout$stderr" "mpsgate: containers go on that were started through /usr/bin/mpsgate-runtime: 1." "when they have ended: rm /usr/bin/mpsgate-runtime"
  assert_equal "its place" "$(readlink "$ROOT/usr/bin/mpsgate-runtime")" /usr/sbin/runc
  oci kill lives KILL
  wait_for 10 "it is stopped" is_stopped lives
  oci delete lives
  rm "$ROOT/usr/bin/mpsgate-runtime"
  rm -r "$ROOT/run/containerd"
  # Nobody was started through it: nothing stays.
  apt install "$MG/p/old.deb"
  apt remove mpsgate
  [[ ! -L $ROOT/usr/bin/mpsgate-runtime && ! -e $ROOT/usr/bin/mpsgate-runtime ]] || fail "left: $(ls -l "$ROOT/usr/bin/mpsgate-runtime")"
}
is_stopped() { [[ $(oci state "$1" | jq -r .status) == stopped ]]; } # ID

@test "a purge leaves nothing" {
  apt purge mpsgate
  files_now >"$MG/after"
  diff "$MG/before" "$MG/after"
  [[ ! -e $ROOT/run/mpsgate ]] || fail "left: $(find "$ROOT/run/mpsgate")"
}

@test "the scheduler and the plugin of kubectl are installed, are idle, and are gone after a purge" {
  apt install "$MG"/p/{mpsgate-scheduler,kubectl-inspect-cgpu}_*.deb
  local name file
  for name in mpsgate-scheduler kubectl-inspect-cgpu; do
    listed deb /lib/systemd/system "$name" >"$MG/want"
    for file in $(in_root dpkg -L "$name"); do
      [[ -d $ROOT$file ]] || stat -c "%a %n %U:%G" "$ROOT$file" | sed "s| $ROOT| |"
    done | sort -k2 >"$MG/have"
    diff <(sed 's/$/ root:root/' "$MG/want") "$MG/have"
    assert_equal "dpkg --verify" "$(in_root dpkg --verify "$name" 2>&1)" ""
    assert_contains "version" "$(in_root "/usr/bin/$name" --version)" "$name "
  done
  [[ -z $(find "$ROOT/etc/systemd" -name 'mpsgate-scheduler*') ]] || fail "the scheduler is enabled"
  try 78 chroot "$ROOT" /usr/bin/env -i HOME=/nowhere /usr/bin/kubectl-inspect-cgpu
  assert_contains "without a kubeconfig" "$stderr" "export KUBECONFIG=FILE"
  apt purge mpsgate-scheduler kubectl-inspect-cgpu
  files_now >"$MG/after"
  diff "$MG/before" "$MG/after"
}

@test "a forced removal goes on beside a live grant, and ends the card's MPS" {
  apt install "$MG/p/old.deb"
  simulated
  sed -i '/^\[gpus\]/a manage = "all"' "$ROOT/etc/mpsgate/config.toml"
  daemon_start
  granted kept 7Gi
  WANT=100 apt remove mpsgate
  touch "$ROOT/run/mpsgate/remove-forced"
  apt remove mpsgate
  assert_contains "apt remove" "$stdout$stderr" "containers have GPU memory: kept; going on, as it is forced"
  assert_equal "compute modes" "$(jq -c '[.cards[].compute_mode]' "$NVML/nvml.json")" '["DEFAULT","DEFAULT"]'
  [[ ! -e $ROOT/usr/bin/mpsgate && ! -e $ROOT/run/mpsgate/remove-forced ]] || fail "not removed, or its leave for it stays"
  gone "$(jq -r .init_process_pid "$MG/runc/kept/state.json")" && fail "the container was ended"
  chroot "$ROOT" /usr/sbin/runc --root "$RUNC_ROOT" delete --force kept
}

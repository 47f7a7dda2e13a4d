#!/usr/bin/env bats
# The rpm's lifecycle in a root of its own: its scriptlets run there. The root is Debian's, as no
# other distribution's can be made here, so its rpm database knows no libc: --nodeps. What the
# package asks for is looked at instead.

load packages

setup_file() {
  root_up
  cp "$MG_PACKAGES"/first/mpsgate-[0-9]*.rpm "$MG/old.rpm"
  cp "$MG_PACKAGES"/first/{mpsgate-scheduler,kubectl-inspect-cgpu}-[0-9]*.rpm "$MG/"
  cp "$MG_PACKAGES"/newer/mpsgate-[0-9]*.rpm "$MG/new.rpm"
  in_rpm --initdb
  files_now >"$MG/before"
}

in_rpm() { rpm --root "$ROOT" --dbpath /var/lib/rpm "$@"; }
try_rpm() { try "${WANT:-0}" rpm --root "$ROOT" --dbpath /var/lib/rpm "$@"; }

# ledger [CONTAINER]: what an mpsgated that is down has left in /run.
ledger() {
  mkdir -p "$ROOT/run/mpsgate/ledger"
  if (($#)); then
    jq -c --arg id "$1" '.entries |= [.[0] | .grant.key.container_id = $id]' "$REPO/tests/formats/0.1.0/ledger.json"
  else
    echo '{"format":1,"generation":7,"entries":[],"promises":[]}'
  fi >"$ROOT/run/mpsgate/ledger/ledger.json"
}

@test "it asks for the C library by its symbols and for nothing that a GPU node lacks" {
  rpm -qp --requires "$MG/old.rpm" | grep -vE '^(libc\.so\.6|libm\.so\.6|ld-linux-[a-z0-9-]+\.so\.[0-9]|libgcc_s\.so\.1|rtld|rpmlib)\(|^/bin/sh$|^config\(mpsgate(-scheduler)?\) = ' >"$MG/more" || true
  assert_equal "other requirements" "$(<"$MG/more")" ""
  rpm -qp --requires "$MG/old.rpm" | grep -q '^libc.so.6(GLIBC_'
}

@test "rpm installs it, runs %post, and its files and modes are those of packaging/files" {
  try_rpm --nodeps -i "$MG/old.rpm"
  # Debian's rpm says of itself that it is not meant for this.
  assert_equal "what scriptlets said" "$stdout$(grep -v "^rpm: " <<<"$stderr" || true)" ""
  listed rpm /usr/lib/systemd/system >"$MG/want"
  in_rpm -q --qf '[%{FILEMODES:octal} %{FILENAMES} %{FILEUSERNAME}:%{FILEGROUPNAME}\n]' mpsgate |
    sed -n 's/^0*100\([0-7]*\) /\1 /p' | sed 's/^0*//' | sort -k2 >"$MG/have"
  diff <(sed 's/$/ root:root/' "$MG/want") "$MG/have"
  assert_equal "settings" "$(in_rpm -qc mpsgate)" /etc/mpsgate/config.toml
}

@test "rpm -V finds every file as it was packed, and finds one that was changed" {
  try_rpm --nodeps -V mpsgate
  assert_equal "rpm -V" "$stdout" ""
  chmod 700 "$ROOT/usr/bin/mpsgate"
  WANT=1 try_rpm --nodeps -V mpsgate
  assert_contains "rpm -V" "$stdout" ".M......." "/usr/bin/mpsgate"
  chmod 755 "$ROOT/usr/bin/mpsgate"
}

@test "beside its own files it makes nothing" {
  files_now >"$MG/after"
  comm -13 "$MG/before" "$MG/after" | sed 's/^\.//' | grep -vxF -f <(in_rpm -ql mpsgate) >"$MG/more" || true
  # Folders that a distribution brings, and this root lacks.
  while read -r file; do [[ -d $ROOT$file && $file != */mpsgate* ]] || fail "made beside: $file"; done <"$MG/more"
}

@test "the installed programs run" {
  assert_contains "version" "$(mpsgate --version)" "mpsgate "
  in_root sh -n /usr/libexec/mpsgate/prepare-removal
}

@test "an upgrade keeps edited settings and asks nothing of the ledger" {
  ledger kept
  echo '# mine' >>"$ROOT/etc/mpsgate/config.toml"
  try_rpm --nodeps -U "$MG/new.rpm"
  assert_equal "version" "$(in_rpm -q --qf '%{VERSION}' mpsgate)" "$NEWER"
  assert_equal "last line" "$(tail -1 "$ROOT/etc/mpsgate/config.toml")" "# mine"
  try_rpm --nodeps -U --oldpackage "$MG/old.rpm"
  assert_equal "last line" "$(tail -1 "$ROOT/etc/mpsgate/config.toml")" "# mine"
}

@test "an upgrade with mps.channel in the settings succeeds, says that the line has to go, and loses nothing" {
  local ledger settings=$ROOT/etc/mpsgate/config.toml
  ledger=$(sha256sum <"$ROOT/run/mpsgate/ledger/ledger.json")
  cp -p "$settings" "$MG/settings.good"
  sed -i '/^\[mps\]/a channel = "control"' "$settings"
  cp -p "$settings" "$MG/settings.theirs"
  try_rpm --nodeps -U "$MG/new.rpm"
  assert_equal "version" "$(in_rpm -q --qf '%{VERSION}' mpsgate)" "$NEWER"
  assert_contains "rpm's stderr" "$stderr" "error: $(removed_setting)
$DOES_NOT_START"
  cmp "$settings" "$MG/settings.theirs"
  assert_equal "settings that lie there" "$(ls "$ROOT/etc/mpsgate")" config.toml
  mpsgated_refuses_settings /usr/lib/systemd/system
  cmp "$settings" "$MG/settings.theirs"
  assert_equal "ledger" "$(sha256sum <"$ROOT/run/mpsgate/ledger/ledger.json")" "$ledger"
  cp -p "$MG/settings.good" "$settings"
  try_rpm --nodeps -U --oldpackage "$MG/old.rpm"
  refute_contains "what rpm says of good settings" "$stderr" "any more" "does not start"
}

@test "an erasure is refused while a grant lives, and says how to proceed" {
  WANT=1 try_rpm -e mpsgate
  assert_contains "rpm -e" "$stderr" "mpsgate: not removed: containers have GPU memory: kept" "touch /run/mpsgate/remove-forced"
  in_rpm -q mpsgate
  [[ -x $ROOT/usr/bin/mpsgate ]] || fail "its files are gone"
}

@test "without grants it goes; edited settings stay beside" {
  ledger
  try_rpm -e mpsgate
  rm -r "$ROOT/run/mpsgate"
  files_now >"$MG/after"
  assert_equal "left" "$(comm -13 "$MG/before" "$MG/after" | while read -r file; do [[ -d $ROOT/$file && $file != */mpsgate* ]] || echo "$file"; done)" \
    "./etc/mpsgate
./etc/mpsgate/config.toml.rpmsave"
}

@test "the scheduler and the plugin of kubectl are installed as packaging/files has them, and leave nothing" {
  local name before
  before=$(files_now)
  for name in mpsgate-scheduler kubectl-inspect-cgpu; do
    try_rpm --nodeps -i "$MG/$name"-[0-9]*.rpm
    assert_equal "what scriptlets said" "$stdout$(grep -v "^rpm: " <<<"$stderr" || true)" ""
    listed rpm /usr/lib/systemd/system "$name" >"$MG/want"
    in_rpm -q --qf '[%{FILEMODES:octal} %{FILENAMES} %{FILEUSERNAME}:%{FILEGROUPNAME}\n]' "$name" |
      sed -n 's/^0*100\([0-7]*\) /\1 /p' | sed 's/^0*//' | sort -k2 >"$MG/have"
    diff <(sed 's/$/ root:root/' "$MG/want") "$MG/have"
    assert_contains "version" "$(in_root "/usr/bin/$name" --version)" "$name "
    try_rpm -e "$name"
  done
  assert_equal "left" "$(comm -13 <(echo "$before") <(files_now) | while read -r file; do [[ -d $ROOT/$file && $file != */mpsgate* ]] || echo "$file"; done)" ""
}

@test "forced, it goes beside a live grant" {
  rm -r "$ROOT/etc/mpsgate"
  try_rpm --nodeps -i "$MG/old.rpm"
  ledger kept
  WANT=1 try_rpm -e mpsgate
  touch "$ROOT/run/mpsgate/remove-forced"
  try_rpm -e mpsgate
  assert_contains "rpm -e" "$stderr" "going on, as it is forced"
  [[ ! -e $ROOT/usr/bin/mpsgate ]] || fail "its files are there"
}

#!/usr/bin/env bats
# `mpsgate node-install`, as the Helm chart's init container: from a mount namespace of its own onto its node, which is here the
# one of the sandbox's pid 1.

load helpers
load mpsgate

setup() {
  export image=$MG/image
  mkdir -p "$image" /etc/docker
  cp "$MG_OUT"/mpsgate{,-runtime,-hook} "$image/"
  rm -f /usr/bin/mpsgate* /etc/mpsgate/config.toml
  printf '[runtime]\npath = "%s"\n[mps]\nsupervisor = "holder"\n' "$REAL" >"$image/config.toml"
  echo '{}' >/etc/docker/daemon.json
  # systemctl of the node: writes down what it was asked for.
  printf '#!/bin/sh\necho "$@" >>%s/systemctl.log\n' "$MG" >/usr/bin/systemctl
  chmod 755 /usr/bin/systemctl
  rm -f "$MG/systemctl.log"
  # node-install in a pod, whose /etc/mpsgate, /etc/docker and /opt are its own.
  cat >/usr/bin/pod <<'SH'
#!/bin/sh
exec unshare --mount --propagation private sh -c '
  mount -t tmpfs pod /etc/mpsgate && mount --bind "$image" /opt && mount -t tmpfs pod /etc/docker || exit 99
  exec /opt/mpsgate node-install --from /opt "$@"' pod "$@"
SH
  chmod 755 /usr/bin/pod
}

teardown() { explain_failure; }

@test "it puts programs and settings onto the node, has configure write the engine's, and says what is left to do" {
  try pod --settings /opt/config.toml --engine docker
  local name
  for name in mpsgate mpsgate-runtime mpsgate-hook; do
    cmp "$image/$name" "/usr/bin/$name"
    assert_equal "mode of $name" "$(stat -c '%a %U' "/usr/bin/$name")" "755 root"
  done
  assert_equal "first words of the settings" "$(head -c 31 /etc/mpsgate/config.toml)" "# Kept by mpsgate node-install."
  assert_equal "the settings" "$(tail -n +2 /etc/mpsgate/config.toml)" "$(<"$image/config.toml")"
  jq -e '."default-runtime" != null' /etc/docker/daemon.json
  assert_contains "what it says" "$stdout" "Written: /usr/bin/mpsgate-runtime" "docker has not loaded this yet" "systemctl reload docker"
  [[ ! -e $MG/systemctl.log ]] || fail "systemctl was called: $(<"$MG/systemctl.log")"
  [[ -z $(find /usr/bin /etc/mpsgate -name '.mpsgate-*') ]]

  # Again: nothing changes. A newer image: its files, its settings.
  try pod --settings /opt/config.toml --engine docker
  refute_contains "what it says the second time" "$stdout" Written
  printf 'newer' >>"$image/mpsgate-hook"
  echo '[log]' >>"$image/config.toml"
  try pod --settings /opt/config.toml --engine docker
  cmp "$image/mpsgate-hook" /usr/bin/mpsgate-hook
  assert_equal "last line of the settings" "$(tail -1 /etc/mpsgate/config.toml)" "[log]"
}

@test "the engine is told to load its settings only where that was asked for" {
  try pod --settings /opt/config.toml --engine docker --restart-engine
  assert_equal "systemctl" "$(<"$MG/systemctl.log")" "reload docker"
  try pod --settings /opt/config.toml --engine docker --restart-engine
  assert_equal "systemctl" "$(<"$MG/systemctl.log")" "reload docker"
}

@test "a program that runs is replaced, and runs on" {
  try pod
  cp /usr/bin/sleep "$image/mpsgate-hook"
  try pod
  /usr/bin/mpsgate-hook 600 3>&- &
  local pid=$!
  printf 'newer' >>"$image/mpsgate-hook"
  try pod
  cmp "$image/mpsgate-hook" /usr/bin/mpsgate-hook
  kill -0 "$pid"
  kill "$pid"
}

@test "a node that has the package, or settings of its own, is left as it is" {
  cp "$MG_OUT/mpsgated" /usr/bin/
  try 2 pod --settings /opt/config.toml --engine docker
  assert_contains "error" "$stderr" "error: /usr/bin/mpsgated is on this node already" "hint: keep one"
  rm /usr/bin/mpsgated
  echo '# mine' >/etc/mpsgate/config.toml
  try 2 pod --settings /opt/config.toml --engine docker
  assert_contains "error" "$stderr" "error: /etc/mpsgate/config.toml is not of the chart" "mv /etc/mpsgate/config.toml"
  assert_equal "settings" "$(</etc/mpsgate/config.toml)" "# mine"
  [[ ! -e /usr/bin/mpsgate-runtime ]] || fail "programs were written"
  assert_equal "docker's settings" "$(</etc/docker/daemon.json)" "{}"
}

@test "what cannot be is said: on the node itself, without a program, with settings that cannot be used" {
  try 2 "$image/mpsgate" node-install --from "$image"
  assert_contains "error" "$stderr" "error: this is the node's own mount namespace" "hint: mpsgate configure ENGINE --write"
  rm "$image/mpsgate-hook"
  try 2 pod
  assert_contains "error" "$stderr" "error: cannot read /opt/mpsgate-hook" "Containerfile"
  cp "$MG_OUT/mpsgate-hook" "$image/"
  echo 'nonsense' >"$image/config.toml"
  try 2 pod --settings /opt/config.toml --engine docker
  assert_contains "error" "$stderr" 'error: `/usr/bin/mpsgate configure docker --write` failed' /etc/mpsgate/config.toml
}

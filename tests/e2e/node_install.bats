#!/usr/bin/env bats
# `mpsgate node-install`, as the Helm chart's init container: from a mount namespace of its own onto
# its node, which is here the one of the sandbox's pid 1.

load mpsgate

setup() {
  export image=$MG/image
  mkdir -p "$image" /etc/docker /etc/mpsgate
  cp "$MG_OUT"/mpsgate{,-runtime,-hook} "$image/"
  rm -f /usr/bin/mpsgate* /usr/bin/nvidia-container-runtime /etc/mpsgate/config.toml
  rm -rf /var/lib/mpsgate/configure /run/mpsgate/engines
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

@test "containerd is restarted when it has not loaded where its handlers lead, and for nothing else" {
  local pid=0
  # systemctl of a node whose containerd is a real one.
  cat >/usr/bin/systemctl <<'SH'
#!/bin/sh
echo "$@" >>"$MG/systemctl.log"
pkill -x containerd
while pgrep -x containerd >/dev/null; do sleep 0.05; done
start-containerd
SH
  cat >/usr/bin/start-containerd <<'SH'
#!/bin/sh
setsid containerd --root "$MG/cd/root" --state "$MG/cd/state" --address "$MG/cd/sock" >"$MG/containerd.log" 2>&1 3>&- </dev/null &
for i in $(seq 200); do [ -S "$MG/cd/sock" ] && exit 0; sleep 0.05; done
exit 1
SH
  chmod 755 /usr/bin/systemctl /usr/bin/start-containerd
  export MG
  restarts() { if [[ -e $MG/systemctl.log ]]; then wc -l <"$MG/systemctl.log"; else echo 0; fi; }
  install() { try pod --settings /opt/config.toml --engine containerd --restart-engine; }
  mkdir -p /etc/containerd "$MG/cd"
  # A handler that bypasses mpsgate, and stays: its program is another.
  cat >/etc/containerd/config.toml <<'TOML'
version = 2
# Handlers of this node,
# as its maker wrote them down
# here,
# before
# and after
# mpsgate came.
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.other]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.other.options]
BinaryName = "/opt/other"
TOML
  touch -d '1 second ago' /etc/containerd/config.toml # before it is read
  start-containerd
  pid=$(pgrep -x containerd)

  install
  assert_contains "what it says" "$stdout" "Done: systemctl restart containerd"
  assert_equal "restarts" "$(restarts)" 1
  [[ $(pgrep -x containerd) != "$pid" ]] || fail "containerd was not restarted"
  # Its pod is made again: the handler that bypasses mpsgate is no reason.
  install
  refute_contains "what it says" "$stdout" "Done: systemctl" "has not loaded this"
  assert_equal "restarts" "$(restarts)" 1
  # Files that were changed and lead every handler where it led.
  touch /etc/containerd/config.toml
  install
  sed -i '1i oom_score = 0' /etc/containerd/config.toml
  install
  assert_equal "restarts" "$(restarts)" 1
  # A handler that comes later is led. Who may not restart says what to do, until it is done.
  sed -i '/^# here,/a [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.later]\nruntime_type = "io.containerd.runc.v2"' /etc/containerd/config.toml
  try pod --settings /opt/config.toml --engine containerd
  assert_contains "what it says" "$stdout" "containerd has not loaded this yet"
  try pod --settings /opt/config.toml --engine containerd
  assert_contains "what it says again" "$stdout" "containerd has not loaded this yet"
  assert_equal "restarts" "$(restarts)" 1
  systemctl restart by-hand
  try pod --settings /opt/config.toml --engine containerd
  refute_contains "what it says after a restart by hand" "$stdout" "has not loaded this"
  pkill -x containerd
}

@test "another runtime.path leads NVIDIA's handler, gives it back, and lets the next container see it at once" {
  mkdir -p /etc/containerd
  cp "$REAL" /usr/bin/nvidia-container-runtime
  cat >/etc/containerd/config.toml <<'TOML'
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
TOML
  # What NVIDIA's handler runs, by containerd's own reading.
  nvidias() {
    containerd --config /etc/containerd/config.toml config dump | grep -A20 'runtimes.nvidia.options\]' | grep -m1 BinaryName
  }
  local runc nvidia=$image/config.toml
  runc=$(<"$image/config.toml")
  local before
  before=$(nvidias)
  for _ in 1 2; do
    printf '[runtime]\npath = "/usr/bin/nvidia-container-runtime"\n' >"$nvidia"
    ln -sfn "$REAL" /run/mpsgate/runtime
    try pod --settings /opt/config.toml --engine containerd
    assert_contains "NVIDIA's handler" "$(nvidias)" /usr/bin/mpsgate-runtime
    [[ ! -L /run/mpsgate/runtime ]] || fail "the link still leads to $(readlink /run/mpsgate/runtime)"
    echo "$runc" >"$nvidia"
    ln -sfn /usr/bin/nvidia-container-runtime /run/mpsgate/runtime
    try pod --settings /opt/config.toml --engine containerd
    assert_contains "what it says" "$stdout" "note: handler nvidia runs /usr/bin/nvidia-container-runtime and bypasses mpsgate"
    assert_equal "NVIDIA's handler" "$(nvidias)" "$before"
    [[ ! -L /run/mpsgate/runtime ]] || fail "the link still leads to $(readlink /run/mpsgate/runtime)"
  done
  # Settings that stay leave the link that mpsgated made.
  ln -sfn "$REAL" /run/mpsgate/runtime
  try pod --settings /opt/config.toml --engine containerd
  assert_equal "the link" "$(readlink /run/mpsgate/runtime)" "$REAL"
}

@test "NVIDIA's runtime is chosen where the node has it and the settings name none, and stays while it is there" {
  local nvidia=/usr/local/nvidia/toolkit/nvidia-container-runtime
  printf '[mps]\nsupervisor = "holder"\n' >"$image/config.toml"
  try pod --settings /opt/config.toml --choose-runtime
  refute_contains "settings without it" "$(</etc/mpsgate/config.toml)" "[runtime]"
  mkdir -p "${nvidia%/*}"
  cp /usr/bin/true "$nvidia"
  try pod --settings /opt/config.toml --choose-runtime
  assert_contains "settings with it" "$(</etc/mpsgate/config.toml)" "path = \"$nvidia\"" 'supervisor = "holder"'
  assert_contains "what it says" "$stdout" "runtime.path: $nvidia"
  try pod --settings /opt/config.toml --choose-runtime
  refute_contains "what it says the second time" "$stdout" Written
  printf '[runtime]\npath = "%s"\n' "$REAL" >"$image/config.toml"
  try pod --settings /opt/config.toml --choose-runtime
  assert_contains "settings that name one" "$(</etc/mpsgate/config.toml)" "path = \"$REAL\""
  rm -r /usr/local/nvidia
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

@test "a link where the settings are to be is not followed, and nothing is written where they cannot be" {
  local link before
  before=$(files_now)
  for link in /etc/mpsgate /etc/mpsgate/config.toml; do
    mkdir -p "$MG/elsewhere" /etc/mpsgate
    if [[ $link == /etc/mpsgate ]]; then rmdir "$link"; fi
    ln -s "$MG/elsewhere" "$link"
    # The pod's own /etc/mpsgate would hide a link there.
    try 2 unshare --mount --propagation private sh -c 'mount --bind "$image" /opt && exec /opt/mpsgate node-install --from /opt --settings /opt/config.toml --engine docker'
    assert_contains "error" "$stderr" "error: $link is a link to $MG/elsewhere, and is not followed" "hint: " "mv $link $link.before"
    assert_equal "what is there" "$(ls -A "$MG/elsewhere")" ""
    rm "$link"
    mkdir -p /etc/mpsgate
    assert_equal "the node's files" "$(files_now)" "$before"
  done
  mount -t tmpfs -o ro none /etc/mpsgate
  try 2 pod --settings /opt/config.toml --engine docker
  umount /etc/mpsgate
  assert_contains "error" "$stderr" "error: cannot write /etc/mpsgate/config.toml" "Read-only file system"
  assert_equal "the node's files" "$(files_now)" "$before"
  # Programs alone need no settings, and settings in a directory of root's are written.
  try pod --settings /opt/config.toml
  cmp "$image/mpsgate-hook" /usr/bin/mpsgate-hook
}

@test "what cannot be is said: on the node itself, without a program, with settings that cannot be used" {
  try 2 "$image/mpsgate" node-install --from "$image"
  assert_contains "error" "$stderr" "error: this is the node's own mount namespace" "hint: mpsgate configure ENGINE --write"
  rm "$image/mpsgate-hook"
  try 2 pod
  assert_contains "error" "$stderr" "error: cannot read /opt/mpsgate-hook" "Containerfile"
  cp "$MG_OUT/mpsgate-hook" "$image/"
  echo 'nonsense' >"$image/config.toml"
  try 78 pod --settings /opt/config.toml --engine docker
  assert_contains "error" "$stderr" "error: /etc/mpsgate/config.toml:2: key with no value" "hint: "
  [[ ! -e /usr/bin/mpsgate-runtime ]] || fail "programs were written"
}

# Every file that node-install, configure or mpsgated could leave.
files_now() { (cd / && find usr/bin etc/docker etc/mpsgate var/lib/mpsgate run/mpsgate -printf '%p %y %l\n' 2>/dev/null | grep -v -e '^usr/bin ' -e 'usr/bin/pod' | sort); }

@test "node-remove takes away what node-install put there, to the file, and twice is no more than once" {
  rm -rf /etc/mpsgate /var/lib/mpsgate /run/mpsgate
  local before
  before=$(files_now)
  mkdir /etc/mpsgate
  try pod --settings /opt/config.toml --engine docker
  [[ $(files_now) != "$before" ]]
  try /usr/bin/mpsgate node-remove --restart-engine
  assert_contains "what it says" "$stdout" "Put back: /etc/docker/daemon.json" "Done: systemctl reload docker" "Removed: /usr/bin/mpsgate-runtime" "Removed: /etc/mpsgate/config.toml"
  assert_equal "the node's files" "$(files_now)" "$before"
  assert_equal "systemctl" "$(<"$MG/systemctl.log")" "reload docker"
  try "$image/mpsgate" node-remove --restart-engine
  assert_equal "what it says the second time" "$stdout" ""
  assert_equal "the node's files" "$(files_now)" "$before"
  mkdir -p /etc/mpsgate
}

@test "node-remove leaves a link to the real runtime where somebody still calls ours" {
  try pod --settings /opt/config.toml
  # What containerd's shim keeps of a container (runc.WriteOptions of containerd 1.6 to 2.1).
  local task=/run/containerd/io.containerd.runtime.v2.task/k8s.io/lives
  mkdir -p "$task"
  echo '{"binary_name":"/usr/bin/mpsgate-runtime"}' >"$task/options.json"
  bundle lives
  RUNTIME=/usr/bin/mpsgate-runtime try_oci run --detach --bundle "$MG/b/lives" lives
  try /usr/bin/mpsgate node-remove --callers
  assert_equal "who calls it" "$stdout" "$task"
  try /usr/bin/mpsgate node-remove
  assert_contains "what it says" "$stdout" "/usr/bin/mpsgate-runtime is a link to $(readlink -f "$REAL") now: 1 container goes on that was started through it." "rm /usr/bin/mpsgate-runtime"
  assert_equal "the link" "$(readlink /usr/bin/mpsgate-runtime)" "$(readlink -f "$REAL")"
  RUNTIME=/usr/bin/mpsgate-runtime try_oci exec lives true
  RUNTIME=/usr/bin/mpsgate-runtime try_oci kill lives KILL
  wait_for 10 "it is stopped" is_stopped lives
  RUNTIME=/usr/bin/mpsgate-runtime try_oci delete lives
  rm -r "$task"
  mkdir /etc/mpsgate
  # An engine that has not loaded its settings yet calls it for every container.
  rm /usr/bin/mpsgate-runtime
  try pod --settings /opt/config.toml --engine docker
  try /usr/bin/mpsgate node-remove
  assert_contains "what it says" "$stdout" "docker still has the settings of before. On the node: systemctl reload docker" "an engine has not loaded its settings yet"
  [[ -L /usr/bin/mpsgate-runtime ]]
}
is_stopped() { [[ $("$REAL" --root "$RUNC_ROOT" state "$1" | jq -r .status) == stopped ]]; } # ID

@test "node-remove changes nothing where containers have GPU memory, cards wait for their mode, or the package is there" {
  try pod --settings /opt/config.toml --engine docker
  local before
  mkdir -p /run/mpsgate/ledger /var/lib/mpsgate/compute-mode
  echo '{"format":1,"entries":[{"grant":{"key":{"container_id":"web"}}}]}' >/run/mpsgate/ledger/ledger.json
  before=$(files_now)
  try 2 /usr/bin/mpsgate node-remove
  assert_contains "error" "$stderr" "error: containers have GPU memory: web" "hint: end them first"
  echo 'cut of' >/run/mpsgate/ledger/ledger.json
  try 2 /usr/bin/mpsgate node-remove
  assert_contains "error" "$stderr" "ledger.json cannot be read"
  rm /run/mpsgate/ledger/ledger.json
  echo DEFAULT >/var/lib/mpsgate/compute-mode/GPU-1
  try 2 /usr/bin/mpsgate node-remove
  assert_contains "error" "$stderr" "have not got their compute mode back: GPU-1" "nvidia-smi -i UUID -c DEFAULT"
  rm /var/lib/mpsgate/compute-mode/GPU-1
  cp "$MG_OUT/mpsgated" /usr/bin/
  try 2 /usr/bin/mpsgate node-remove
  assert_contains "error" "$stderr" "it comes from mpsgate's package" "apt remove mpsgate"
  rm /usr/bin/mpsgated
  assert_equal "the node's files" "$(files_now)" "$(grep -v ledger.json <<<"$before")"
  echo DEFAULT >/var/lib/mpsgate/compute-mode/GPU-1
  try /usr/bin/mpsgate node-remove --force --restart-engine
  [[ ! -e /usr/bin/mpsgate && ! -e /var/lib/mpsgate ]]
}

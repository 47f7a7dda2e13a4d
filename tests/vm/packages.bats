#!/usr/bin/env bats
# The deb on a machine that is booted: what installing, upgrading and removing it does to a node
# that works. Docker, containerd and Podman are the distribution's, under systemd; mpsgate has the
# settings of its package, and finds a driver, its MPS programs and CDI specification where a
# driver's packages put them. The tests tagged `before` come before a reboot, those tagged `after`
# after it.

load live

OLD=/root/old NEW=/root/new
# Docker's own, not one of a test.
node() { DOCKER_SOCK=/run/docker.sock; }
node

setup_file() {
  node
  [[ ! -e /root/seen ]] || return 0
  cp -r /task/debs/old "$OLD"
  cp -r /task/debs/new "$NEW"
  # The distribution's engines, as their packages set them up.
  systemctl unmask --quiet docker.service docker.socket containerd.service
  systemctl daemon-reload
  systemctl enable --quiet --now containerd.service docker.service
  rootfs "$MG/rootfs"
  tar -C "$MG/rootfs" -c . | docker import -c 'CMD ["env"]' - bb >/dev/null
  tar -C "$MG/rootfs" -c . | podman import -c 'CMD ["env"]' - bb >/dev/null
  docker run -d --name plain bb sleep 86400 >/dev/null
  files_now >/root/seen
}

podman() { /usr/bin/podman "$@"; }
apt() { try "${WANT:-0}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold "$@"; }
installed() { dpkg-query -W -f '${db:Status-Abbrev}${Version}' mpsgate 2>/dev/null; }
is_installed() { [[ $(installed) == "ii "* ]] || fail "state: $(installed)"; }

# files_now: every file with mpsgate in its path but in containers, and the engines' settings.
files_now() {
  find / -xdev \( -path /root -o -path /task -o -path /proc -o -path /tmp -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /var/cache -o -path /var/lib/docker -o -path /var/lib/containers -o -path "$MG" \) -prune \
    -o -path '*mpsgate*' -print | sort
  find /run/mpsgate /run/systemd/system -path '*mpsgate*' 2>/dev/null | sort || true
  find /etc/docker /etc/containers /etc/containerd -type f -exec sha256sum {} + 2>/dev/null | sort -k2 || true
}

pid_in() { "$1" inspect -f '{{.State.Pid}} {{.State.StartedAt}}' "$2"; } # ENGINE NAME
# lifecycle: containers, their grants, and the control daemons. Nothing of it may change when
# mpsgated does.
lifecycle() {
  echo "plain $(pid_in docker plain); d $(pid_in docker dock); p $(pid_in podman pod); control daemons $(daemon_pids | tr '\n' ' ')"
  recorded_grants | jq -c .
}
lives_on() { # LIFECYCLE
  wait_for 30 "mpsgated answers" settled
  assert_equal "what lives" "$(lifecycle)" "$1"
  try_docker exec dock env
  assert_contains "environment of exec" "$stdout" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M
}

# readme N: line N of the first commands of docs/install.md.
readme() { sed -n '/^```sh$/,/^```$/p' /task/debs/install.md | sed "$((1 + $1))q;d"; }

# bats test_tags=before
@test "without a driver: the first command of docs/install.md starts mpsgated, which waits; no engine and no container notices" {
  local plain
  plain=$(pid_in docker plain)
  assert_equal "the command" "$(readme 1)" "apt install ./mpsgate_*.deb"
  cd /root/old
  try env DEBIAN_FRONTEND=noninteractive bash -c "$(readme 1)"
  is_installed
  wait_for 30 "mpsgated answers" status_json
  assert_equal "unit" "$(unit_of mpsgated ActiveState) $(unit_of mpsgated UnitFileState)" "active enabled"
  assert_equal "starts" "$(unit_of mpsgated NRestarts)" 0
  assert_equal "cards and grants" "$(status_json | jq -c '[.cards, .grants]')" '[[],[]]'
  assert_equal "the container" "$(pid_in docker plain)" "$plain"
  [[ ! -e /etc/docker/daemon.json && ! -e /etc/containers/containers.conf.d ]] || fail "an engine's settings were changed"
  try_docker run --rm bb true
  try any mpsgate doctor
  assert_contains "doctor" "$stdout" "install the NVIDIA driver"
}

# bats test_tags=before
@test "a driver that comes later is found, and no card is managed" {
  install -m 755 "$(control_program)" /usr/bin/
  simulated_driver
  echo "$NVML" >/etc/ld.so.conf.d/simulated-gpu.conf
  ldconfig
  mkdir -p /etc/cdi
  jq -n --arg a "$(uuid 0)" --arg b "$(uuid 1)" '
    def card(name; minor): {name: name, containerEdits: {deviceNodes: [{path: "/dev/nvidia\(minor)"}]}};
    {cdiVersion: "0.5.0", kind: "nvidia.com/gpu", devices: [card($a; 0), card($b; 1)],
      containerEdits: {deviceNodes: [{path: "/dev/nvidiactl"}, {path: "/dev/nvidia-uvm"}]}}' >/etc/cdi/nvidia.json
  systemctl daemon-reload
  systemctl enable --quiet --now simulated-gpu.service
  wait_for 60 "the cards are seen" bash -c '[[ $(mpsgate status -o json | jq ".cards | length") == 2 ]]'
  assert_equal "managed" "$(status_json | jq -c '[.cards[].managed]')" '[false,false]'
  assert_equal "compute modes" "$(jq -c '[.cards[].compute_mode]' "$NVML/nvml.json")" '["DEFAULT","DEFAULT"]'
  assert_equal "units" "$(systemctl list-units --plain --no-legend 'mpsgate-mps@*')" ""
}

# bats test_tags=before
@test "the other three commands of docs/install.md: a container that shares the card" {
  local plain
  plain=$(pid_in docker plain)
  try bash -ec "$(readme 2)"
  try bash -ec "$(readme 3)"
  wait_for 30 "Docker's default runtime is ours" bash -c 'docker info -f "{{.DefaultRuntime}}" | grep -x mpsgate'
  try bash -ec "$(readme 4 | sed 's/IMAGE/bb/')"
  assert_contains "its environment" "$stdout" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M CUDA_MPS_PIPE_DIRECTORY=
  assert_equal "the container of before" "$(pid_in docker plain)" "$plain"
  wait_for 10 "its memory is free" is_free 1
}

# bats test_tags=before
@test "Podman, by the commands of docs/install.md" {
  local commands
  commands=$(sed -n '/^\*\*Podman as root:\*\*$/,/^```$/p' /task/debs/install.md | sed '1,/^```sh$/d; /^```$/d')
  assert_equal "the commands" "$commands" $'mpsgate configure podman --write\npodman run --ipc=host --annotation aliyun.com/gpu-mem=7 IMAGE'
  try mpsgate configure podman --write
  try podman run --rm --network none --ipc=host --annotation aliyun.com/gpu-mem=7 bb
  assert_contains "its environment" "$stdout" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M
}

# bats test_tags=before
@test "systemctl restart: containers of Docker and Podman, grants and control daemons stay" {
  mpsgate enable 1
  wait_for 30 "card 1 is ready" card_is ready 1
  try_docker run -d --name dock --restart always --ipc=host -e MPSGATE_GPU_MEM=7Gi bb sleep 86400
  try podman run -d --name pod --restart always --network none --ipc=host --annotation aliyun.com/gpu-mem=6 bb sleep 86400
  local before
  before=$(lifecycle)
  assert_contains "grants" "$before" '"memory_mib":7168' '"memory_mib":6144'
  systemctl restart mpsgated
  lives_on "$before"
}

# bats test_tags=before,nightly
@test "kill -s KILL, stop and start, and the watchdog: containers of Docker and Podman, grants and control daemons stay" {
  local before main
  before=$(lifecycle) main=$(main_pid)
  systemctl kill -s KILL mpsgated
  wait_for 30 "another mpsgated" another_pid "$main"
  lives_on "$before"
  systemctl stop mpsgated
  try_docker exec dock true
  try podman exec pod true
  systemctl start mpsgated
  lives_on "$before"
  main=$(main_pid)
  kill -STOP "$main"
  wait_for 90 "another mpsgated" another_pid "$main"
  assert_contains "journal" "$(journalctl --no-pager -u mpsgated | grep -i watchdog)" "Watchdog timeout"
  lives_on "$before"
}

# bats test_tags=before
@test "systemd-analyze finds no fault in the installed units, and the exposure is what SPECIFICATION.md says" {
  try systemd-analyze verify --man=no mpsgated.service mpsgate-mps@0.service mpsgate-gate@0.service mpsgate-qualify.service mpsgate-qualify.timer
  assert_equal "output" "$stdout$stderr" ""
  local unit limit found
  for unit in mpsgated.service mpsgate-mps@.service mpsgate-gate@.service; do
    limit=$(sed -n "s/^| exposure of \`$unit\`[^|]*| ≤ \([0-9]*\)\.\([0-9]\) .*/\1\2/p" /task/debs/SPECIFICATION.md)
    found=$(systemd-analyze security --no-pager "${unit/@/@0}" | sed -n 's/.*exposure level for .*: \([0-9]*\)\.\([0-9]\) .*/\1\2/p')
    [[ -n $limit && -n $found ]] || fail "$unit: limit '$limit', found '$found'"
    echo "# $unit: $found tenths, at most $limit" >&3
    ((found <= limit)) || fail "$unit: $found tenths, at most $limit"
  done
}

# bats test_tags=before
@test "an upgrade keeps everything, and each container that is created during the swap gets its grant" {
  local before main inode loop n gate door visitor
  try_docker run -d --name door --ipc=host -e MPSGATE_GPU_MEM=1Gi bb sleep 86400
  door=$(grep -l "$(docker inspect -f '{{.Id}}' door)" /run/mpsgate/mps/*/clients/*.json)
  gate=$(unit_of "mpsgate-gate@$(cut -d/ -f5 <<<"$door")" MainPID)
  # By its name alone: an older version has it elsewhere.
  door=$(find "/run/mpsgate/mps" -type d -name "$(basename "$door" .json)")
  perl "$BATS_TEST_DIRNAME/../e2e/door.pl" "$door" visit "$BATS_TEST_TMPDIR/enough" >"$BATS_TEST_TMPDIR/visits" 3>&- &
  visitor=$!
  before=$(lifecycle) main=$(main_pid) inode=$(stat -Lc %i "/proc/$(main_pid)/exe")
  # One after the other, from before the swap until after it.
  (
    until [[ -e $BATS_TEST_TMPDIR/enough ]]; do
      docker run --rm --ipc=host -e MPSGATE_GPU_MEM=1Gi bb sh -c 'echo $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT' || echo "failed: $?"
    done
  ) >"$BATS_TEST_TMPDIR/during" 2>&1 3>&- &
  loop=$!
  wait_for 60 "a first one" grep -q . "$BATS_TEST_TMPDIR/during"
  apt install "$NEW"/mpsgate_*.deb
  is_installed
  wait_for 60 "another mpsgated" another_pid "$main"
  wait_for 30 "mpsgated answers" settled
  n=$(wc -l <"$BATS_TEST_TMPDIR/during")
  wait_for 60 "one after the swap" bash -c "((\$(wc -l <'$BATS_TEST_TMPDIR/during') > $n + 1))"
  touch "$BATS_TEST_TMPDIR/enough"
  wait "$loop" # and not for bats' own clock
  wait "$visitor"
  echo "# $(<"$BATS_TEST_TMPDIR/visits")" >&3
  assert_contains "visits" "$(<"$BATS_TEST_TMPDIR/visits")" " refused 0"
  [[ $(unit_of "mpsgate-gate@$(cut -d/ -f5 <<<"$door")" MainPID) != "$gate" ]] || fail "it is the gate of before"
  assert_equal "what was not granted" "$(grep -vx 0=1024M "$BATS_TEST_TMPDIR/during")" ""
  echo "# $(wc -l <"$BATS_TEST_TMPDIR/during") containers meanwhile" >&3
  [[ $(stat -Lc %i "/proc/$(main_pid)/exe") != "$inode" ]] || fail "it is the program of before"
  wait_for 10 "only the three grants" bash -c '[[ $(mpsgate status -o json | jq ".grants | length") == 3 ]]'
  lives_on "$before"
  try_docker rm -f door
  wait_for 10 "only the two grants" bash -c '[[ $(mpsgate status -o json | jq ".grants | length") == 2 ]]'
}

# bats test_tags=before,nightly
@test "an mpsgated that the operator stopped stays down over a downgrade, and settings of theirs stay" {
  local before
  before=$(lifecycle)
  systemctl stop mpsgated
  echo '# mine' >>/etc/mpsgate/config.toml
  apt install --allow-downgrades "$OLD"/mpsgate_*.deb
  is_installed
  assert_equal "unit" "$(unit_of mpsgated ActiveState)" inactive
  assert_contains "settings" "$(tail -1 /etc/mpsgate/config.toml)" "# mine"
  systemctl start mpsgated
  lives_on "$before"
}

# bats test_tags=before,nightly
@test "an upgrade with mps.channel in the settings: mpsgated ends with 78, containers go on, and without the line a restart is all it takes" {
  local before kept settings=/etc/mpsgate/config.toml
  before=$(lifecycle) kept="$(pid_in docker dock) $(pid_in podman pod) $(daemon_pids)"
  # The one of before runs, and does not look at them again.
  sed -i '/^\[mps\]/a channel = "auto"' "$settings"
  apt install "$NEW"/mpsgate_*.deb
  is_installed
  # What a script says on stderr comes out of apt's terminal for dpkg.
  assert_contains "what apt says" "$(tr -d '\r' <<<"$stdout$stderr")" "there is no \`mps.channel\` any more" "hint: remove the line" "mpsgated does not start with these settings; when they are right: systemctl restart mpsgated"
  wait_for 30 "mpsgated has ended" unit_is mpsgated ActiveState failed
  assert_equal "its exit status" "$(unit_of mpsgated ExecMainStatus)" 78
  try_docker exec dock true
  try podman exec pod true
  assert_equal "what lives" "$(pid_in docker dock) $(pid_in podman pod) $(daemon_pids)" "$kept"
  # systemd does not start it again, who asks is told the same, and who asks for nothing starts.
  try_docker fail run --rm --ipc=host -e MPSGATE_GPU_MEM=1Gi bb true
  assert_contains "the refusal" "$stderr" E_CONFIG mps.channel
  try_docker run --rm bb true
  assert_equal "unit" "$(unit_of mpsgated ActiveState)" failed
  sed -i '/^channel = /d' "$settings"
  systemctl restart mpsgated
  lives_on "$before"
}

# bats test_tags=before
@test "a removal is refused while containers have memory, and nothing changes" {
  local before main
  before=$(lifecycle) main=$(main_pid)
  WANT=100 apt remove mpsgate
  assert_contains "apt remove" "$stdout$stderr" "mpsgate: not removed: containers have GPU memory: " "hint: stop these containers first"
  is_installed
  assert_equal "mpsgated" "$(main_pid)" "$main"
  lives_on "$before"
}

# bats test_tags=before,nightly
@test "before the reboot: a lease that remembers the card's mode" {
  systemctl enable --quiet podman-restart.service
  assert_contains "the lease" "$(<"/var/lib/mpsgate/compute-mode/$(uuid 0)")" '"default"'
  lifecycle >/root/lifecycle
}

# since_boot UNIT PROPERTY: microseconds
since_boot() { unit_of "$1" "$2Monotonic"; }

# bats test_tags=after
@test "after a reboot: cards are leased anew before any engine starts, and the engines' containers have their grants again" {
  wait_for 60 "mpsgated is active" unit_is mpsgated ActiveState active
  wait_for 90 "Docker is active" unit_is docker ActiveState active
  local engine ready
  ready=$(since_boot mpsgated ActiveEnterTimestamp)
  for engine in containerd docker podman-restart; do
    (($(since_boot $engine ExecMainStartTimestamp) >= ready)) || fail "$engine was started before mpsgated was ready"
  done
  assert_equal "starts" "$(unit_of mpsgated NRestarts)" 0
  wait_for 90 "both grants" bash -c '[[ $(mpsgate status -o json | jq "[.grants[] | select(.state == \"active\")] | length") == 2 ]]'
  assert_equal "compute modes" "$(jq -c '[.cards[].compute_mode]' "$NVML/nvml.json")" '["EXCLUSIVE_PROCESS","EXCLUSIVE_PROCESS"]'
  try_docker exec dock env
  assert_contains "environment of exec" "$stdout" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M
  assert_equal "memory of grants" "$(status_json | jq -c '[.grants[].memory_mib] | sort')" "[6144,7168]"
}

# bats test_tags=after
@test "a removal gives cards back, undoes what configure wrote, and leaves settings and other containers alone" {
  try_docker start plain
  local plain
  plain=$(pid_in docker plain)
  docker rm -f dock >/dev/null
  podman rm -af -t 0 >/dev/null
  wait_for 20 "all memory is free" is_free 2
  apt remove mpsgate
  assert_equal "compute modes" "$(jq -c '[.cards[].compute_mode]' "$NVML/nvml.json")" '["DEFAULT","DEFAULT"]'
  assert_equal "units" "$(systemctl list-units --plain --no-legend 'mpsgate*'; systemctl list-unit-files --no-legend 'mpsgate*')" ""
  assert_equal "processes" "$(pgrep -l 'mpsgate|nvidia-cuda-mps')" ""
  refute_contains "Docker's settings" "$(cat /etc/docker/daemon.json 2>/dev/null)" mpsgate
  [[ -e /etc/mpsgate/config.toml ]] || fail "its settings are gone"
  systemctl reload docker
  wait_for 30 "Docker's default runtime is runc" bash -c 'docker info -f "{{.DefaultRuntime}}" | grep -x runc'
  assert_equal "the other container" "$(pid_in docker plain)" "$plain"
  try_docker run --rm bb true
  try podman run --rm --network none bb true
}

# bats test_tags=after
@test "purge leaves nothing" {
  apt purge mpsgate
  assert_equal "left" "$(files_now | diff /root/seen - | grep '^>')" ""
}

# bats test_tags=after
@test "installed anew with a driver: mpsgated is up, no card is managed; a forced removal beside a live grant" {
  apt install "$NEW"/mpsgate_*.deb
  wait_for 30 "mpsgated answers" settled
  assert_equal "managed" "$(status_json | jq -c '[.cards[].managed]')" '[false,false]'
  try mpsgate enable 0
  try mpsgate configure docker --write
  systemctl reload docker
  wait_for 30 "Docker's default runtime is ours" bash -c 'docker info -f "{{.DefaultRuntime}}" | grep -x mpsgate'
  try_docker run -d --name dock --ipc=host -e MPSGATE_GPU_MEM=7Gi bb sleep 86400
  touch /run/mpsgate/remove-forced
  apt purge mpsgate
  assert_contains "apt purge" "$stdout$stderr" "containers have GPU memory" "going on, as it is forced"
  assert_equal "compute modes" "$(jq -c '[.cards[].compute_mode]' "$NVML/nvml.json")" '["DEFAULT","DEFAULT"]'
  assert_equal "control daemons" "$(pgrep -l nvidia-cuda-mps)" ""
  # The container goes on, and its engine calls the runtime that it was started through until it has
  # ended.
  assert_contains "apt purge" "$stdout$stderr" "containers go on that were started through /usr/bin/mpsgate-runtime: 1." "when they have ended: rm /usr/bin/mpsgate-runtime"
  assert_equal "left" "$(files_now | diff /root/seen - | grep '^>')" "> /usr/bin/mpsgate-runtime"
  assert_equal "the link" "$(readlink -f /usr/bin/mpsgate-runtime)" "$(readlink -f "$(command -v runc)")"
  try_docker exec dock true
  try_docker rm -f dock
  rm /usr/bin/mpsgate-runtime
  assert_equal "left" "$(files_now | diff /root/seen - | grep '^>')" ""
}

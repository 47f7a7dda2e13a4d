#!/usr/bin/env bats
# The red team: tests/e2e/escape, from inside real containers that hold a grant, tries every way to
# the control daemon, the socket, the ledger, other cards and the host. What it says is compared
# with what stood before, from outside: a neighbour, the daemons, limits, ledger, files.

load suite

# What Docker 20.10 gives root: no more and no less.
DOCKER_CAPS='["CHOWN","DAC_OVERRIDE","FSETID","FOWNER","MKNOD","NET_RAW","SETGID","SETUID","SETFCAP","SETPCAP",
  "NET_BIND_SERVICE","SYS_CHROOT","KILL","AUDIT_WRITE"] | map("CAP_" + .)'

SETTINGS="s|^control = .*|control = \"$MG/control/nvidia-cuda-mps-control\"|"

setup_file() {
  # A container with all capabilities would write its rules into the root of the host's hierarchy.
  [[ ${MG_UNIFIED:-0} != 1 ]] || { echo "not with MG_UNIFIED=1: the host's own device rules would change" >&2; return 1; }
  [[ -x $MG_OUT/fakes/escape-try ]] || { echo "no $MG_OUT/fakes/escape-try: make build" >&2; return 1; }
  rootfs "$MG/rootfs"
  local applet
  for applet in chmod chown cp find ln mv sed tail timeout touch; do ln -sf busybox "$MG/rootfs/bin/$applet"; done
  rootfs_program "$MG/rootfs" "$(control_program)"
  install "$MG_OUT/fakes/escape-try" "$MG/rootfs/escape-try"
  install "$BATS_TEST_DIRNAME/escape" "$MG/rootfs/escape"
  # A copy, beside which a test can put a server program: Debian's package has none, the fake has
  # its own.
  mkdir -p "$MG/control"
  cp "$(dirname "$(control_program)")"/nvidia-cuda-mps-* "$MG/control/"
  node_start
}

teardown() {
  explain_failure
  [[ -z ${shared:-} ]] || ipcrm -m "$shared"
  rm -f /dev/mqueue/escape
  delete_all
  without_sleeping_server
  assert_free
}

control_pid() { card "$1" .mps.pid; }
descriptors() { find "/proc/$(control_pid "$1")/fd" -mindepth 1 | wc -l; }

# all_caps: every capability that this machine's root has, as linux/capability.h numbers them.
all_caps() {
  jq -nc --argjson bounding "$((0x$(sed -n 's/^CapBnd:\t//p' /proc/self/status)))" '
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
     NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN
     SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE
     MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE" | [scan("[A-Z_]+")] | to_entries
    | map(select((($bounding / pow(2; .key)) | floor) % 2 == 1) | "CAP_" + .value)'
}

# What must not change, whatever a container tries: the control daemons, mpsgated, limits, grants,
# files.
node_facts() {
  cat "$MG/mpsgated.pid"
  status_json | jq -S '{grants: [.grants[] | {container_id, memory_mib, card, pid, state}],
    cards: [.cards[] | {uuid, managed, granted_mib, free_mib, compute_mode, daemon: .mps.pid, limit: .mps.default_limit_mib}]}'
  find /run/mpsgate /etc/mpsgate /var/lib/mpsgate /usr/bin/mpsgate* -printf '%p %y %i %m %U %s\n' |
    grep -vE '/log/|ledger.json|node.json|holders.json|mpsgate/mps/[0-9]+/pipe ' | sort
  stat -c '%n %F %a %u' /run/mpsgate/holders.json
  sha256sum /usr/bin/mpsgate-hook /usr/bin/mpsgate-runtime "$(readlink -f /run/mpsgate/runtime)" /etc/mpsgate/config.toml
  cat /proc/sys/kernel/core_pattern
}

# sleeping_server: NVIDIA's server needs a GPU. One that only sleeps shows whether a container
# starts one. The fake's own runs already.
sleeping_server() {
  [[ -n ${MG_MPS_CONTROL:-} ]] || return 0
  printf '#!/bin/sh\nexec sleep 600\n' >"$MG/control/nvidia-cuda-mps-server"
  chmod +x "$MG/control/nvidia-cuda-mps-server"
}

# without_sleeping_server: it takes no limit, so its card would take no grant either.
without_sleeping_server() {
  [[ -n ${MG_MPS_CONTROL:-} && -e $MG/control/nvidia-cuda-mps-server ]] || return 0
  rm -f "$MG/control/nvidia-cuda-mps-server"
  mpsgate mps restart 0 --yes >/dev/null
  wait_for 30 "the card is ready" card_is ready 0
}

# exec_caps JQ: options of exec that add these capabilities, as `docker exec --privileged` adds all.
exec_caps() { jq -nr "$1 | .[]" | sed 's/^/--cap=/'; }

# red_team ID CAPS EXEC_CAPS [OPTION...]: the script in a container with these capabilities and
# Docker's --ipc=host mounts, exec'd with more, beside a neighbour on the same card; its table is
# $stdout.
red_team() {
  local id=$1 caps=$2 more before segment key pid
  mapfile -t more < <(exec_caps "$3")
  shift 3
  granted neighbour 2Gi --ann mpsgate.io/gpu=0
  # It asks for the node's processes as well, and gets its own.
  granted "$id" 1Gi --ann mpsgate.io/gpu=0 --jq ".process.capabilities |= map_values($caps)
    | .linux.namespaces |= map(select(.type != \"pid\"))
    | (.mounts[] | select(.destination == \"/proc\")) |= {destination: \"/proc\", type: \"bind\", source: \"/proc\", options: [\"rbind\"]}
    | (.mounts[] | select(.destination == \"/dev/shm\")) |= {destination: \"/dev/shm\", type: \"bind\", source: \"/dev/shm\", options: [\"rbind\", \"rw\"]}"
  key=$((RANDOM + 70000))
  segment=$(ipcmk -M 4096 -p 0600 | grep -oE '[0-9]+$')
  shared=$segment
  sleeping_server
  key=$(awk -v id="$segment" '$2 == id { print $1 }' /proc/sysvipc/shm)
  : >/dev/mqueue/escape
  wait_for 10 "mpsgated has looked at its cards" test -e /run/mpsgate/holders.json
  before=$(node_facts)
  # A runtime that enters while the team watches.
  (while [[ ! -e $MG/watched ]]; do oci exec "$id" true; done) >/dev/null 2>&1 3>&- &
  pid=$!
  try any "$RUNTIME" --root "$RUNC_ROOT" exec "${more[@]}" "$id" sh /escape --others 1 \
    --pids "$(cat "$MG/mpsgated.pid") $(mps_pids | tr '\n' ' ')" --sysv "$key" --queue /escape --watch 4 "$@"
  touch "$MG/watched"
  wait "$pid" || true
  rm "$MG/watched"
  echo "$stdout"
  report "$id" "$stdout"
  assert_equal "surprises" "$(grep SURPRISE <<<"$stdout")" ""
  assert_equal "exit status ($stderr)" "$status" 0
  assert_equal "the node afterwards" "$(node_facts)" "$before"
  assert_equal "the neighbour" "$(state_of neighbour)" running
}

# report ID TABLE: added as a page's section to $MG_ESCAPE_REPORT, if there is to be one. Without
# what differs each time.
report() {
  [[ -n ${MG_ESCAPE_REPORT:-} ]] || return 0
  {
    printf '\n## %s\n\n' "$BATS_TEST_DESCRIPTION"
    sed -E 's/`//g; s/\b(pid|pids) [0-9]+/\1 N/g; s|/proc/[0-9]+|/proc/N|g; s/\b[0-9]{3,}( of the host)/N\1/g; s/took it \(([^)]*)\)/took it/; s/^# /\n/
      /^\n/!s/^(.*)$/| \1 |/; s/^(\| attempt .*)$/\1\n|---|---|---|---|/' <<<"$2"
  } >>"$MG_ESCAPE_REPORT"
}

# lines PATTERN: how many lines of the table match.
lines() { grep -cE "$1" <<<"$stdout" || true; }

has_at_most() { (($(descriptors 0) <= $1)); } # DESCRIPTORS

@test "root with Docker's capabilities gets nowhere that SECURITY.md does not name" {
  red_team red "$DOCKER_CAPS" '[]'
  (($(lines '^(query|set|quit|start a server|terminate|shut).*\| blocked: ') == 11)) || fail "not all commands were tried"
  (($(lines '\| ok$') > 60)) || fail "only $(lines '\| ok$') attempts were stopped"
  assert_equal "ways of CAP_SYS_ADMIN" "$(lines 'SECURITY.md 23')" 0
}

@test "with all capabilities by exec, the device rules and the daemons still hold, and nothing that it says costs the control daemon anything" {
  local before
  before=$(descriptors 0)
  red_team red "$DOCKER_CAPS" "$(all_caps)"
  (($(lines '\| ok$') > 50)) || fail "only $(lines '\| ok$') attempts were stopped"
  (($(lines 'SECURITY.md 23') > 0)) || fail "CAP_SYS_ADMIN opened nothing: is it there?"
  wait_for 10 "the daemon has no descriptor more than $before" has_at_most "$before"
}

@test "a surprise fails: told that its own card is another's, the script finds it open" {
  granted red 1Gi --ann mpsgate.io/gpu=0 --jq ".process.capabilities |= map_values($DOCKER_CAPS)"
  try_oci 0 exec red sh /escape --others 1 --watch 0
  try_oci 1 exec red sh /escape --others 0 --watch 0
  assert_contains "table" "$(grep SURPRISE <<<"$stdout")" "card 195:0 by a node in /tmp | blocked | open: "
}

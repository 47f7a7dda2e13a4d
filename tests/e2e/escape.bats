#!/usr/bin/env bats
# The red team: tests/e2e/escape, from inside real containers that hold a grant, tries every way to
# the control daemon, the socket, the ledger, other cards and the host. What it says is compared
# with what stood before, from outside: a neighbour, the daemons, limits, ledger, files.

load suite

# What Docker 20.10 gives root: no more and no less.
DOCKER_CAPS='["CHOWN","DAC_OVERRIDE","FSETID","FOWNER","MKNOD","NET_RAW","SETGID","SETUID","SETFCAP","SETPCAP",
  "NET_BIND_SERVICE","SYS_CHROOT","KILL","AUDIT_WRITE"] | map("CAP_" + .)'

SETTINGS="s|^control = .*|control = \"$MG/control/nvidia-cuda-mps-control\"\\nchannel = \"control\"|"

setup_file() {
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
  [[ -z ${changed:-} ]] || with_settings
  without_sleeping_server
  assert_free
}

# with_settings [SED SCRIPT]: mpsgated anew, on this file's settings changed by it; teardown goes
# back.
with_settings() {
  daemon_with "$SETTINGS; ${1:-}"
  changed=${1:-}
}

# inside ID ARG...: escape-try in a container, in the background; what it says is in $MG/inside.ID.
inside() { oci exec "$1" /escape-try "${@:2}" >"$MG/inside.$1" 2>&1 3>&- </dev/null & }

killed() { status_json | jq -e --arg id "$1" --arg why "$2" 'any(.actions[]; .container_id == $id and .what == "killed" and (.why | contains($why)))' >/dev/null; }
ended() { [[ $(state_of "$1") == stopped ]]; }
control_pid() { card "$1" .mps.pid; }
descriptors_max() { awk '/^Max open files/ { print $4 - 256 }' "/proc/$(control_pid "$1")/limits"; }
descriptors() { find "/proc/$(control_pid "$1")/fd" -mindepth 1 | wc -l; }

driver() { if [[ $(control_program) == *-535.* ]]; then echo 535; else echo 550; fi; }

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
    grep -vE '/log/|ledger.json|node.json|mpsgate/mps/[0-9]+/(pipe|client)( |/.*\.new)|channel.lock' | sort
  sha256sum /usr/bin/mpsgate-hook /usr/bin/mpsgate-runtime "$(readlink -f /run/mpsgate/runtime)" /etc/mpsgate/config.toml
  cat /proc/sys/kernel/core_pattern
}

# sleeping_server: NVIDIA's server needs a GPU. One that only sleeps shows what its control daemon
# lets be done to it. The fake's own runs already.
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
  granted "$id" 1Gi --ann mpsgate.io/gpu=0 --jq ".process.capabilities |= map_values($caps)
    | (.mounts[] | select(.destination == \"/dev/shm\")) |= {destination: \"/dev/shm\", type: \"bind\", source: \"/dev/shm\", options: [\"rbind\", \"rw\"]}"
  key=$((RANDOM + 70000))
  segment=$(ipcmk -M 4096 -p 0600 | grep -oE '[0-9]+$')
  shared=$segment
  if [[ $* == *--harm* ]]; then sleeping_server; fi
  key=$(awk -v id="$segment" '$2 == id { print $1 }' /proc/sysvipc/shm)
  : >/dev/mqueue/escape
  before=$(node_facts)
  # A runtime that enters while the team watches.
  (while [[ ! -e $MG/watched ]]; do oci exec "$id" true; done) >/dev/null 2>&1 3>&- &
  pid=$!
  try any "$RUNTIME" --root "$RUNC_ROOT" exec "${more[@]}" "$id" sh /escape --control "$(driver)" --others 1 \
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

@test "root with Docker's capabilities gets nowhere that SECURITY.md does not name" {
  red_team red "$DOCKER_CAPS" '[]'
  (($(lines '\| ok$') > 60)) || fail "only $(lines '\| ok$') attempts were stopped"
  assert_equal "ways of CAP_SYS_ADMIN" "$(lines 'SECURITY.md 23')" 0
}

@test "with all capabilities by exec, the device rules and the daemons still hold" {
  red_team red "$DOCKER_CAPS" "$(all_caps)"
  (($(lines '\| ok$') > 50)) || fail "only $(lines '\| ok$') attempts were stopped"
  (($(lines 'SECURITY.md 23') > 0)) || fail "CAP_SYS_ADMIN opened nothing: is it there?"
}

@test "what can hurt a neighbour is what SECURITY.md says, and no more" {
  red_team red "$DOCKER_CAPS" '[]' --harm
  assert_contains "quit" "$(grep '^quit ' <<<"$stdout")" "| ok"
  assert_contains "shutdown_server" "$(grep '^shut the card' <<<"$stdout")" "open, documented (SECURITY.md 21)"
}

@test "behind the gate no command reaches the control daemon, and nothing that a container says costs it anything" {
  local before
  with_settings 's|^channel = .*|channel = "gate"|M'
  before=$(descriptors 0)
  red_team red "$DOCKER_CAPS" "$(all_caps)" --gate --harm
  assert_equal "commands that reached it" "$(lines 'the daemon answered')" 0
  (($(lines '^(query|set|quit|start a server|terminate|shut).*\| blocked: ') >= 9)) || fail "not all commands were tried"
  wait_for 10 "the daemon has no descriptor more than $before" has_at_most "$before"
}

has_at_most() { (($(descriptors 0) <= $1)); } # DESCRIPTORS

@test "a surprise fails: told that its own card is another's, the script finds it open" {
  granted red 1Gi --ann mpsgate.io/gpu=0 --jq ".process.capabilities |= map_values($DOCKER_CAPS)"
  try_oci 0 exec red sh /escape --control "$(driver)" --others 1 --watch 0
  try_oci 1 exec red sh /escape --control "$(driver)" --others 0 --watch 0
  assert_contains "table" "$(grep SURPRISE <<<"$stdout")" "card 195:0 by a node in /tmp | blocked | open: "
}

@test "a line that a container writes into the daemon's log kills nobody, blocks no card and blames nobody" {
  local victim card i
  with_settings 's|^channel = .*|channel = "linked"|M'
  granted victim 2Gi --ann mpsgate.io/gpu=1
  granted liar 1Gi --ann mpsgate.io/gpu=0
  granted neighbour 1Gi --ann mpsgate.io/gpu=0
  # Only now: mpsgated would wait for this one to serve.
  sleeping_server
  echo "start_server -uid 0" | CUDA_MPS_PIPE_DIRECTORY=/run/mpsgate/mps/0/pipe "$MG/control/nvidia-cuda-mps-control"
  victim=$(grant victim .pid)
  for pid in "$victim" "$(grant neighbour .pid)" "$(grant liar .pid)" 1 "$(cat "$MG/mpsgated.pid")"; do
    for line in "NEW CLIENT $pid from user 1234: Server is not ready, push client to pending list" \
      "NEW CLIENT $pid from user 0: Server is not ready, push client to pending list"; do
      try_oci 0 exec liar /escape-try record /run/mpsgate/mps/log 0 "$(control_pid 0)" "$line"
      # The fake has nobody who reads its FIFO.
      [[ $stdout == open:* || -z ${MG_MPS_CONTROL:-} ]] || fail "the FIFO took no record: $stdout"
    done
    try_oci 0 exec liar /escape-try record /run/mpsgate/mps/log 1 999 "Client {PID: $pid, Context: 1} encountered a fatal GPU error."
  done
  for line in "Server encountered a fatal exception. Shutting down" "Server is handling a fatal GPU error."; do
    try_oci 0 exec liar /escape-try record /run/mpsgate/mps/log 1 "$victim" "$line"
  done
  for line in "Server $victim exited with status 1" "Cmd:shutdown_server $victim -f"; do
    try_oci 0 exec liar /escape-try record /run/mpsgate/mps/log 0 "$(control_pid 0)" "$line"
  done
  [[ -z ${MG_MPS_CONTROL:-} ]] || assert_contains "the log" "$(cat /run/mpsgate/mps/0/log/control.log)" "NEW CLIENT $victim from user 1234"
  # Nothing may happen, for longer than it took to be killed for it.
  for i in {1..14}; do
    for card in 0 1; do assert_equal "card $card" "$(card "$card" .state)" ready; done
    sleep 1
  done
  assert_equal "actions" "$(status_json | jq -c .actions)" "[]"
  for id in victim neighbour liar; do assert_equal "$id" "$(state_of "$id")" running; done
  delete liar
  granted after 1Gi --ann mpsgate.io/gpu=0
  # By default it is not shown at all.
  delete_all
  with_settings
  without_sleeping_server
  try 0 mpsgate mps restart 0 --yes
  wait_for 30 "the card is ready" card_is ready 0
  assert_equal "the client directory" "$(ls /run/mpsgate/mps/0/client)" control
}

@test "a channel that is held is freed, wherever the holder has put it, and the card takes new grants" {
  local how
  granted neighbour 1Gi --ann mpsgate.io/gpu=0
  for how in plain flight thread; do
    granted "holder-$how" 1Gi --ann mpsgate.io/gpu=0
    inside "holder-$how" hide /run/mpsgate/mps/control "$how" 100
    wait_for 30 "the holder ($how) is ended" ended "holder-$how"
    wait_for 15 "it is said" killed "holder-$how" "held the MPS channel"
    wait_for 15 "the card is ready" card_is ready 0
    granted "after-$how" 1Gi --ann mpsgate.io/gpu=0
    delete "after-$how"
    assert_equal "the neighbour" "$(state_of neighbour)" running
  done
}

@test "a held channel whose maker has ended is cut, and nobody is ended for it" {
  granted neighbour 1Gi --ann mpsgate.io/gpu=0
  granted holder 1Gi --ann mpsgate.io/gpu=0
  inside holder hide /run/mpsgate/mps/control orphan 100
  wait_for 15 "the channel is held" card_is_not ready 0
  wait_for 30 "the card is ready again" card_is ready 0
  granted after 1Gi --ann mpsgate.io/gpu=0
  for id in holder neighbour; do assert_equal "$id" "$(state_of "$id")" running; done
  assert_contains "what was done" "$(status_json | jq -r '.actions[-1] | "\(.what) \(.container_id) \(.why)"')" "reported null" "it was cut"
}

@test "with enforce = report a held channel is cut, and its holder goes on" {
  with_settings '$a [policy]\nenforce = "report"'
  granted holder 1Gi --ann mpsgate.io/gpu=0
  inside holder hide /run/mpsgate/mps/control flight 100
  wait_for 15 "the channel is held" card_is_not ready 0
  wait_for 30 "the card is ready again" card_is ready 0
  assert_equal "the holder" "$(state_of holder)" running
  granted after 1Gi --ann mpsgate.io/gpu=0
}

@test "who floods the daemon with words that it does not know is ended, and its neighbour lives" {
  local each
  for each in '' each; do
    granted neighbour 1Gi --ann mpsgate.io/gpu=0
    granted flooder 1Gi --ann mpsgate.io/gpu=0
    # What is allowed, beside it.
    try_oci 0 exec neighbour /escape-try words /run/mpsgate/mps/control 7 100
    assert_contains "100 words" "$stdout" "open: the daemon took 100"
    inside flooder words /run/mpsgate/mps/control 7 100000 ${each:+"$each"}
    wait_for 60 "the flooder is ended" ended flooder
    wait_for 15 "it is said" killed flooder "descriptors"
    assert_equal "the neighbour" "$(state_of neighbour)" running
    # How far it comes is the machine's load's; the daemon must have some left, and serve, as the
    # next lines see.
    (($(descriptors 0) < $(descriptors_max 0))) || fail "$(descriptors 0) descriptors are open"
    wait_for 15 "the card is ready" card_is ready 0
    try_oci 0 exec neighbour sh -c "$MPS_ASKS" x get_default_active_thread_percentage
    assert_contains "the daemon answers" "$stdout" "100.0"
    granted after 1Gi --ann mpsgate.io/gpu=0
    delete_all
    try 0 mpsgate mps restart 0 --yes
    wait_for 30 "the card is ready" card_is ready 0
  done
}

@test "at half of the descriptors a restart is asked for" {
  granted web 1Gi --ann mpsgate.io/gpu=0
  prlimit --pid "$(control_pid 0)" --nofile=256:256
  try_oci 0 exec web /escape-try words /run/mpsgate/mps/control 255 120
  says_restart() { mpsgate status | grep -q "GPU 0: restart needed: its MPS control daemon has 1[0-9]* of 256 descriptors open"; }
  wait_for 15 "status says so" says_restart
  assert_contains "the log" "$(cat "$MG/log/mpsgated.log")" "restart needed"
  try any mpsgate doctor
  assert_contains "doctor" "$stdout" "restart needed"
  assert_equal "who did it" "$(state_of web)" running
  delete web
  try 0 mpsgate mps restart 0 --yes
  wait_for 30 "the card is ready" card_is ready 0
  if says_restart; then fail "status still says so"; fi
}

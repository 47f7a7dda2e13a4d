#!/usr/bin/env bats
# The red team in a plain process: what users of run.group try from inside mpsgate run, and other
# users of the node from outside. Each attempt is a row: closed, for the reason that is looked for,
# or open, and then SECURITY.md says so. With MG_ESCAPE_REPORT=FILE the rows are added to that page,
# once.
# also: MG_UNIFIED=1

load process

TRY=$MG/try                            # everybody's folder
DOCUMENTED="Plain processes and the node's users" # the part of SECURITY.md that has what is open
OPEN="open, documented (SECURITY.md, plain processes)"

setup_file() {
  users_node 0 4
  mkdir -m 1777 "$TRY"
  install -m 755 "$MG_OUT/fakes/escape-try" "$BATS_TEST_DIRNAME/process_escape.pl" "$BATS_TEST_DIRNAME/../e2e/door.pl" /usr/bin
  install -m 4755 "$MG_OUT/fakes/escape-try" /usr/bin/setuid-try
  # hers CMD...: in a grant of alice's on card 0. outcome CMD...: what came of it, as escape-try
  # says it.
  program hers 'exec run_as alice --gpu-mem 1Gi --gpu 0 -- "$@"'
  program outcome 'if said=$("$@" 2>&1); then echo "open: it worked"; else echo "blocked: $(echo "$said" | tail -n 1)"; fi'
  # attach: as a client of MPS. ask CALL [PID]: as a user, of mpsgated.
  program attach "exec $MG_OUT/fakes/cuda-client $(client)"
  program ask "exec process_escape.pl ask $USERS \"\$@\""
  # Where the process is: v1's cgroup of devices, or the one of v2.
  program own_cgroup 'sed -n "$(if [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ]; then echo "s|^0::|/sys/fs/cgroup|p"; else echo "s|^[0-9]*:[^:]*devices[^:]*:|/sys/fs/cgroup/devices|p"; fi)" /proc/self/cgroup'
}

setup() { : >"$MG/rows"; }

teardown() {
  local pid
  # Also what has left the process that mpsgate run became.
  for pid in $(members); do kill -KILL "$pid" 2>/dev/null || true; done
  explain_failure
  kill_listed "$MG/strangers"
  node_reset
  wait_for 10 "no cgroup is left" no_cgroups
  cat "$MG/rows" >>"$MG/all-rows"
}

teardown_file() {
  node_stop
  [[ -n ${MG_ESCAPE_REPORT:-} && -z ${MG_UNIFIED:-} ]] || return 0
  {
    heading
    cat "$MG/all-rows"
    printf '\n%s attempts, %s open as documented, %s surprises\n' "$(wc -l <"$MG/all-rows")" "$(grep -c '| open, documented' "$MG/all-rows")" \
      "$(grep -c 'SURPRISE |$' "$MG/all-rows")"
  } >>"$MG_ESCAPE_REPORT"
}

heading() {
  cat <<'PAGE'

## What a plain process can try

Of `tests/hosts/process_escape.bats`: processes of `mpsgate run` ([run.md](run.md)) as an ordinary
user of `run.group`, and other users of the node.

| attempt | expected | seen | verdict |
|---|---|---|---|
PAGE
}

# --- rows -----------------------------------------------------------------------------------------

# row ATTEMPT EXPECTED SEEN VERDICT: with $by, where a test has several users try the same.
row() {
  printf '| %s | %s | %s | %s |\n' "$1${by:-}" "${@:2}" | sed -E 's/`//g; s/\b(pid) [0-9]+/\1 N/g; s|/proc/[0-9]+|/proc/N|g; s/\b([0-9a-f]{16}){1,2}\b/INSTANCE/g' >>"$MG/rows"
  tail -n 1 "$MG/rows"
}
# closed ATTEMPT REASON CMD...: CMD says as its last line what came of it.
closed() {
  local attempt=$1 reason=$2
  shift 2
  try any "$@"
  closed_as "$attempt" "$reason" "$(tail -n 1 <<<"${stdout:-blocked: $stderr}")"
}
closed_as() { # ATTEMPT REASON SEEN
  [[ $3 == blocked:*"$2"* ]] || { row "$1" blocked "$3" SURPRISE; fail "$1" "expected: blocked, and '$2'" "got:      $3"; return 1; }
  row "$1" blocked "$3" ok
}
# open ATTEMPT WORDS CMD...: WORDS are SECURITY.md's of it.
open() {
  local attempt=$1 words=$2
  shift 2
  try any "$@"
  open_as "$attempt" "$words" "$(tail -n 1 <<<"${stdout:-blocked: $stderr}")"
}
open_as() { # ATTEMPT WORDS SEEN
  [[ $3 == open:* ]] || { row "$1" open "$3" SURPRISE; fail "$1" "expected: open" "got:      $3"; return 1; }
  [[ $(security) == *"$2"* ]] || fail "$1 is open, and '$2' is not said in SECURITY.md, \"$DOCUMENTED\""
  row "$1" open "$3" "$OPEN"
}
# security: that part, as one line.
security() { sed -n "/^### $DOCUMENTED/,/^### Pods/p" "$MG_REPO/SECURITY.md" | tr -s '\n ' ' '; }

# refused_as ATTEMPT PART CMD...: mpsgate's sentence, or mpsgated's answer, has PART.
refused_as() {
  local attempt=$1 part=$2
  shift 2
  try any "$@"
  [[ $status != 0 || $stdout == *'"refused"'* ]] || { row "$attempt" blocked "open: $stdout" SURPRISE; fail "$attempt: $stdout"; return 1; }
  assert_contains "$attempt" "$stdout$stderr" "$part"
  row "$attempt" blocked "blocked: $part" ok
}

# --- what they need -------------------------------------------------------------------------------

is_v1() { [[ $(stat -fc %T /sys/fs/cgroup) != cgroup2fs ]]; }
# given USER NAME [OPTION...] -- CMD...: in the background, until it has its grant.
given() {
  local user=$1 name=$2
  shift 2
  stranger run_as "$user" --name "$name" "$@"
  wait_for 20 "$name has its grant" grant_is "$name" active
}
# said: by the last client, as a row has it: WORD is the server's alone.
said() {
  local code=${stdout##* }
  if [[ $code == "$WORD" ]]; then echo "open: a server says $WORD"; else echo "blocked: cuInit says ${code:-nothing: $stderr}"; fi
}
control() { # DIRECTORY COMMAND WHO...: by NVIDIA's front-end; again where the daemon serves another one
  local i
  echo "$2" >"$TRY/command"
  for i in {1..5}; do
    try any "${@:3}" sh -c 'CUDA_MPS_PIPE_DIRECTORY=$1 timeout 10 "$2" <"$3"' x "$1" "$MG/control/nvidia-cuda-mps-control" "$TRY/command"
    [[ $stdout$stderr == *"Cannot send command"* ]] || return 0
    sleep 0.3
  done
}
request() { # NAME [JQ]: a run call of alice's
  jq -nc --arg name "$1" --argjson uid "$(id -u alice)" '{run: {$name, $uid,
    request: {memory: 1024, cards: 1, gpu: null, compute: null, priority: "normal", uid: null, token: null}}} | '"${2:-.}"
}
gate_says() { grep -qhE "client ended container=[a-z]+/$1 .*reason=$2" /run/mpsgate/mps/*/log/gate.log; } # ID REASON
nobody_has() { assert_equal "grants" "$(granted_ids)" "${*:-}"; }

@test "no other card opens, whatever a process asks for, makes or is given" {
  mknod -m 666 "$TRY/other" c 195 1
  ln -s /dev/nvidia1 "$TRY/link"
  closed "another card's node" "Operation not permitted" hers escape-try open rw /dev/nvidia1
  closed "the same as NVIDIA_VISIBLE_DEVICES=all, CUDA_VISIBLE_DEVICES=1" "Operation not permitted" \
    as alice env NVIDIA_VISIBLE_DEVICES=all CUDA_VISIBLE_DEVICES=1 mpsgate run --gpu-mem 1Gi --gpu 0 -- escape-try open rw /dev/nvidia1
  closed "by a link" "Operation not permitted" hers escape-try open rw "$TRY/link"
  closed "by a node that root has left elsewhere" "Operation not permitted" hers escape-try open rw "$TRY/other"
  closed "by a node of its own" "mknod: Operation not permitted" hers escape-try device "$TRY" 195 1
  closed "by a node in a user namespace of its own" "mknod: Operation not permitted" hers escape-try userns device "$TRY" 195 1
  closed "in a user namespace of its own" "open: Operation not permitted" hers escape-try userns open rw /dev/nvidia1
  closed "in a container of its own making (user, mount and pid namespaces)" "Operation not permitted" \
    hers unshare --user --map-root-user --mount --pid --fork outcome sh -c ': <>/dev/nvidia1'
  closed "by a set-user-ID program of root's" "open: Operation not permitted" hers setuid-try open rw /dev/nvidia1
  closed "by a node that such a program makes" "Operation not permitted" hers setuid-try device "$TRY" 195 1
  closed "nvidia-modeset (195:254), as such a program" "Operation not permitted" hers setuid-try device "$TRY" 195 254
  closed "/dev/dri/card0 (226:0), as such a program" "Operation not permitted" hers setuid-try device "$TRY" 226 0
  closed "/dev/vfio/vfio (10:196), as such a program" "Operation not permitted" hers setuid-try device "$TRY" 10 196
  mknod -m 666 "$TRY/fuse" c 10 229
  closed "/dev/fuse (10:229)" "open: Operation not permitted" hers escape-try open rw "$TRY/fuse"
  open "another card, in a process without a grant" "opens the nodes of all GPUs" as carol escape-try open rw /dev/nvidia1
  if as alice sh -c ': <>"$0"' "$TRY/fuse" 2>/dev/null; then
    open "a device that was opened before mpsgate run" "A device that was opened before" as alice sh -c 'exec 9<>"$0" && exec "$@"' "$TRY/fuse" \
      mpsgate run --gpu-mem 1Gi --gpu 0 -- sh -c 'echo "open: descriptor 9 is device $(stat -Lc %t:%T /proc/self/fd/9)"'
    assert_contains "the device" "$stdout" a:e5
  else
    row "a device that was opened before mpsgate run" open "untried: there is no such device here" "not tried"
  fi
}

@test "a process stays in its cgroup, and so do its children" {
  local own above pid
  given alice stays --gpu-mem 1Gi --gpu 0 -- sleep 600
  own=$(cgroup_of "$(grant stays .pid)") above=${own%/*}
  closed "into the cgroup above" "Permission denied" hers outcome sh -c 'echo $$ >"$0/cgroup.procs"' "$above"
  closed "into another grant's cgroup" "Permission denied" hers outcome sh -c 'echo $$ >"$0/cgroup.procs"' "$own"
  closed "a cgroup below its own" "Permission denied" hers outcome sh -c 'mkdir "$(own_cgroup)/below"'
  if is_v1; then
    closed "another rule for its devices" "Permission denied" hers outcome sh -c 'echo a >"$(own_cgroup)/devices.allow"'
    closed "the same by a mount in namespaces of its own" "Permission denied" hers unshare --user --map-root-user --mount --cgroup \
      outcome sh -c 'mkdir -p "$0" && mount -t cgroup -o devices none "$0" && echo a >"$0/devices.allow"' "$TRY/mount"
  else
    closed "out of it by a mount in namespaces of its own" "Permission denied" hers unshare --user --map-root-user --mount --cgroup \
      outcome sh -c 'mkdir -p "$0" && mount -t cgroup2 none "$0" && echo $$ >"$0/cgroup.procs"' "$TRY/mount"
  fi
  # It has ended, and left a daemon.
  given alice forks --gpu-mem 1Gi --gpu 0 -- sh -c 'setsid sh -c "echo \$\$ >$0; exec sleep 600" </dev/null >/dev/null 2>&1 & sleep 600' "$TRY/daemon"
  wait_for 10 "the daemon is there" test -s "$TRY/daemon"
  kill -KILL "$(grant forks .pid)"
  pid=$(<"$TRY/daemon")
  assert_contains "its cgroup" "$(cgroup_of "$pid")" "mpsgate-run-$(grant forks .instance | cut -c1-16)"
  assert_equal "what it holds" "$(grant forks .memory_mib)" 1024
  closed_as "fork and setsid" "" "blocked: the daemon is in the grant's cgroup, and its memory is held"
  uses "$pid" 4000
  wait_for 20 "it is ended" gone "$pid"
  uses
  wait_for 10 "its memory is free" not_granted forks
  closed_as "more memory than the grant, by such a daemon" "" "blocked: it was ended"
  # v2 moves a process only for who may also write to the cgroup above both (cgroups(7)).
  is_v1 || return 0
  # What an administrator may have done.
  mkdir -p "/sys/fs/cgroup/devices$MG_CGROUP/given"
  chown alice "/sys/fs/cgroup/devices$MG_CGROUP/given/cgroup.procs"
  open "into a cgroup of devices that the user was given" "was given a cgroup of the hierarchy of devices" \
    hers sh -c 'echo $$ >"$0/cgroup.procs" && exec escape-try open rw /dev/nvidia1' "/sys/fs/cgroup/devices$MG_CGROUP/given"
}

@test "open, as SECURITY.md says: a systemd of the user's own takes a process out of the grant's cgroup" {
  if [[ ! -d /run/systemd/system ]]; then
    row "out of it by systemd-run --user --scope" open "untried: needs systemd (tests/vm)" "not tried"
    skip "needs systemd"
  fi
  # The node's systemd knows nobody that the sandbox has made, and sees its own /run.
  local user=games home=/run/systemd/mg-user
  usermod --append --groups gpu "$user"
  mkdir -p /run/systemd/system/user@.service.d "$home"
  chown "$user" "$home"
  printf '[Service]\nEnvironment=XDG_RUNTIME_DIR=%s\n' "$home" >/run/systemd/system/user@.service.d/mg.conf
  systemctl daemon-reload
  systemctl start "user@$(id -u "$user").service" || skip "there can be no systemd for a user here"
  open "out of it by systemd-run --user --scope" "takes it out of the grant's cgroup" \
    run_as "$user" --gpu-mem 1Gi --gpu 0 -- env XDG_RUNTIME_DIR="$home" systemd-run --quiet --user --scope -- escape-try open rw /dev/nvidia1
  systemctl stop "user@$(id -u "$user").service"
  rm -rf /run/systemd/system/user@.service.d/mg.conf "$home"
  systemctl daemon-reload
}

@test "mpsgated's sockets and files are root's, and its users' socket gives a user that user's grant alone" {
  local file call bobs key key_json
  for file in mpsgated.sock mps/0/gate.sock hold/hold.sock; do
    closed "a connection to $file" "Permission denied" hers escape-try connect "/run/mpsgate/$file"
  done
  closed "a connection to run.sock, of who is in no group" "Permission denied" as carol escape-try connect "$USERS"
  for file in ledger/ledger.json grants mps/0/log/control.log mps/0/log/gate.log /var/lib/mpsgate/tokens; do
    [[ $file == /* ]] || file=/run/mpsgate/$file
    closed "read $file" "Permission denied" hers escape-try open r "$file"
  done
  for file in /run/mpsgate/node.json /etc/mpsgate/config.toml /usr/bin/mpsgate /usr/bin/mpsgate-gate; do
    closed "write $file" "Permission denied" hers escape-try open w "$file"
  done
  closed "a socket of its own at run.sock's place" "Permission denied" hers outcome sh -c 'mv "$0" "$0.old"' "$USERS"
  # What it may say.
  given bob bobs --gpu-mem 1Gi --gpu 1 -- sleep 600
  bobs=$(grant bobs .instance)
  key=$(jq -nc --arg instance "$bobs" --arg root "$(grant bobs .runtime_root)" '{runtime_root: $root, container_id: "bobs", $instance}')
  for call in '"status"' '"reload"' '{"enable":{"gpu":"0"}}' '{"disable":{"gpu":"0"}}' '{"mps":{"gpu":"0","action":"restart","confirmed":true}}' \
    '{"resize":{"container":"bobs","memory":2048}}' '{"qualify":{"begin":{"gpu":"0"}}}' "{\"release\":{\"key\":$key}}" \
    "{\"terminate\":{\"key\":$key,\"removal\":\"forced\"}}" "{\"activate\":{\"key\":$key,\"pid\":1,\"cgroup\":null,\"grant\":null}}" \
    "{\"reserve\":{\"key\":$key,\"request\":$(request x .run.request),\"uid\":0,\"engine\":\"local\",\"pod\":null,\"for_parent\":false}}" \
    '{"report":{"container_id":"bobs","code":"E_X","action":"refused","sentence":"x"}}'; do
    refused_as "the call $(jq -r 'if type == "string" then . else keys[0] end' <<<"$call") on run.sock" "for nothing else" as alice ask "$call"
  done
  refused_as "a grant for another user" "another user's process" as alice ask "$(request x '.run.uid = 0')"
  refused_as "a grant with a uid, a token, no memory, two cards or 200 percent" "it asks for no memory" as alice ask "$(request x '.run.request.uid = 0')"
  for call in .token='""' .memory=0 .cards=2 .compute=200; do
    refused_as "$call" "it asks for no memory" as alice ask "$(request x ".run.request$call")" >/dev/null
    sed -i '$d' "$MG/rows"
  done
  refused_as "the same from a user namespace of its own" "a pid or user namespace that is not the node's" \
    as alice unshare --user --map-root-user ask "$(request x)"
  refused_as "with a descriptor of bob's process" "sent a descriptor of pid" as alice ask "$(request x)" "$(grant bobs .pid)"
  # Names of grants are no paths.
  for call in ../../../etc/x a/b .. "" $'a\nb' "$(printf 'x%.0s' {1..1025})"; do
    refused_as "a name" "no message of mpsgate" as alice ask "$(request "$call")" >/dev/null
    sed -i '$d' "$MG/rows"
    try 64 run_as alice --gpu-mem 1Gi --name "$call" -- true
  done
  row "names as ../../../etc/x, a/b, .., a line feed, 1025 letters" blocked "blocked: no message of mpsgate" ok
  install -m 700 /bin/true /usr/bin/roots-own
  ln -s /usr/bin/roots-own "$TRY/command-link"
  refused_as "a command that is a link to what only root may execute" "Permission denied" hers "$TRY/command-link"
  nobody_has bob/bobs
  assert_equal "bob's grant" "$(grant bobs '"\(.instance) \(.memory_mib)"')" "$bobs 1024"
}

@test "one process has one grant, however often it asks at once" {
  local i seen
  refused_as "a second grant in the first" "E_CGROUP" hers mpsgate run --gpu-mem 1Gi -- true
  for i in {1..20}; do
    try as alice process_escape.pl twice "$USERS" "$(request first)" "$(request second)"
    seen="blocked: one is refused"
    (($(grep -c '^{"reserved"' <<<"$stdout") < 2)) || seen="open: it has both"
    ((i == 1)) || sed -i '$d' "$MG/rows"
    closed_as "two grants for one process, asked for at once" "" "$seen"
    wait_for 10 "its memory is free" is_free
  done
}

@test "quotas hold in a race, and who floods the socket keeps nobody else from it" {
  local i began
  for i in {1..12}; do stranger run_as alice --gpu-mem 1Gi --name "race-$i" -- sleep 600; done
  wait_for 20 "four have a grant" have_grants 4
  # The others have their answer.
  wait_for 20 "nobody asks any longer" nobody_asks
  assert_equal "grants of hers" "$(status_json | jq '.grants | length')" 4
  closed_as "twelve at once, where four are allowed" "" "blocked: four have a grant"
  stranger as alice sh -c 'exec process_escape.pl hold "$0" 2000 "$1/held" >"$1/holding"' "$USERS" "$TRY"
  wait_for 20 "they are held" test -s "$TRY/holding"
  began=$SECONDS
  try run_as bob --gpu-mem 1Gi -- true
  try mpsgate status
  touch "$TRY/held"
  ((SECONDS - began < 10)) || fail "it took $((SECONDS - began)) s"
  closed_as "2000 idle connections to run.sock" "" "blocked: another user has a grant meanwhile, and root an answer"
}
have_grants() { [[ $(status_json | jq '.grants | length') == "$1" ]]; }
nobody_asks() { ! pgrep -x mpsgate >/dev/null; }

@test "another grant's door serves nobody, and takes no command" {
  gate_needed
  server_says_word
  local door bobs
  given alice one --gpu-mem 1Gi --gpu 0 -- sleep 600
  given bob bobs --gpu-mem 1Gi --gpu 1 -- sleep 600
  # A door has its instance's name.
  door=$card/clients/$(grant one .instance) bobs=${card%/0}/1/clients/$(grant bobs .instance)
  comes() { # ATTEMPT DOOR REASON ID CMD...: as a client
    local attempt=$1 door=$2 reason=$3 id=$4
    shift 4
    try any "$@" env CUDA_MPS_PIPE_DIRECTORY="$door" attach
    assert_equal "cuInit" "${stdout##* }" "$ENDED"
    wait_for 5 "the gate's log" gate_says "$id" "$reason"
    closed_as "$attempt" "" "blocked: cuInit says $ENDED, the gate: reason=$reason"
  }
  comes "another user's door, from a grant" "$bobs" elsewhere bobs hers
  comes "her other grant's door, from a grant" "$door" elsewhere one hers
  comes "her own grant's door, from outside" "$door" elsewhere one as alice
  try any as alice process_escape.pl hand mpsgate run --gpu-mem 1Gi --gpu 0 --name hands --
  assert_equal "what was heard" "$stdout" "heard"
  wait_for 5 "the gate's log" gate_says hands sender
  closed_as "a connection at its door, handed to a process outside" "" "blocked: the connection is ended, the gate: reason=sender"
  closed "the names of processes' doors" "Permission denied" hers outcome ls "$card/clients"
  closed "the names of containers' doors" "Permission denied" hers outcome ls "$card/containers"
  closed "what a door is for" "Permission denied" hers escape-try open r "$door.json"
  closed "a socket of its own in a door" "Permission denied" hers escape-try bind "$door/mine"
  closed "remove a door" "Permission denied" hers outcome rm -f "$door/control"
  closed "close a door (chmod)" "Operation not permitted" hers outcome chmod 000 "$door/control"
  control "$door" get_default_active_thread_percentage as alice
  refute_contains "an answer" "$stdout" 100
  closed_as "a command of MPS through a door" "" "blocked: ${stdout:-no answer}"
  # Whoever knows its name can connect there, and is ended. Everybody reads half of it.
  local pid
  pid=$(grant one .pid)
  assert_contains "what carol reads" "$(as carol cat "/proc/$pid/cgroup")" "mpsgate-run-$(basename "$door" | cut -c1-16)"
  refute_contains "what carol reads" "$(as carol cat "/proc/$pid/cgroup" "/proc/$pid/cmdline" /proc/net/unix | tr '\0' '\n')" "$(basename "$door")"
  closed "the name of another user's door, in its process's environment" "Permission denied" as carol outcome cat "/proc/$pid/environ"
  closed "a connection to a door, by what its cgroup shows" ENOENT as carol escape-try connect "$card/clients/$(basename "$door" | cut -c1-16)/control"
}

@test "without MPS's variables there is no MPS, and the server's limit is the grant's" {
  gate_needed
  server_says_word
  local variables
  try any hers env -u CUDA_MPS_PIPE_DIRECTORY attach
  closed_as "a client without CUDA_MPS_PIPE_DIRECTORY" "cuInit says" "$(said)"
  given alice other --gpu-mem 3Gi --gpu 0 -- sleep 600
  for variables in "-u CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=80G; do
    # shellcheck disable=SC2086 # words
    try any hers env $variables attach
    assert_equal "cuInit" "${stdout##* }" "$WORD"
    wait_for 5 "the server tells the limit" server_limit_is 1G
    closed_as "a client that sets its own limit: $variables" "" "blocked: the server's limit is 1G"
  done
}
server_limit_is() {
  local server
  server=$(mps_asks 0 get_server_list)
  [[ $(mps_asks 0 "get_device_pinned_mem_limit $server 0") == "$1" ]]
}

@test "past the gate there is no way: nothing of the control daemon is on the node for its users" {
  gate_needed
  server_says_word
  local who by command file pid
  pid=$(card 0 .mps.pid)
  given alice served --gpu-mem 2Gi --gpu 0 -- sleep 600
  # shellcheck disable=SC2086 # words
  for who in "as carol" "as alice" hers; do
    case $who in
      "as carol") by=", by who is in no group" ;;
      "as alice") by=", by a user of run.group from outside" ;;
      hers) by=", from a grant" ;;
    esac
    try any $who env CUDA_MPS_PIPE_DIRECTORY="$card/pipe" attach
    closed_as "a client in the daemon's directory" "cuInit says" "$(said)"
    for command in get_default_active_thread_percentage quit "set_default_active_thread_percentage 10"; do
      control "$card/pipe" "$command" $who
      refute_contains "the answer to $command" "$stdout$stderr" 100.0
      closed_as "the command $command" "Cannot find MPS control daemon" "blocked: $stdout$stderr"
    done
    closed "list the daemon's directory" "Permission denied" $who outcome ls "$card/pipe"
    for file in control control_privileged; do
      closed "a connection to $file" "Permission denied" $who escape-try connect "$card/pipe/$file"
      closed "a connection to $file, through the daemon's root directory" "Permission denied" $who escape-try connect "/proc/$pid/root$card/pipe/$file"
    done
    closed "a line in the daemon's log" "Permission denied" $who escape-try record "$card/pipe/log" 0 1 "NEW CLIENT 1 from user 1234: Server is not ready"
    closed "a word that costs it a descriptor" "Permission denied" $who escape-try words "$card/pipe/control" 7 1
    closed "hold its channel" "Permission denied" $who escape-try hold "$card/pipe/control" 1
    for file in daemon.lock pipe/control_lock pipe/nvidia-cuda-mps-control.pid; do
      closed "write $(basename "$file")" "Permission denied" $who escape-try open rw "$card/$file"
    done
  done
  assert_equal "the control daemon" "$(card 0 .mps.pid)" "$pid"
  try any hers attach
  assert_equal "cuInit" "${stdout##* }" "$WORD"
}

@test "no other process can be signalled, traced or looked into but the user's own" {
  gate_needed
  server_says_word
  local name pid server
  given bob bobs --gpu-mem 1Gi --gpu 1 -- sleep 600
  given alice served --gpu-mem 1Gi --gpu 0 -- sleep 600
  try any hers attach
  server=$(pgrep -u alice -x nvidia-cuda-mps)
  for name in "bob's process:$(grant bobs .pid)" "mpsgated:$(<"$MG/mpsgated.pid")" "the control daemon:$(card 0 .mps.pid)" "the gate:$(gate_pid)"; do
    pid=${name##*:} name=${name%:*}
    closed "signal $name" "Operation not permitted" hers escape-try kill "$pid"
    closed "trace $name" "Operation not permitted" hers escape-try ptrace "$pid"
  done
  closed "the root of bob's process" "Permission denied" hers outcome ls "/proc/$(grant bobs .pid)/root/"
  closed "a descriptor of bob's process" "Permission denied" hers outcome ls "/proc/$(grant bobs .pid)/fd/"
  closed "the environment of bob's process" "Permission denied" hers escape-try open r "/proc/$(grant bobs .pid)/environ"
  closed "trace the MPS server of her uid" "Operation not permitted" hers escape-try ptrace "$server"
  closed "signal it, as another user" "Operation not permitted" as bob escape-try kill "$server"
  closed "the control daemon's socket through the server, as its user" "Permission denied" as alice escape-try connect "/proc/$server/root$card/pipe/control"
  open "the same, as its user with gid 0" "through \`/proc\` it walks to the control daemon's sockets" \
    setpriv --reuid alice --regid 0 --clear-groups escape-try connect "/proc/$server/root$card/pipe/control"
  open "the server's memory map, as its user with gid 0" "A process that has the server's uid and gid 0 is more" \
    setpriv --reuid alice --regid 0 --clear-groups escape-try open r "/proc/$server/maps"
  if [[ $(cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null || echo 0) == 0 ]]; then
    open "trace the server, as its user with gid 0" "it traces the server" \
      setpriv --reuid alice --regid 0 --clear-groups escape-try ptrace "$server"
  else
    row "trace the server, as its user with gid 0" open "untried: Yama lets nobody trace here" "not tried"
  fi
  open "signal it, as its user" "It signals the server, and ends its own user's clients with it" hers escape-try kill "$server"
}

@test "what root starts for a user has nothing of root's" {
  try setsid --wait mpsgate run --gpu-mem 1Gi --gpu 0 --user alice -- sh -c 'sed -n "s/^Cap\(Eff\|Prm\|Inh\|Amb\):\t//p" /proc/self/status | sort -u; id -u; id -G'
  assert_equal "capabilities, uid and groups" "${stdout//$'\n'/ }" "0000000000000000 $(id -u alice) $(id -G alice)"
  closed_as "root's capabilities and groups, in what root starts with --user" "" "blocked: it has none"
}

@test "what root starts for a user in a terminal cannot type into root's shell" {
  # TIOCSTI (CVE-2005-4890, CVE-2016-2568): the kernel takes it where dev.tty.legacy_tiocsti is 1,
  # and before 6.2 always.
  mkfifo "$MG/typed"
  exec 8<>"$MG/typed"
  script --quiet --command "sh -i" /dev/null <"$MG/typed" >"$MG/terminal" 2>&1 3>&- 8>&- &
  echo $! >>"$MG/strangers"
  echo "mpsgate run --gpu-mem 1Gi --gpu 0 --user alice -- process_escape.pl terminal 'id -un >$MG/typed-as'; echo \$? >$MG/done" >&8
  wait_for 10 "the command has ended" test -s "$MG/done"
  sleep 1
  echo exit >&8
  exec 8>&-
  local seen
  seen="blocked: $(grep -oE 'could type into this terminal, as root|TIOCSTI: .*' "$MG/terminal" | head -n 1 | grep . || echo "nothing was typed")"
  [[ ! -s $MG/typed-as ]] || seen="open: a command runs as $(<"$MG/typed-as")"
  closed_as "type into root's terminal, in what root starts with --user" "" "$seen"
}

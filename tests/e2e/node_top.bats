#!/usr/bin/env bats
# mpsgate top on a terminal (script(1) gives it one), with a simulated card and real containers.

load suite

CARDS=1

teardown() {
  explain_failure
  if [[ -n ${top:-} ]]; then kill "$top" 2>/dev/null || true; fi
  exec {keys}>&- || true
  node_reset
}

# top_start COLUMNS ROWS: mpsgate top on a terminal of this size, which writes to $MG/screen and
# reads keys.
top_start() {
  rm -f "$MG/screen" "$MG/keys"
  mkfifo "$MG/keys"
  LC_ALL=C.UTF-8 TERM=xterm-256color script -qfec "stty cols $1 rows $2; echo \$\$ >$MG/top.pid; exec mpsgate top --interval 1" \
    "$MG/screen" <"$MG/keys" >/dev/null 2>&1 3>&- &
  top=$!
  exec {keys}>"$MG/keys"
}

counted() { [[ $(grant "$1" .used_mib) == "$2" ]]; } # ID MIB
shows() { grep -qaF -- "$1" "$MG/screen"; }
restored() { tail -c 200 "$MG/screen" | grep -qaF $'\e[?1049l'; }

@test "top shows cards, containers and what they use, and q gives the terminal back" {
  granted web 7Gi
  pid=$(oci state web | jq .pid)
  jq --argjson pid "$pid" '.cards[0].processes = [{pid: $pid, used_mib: 3584, kind: "mps"}]' "$NVML/nvml.json" >"$NVML/next"
  mv "$NVML/next" "$NVML/nvml.json"
  # Before the first picture: of later ones only the cells that change are drawn.
  wait_for 10 "what the device counts" counted web 3584
  top_start 80 24
  wait_for 20 "its first picture" shows "q quit"
  wait_for 10 "the card" shows "Simulated"
  wait_for 10 "the container's use" shows "3.5"
  printf s >&"$keys"
  wait_for 10 "another order" shows "share"
  printf q >&"$keys"
  wait_for 10 "it ends" gone "$top"
  wait "$top" || fail "top ended with $?"
  restored || fail "the terminal stays as top left it"
}

@test "SIGTERM and a daemon that goes away leave a terminal that works" {
  top_start 80 24
  wait_for 20 "its first picture" shows "q quit"
  daemon_stop
  wait_for 20 "what it shows is old" shows "mpsgated is not running"
  kill -TERM "$(<"$MG/top.pid")"
  wait_for 10 "it ends" gone "$top"
  restored || fail "the terminal stays as top left it"
  daemon_start
}

@test "without a terminal, or without mpsgated, top says what to do" {
  try 64 mpsgate top
  assert_contains "stderr" "$stderr" "mpsgate top needs a terminal, and stdout is none" "hint: mpsgate status"
  daemon_stop
  top_start 80 24
  wait_for 10 "it ends" gone "$top"
  shows "mpsgated is not running" || fail "$(<"$MG/screen")"
  # It never took the terminal.
  ! grep -qaF $'\e[?1049h' "$MG/screen" || fail "the screen was taken"
  daemon_start
}

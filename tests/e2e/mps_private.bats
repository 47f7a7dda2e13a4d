#!/usr/bin/env bats
# Nothing of MPS is on the node for its users: no socket, no file, no lock. What root does to the
# place itself closes the card with a reason, and one command opens it again. The real control
# daemon where it can be had; its fake where a server is needed, which takes a GPU.

load mpsgate

PIPE=/run/mpsgate/mps/0/pipe

setup_file() {
  rootfs "$MG/rootfs"
  useradd --home-dir "$MG" --no-create-home carol
  install -m 755 "$(command -v sleep)" /usr/bin/sleeper
  printf '#!/bin/sh\nexec setpriv --reuid carol --regid carol --init-groups -- "$@"\n' >/usr/bin/as_carol
  chmod +x /usr/bin/as_carol
}

setup() { sim_cards; settings; daemon_start; }

teardown() {
  explain_failure
  kill_listed "$MG/strangers"
  node_stop
}

stranger() { # CMD...: until the test ends; its pid is $stranger
  "$@" >/dev/null 2>&1 </dev/null 3>&- &
  stranger=$!
  echo "$stranger" >>"$MG/strangers"
}
another_daemon() { card_is ready 0 && [[ $(card 0 .mps.pid) != "$1" ]]; } # THAN

@test "a user of the node lists, reads, fills and locks nothing of it, and reaches no socket" {
  local file way pid
  pid=$(card 0 .mps.pid)
  # What the control daemon has is there, for root alone.
  [[ -S $(pipe_of 0)/control && -e $(pipe_of 0)/control_lock ]] || fail "the control daemon's files are not in $(pipe_of 0)"
  assert_equal "the place on the node" "$(stat -c '%U %a' "$PIPE") $(ls -A "$PIPE")" "root 700 "
  assert_equal "the daemon's lock" "$(stat -c '%U %a' /run/mpsgate/mps/0/daemon.lock)" "root 600"
  for file in "$PIPE" "$(pipe_of 0)" /run/mpsgate/hold; do
    try fail as_carol ls "$file"
    assert_contains "listing $file" "$stderr" "Permission denied"
  done
  for file in daemon.lock pipe/control_lock pipe/nvidia-cuda-mps-control.pid pipe/control pipe/log log/control.log; do
    for way in '<' '+<' '>>'; do
      # shellcheck disable=SC2016 # perl's
      try 13 as_carol perl -e 'open my $file, $ARGV[0], $ARGV[1] or exit $!{EACCES} ? 13 : 1' "$way" "/run/mpsgate/mps/0/$file"
      # shellcheck disable=SC2016
      try 13 as_carol perl -e 'open my $file, $ARGV[0], $ARGV[1] or exit $!{EACCES} ? 13 : 1' "$way" "/proc/$pid/root/run/mpsgate/mps/0/$file"
    done
  done
  # All that she may write below it, of whatever kind.
  assert_equal "what she may write" "$(as_carol find /run/mpsgate -writable ! -type l 2>/dev/null)" ""
  card_is ready 0
}

@test "a second control daemon of root's is turned away by the launcher" {
  local pid
  pid=$(card 0 .mps.pid)
  try fail mpsgated launch --card 0 -- "$(control_program)" -f
  assert_contains "the launcher" "$stderr" "error: " "hint: "
  assert_equal "the control daemon" "$(card 0 .mps.pid)" "$pid"
  card_is ready 0
  granted g 1Gi --ann mpsgate.io/gpu=0
}

@test "root removes the place of the sockets: the card is closed with a reason, and mps restart opens it" {
  local pid
  pid=$(card 0 .mps.pid)
  # Another mount namespace has it mounted: that keeps nobody from removing it here.
  rmdir "$PIPE"
  wait_for 60 "card 0 is closed" card_is_not ready 0
  assert_contains "the reason" "$(card 0 .state)" /run/mpsgate/mps/0/pipe
  refused x E_GPU_UNHEALTHY --ann mpsgate.io/gpu-mem=1Gi --ann mpsgate.io/gpu=0
  try mpsgate mps restart 0 --yes
  wait_for 60 "card 0 is ready" card_is ready 0
  [[ $(card 0 .mps.pid) != "$pid" ]] || fail "the same control daemon"
  granted g 1Gi --ann mpsgate.io/gpu=0
}

@test "its full tmpfs keeps nobody out, fills nothing of the node's, and goes with its control daemon" {
  local pid before
  pid=$(card 0 .mps.pid) before=$(df --output=used /run | tail -n 1)
  try fail dd if=/dev/zero of="$(pipe_of 0)/fill" bs=1M count=8
  assert_contains "what keeps it small" "$stderr" "No space left on device"
  (($(df --output=used /run | tail -n 1) - before < 1024)) || fail "it lies in /run"
  granted g 1Gi --ann mpsgate.io/gpu=0
  try mpsgate mps ask 0 get_default_active_thread_percentage
  delete g
  try mpsgate mps restart 0 --yes
  wait_for 60 "another control daemon" another_daemon "$pid"
  [[ ! -e $(pipe_of 0)/fill ]] || fail "what filled it is there"
  granted g 1Gi --ann mpsgate.io/gpu=0
}

@test "a user's process that is called like the server keeps no card closed" {
  local pid
  mkdir -m 777 "$MG/carol"
  install -m 755 /usr/bin/sleeper "$MG/carol/nvidia-cuda-mps-server"
  chmod 711 "$MG"
  stranger as_carol env CUDA_MPS_PIPE_DIRECTORY="$PIPE" "$MG/carol/nvidia-cuda-mps-server" 600
  pid=$(card 0 .mps.pid)
  kill -KILL "$pid"
  wait_for 30 "card 0 is ready with another control daemon" another_daemon "$pid"
  granted g 1Gi --ann mpsgate.io/gpu=0
  # Nor is it taken for the server by what it uses.
  uses "$stranger" 9000
  wait_for 20 "it is reported" acted
  assert_equal "actions" "$(actions)" "null reported"
  assert_contains "why" "$(status_json | jq -r '.actions[0].why')" "pid $stranger (nvidia-cuda-mps)" \
    "uses 9000 MiB of the card and is in no container with a grant"
  assert_equal "memory of others and of servers" "$(card 0 '.memory | "\(.others) \(.servers)"')" "$((9000 << 20)) 0"
  card_is ready 0
  granted h 1Gi --ann mpsgate.io/gpu=0
  [[ -d /proc/$stranger ]] || fail "her process was ended"
}

@test "a control daemon of an older mpsgate closes the card, is named and left alone, and mps restart replaces it" {
  daemon_stop
  mps_kill
  rm -f /run/mpsgate/mps/0/daemon.lock
  chmod 711 "$PIPE"
  stranger env CUDA_VISIBLE_DEVICES="$(uuid 0)" CUDA_MPS_PIPE_DIRECTORY="$PIPE" CUDA_MPS_LOG_DIRECTORY=/run/mpsgate/mps/0/log "$(control_program)" -f
  wait_for 10 "it runs" test -S "$PIPE/control"
  sleep 3 # it is no start of this moment
  daemon_start
  wait_for 30 "it is named" says 0 "pid $stranger is a control daemon of card 0 without its lock"
  assert_contains "what to do" "$(card 0 .hint)" "mpsgate mps restart $(card 0 .uuid) --yes"
  refused x E_GPU_UNHEALTHY --ann mpsgate.io/gpu-mem=1Gi --ann mpsgate.io/gpu=0
  [[ -d /proc/$stranger && -S $PIPE/control ]] || fail "it was touched"
  granted other 1Gi --ann mpsgate.io/gpu=1
  try mpsgate mps restart 0 --yes
  wait_for 60 "card 0 is ready" card_is ready 0
  wait_for 10 "the old one has ended" gone "$stranger"
  assert_equal "the place on the node" "$(ls -A "$PIPE")" ""
  granted g 1Gi --ann mpsgate.io/gpu=0
}

@test "mps ask passes on what reads and nothing else, for root alone, also with mpsgated down" {
  local words
  granted g 1Gi --ann mpsgate.io/gpu=0
  try mpsgate mps ask 0 get_server_list
  assert_equal "servers" "$stdout" "$(mps_asks 0 get_server_list)"
  try mpsgate mps ask "$(card 0 .uuid)" get_default_active_thread_percentage
  assert_equal "percentage" "$stdout" "100.0"
  for words in quit "quit -t 5" "start_server -uid 0" "set_default_active_thread_percentage 1"; do
    # shellcheck disable=SC2086  # words of a command
    try 64 mpsgate mps ask 0 $words
    assert_contains "$words" "$stderr" "is no command that only reads" "get_server_list"
  done
  try 64 mpsgate mps ask 0 $'get_server_list\nquit'
  try any setpriv --reuid 1001 --regid 1001 --clear-groups mpsgate mps ask 0 get_server_list
  assert_contains "another user" "$stderr" "Permission denied"
  try any mpsgate mps ask 7 get_server_list
  assert_contains "no such GPU" "$stderr" "this node has no GPU 7"
  daemon_stop
  try mpsgate mps ask 0 get_default_active_thread_percentage
  assert_equal "percentage, without mpsgated" "$stdout" "100.0"
  daemon_start
  delete g
}

@test "with mpsgated down the doctor says whether the control daemons live" {
  local pid
  pid=$(card 0 .mps.pid)
  daemon_stop
  try any mpsgate doctor
  assert_contains "with a control daemon" "$stdout" "control daemon $pid answers"
  kill -KILL "$(holder_pid)" "$pid"
  wait_for 10 "it ends" gone "$pid"
  try any mpsgate doctor
  assert_contains "without" "$stdout" "no control daemon runs"
  daemon_start
}

@test "where systemd runs and has none of mpsgate's units, a process of its own holds the control daemons" {
  daemon_stop
  mps_kill
  mkdir -p /run/systemd/system
  daemon_start
  wait_for 30 "card 0 is ready" card_is ready 0
  rmdir -p /run/systemd/system 2>/dev/null || true
  [[ -n $(holder_pid) ]] || fail "no holder"
  granted g 1Gi --ann mpsgate.io/gpu=0
}

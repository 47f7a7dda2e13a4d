# trouble.bash: what becomes of clients, servers and cards when something breaks: the questions behind
# tests/e2e/70_mps.bats that its double answers by documentation only. Sourced by tests/gpu/run.
# shellcheck shell=bash

# cuda_client: built here, for containers; skipped where there is no compiler.
cuda_client() { cc -O1 -o "$MG/rootfs/usr/bin/cuda-client" "$here/client.c" -ldl; }

client_says() { grep -q "$2" "$MG/out/$1"; } # ID TEXT

# client ID MODE [OPTION...]: a container with 1 GiB whose program is the client.
client() {
  local id=$1 mode=$2
  shift 2
  bundle "$id" --ann mpsgate.io/gpu-mem=1Gi --jq '.process.env += ["LD_LIBRARY_PATH=/lib:/usr/lib:/usr/lib64"]' "$@" \
    --args /usr/bin/cuda-client "$mode"
  create "$id"
  start "$id"
}

sockets_of() { find "/proc/$1/fd" -lname 'socket:*' | wc -l; } # PID
log_since() { tail -n "+$(($1 + 1))" /run/mpsgate/mps/0/log/control.log; } # LINES
log_lines() { wc -l </run/mpsgate/mps/0/log/control.log; }
grant_state_is() { [[ $(grant "$1" .state) == "$2" ]]; }
blocked() { [[ $(card 0 .state) == *"is blocked"* ]]; }
faulted() { [[ $(card 0 .state) == *FAULT* ]]; }
acted() { [[ $(status_json | jq '.actions | length') -gt ${1:-0} ]]; }

trouble() {
  local seen control server before lines
  if ! cuda_client 2>/dev/null; then
    recorded "what becomes of clients when something breaks" "not asked: no C compiler here"
    return
  fi
  granted first 1Gi
  control=$(card 0 .mps.pid) before=$(sockets_of "$control")
  client one hold
  wait_for 30 "a client attaches" client_says one attached
  recorded "does the control daemon keep a connection for each client (sockets before and with one client)?" \
    "$before, $(sockets_of "$control")"
  recorded "what its main thread waits in with a client attached (mpsgated takes poll, select and epoll for rest)" \
    "$(cat "/proc/$control/syscall")"

  server=$(card 0 '.mps.servers[0].pid')
  kill -KILL "$control"
  sleep 5
  recorded "does the server outlive a control daemon that was killed?" "$(ps -o pid,args -p "$server" 2>&1)"
  recorded "what a client of it gets from its next CUDA calls" "$(tail -n 3 "$MG/out/one")"
  answer "its container's grant is broken" broken "$(grant one .state)" "$(holds grant_state_is one broken)"
  recorded "the card meanwhile" "$(card 0 .state)"
  delete one
  delete first
  answer "when its containers have ended the card is ready again" ready "$(card 0 .state)" \
    "$(holds wait_for 60 "card 0 is ready" card_is ready 0)"

  client bad fault
  client good hold
  answer "a fatal fault closes the card" "FAULT" "$(card 0 .state)" "$(holds wait_for 30 "a fault" faulted)"
  recorded "who the card says has caused it" "$(card 0 .state)"
  recorded "what the log says of it (src/mps/src/protocol/log_line.rs looks for a fault and a PID)" \
    "$(grep -aiE 'fault|fatal|sticky|status of client' /run/mpsgate/mps/0/log/control.log | tail -n 12)"
  delete bad
  delete good
  answer "the server recovers when the clients have ended" ready "$(card 0 .state)" \
    "$(holds wait_for 60 "card 0 is ready" card_is ready 0)"

  client served hold
  wait_for 30 "a client attaches" client_says served attached
  lines=$(log_lines)
  client wrong hold --ann mpsgate.io/gpu-uid=0 --jq '.process.user.uid = 65534'
  answer "a client of another uid than its grant's blocks the card" "is blocked" "$(card 0 .state)" \
    "$(holds wait_for 15 "the block" blocked)"
  recorded "what the log says of it" "$(log_since "$lines" | grep -av get_ | tail -n 8)"
  answer "it is ended after 10 s, and its neighbour goes on" "an action; cuCtxSynchronize 0" \
    "$(status_json | jq -c .actions); $(tail -n 1 "$MG/out/served")" \
    "$(holds wait_for 30 "an action" acted 1)"
  answer "the card is ready again" ready "$(card 0 .state)" "$(holds wait_for 30 "card 0 is ready" card_is ready 0)"
  delete wrong
  delete served
}

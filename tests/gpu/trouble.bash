# trouble.bash: what becomes of clients, servers and cards when something breaks or another user
# comes: the questions behind tests/e2e/mps_attacks.bats and mps_adoption.bats that the fake answers
# by documentation only. Sourced by tests/gpu/run.
# shellcheck shell=bash

orphan_wait=10

sockets_of() { find "/proc/$1/fd" -lname 'socket:*' | wc -l; } # PID
grants_now() { status_json | jq -cS '[.grants[] | {container_id, instance, card, memory_mib, pid, state}] | sort_by(.container_id)'; }
mps_now() { card "$gpu" '.mps | [.pid, [.servers[].pid]] | tojson'; }

ask_adoption() {
  local before mps seen
  node_up
  client one 1Gi -- hold
  client two 2Gi -- hold
  wait_for 20 "a client attaches" client_says one attached
  wait_for 20 "a client attaches" client_says two attached
  before=$(grants_now) mps=$(mps_now)
  daemon_stop KILL
  answer lives "$(last_lines one two)" all_go_on one two
  daemon_start
  seen=$(grants_now)
  answer grants "$seen"$'\n'"before: $before" [ "$seen" == "$before" ]
  answer control "$(mps_now), before: $mps" [ "$(mps_now)" == "$mps" ]
  answer goes-on "$(last_lines one two)" all_go_on one two
  client three 1Gi -- hold
  wait_for 20 "it attaches" client_says three attached || true
  answer new "$(last_of three 4)" client_says three attached
  node_down
}

ask_trouble() {
  local server control before bad
  node_up
  gpu_container first 1Gi
  control=$(card "$gpu" .mps.pid) before=$(sockets_of "$control")
  client one 1Gi -- hold
  wait_for 30 "a client attaches" client_says one attached
  recorded connections "$before, $(sockets_of "$control")"
  recorded rests-in "$(cat "/proc/$control/syscall" 2>&1)"

  server=$(card "$gpu" '.mps.servers[0].pid')
  kill -KILL "$control"
  wait_for 20 "the grant is broken" grant_state_is one broken || true
  if gone "$server"; then recorded orphan "no: it has ended with it"; else recorded orphan "yes"; fi
  sleep 2
  recorded orphan-client "$(last_of one 3)"
  answer broken "$(grant one .state)" grant_state_is one broken
  recorded orphan-card "$(card "$gpu" .state)"
  delete one
  delete first
  if wait_for "$orphan_wait" "the server ends" gone "$server" 2>/dev/null; then
    recorded orphan-ends yes
  else
    recorded orphan-ends "no, not within $orphan_wait s"
    kill -KILL "$server"
  fi
  ready_again || true
  answer recovers "$(card "$gpu" .state)" card_is ready "$gpu"

  client good 1Gi -- hold
  wait_for 20 "a client attaches" client_says good attached
  client bad 1Gi -- fault
  wait_for 20 "the kernel is launched" client_says bad cuLaunchKernel || true
  bad=$(pid_of bad)
  as_faulted "$bad"
  wait_for 20 "a fault" card_says FAULT || true
  answer fault "$(card "$gpu" .state)" card_says FAULT
  # It asks the control daemon before it repeats the log's word.
  wait_for 5 "the client is named" card_says "names container bad" || true
  recorded fault-who "$(card "$gpu" .state)"
  recorded fault-log "client pid $bad"$'\n'"$(log_of_control | grep -avE 'Cmd:|set_default|\] [A-Z]+$' | grep -aiE 'fault|fatal|torn down|sticky|status of client' | tail -n 16)"
  recorded fault-neighbour "$(last_of good)"
  delete bad
  delete good
  as_faulted
  ready_again || true
  answer fault-ends "$(card "$gpu" .state)" card_is ready "$gpu"
  node_down
}

# --- another user ---------------------------------------------------------------------------------

ask_users() {
  local lines
  node_up
  client root 1Gi -- hold
  wait_for 20 "a client attaches" client_says root attached
  other_user
  answer auto "$said" served_or_refused
  two_users
  recorded daemon "$(tr '\0' ' ' <"/proc/$(card "$gpu" .mps.pid)/cmdline")"
  node_down

  # Through its door a client of another uid is turned away, and holds nobody up.
  node_up '/^\[mps\]/a multiuser = "off"'
  client root 1Gi -- hold
  wait_for 20 "a client attaches" client_says root attached
  other_user
  answer off "$said" grep -q 'E_UID' <<<"$said"
  client wrong 1Gi --ann mpsgate.io/gpu-uid=0 --jq '.process.user.uid = 65534' -- hold
  wait_for 15 "the client ends" client_says wrong 'cu.* [1-9]' || true
  answer other-uid "$(last_of wrong)" client_says wrong 'cu.* [1-9]'
  answer neighbour "$(last_of root)" goes_on root
  node_down
}

# two_users: where the second is served, both take what they can at once.
two_users() {
  local each=(one 1024 two 1536)
  client one 1Gi -- fill
  client two 1536Mi --jq '.process.user = {uid: 65534, gid: 65534}' -- fill
  wait_for 30 "they take their memory" all_have_filled one two || true
  if [[ $said == *E_UID* ]]; then
    unasked two "one uid is served at a time"
  else
    answer two "granted 1024, got $(filled one); uid 65534: granted 1536, got $(filled two)" all_within "${each[@]}"
  fi
  delete one
  delete two
}
all_have_filled() { local id; for id; do client_says "$id" filled || return 1; done; }

# other_user: a container of uid 65534 asks for memory; what came of it is $said.
other_user() {
  bundle other --ann mpsgate.io/gpu-mem=1Gi "${libraries[@]}" --jq '.process.user = {uid: 65534, gid: 65534}' --args /usr/bin/cuda-client hold
  create any other
  said=$stderr
  if [[ $status == 0 ]]; then
    start other
    wait_for 20 "it attaches" client_says other attached || true
    said=$(<"$MG/out/other")
  fi
}
served_or_refused() { [[ $said == *E_UID* || $said == *attached* ]]; }

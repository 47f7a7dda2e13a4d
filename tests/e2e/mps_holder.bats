#!/usr/bin/env bats
# `mpsgated hold`: the control daemons are another program's than mpsgated's, which has a / of its
# own, as in a pod. mpsgated ends in every way and nothing of MPS does; the holder ends, and the
# node says so and goes on when it is back. The real control daemon where it can be had; its fake
# where a server is needed, which takes a GPU.

# shellcheck disable=SC2030,SC2031 # a test is a subshell, and sets what it reads itself
load mpsgate
load pod

HELD='s/^control = .*/&\nsupervisor = "holder"/'
SETTINGS=$HELD

setup_file() {
  pod_make
  sim_cards
  settings
}

setup() { pod_start; gates_start; daemon_start; }

teardown() {
  explain_failure
  delete_all
  daemon_stop
  gates_stop
  pod_kill
  rm -rf /run/mpsgate /var/lib/mpsgate/*
  settings
}

control_pids() { status_json | jq -c '[.cards[].mps.pid]'; }
parents() { status_json | jq -r '.cards[].mps.pid' | xargs -I{} awk '/^PPid:/ { print $2 }' '/proc/{}/status' | sort -u; }
grants_now() { status_json | jq -cS '[.grants[] | {container_id, instance, card, memory_mib, pid, state}] | sort_by(.container_id)'; }

@test "mpsgated ends by SIGTERM and by SIGKILL: control daemons and grants are as before, and the holder's" {
  local control before how
  assert_equal "parents of the control daemons" "$(parents)" "$(<"$MG/hold.pid")"
  assert_equal "their root" "$(stat -Lc %d:%i "/proc/$(card 0 .mps.pid)/root/")" "$(stat -Lc %d:%i "$POD/")"
  [[ $(stat -Lc %d:%i "$POD/") != "$(stat -Lc %d:%i /)" ]] || fail "the pod has the node's root directory: nothing is shown by this"
  granted a 2Gi
  control=$(control_pids) before=$(grants_now)
  for how in TERM KILL TERM; do
    daemon_stop "$how"
    daemon_start
    assert_equal "control daemons after $how" "$(control_pids)" "$control"
    assert_equal "grants after $how" "$(grants_now)" "$before"
  done
  try mpsgated hold --check
  assert_equal "the holder" "$stdout" "a holder answers; control daemons that it holds: $MG_GPUS"
  granted b 1Gi
}

@test "the pre-flight names the processes that would be terminated with the holder, card by card, and is 0 when nobody would" {
  try mpsgate mps preflight
  assert_contains "with nobody" "$stdout" "GPU 0 ($(uuid 0)): nobody" "GPU 1 ($(uuid 1)): nobody" "No process would be terminated now."
  granted train 2Gi --ann mpsgate.io/gpu=0
  try 1 mpsgate mps preflight
  assert_contains "with one" "$stdout" "GPU 0 ($(uuid 0)): the end of its MPS would end" "train" "2 GiB  active" "GPU 1 ($(uuid 1)): nobody" "kubectl drain"
  try 1 mpsgate mps preflight -o json
  assert_equal "as JSON" "$(jq -c '[.nobody, .cards[0].grants[].container_id]' <<<"$stdout")" '[false,"train"]'
  delete train
  assert_free
  try mpsgate mps preflight
}

@test "a control daemon that dies is started anew by the holder" {
  local before
  before=$(card 0 .mps.pid)
  kill -KILL "$before"
  wait_for 60 "card 0 has another control daemon" another_daemon "$before"
  assert_equal "parents of the control daemons" "$(parents)" "$(<"$MG/hold.pid")"
  assert_contains "log of the holder" "$(<"$MG/log/hold.log")" "card 0: control daemon $before ended, SIGKILL"
}
another_daemon() { card_is ready 0 && [[ $(card 0 .mps.pid) != "$1" ]]; } # PID

@test "the holder's pod is gone: grants are broken, new ones fenced with its reason; it is back, and the cards are ready" {
  granted a 1Gi --ann mpsgate.io/gpu=0
  pod_kill
  wait_for 60 "the card says who is away" says 0 "no holder of MPS control daemons answers at /run/mpsgate/hold/hold.sock"
  wait_for 20 "the grant is broken" grant_is a broken
  refused x E_GPU_UNHEALTHY --ann mpsgate.io/gpu-mem=1Gi --ann mpsgate.io/gpu=0
  try 69 mpsgated hold --check
  assert_contains "the check" "$stderr" 'error: no holder of MPS control daemons answers' 'hint: kubectl get po -A'
  pod_start
  wait_for 120 "card 0 is ready" card_is ready 0
  wait_for 120 "card 1 is ready" card_is ready 1
  granted b 1Gi --ann mpsgate.io/gpu=0
}

@test "SIGTERM, as when its pod is deleted: every control daemon is told to quit, and ends by itself" {
  local pid
  pid=$(<"$MG/hold.pid")
  : >"$MG/log/hold.log"
  kill -TERM "$pid"
  wait_for 20 "the holder ends" gone "$pid"
  assert_equal "processes of MPS" "$(mps_pids)" ""
  assert_contains "log" "$(<"$MG/log/hold.log")" "ends, and $MG_GPUS control daemons with it" "card 0: control daemon" "ended, exit status 0"
  refute_contains "log" "$(<"$MG/log/hold.log")" SIGTERM SIGKILL
  [[ ! -e /run/mpsgate/hold/hold.sock ]] || fail "its socket is left"
}

@test "one that hangs is ended with it all the same, within a pod's grace" {
  local pid begin=$SECONDS
  pid=$(<"$MG/hold.pid")
  kill -STOP "$(card 1 .mps.pid)"
  kill -TERM "$pid"
  wait_for 25 "the holder ends" gone "$pid"
  assert_equal "processes of MPS" "$(mps_pids)" ""
  ((SECONDS - begin < 25))
  assert_contains "log" "$(<"$MG/log/hold.log")" "SIGKILL to control daemon"
}

@test "a second holder is turned away, and so is another user" {
  try 2 mpsgated hold --control "$(control_program)"
  assert_contains "the second" "$stderr" 'error: another holder has /run/mpsgate/hold/lock' 'hint: one holder is enough'
  try 69 setpriv --reuid 65534 --clear-groups mpsgated hold --check
  try mpsgated hold --check
}

@test "a holder in another pid or IPC namespace is not used, and the reason is shown" {
  local kind
  for kind in pid ipc; do
    daemon_stop
    pod_kill
    rm -f /run/mpsgate/hold/hold.sock # what a killed one leaves
    unshare "--$kind" --fork --kill-child mpsgated hold --control "$(control_program)" >>"$MG/log/hold.log" 2>&1 3>&- &
    echo $! >"$MG/hold.pid"
    wait_for 20 "it has a socket" test -S /run/mpsgate/hold/hold.sock
    try 2 mpsgated hold --check
    assert_contains "the check" "$stderr" "is in another $kind namespace" "hostPID: true and hostIPC: true"
    daemon_start
    wait_for 30 "the card says so" says 0 "is in another $kind namespace"
    assert_equal "processes of MPS" "$(mps_pids)" ""
  done
}

@test "a holder for another control program says so" {
  daemon_stop
  pod_kill
  pod_start --control /usr/bin/true
  daemon_start
  wait_for 30 "the card says so" says 0 "it was started with --control /usr/bin/true, and is asked for $(control_program)"
}

@test "auto takes the holder where one answers" {
  daemon_stop
  pod_kill
  rm -rf /run/mpsgate
  settings ''
  pod_start
  daemon_start
  assert_equal "parents of the control daemons" "$(parents)" "$(<"$MG/hold.pid")"
}

# --- the default: mpsgated starts the holder itself -----------------------------------------------

another_holder() { local now; now=$(holder_pid); [[ -n $now && $now != "$1" ]]; } # THAN
gate_of() { pgrep -f "^/usr/bin/mpsgate-gate --card $1 "; } # CARD
another_gate() { local now; now=$(gate_of 0) && [[ $now != "$1" ]]; } # THAN
ready_with() { [[ $(control_pids) == "$1" ]] && card_is ready 0 && card_is ready 1; } # PIDS

@test "by default mpsgated starts a holder; SIGKILL of it, of mpsgated and of both ends no control daemon and no grant" {
  local control before holder gate how
  daemon_stop
  gates_stop
  pod_kill
  rm -rf /run/mpsgate
  settings ''
  daemon_start
  holder=$(holder_pid)
  assert_equal "parents of the control daemons" "$(parents)" "$holder"
  assert_equal "parent of the gate" "$(awk '/^PPid:/ { print $2 }' "/proc/$(gate_of 0)/status")" "$holder"
  assert_equal "its session" "$(ps -o sid= -p "$holder" | tr -d ' ')" "$holder"
  assert_contains "its log" "$(</run/mpsgate/hold/hold.log)" "ready at /run/mpsgate/hold/hold.sock"
  granted a 2Gi --ann mpsgate.io/gpu=0
  control=$(control_pids) before=$(grants_now)
  for how in mpsgated both holder; do
    holder=$(holder_pid) gate=$(gate_of 0)
    [[ $how == mpsgated ]] || kill -KILL "$holder"
    [[ $how == mpsgated ]] || wait_for 10 "the holder ends" gone "$holder"
    [[ $how == holder ]] || daemon_stop KILL
    [[ $how == holder ]] || daemon_start
    wait_for 20 "the same control daemons after SIGKILL of $how" ready_with "$control"
    assert_equal "grants after SIGKILL of $how" "$(grants_now)" "$before"
    assert_equal "the gate after SIGKILL of $how" "$(gate_of 0)" "$gate"
    [[ $how != mpsgated ]] || { assert_equal "the holder after SIGKILL of mpsgated" "$(holder_pid)" "$holder"; continue; }
    # Who needs a holder starts another one: the next gate, and the next control daemon.
    kill -KILL "$gate"
    wait_for 20 "another gate" another_gate "$gate"
    wait_for 10 "another holder" another_holder "$holder"
    holder=$(holder_pid)
    assert_equal "parent of the gate" "$(awk '/^PPid:/ { print $2 }' "/proc/$(gate_of 0)/status")" "$holder"
  done
  granted b 1Gi --ann mpsgate.io/gpu=1
  try mpsgate mps restart 0 --yes
  wait_for 60 "card 0 is ready" card_is ready 0
  assert_equal "parent of the new control daemon" "$(awk '/^PPid:/ { print $2 }' "/proc/$(card 0 .mps.pid)/status")" "$holder"
  delete_all
  daemon_stop
  mps_kill
}

@test "where mps.control changed, a holder that mpsgated started before starts the new program" {
  local other=$MG/other/nvidia-cuda-mps-control
  daemon_stop
  gates_stop
  pod_kill
  rm -rf /run/mpsgate
  settings ''
  daemon_start
  mkdir -p "$MG/other"
  cp "$(control_program)" "$other"
  for card in 0 1; do try mpsgate mps stop "$card" --yes; done
  daemon_stop
  settings "s|^control = .*|control = \"$other\"|"
  daemon_start
  for card in 0 1; do
    try mpsgate mps restart "$card" --yes
    wait_for 60 "card $card is ready" card_is ready "$card"
    assert_equal "its program" "$(readlink "/proc/$(card "$card" .mps.pid)/exe")" "$other"
  done
  daemon_stop
  mps_kill
}

# --- mpsgated in the pod, too ---------------------------------------------------------------------

@test "mpsgated of an image without a runtime links the node's, and reads the node's settings of NVIDIA's toolkit" {
  daemon_stop
  settings 's|^path = .*|path = "runc"|;'"$HELD"
  mkdir -p /etc/nvidia-container-runtime
  printf '%s\n' 'swarm-resource = "DOCKER_RESOURCE_GPU"' '[nvidia-container-runtime.modes.cdi]' \
    'annotation-prefixes = ["cdi.k8s.io/", "example.com/"]' >/etc/nvidia-container-runtime/config.toml
  mount -t tmpfs pod "$POD/etc/nvidia-container-runtime"
  mount --bind /dev/null "$POD/usr/sbin/runc"
  [[ ! -s $POD/usr/sbin/runc && -s /usr/sbin/runc ]] || fail "runc is not hidden from the pod alone"
  rm -f /run/mpsgate/runtime
  mpsgated() { exec chroot "$POD" /usr/bin/mpsgated "$@"; } # in the background
  daemon_start
  assert_equal "the link" "$(readlink /run/mpsgate/runtime)" /usr/sbin/runc
  assert_equal "swarm-resource" "$(jq -c .swarm_resources /run/mpsgate/node.json)" '["DOCKER_RESOURCE_GPU"]'
  assert_equal "annotation-prefixes" "$(jq -c .annotation_prefixes /run/mpsgate/node.json)" '["cdi.k8s.io/","example.com/"]'
  granted a 1Gi
  umount "$POD/usr/sbin/runc" "$POD/etc/nvidia-container-runtime"
}

# --- with the fake: a server ----------------------------------------------------------------------

@test "a server that outlives its control daemon is seen although its root directory is the pod's" {
  local server double=$MG_OUT/fakes/nvidia-cuda-mps-control
  daemon_stop
  pod_kill
  settings "s|^control = .*|control = \"$double\"|; $HELD"
  pod_start --control "$double"
  daemon_start
  granted g 1Gi --ann mpsgate.io/gpu=0
  server=$(card 0 '.mps.servers[0].pid')
  kill -KILL "$(card 0 .mps.pid)"
  wait_for 20 "the orphan is named" says 0 "whose server still holds the card for g: pid $server"
  kill -KILL "$server"
  wait_for 60 "card 0 is ready" card_is ready 0
}

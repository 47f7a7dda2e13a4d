# engine.bash: what the cells share. A cell is one engine at one version; its verbs are in
# $MG_ENGINE.bash, the suite is the same for all.
#
# MG_CELL    its name, ending in the version that has to answer: docker-26
# MG_ENGINE  docker, ctr, cri or podman
# MG_LIVE=1  mpsgated and two simulated cards are there already, as units (tests/vm/live.bash)
#
# What an adapter defines; NAME is the test's own name for a container. Those marked [STATUS] run
# through `try`, so that $status, $stdout and $stderr are what the engine's user sees.
#   engine_start, engine_stop      with $MG/rootfs as image bb, $MG_CGROUP as parent of all cgroups
#   engine_version
#   engine_up [STATUS] NAME [OPTION...] -- CMD...    in the background
#   engine_once [STATUS] NAME [OPTION...] -- CMD... to its end and removed; its output, its exit
#   status
#     OPTION: --gpu SIZE (how this engine's user asks for it)  --ipc (the host's)  --ann K=V
#             --env K=V  --device PATH  --mount SOURCE (at /mnt)  --privileged  --uid N
#   engine_exec [STATUS] NAME CMD...
#   engine_halt NAME, engine_again NAME stopped by force; started again (CRI: as a new container of
#   the pod)
#   engine_remove [STATUS] NAME, engine_clear    whatever state; all of them
#   engine_id NAME, engine_pid NAME, engine_spec NAME
#                                  the OCI id, init's pid, the bundle's config.json
#   engine_kill NAME, engine_back  SIGKILL to the engine, and start it anew; NAME is one of its
#                                  containers
#   engine_log                     what it wrote
# And $SETTINGS, a sed script for mpsgate's settings; $SHIM_ENDS: whether the engine ends a
# container whose shim died; $NO_UID: why its user cannot say --uid, where that is so; $EXEC_LIMIT:
# whether what is exec'd has the grant's variables, which the precreate hook cannot give it. $UNDER
# is the runtime: plain (runc) or mpsgate. $IPC_HINT is what the engine's user has to be told for
# host IPC.
# shellcheck shell=bash disable=SC2034 # read by the suite

here=$MG_ENGINES # this folder
# shellcheck source=tests/e2e/mpsgate.bash
source "$here/../e2e/mpsgate.bash"
# Engines put the process that they exec into a file of their TMPDIR. /tmp is also that of other
# sandboxes.
export TMPDIR=$MG/tmp
mkdir -p "$TMPDIR"
UNDER=mpsgate
SHIM_ENDS=yes EXEC_LIMIT=yes
SPEC_NAMES='s/[0-9-]{10}T[0-9:.]+Z/TIME/; s/\b[0-9a-f]{64}\b/ID/g; s/\b[0-9a-f]{12}\b/ID/g; s|/proc/[0-9]+/|/proc/PID/|g'
# shellcheck source=/dev/null
source "$here/$MG_ENGINE.bash"

# want: sets want and rest from ARG..., as `try` takes them.
want() {
  want=0
  if [[ $1 =~ ^([0-9]+|any|fail)$ ]]; then want=$1; shift; fi
  rest=("$@")
}

daemon_runs() { [[ -f $MG/mpsgated.pid ]]; }

# cell_start, cell_stop: node and engine.
cell_start() {
  if [[ ${MG_LIVE:-0} == 1 ]]; then
    live_start
  else
    runtime_below
    node_start
  fi
  [[ -d $MG/rootfs ]] || rootfs "$MG/rootfs"
  engine_start
}
cell_stop() {
  engine_clear
  engine_stop
  if [[ ${MG_LIVE:-0} == 1 ]]; then live_stop; else node_stop; fi
}

# cell_teardown: after each test the node is as before it, whatever the test did.
cell_teardown() {
  explain_failure
  [[ ${BATS_TEST_COMPLETED:-} == 1 ]] || engine_log | tail -15 >&2
  daemon_runs || daemon_start
  engine_clear
  assert_free
}

# shim_of NAME: the process that the engine leaves beside a container: containerd-shim, conmon.
shim_of() { awk '{ print $4 }' "/proc/$(engine_pid "$1")/stat"; }

# own_pids NAME: it asked for the host's PID namespace and has one of its own, as its init, what is
# exec'd into it and its own /proc say.
own_pids() {
  local pid
  pid=$(engine_pid "$1")
  [[ $(readlink "/proc/$pid/ns/pid") != "$(readlink /proc/self/ns/pid)" ]] || fail "it has the host's PID namespace"
  assert_equal "its number inside" "$(sed -n 's/^NSpid:.*\t//p' "/proc/$pid/status")" 1
  engine_exec "$1" sh -c 'cat /proc/1/comm; cat /proc/[0-9]*/comm'
  assert_equal "its first process" "${stdout%%$'\n'*}" sleep
  refute_contains "what it sees" "$stdout" mpsgated bats
}

# kill_init NAME: by SIGKILL, and never our own group, which pid 0 would be.
kill_init() {
  local pid
  pid=$(engine_pid "$1")
  ((pid > 1)) || { fail "$1 does not run: pid '$pid'"; return 1; }
  kill -KILL "$pid"
}

# spec_of NAME: config.json without what differs between two lives of one container. Podman writes
# mounts and env in no certain order, and an empty list of hooks where it has asked a precreate
# hook.
spec_of() { jq -S 'del(.hooks | select(. == {})) | .mounts |= sort_by(.destination) | .process.env |= sort' "$(engine_spec "$1")" | sed -E "$SPEC_NAMES"; }

# init_env NAME VARIABLE: as the kernel has it.
init_env() { environment_of "$(engine_pid "$1")" | sed -n "s/^$2=//p"; }

# exec_limit NAME [TEXT...]: what is exec'd has the limit, and TEXT in its environment.
exec_limit() {
  engine_exec "$1" env
  if [[ $EXEC_LIMIT == yes ]]; then
    assert_contains "environment of exec" "$stdout" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M "${@:2}"
  else
    refute_contains "environment of exec" "$stdout" CUDA_MPS
  fi
}

# refusal CODE NAME OPTION... -- CMD...: the engine's user sees sentence, code and hint; nothing is
# left of it.
refusal() {
  local code=$1
  shift
  engine_once fail "$@"
  assert_contains "what the engine shows" "$stderr" "mpsgate: refused container" "[$code]" "hint: "
}

# control_anew SED: other settings, and control daemons that are started by them.
control_anew() {
  daemon_stop
  mps_kill
  settings "$1"
  daemon_start
}

# engine_client NAME UID: NVIDIA's client library in it is served with $WORD by the tests' own
# server, and its card's control daemon has seen it. Once of some thousand clients was
# not in it, and nobody knows why: one that is not is tried again, and the daemon's log shown.
WORD=4711
engine_client() {
  local log before try
  log=/run/mpsgate/mps/$(grant "$(engine_id "$1")" .card_index)/log/control.log
  for try in 1 2 3; do
    before=$(clients_of "$log" "$2")
    engine_exec any "$1" sh -c "export CUDA_MPS_PIPE_DIRECTORY=$(init_env "$1" CUDA_MPS_PIPE_DIRECTORY); $(libcuda_command /mnt) </dev/null"
    assert_equal "cuInit" "${stdout##* }" "$WORD"
    wait_for 10 "the daemon's log has the client" more_clients "$log" "$2" "$before" && return
    { echo "client $try of user $2 is not in $log:"; tail -n 30 "$log"; } | sed "s/^/# /" >&3
  done
  return 1
}
clients_of() { grep -c "NEW CLIENT .* from user $2:" "$1" || true; } # LOG UID
more_clients() { (($(clients_of "$1" "$2") > $3)); } # LOG UID COUNT

# gigs NAME SIZE: a container that holds that much.
gigs() { engine_up "$1" --ipc --gpu "$2" -- sleep 600; }

granted_pid() { [[ $(grant "$1" '"\(.state) \(.pid)"') == "active $2" ]]; } # ID PID

# devices_as_granted NAME CARD: no driver behind a node, so one that the rules let through says so.
devices_as_granted() {
  engine_exec any "$1" sh -c ": </dev/nvidia$2"
  [[ $status == 0 ]] || assert_contains "opening the granted card" "$stderr" "No such device"
  engine_exec fail "$1" sh -c "busybox mknod /tmp/other c 195 $((1 - $2)) && : </tmp/other"
  assert_contains "opening the other card" "$stderr" "Operation not permitted"
  rm -f "/proc/$(engine_pid "$1")/root/tmp/other"
}

# engine_life NAME: output, exit status, exec, stop, start; with any runtime. Leaves it running.
engine_life() {
  # shellcheck disable=SC2016 # for the container's shell
  engine_once "$1-out" --env SEEN=yes -- sh -c 'echo "out: $SEEN"'
  assert_equal "output" "$stdout" "out: yes"
  engine_once 7 "$1-code" -- sh -c 'exit 7'
  engine_up "$1" -- sleep 600
  local pid
  pid=$(engine_pid "$1")
  # shellcheck disable=SC2016
  engine_exec "$1" sh -c 'echo "exec: $1"' x arg
  assert_equal "output of exec" "$stdout" "exec: arg"
  engine_exec 7 "$1" sh -c 'exit 7'
  engine_halt "$1"
  wait_for 10 "init ends" gone "$pid"
  engine_again "$1"
  [[ $(engine_pid "$1") != "$pid" ]] || fail "the same process after a stop: $pid"
  engine_exec "$1" true
}

# run_words OPTION... -- CMD...: adds to words what `docker run` and `podman run` take alike. The
# engine's own gpu_words says how it asks for memory.
run_words() {
  while [[ $1 != -- ]]; do
    case $1 in
      --gpu) gpu_words "$2"; shift ;;
      --ipc) words+=(--ipc host) ;;
      --ann) words+=(--annotation "$2"); shift ;;
      --env) words+=(--env "$2"); shift ;;
      --device) words+=(--device "$2"); shift ;;
      --mount) words+=(--volume "$2:/mnt"); shift ;;
      --uid) words+=(--user "$2"); shift ;;
      *) words+=("$1") ;; # the engine's own
    esac
    shift
  done
  shift
  words+=(bb "$@")
}

# The default set-up: a file defines after `load engine.bash` what it does otherwise.
setup_file() { cell_start; }
teardown_file() { cell_stop; }
teardown() { cell_teardown; }

# shellcheck source=tests/engines/live.bash
if [[ ${MG_LIVE:-0} == 1 ]]; then source "$here/live.bash"; fi

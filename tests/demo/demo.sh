#!/usr/bin/env bash
# demo.sh: mpsgate at work, in under a minute: real runc containers, a real MPS control daemon for
# each card, simulated cards where there is no GPU. Runs in a sandbox (tests/env/sandbox.sh) and
# leaves nothing behind. Every step is checked; exit 0 only if all of it is as it says.
#
# MPSGATE_DEMO=real uses this machine's GPUs: they are switched to EXCLUSIVE_PROCESS for the length
# of the demo, and back. MPSGATE_DEMO=simulated never asks.
# MG_MPS_CONTROL=PATH runs this control daemon; empty: the stand-in of the tests.
# The step with Compose needs a Docker (docker.sh), and says so where there is none.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

outside() {
  local answer
  if [[ $EUID != 0 ]]; then
    echo "demo: needs root, for containers and mounts: sudo make demo" >&2
    exit 1
  fi
  MG_REAL_GPU=0
  if [[ -c /dev/nvidiactl && -c /dev/nvidia0 ]] && command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
    echo "This machine has:"
    nvidia-smi -L | sed 's/^/  /'
    if [[ -n $(nvidia-smi --query-compute-apps=pid --format=csv,noheader) ]]; then
      echo "Compute processes use it now, so the demo simulates its cards."
    elif [[ ${MPSGATE_DEMO:-} == real ]]; then
      MG_REAL_GPU=1
    elif [[ -z ${MPSGATE_DEMO:-} && -t 0 ]]; then
      read -rp "Use it (compute mode EXCLUSIVE_PROCESS for a minute)? [y/N] " answer
      [[ $answer != [yY]* ]] || MG_REAL_GPU=1
    fi
    ((MG_REAL_GPU)) || echo "Cards are simulated. MPSGATE_DEMO=real make demo uses the real ones."
  fi
  export MG_REAL_GPU MG_GPUS=2
  [[ -v MG_MPS_CONTROL ]] || MG_MPS_CONTROL=$("$here/../env/mps-control.sh")
  export MG_MPS_CONTROL
  exec "$here/../env/sandbox.sh" "$0" --inside
}

# --- inside the sandbox ---------------------------------------------------------------------------

title() { printf '\n%s%s%s\n' "$bold" "$1" "$plain"; }
ran() { printf '  %s$ %s%s\n' "$dim" "$*" "$plain"; }            # on the node
ran_in() { printf '  %s%s# %s%s\n' "$dim" "$1" "$2" "$plain"; } # CONTAINER COMMAND, as root in it
seen() {
  local line
  while IFS= read -r line; do printf '  %s %s\n' "$bar" "$line"; done <<<"${1%$'\n'}"
}
good() { printf '  %s✓%s %s\n' "$green" "$plain" "$1"; }

cleanup() {
  dockerd_end || true
  delete_all
  if ((MG_REAL_GPU)); then
    # Compute mode back, control daemons ended: the host's own PID namespace outlives us.
    local index
    for index in $(status_json | jq -r '.cards[] | select(.managed) | .index'); do mpsgate disable "$index" >/dev/null || true; done
  fi
  daemon_stop || true
  mps_kill || true
}

on_error() {
  local rc=$?
  echo "demo: line $1 is not as it should be" >&2
  tail -20 "$MG/log/mpsgated.log" >&2 || true
  exit "$rc"
}

inside() {
  # The helpers are the tests' own; two words of theirs come from bats.
  bats_require_minimum_version() { :; }
  BATS_TEST_TMPDIR=$MG
  # shellcheck source=tests/e2e/mpsgate.bash
  source "$here/../e2e/mpsgate.bash"
  # shellcheck source=tests/e2e/gate.bash
  source "$here/../e2e/gate.bash"
  BEGUN=$MG/begun
  # shellcheck source=tests/demo/compose.bash
  source "$here/compose.bash"
  bold="" dim="" green="" plain="" bar="|"
  if [[ -t 1 && -z ${NO_COLOR:-} ]]; then
    bold=$'\e[1m' dim=$'\e[2m' green=$'\e[32m' plain=$'\e[0m' bar=$'\e[36m│\e[0m'
  fi
  set -E
  trap 'on_error $LINENO' ERR
  trap cleanup EXIT

  printf '%s\n' "Containers share a GPU under MPS, each with the memory that it was given, and reach it no other way."
  title "The node"
  if ((MG_REAL_GPU)); then
    settings 's/^library.*//'
    echo "  Cards: this machine's own."
  else
    sim_cards 2
    # NVIDIA's server needs a card: in its place is one that says a code of its own to each client.
    gate_files
    if [[ -f $MG/skip ]]; then settings; else settings "$GATE_SETTINGS"; fi
    echo "  Cards: SIMULATED, two of 16 GiB. Not shown: a CUDA program that computes, and hits its limit."
  fi
  if [[ -n ${MG_MPS_CONTROL:-} ]]; then
    echo "  MPS: NVIDIA's control daemon, one for each card: $MG_MPS_CONTROL"
  else
    echo "  MPS: a stand-in. NVIDIA's nvidia-cuda-mps-control cannot be had here; not shown: its own answers."
  fi
  ((!MG_REAL_GPU)) || rootfs "$MG/rootfs"
  rootfs_program "$MG/rootfs" "$(control_program)"
  local has_libcuda=0
  ((MG_REAL_GPU)) || [[ -f $MG/skip ]] || has_libcuda=1
  daemon_start
  ran mpsgate status
  seen "$(mpsgate status)"

  title "(a) 7 GiB asked for, 7 GiB granted. What the container sees:"
  ran "mpsgate-runtime run a    # a bundle with the annotation mpsgate.io/gpu-mem: 7Gi"
  granted a 7Gi
  in_a "tr '\\0' '\\n' </proc/1/environ | grep -E '^(CUDA|NVIDIA)_'"
  assert_contains "environment" "$stdout" CUDA_MPS_PIPE_DIRECTORY=/ CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M NVIDIA_VISIBLE_DEVICES=GPU-
  # shellcheck disable=SC2016 # for the container's shell
  in_a 'ls $CUDA_MPS_PIPE_DIRECTORY'
  assert_equal "client directory" "$stdout" control
  # shellcheck disable=SC2016
  in_a 'touch $CUDA_MPS_PIPE_DIRECTORY/mine'
  assert_contains "client directory" "$stdout" "Read-only file system"
  in_a 'ls -l /dev | grep nvidia'
  ((MG_REAL_GPU)) || refute_contains "nodes" "$stdout" "nvidia$((1 - $(grant a .card_index)))"
  ran "mpsgate status -o json | jq .cards[$(grant a .card_index)].mps.default_limit_mib"
  seen "$(card "$(grant a .card_index)" .mps.default_limit_mib)"
  assert_equal "limit of the server" "$(card "$(grant a .card_index)" .mps.default_limit_mib)" 7168
  good "7168 MiB in the environment, and the same read back from the card's control daemon"
  if ((has_libcuda)); then
    card=/run/mpsgate/mps/$(grant a .card_index)
    server_says_word
    in_a "cuda-client $LIBCUDA    # cuInit(0) of NVIDIA's own libcuda"
    assert_equal "cuInit" "${stdout##* }" "$WORD"
    ran "grep -o 'client handed over container=a' $card/log/gate.log"
    seen "$(grep -o 'client handed over container=a' "$card/log/gate.log" | tail -n 1)"
    good "NVIDIA's own client library attaches through a's own socket: $WORD is a code that the (stand-in) server alone says"
  fi

  title "(b) From inside, as root, at a's door:"
  card=/run/mpsgate/mps/$(grant a .card_index)
  ran "mpsgate mps ask 0 get_default_active_thread_percentage    # on the node, as root"
  seen "$(mpsgate mps ask 0 get_default_active_thread_percentage)"
  assert_equal "the node's answer" "$(mpsgate mps ask 0 get_default_active_thread_percentage)" 100.0
  local command
  for command in get_default_active_thread_percentage "set_default_active_thread_percentage 10" "set_default_device_pinned_mem_limit 0 15G" quit; do
    in_a "echo $command | timeout 10 nvidia-cuda-mps-control; true"
    refute_contains "an answer to $command" "$stdout" 100 15
  done
  assert_equal "the node's answer" "$(mps_asks 0 get_default_active_thread_percentage)" 100.0
  assert_equal "limit of the server" "$(card "$(grant a .card_index)" .mps.default_limit_mib)" 7168
  ran "grep -o 'client ended.*' $card/log/gate.log"
  seen "$(grep -o 'client ended.*' "$card/log/gate.log" | tail -n 1)"
  good "no command reaches the control daemon: a's socket takes a CUDA client's first words alone"

  title "(c) Without the host's IPC namespace:"
  show_refusal c E_NO_HOST_IPC --ann mpsgate.io/gpu-mem=1Gi --private-ipc

  title "(d) NVIDIA_VISIBLE_DEVICES=all, and nothing asked for:"
  show_refusal d E_VISIBLE_DEVICES --env NVIDIA_VISIBLE_DEVICES=all

  title "(e) More than is left:"
  local index left
  index=$(grant a .card_index)
  left=$(card "$index" .free_mib)
  granted b "${left}Mi" --ann "mpsgate.io/gpu=$index"
  ran "mpsgate-runtime run b    # takes the other $left MiB of the card"
  show_refusal e E_NO_CAPACITY --ann mpsgate.io/gpu-mem=1Gi --ann "mpsgate.io/gpu=$index"
  assert_contains "who holds it" "$stderr" a b

  title "(f) A process that joins later has the limit, too:"
  ran "mpsgate-runtime exec a env | grep ^CUDA_"
  try_oci exec a env
  seen "$(grep -E '^CUDA_' <<<"$stdout")"
  assert_contains "environment of exec" "$stdout" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M
  ran mpsgate status
  seen "$(mpsgate status)"

  title "(g) The containers go, the memory is free:"
  delete a
  delete b
  wait_for 10 "no grant" bash -c '[[ $(mpsgate status -o json | jq ".grants | length") == 0 ]]'
  ran "mpsgate status -o json | jq -c '.grants, (.cards[] | [.index, .free_mib])'"
  seen "$(status_json | jq -c '.grants, (.cards[] | [.index, .free_mib])')"
  good "all of it free again"

  title "(h) A process without a container:"
  local command='env | grep -E "^(CUDA_MPS_P|MPSGATE_GPU)"; exec 2>&1; : </dev/nvidia1'
  ran "mpsgate run --gpu-mem 2Gi --gpu 0 --name plain -- sh -c '$command'"
  try any mpsgate run --gpu-mem 2Gi --gpu 0 --name plain -- sh -c "$command"
  seen "$stdout"
  assert_contains "its environment" "$stdout" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M MPSGATE_GPU_MEM_MIB=2048
  [[ ! -c /dev/nvidia1 ]] || assert_contains "the other card" "$stdout" "Operation not permitted"
  good "the same limit and a socket of its own, in a cgroup that opens no other card"

  title "(i) Services of one compose.yaml, by Docker:"
  compose_step

  local libcuda=libcuda.so.1 asked
  ((MG_REAL_GPU)) || libcuda=$(find "$MG/rootfs/usr/bin" -name libcuda.so.1)
  if ((MG_REAL_GPU || has_libcuda)); then
    title "(j) What holds on this node? It is asked, with its own driver, before anything is promised:"
    ran "mpsgate qualify 0"
    asked=$(mpsgate qualify 0 --library "$libcuda" 2>&1) || true
    seen "$asked"
    assert_contains "a door takes no command" "$asked" "commands   yes"
    ((MG_REAL_GPU)) || assert_contains "without a GPU" "$asked" "attach     unanswered" "no GPU: its client reached the MPS server through its door"
    good "what a node could not show, no grant on it claims: its level says \"not tried on this card\""
  fi
  printf '\nDone in %s s. Containers, daemons and mounts of this demo end with it.\n' "$SECONDS"
}

# in_a COMMAND: as root in container a; $stdout is what it printed, errors included.
in_a() {
  LIMIT=10 try_oci any exec a sh -c "exec 2>&1; $1"
  ran_in a "$1"
  seen "$stdout"
}

# show_refusal ID CODE [BUNDLE OPTION...]
show_refusal() {
  local id=$1 code=$2
  ran "mpsgate-runtime create $id"
  refused "$@"
  seen "$stderr"
  good "refused: $code"
}

case ${1:-} in
  --inside) inside ;;
  '') outside ;;
  *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 64 ;;
esac

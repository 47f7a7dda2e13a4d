#!/usr/bin/env bash
# demo.sh: mpsgate at work, in under a minute: real runc containers, a real MPS control daemon for
# each card, simulated cards where there is no GPU. Runs in a sandbox (tests/env/sandbox.sh) and
# leaves nothing behind. Every step is checked; exit 0 only if all of it is as it says.
#
# MPSGATE_DEMO=real uses this machine's GPUs: they are switched to EXCLUSIVE_PROCESS for the length of
# the demo, and back. MPSGATE_DEMO=simulated never asks.
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
  MG_MPS_CONTROL=$("$here/../env/mps-control.sh")
  export MG_MPS_CONTROL
  exec "$here/../env/sandbox.sh" "$0" --inside
}

# --- inside the sandbox ---------------------------------------------------------------------------

title() { printf '\n%s%s%s\n' "$bold" "$1" "$plain"; }
ran() { printf '  %s$ %s%s\n' "$dim" "$*" "$plain"; }
seen() {
  local line
  while IFS= read -r line; do printf '  %s %s\n' "$bar" "$line"; done <<<"${1%$'\n'}"
}
good() { printf '  %s✓%s %s\n' "$green" "$plain" "$1"; }

cleanup() {
  delete_all
  if ((MG_REAL_GPU)); then
    # Compute mode back, control daemons ended: the host's own PID namespace outlives us.
    local index
    for index in $(status_json | jq -r '.cards[] | select(.managed) | .index'); do mpsgate disable "$index" >/dev/null || true; done
  fi
  daemon_stop || true
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
  # shellcheck source=tests/e2e/helpers.bash
  source "$here/../e2e/helpers.bash"
  # shellcheck source=tests/e2e/mpsgate.bash
  source "$here/../e2e/mpsgate.bash"
  bold="" dim="" green="" plain="" bar="|"
  if [[ -t 1 && -z ${NO_COLOR:-} ]]; then
    bold=$'\e[1m' dim=$'\e[2m' green=$'\e[32m' plain=$'\e[0m' bar=$'\e[36m│\e[0m'
  fi
  set -E
  trap 'on_error $LINENO' ERR
  trap cleanup EXIT

  title "The node"
  if ((MG_REAL_GPU)); then
    settings 's/^library.*//'
    echo "  Cards: this machine's own."
  else
    sim_cards 2
    settings
    echo "  Cards: SIMULATED, two of 16 GiB. Not shown: a CUDA program that hits its limit."
  fi
  if [[ -n ${MG_MPS_CONTROL:-} ]]; then
    echo "  MPS: NVIDIA's control daemon, $MG_MPS_CONTROL"
  else
    echo "  MPS: a stand-in. NVIDIA's nvidia-cuda-mps-control cannot be had here; not shown: its own answers."
  fi
  rootfs "$MG/rootfs"
  rootfs_program "$MG/rootfs" "$(control_program)"
  daemon_start
  ran mpsgate status
  seen "$(mpsgate status)"

  title "(a) 7 GiB asked for, 7 GiB granted. What the container sees:"
  ran "mpsgate-runtime run a    # annotation mpsgate.io/gpu-mem: 7Gi"
  granted a 7Gi
  try_oci exec a sh -c 'grep -z -E "^(CUDA|NVIDIA)_" /proc/1/environ | tr "\0" "\n" | sort'
  seen "$stdout"
  assert_contains "environment" "$stdout" CUDA_MPS_PIPE_DIRECTORY=/ CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M NVIDIA_VISIBLE_DEVICES=GPU-
  try_oci exec a sh -c 'ls -l "$CUDA_MPS_PIPE_DIRECTORY"; touch "$CUDA_MPS_PIPE_DIRECTORY/x" 2>&1 || true'
  seen "$stdout"
  assert_contains "client directory" "$stdout" control log "Read-only file system"
  try_oci exec a sh -c 'ls -l /dev | grep nvidia'
  seen "$stdout"
  ((MG_REAL_GPU)) || refute_contains "nodes" "$stdout" "nvidia$((1 - $(grant a .card_index)))"
  ran "mpsgate status -o json | jq .cards[].mps.default_limit_mib"
  assert_equal "limit of the server" "$(card "$(grant a .card_index)" .mps.default_limit_mib)" 7168
  good "limit, read back from the control daemon: 7168 MiB"

  title "(b) From inside, as root, on the MPS channel:"
  local command
  for command in "get_default_device_pinned_mem_limit 0" "set_default_device_pinned_mem_limit 0 15G" quit "get_default_device_pinned_mem_limit 0"; do
    LIMIT=10 try_oci any exec a sh -c 'echo "$1" | nvidia-cuda-mps-control' x "$command"
    ran "echo $command | nvidia-cuda-mps-control"
    seen "$stdout$stderr"
  done
  assert_contains "limit after all of this" "$stdout" 7G
  good "queries answer; set and quit are refused and change nothing"

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
  ran mpsgate-runtime exec a env
  try_oci exec a env
  seen "$(grep -E '^(CUDA|NVIDIA)_' <<<"$stdout" | sort)"
  assert_contains "environment of exec" "$stdout" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M
  ran mpsgate status
  seen "$(mpsgate status)"

  title "(g) The containers go, the memory is free:"
  delete a
  delete b
  wait_for 10 "no grant" bash -c '[[ $(mpsgate status -o json | jq ".grants | length") == 0 ]]'
  ran mpsgate status
  seen "$(mpsgate status)"
  good "done in $SECONDS s; nothing is left behind"
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

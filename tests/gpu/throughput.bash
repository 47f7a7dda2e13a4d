# throughput.bash: what N clients get done, in mpsgate's containers, under bare MPS, and with
# time-slicing. Sourced by tests/gpu/run. The three ways take turns, round by round, so that a card
# that grows warm is no difference between them.
# shellcheck shell=bash

readonly SECONDS_EACH=${MG_GPU_SECONDS:-2} ROUNDS=${MG_GPU_ROUNDS:-3} BLOCKS=${MG_GPU_BLOCKS:-8} CLIENTS=${MG_GPU_CLIENTS:-1 2 4 8}

ops_of() { sed -n 's/^ops //p' "$@" 2>/dev/null; } # FILE...
# measured MODE CLIENTS ROUND FILE...: their sum; a client that says nothing is no measurement.
measured() {
  local mode=$1 clients=$2 round=$3
  shift 3
  ops_of "$@" | jq -sc --arg mode "$mode" --argjson clients "$clients" --argjson round "$round" \
    'select(length == $clients) | {$mode, $clients, $round, ops: add}' >>"$MG_RESULTS.ops"
}
say_ready() { local file; for file; do grep -q '^ready' "$file" || return 1; done; }
say_ops() { local file; for file; do grep -q '^ops' "$file" || return 1; done; }

# in_containers N ROUND
in_containers() {
  local i outs=()
  for ((i = 1; i <= $1; i++)); do
    client "w$i" 1Gi -- work "$SECONDS_EACH" /tmp/go "$BLOCKS"
    outs+=("$MG/out/w$i")
  done
  if wait_for 30 "the clients are ready" say_ready "${outs[@]}"; then
    for ((i = 1; i <= $1; i++)); do : >"$MG/b/w$i/rootfs/tmp/go"; done
    wait_for 30 "the clients are done" say_ops "${outs[@]}" && measured "mpsgate" "$1" "$2" "${outs[@]}"
  fi
  for ((i = 1; i <= $1; i++)); do delete "w$i"; done
}

# on_the_host MODE N ROUND [VAR=VALUE...]
on_the_host() {
  local mode=$1 clients=$2 round=$3 i outs=() pids=() dir
  shift 3
  dir=$(mktemp -d "$MG/work.XXXX")
  for ((i = 1; i <= clients; i++)); do
    env CUDA_VISIBLE_DEVICES="$uuid" "$@" "$MG_CLIENT" work "$SECONDS_EACH" "$dir/go" "$BLOCKS" >"$dir/$i" 2>&1 3>&- &
    pids+=($!)
    outs+=("$dir/$i")
  done
  if wait_for 30 "the clients are ready" say_ready "${outs[@]}"; then
    : >"$dir/go"
    wait_for 60 "the clients are done" say_ops "${outs[@]}" && measured "$mode" "$clients" "$round" "${outs[@]}"
  fi
  kill -KILL "${pids[@]}" 2>/dev/null || true
  wait "${pids[@]}" 2>/dev/null || true
}

bare_mps() { # ROUND
  local dir=$MG/bare control n
  control=$(control_program)
  rm -rf "$dir"
  mkdir -p "$dir/pipe" "$dir/log"
  local environment=(CUDA_MPS_PIPE_DIRECTORY="$dir/pipe" CUDA_MPS_LOG_DIRECTORY="$dir/log" PATH="$(dirname "$control"):$PATH")
  set_mode Exclusive_Process
  env "${environment[@]}" CUDA_VISIBLE_DEVICES="$uuid" timeout 20 "$control" -d </dev/null >"$dir/said" 2>&1
  env "${environment[@]}" timeout 10 "$control" <<<"start_server -uid 0" >"$dir/said" 2>&1
  # Its clients find the card as number 0.
  for n in $CLIENTS; do on_the_host "bare MPS" "$n" "$1" "${environment[@]}" || true; done
  env "${environment[@]}" timeout 20 "$control" <<<"quit -t 5" >"$dir/said" 2>&1 || true
}

time_slicing() { # ROUND
  local n
  set_mode Default
  for n in $CLIENTS; do on_the_host "time-slicing" "$n" "$1" CUDA_MPS_PIPE_DIRECTORY=/nowhere || true; done
}

ask_throughput() {
  local round n
  : >"$MG_RESULTS.ops"
  for ((round = 1; round <= ROUNDS; round++)); do
    if [[ -z ${MG_NO_CONTAINERS:-} ]]; then
      set_mode "$MG_MODE_BEFORE"
      node_up
      for n in $CLIENTS; do ! card_is ready "$gpu" || in_containers "$n" "$round" || true; done
      node_down
    fi
    bare_mps "$round" || true
    time_slicing "$round" || true
  done
  table
  recorded ratios "$(wc -l <"$MG_RESULTS.ops") measurements: the table under Throughput"
  set_mode "$MG_MODE_BEFORE" || true
  answer restored "$(compute_mode)" [ "$(compute_mode)" == "$MG_MODE_BEFORE" ]
}

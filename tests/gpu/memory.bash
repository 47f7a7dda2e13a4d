# memory.bash: more than the grant: by two processes of a container, and by ways around its limit.
# Sourced by tests/gpu/run.
# shellcheck shell=bash

ask_sum() {
  local seen pid second
  node_up
  client good 1Gi -- hold
  client greedy 2Gi -- take 1500
  wait_for 20 "the first takes its memory" client_says greedy filled
  exec_client greedy second take 1500
  wait_for 20 "the second takes its memory" client_says second filled || true
  answer each "$(last_lines greedy second)" all_filled 1500 greedy second
  pid=$(pid_of greedy) second=$(<"$MG/out/second.pid")
  as_seen "$pid" 1500 "$second" 1500
  wait_for 20 "mpsgated acts" acted || true
  seen=$(actions)
  answer ended "$seen" grep -q '^greedy killed' <<<"$seen"
  seen=$(status_json | jq -c '{clients_terminated, kills_unprepared}')
  answer order "$seen" jq -e '.clients_terminated > 0 and .kills_unprepared == 0' <<<"$seen"
  recorded heard "$(last_of greedy 2)"$'\n'"$(last_of second 2)"
  answer neighbour "$(state_of good), $(last_of good)" goes_on good
  as_seen
  node_down
}

all_filled() { # MIB ID...
  local mib=$1 id
  shift
  for id; do [[ $(filled "$id") == "$mib" ]] || return 1; done
}

ask_around() {
  local seen
  node_up
  gpu_container a 4Gi
  probe_in a -u CUDA_MPS_PINNED_DEVICE_MEM_LIMIT
  answer unset "$(field allocated_mib)" probed '$mib != null and $mib <= 4096'
  probe_in a CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G,9=1G
  recorded invisible "$(field allocated_mib) MiB $stderr"
  beyond

  if of_mode detour; then
    probe_in a CUDA_MPS_PIPE_DIRECTORY=/nowhere
    answer detour "$stdout $stderr" busy
  fi

  LIMIT=20 try_oci any exec a sh -c 'echo set_default_device_pinned_mem_limit 0 64G | nvidia-cuda-mps-control; echo quit | nvidia-cuda-mps-control'
  # The door takes no command, and the daemon hears none.
  answer door "$stdout $stderr" not_administered

  seen=$(private_ipc 2>&1) || true
  recorded private-ipc "$seen"
  node_down
}

# not_administered: neither quit nor a new limit came through.
not_administered() {
  local limit
  limit=$(mps_asks "$gpu" "get_default_device_pinned_mem_limit 0") && [[ -n $limit && $limit != 64G ]]
}

# beyond: a client that drops its limit, and takes what it can, beside a neighbour.
beyond() {
  local begun took
  client calm 1Gi -- hold
  wait_for 20 "a neighbour attaches" client_says calm attached
  bundle wild --ann mpsgate.io/gpu-mem=1Gi "${libraries[@]}" --args env CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024G,9=1024G /usr/bin/cuda-client fill
  create wild
  begun=$(now_ms)
  start wild
  wait_for 20 "it takes its memory" client_says wild filled || true
  took=$(($(now_ms) - begun))
  as_seen "$(pid_of wild)" 16384
  wait_for 20 "mpsgated acts" acted || true
  answer watchdog "$(actions)" grep -q '^wild killed' <<<"$(actions)"
  recorded watchdog-took "filled $(filled wild) MiB $took ms after its start, ended after $(($(now_ms) - begun)) ms; neighbour: $(last_of calm)"
  delete wild
  delete calm
  as_seen
}
now_ms() { echo $(($(date +%s%N) / 1000000)); }

# busy: the last probe could not have the card, and CUDA said that it is unavailable (46, cuda.h).
busy() { [[ $status != 0 && $stderr == *"cu"*"failed"*"(46)"* ]]; }

# A client at a's door, in a cgroup below a's, with an IPC namespace of its own: past mpsgate, by
# runc alone.
private_ipc() {
  mkdir -p "$MG/b/p"
  jq --arg cgroup "$(cgroup_of a)/p" '.linux.namespaces += [{"type": "ipc"}] | del(.hooks) | .linux.cgroupsPath = $cgroup
    | .process.args = ["/usr/bin/mpsgate", "probe"]' "$MG/b/a/config.json" >"$MG/b/p/config.json"
  cp -al "$MG/rootfs" "$MG/b/p/rootfs"
  timeout 40 "$REAL" --root "$MG/private" run --bundle "$MG/b/p" p </dev/null
}

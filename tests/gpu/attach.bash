# attach.bash: the foundation: what the node itself asks, and how the card stands; then two and
# eight at once, and the driver's own limits. Sourced by tests/gpu/run.
# shellcheck shell=bash

# ask_qualify: the answers of `mpsgate qualify`, as every node gives them.
ask_qualify() {
  local name verdict seen
  node_up
  LIMIT=115 try any mpsgate qualify "$gpu" --full --library "$(library libcuda.so.1)" -o json
  for name in $(names_of qualify); do
    [[ $name != detour ]] || of_mode detour || continue
    verdict=$(jq -r --arg name "$name" '.answers[] | select(.question == $name) | .verdict' <<<"$stdout") || true
    seen=$(jq -r --arg name "$name" '.answers[] | select(.question == $name) | [.seen, .evidence] | map(select(. != "")) | join("; ")' <<<"$stdout") || true
    case $verdict-$(question "qualify.$name" 3) in
      yes-evaluated) note "qualify.$name" PASS "$seen" ;;
      no-evaluated) note "qualify.$name" FAIL "$seen" ;;
      yes-recorded | no-recorded) recorded "$name" "$verdict: $seen" ;;
      *) unasked "$name" "${seen:-$stderr}" ;;
    esac
  done
  node_down
}

ask_attach() {
  local seen
  node_up
  seen=$(card "$gpu" .state)
  answer ready "$enabled; $seen" [ "$seen" == ready ]
  ! of_mode mode || answer mode "$(compute_mode)" [ "$(compute_mode)" == Exclusive_Process ]
  gpu_container a 4Gi
  seen=$(card "$gpu" '.mps.servers | tojson')
  answer server "$seen" jq -e 'length == 1' <<<"$seen"
  seen=$(grep -ah "Device pinned memory limit" "/run/mpsgate/mps/$gpu"/log/*.log | tail -1) || true
  answer server-limit "${seen:-no such line}" grep -qi 0x100000000 <<<"$seen"

  probe_in a
  recorded total "$(field total_mib) MiB, $(field free_mib) of it free"

  client held 1Gi -- hold
  wait_for 20 "a client attaches" client_says held attached
  as_seen "$(pid_of held)" 300
  wait_for 10 "the watchdog sees it" has_used held || true
  seen=$(grant held .guarantee)
  answer guarantee "$seen; $(status_json | jq -r --argjson i "$gpu" '.cards[] | select(.index == $i) | .unlimited // ""')" \
    grep -Eqx 'mps\+watchdog|cgroup' <<<"$seen"
  delete held
  as_seen

  LIMIT=40 try any mpsgate run-probe --memory 2Gi --library "$(library libcuda.so.1)"
  answer run-probe "$status: $stdout $stderr" [ "$status" == 0 ]
  node_down
}

# The context is the client's own: 514 MiB on an H200 (580.159.04).
within() { awk '$1 == "" || $1 > $2 || $1 < $2 - 768 { exit 1 }' <<<"$(filled "$1") $2"; } # ID GRANTED
all_within() { while (($#)); do within "$1" "$2" || return 1; shift 2; done; } # ID GRANTED...

# several N: containers f1 to fN that take all they can and keep it; what each got is $seen, for
# `all_within` in $each.
several() {
  local i granted
  each=() seen=
  for ((i = 1; i <= $1; i++)); do
    granted=$((1024 + 128 * i))
    client "f$i" "${granted}Mi" -- fill
    each+=("f$i" "$granted")
  done
  for ((i = 1; i <= $1; i++)); do
    wait_for 30 "f$i takes its memory" client_says "f$i" filled || true
    seen+="granted $((1024 + 128 * i)), got $(filled "f$i")"$'\n'
  done
}

ask_limits() {
  local seen each held=() i sum=0 limit=0 mib figures=''
  node_up
  several 2
  answer two "$seen" all_within "${each[@]}"
  delete f1
  delete f2
  wait_for 20 "the grants end" not_granted f2
  if (($(card "$gpu" '.free_mib // 0') < 13 * 1024)); then
    for i in eight eight-sum eight-alive; do unasked "$i" "the card has not the 12.5 GiB that eight want"; done
  else
    several 8
    answer eight "$seen" all_within "${each[@]}"
    for i in {1..8}; do held+=("$(pid_of "f$i")" "$(filled "f$i")"); done
    as_seen "${held[@]}"
    seen=$(apps)
    for i in {1..8}; do
      mib=$(mib_of_pid "$(pid_of "f$i")" <<<"$seen")
      figures+="f$i: granted $((1024 + 128 * i)), by NVML ${mib:-no figure}"$'\n'
      sum=$((sum + ${mib:-1000000})) limit=$((limit + 1024 + 128 * i + 512))
    done
    answer eight-sum "$figures$sum of $limit MiB" [ "$sum" -le "$limit" ]
    answer eight-alive "$(actions); $(last_lines f{1..8})" quiet_and_going f{1..8}
    for i in {1..8}; do delete "f$i"; done
    as_seen
  fi
  other_kinds
  resized
  driver_limits
  node_down
}

# other_kinds: memory that is not of cuMemAlloc; and whose the card's is.
other_kinds() {
  local how
  for how in create async; do
    client "k-$how" 2Gi -- fill "$how"
    wait_for 30 "it takes its memory" client_says "k-$how" 'filled\|cu[A-Za-z]* [1-9]' || true
    answer "$how" "$(last_of "k-$how")"$'\n'"filled $(filled "k-$how")" within "k-$how" 2048
  done
  as_seen "$(pid_of k-create)" "$(filled k-create)" "$(pid_of k-async)" "$(filled k-async)"
  sleep 3
  seen=$(status_json | jq -c --argjson i "$gpu" '.cards[] | select(.index == $i) | .memory')
  answer parts "$seen" jq -e '(.nobody + .counted_twice) / 1048576 <= 64' <<<"$seen"
  delete k-create
  delete k-async
  as_seen
}

# resized: a grant of 2 GiB that becomes 3, with a client that runs and one that comes.
resized() {
  local said
  client r 2Gi -- fill
  wait_for 30 "it takes its memory" client_says r filled
  said=$(mpsgate resize r 3Gi 2>&1) || true
  exec_client r later fill
  wait_for 30 "the second takes its memory" client_says later filled || true
  answer resized "$said"$'\n'"first $(filled r), second $(filled later)" within later 3072
  recorded resized-runs "$(last_of r)"
  delete r
}

quiet_and_going() { [[ -z $(actions) ]] && all_go_on "$@"; }

# driver_limits: the driver's second backend is asked for by the module's parameter RmMemacctMode,
# and not here.
driver_limits() {
  local cgroup seen
  gpu_container a 4Gi
  if [[ $(grant a .guarantee) != cgroup ]]; then
    seen=$(status_json | jq -r --argjson i "$gpu" '.cards[] | select(.index == $i) | .unlimited // "no reason is known"')
    recorded cgroup "no: $seen"
    unasked cgroup-reads "$seen"
    unasked cgroup-holds "$seen"
    return
  fi
  cgroup=$(grant a .cgroup)
  recorded cgroup "yes; $(cat "$cgroup"/dmem.max 2>&1); $(grep -i memacct /proc/driver/nvidia/params 2>&1)"
  seen=$(nvidia-smi memory-limits --get -n "$cgroup" -i "$gpu" 2>&1) || true
  answer cgroup-reads "$seen" grep -q 4096 <<<"$seen"
  # Naming a GPU that is not seen drops every limit of MPS: what is left is the driver's.
  probe_in a CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=64G,9=64G
  answer cgroup-holds "$stdout $stderr" probed '$mib != null and $mib <= 4096'
}

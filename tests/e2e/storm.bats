#!/usr/bin/env bats
# 200 creates at once (MG_STORM) through the real runtime on 8 simulated cards. Afterwards the
# ledger is recounted against the cgroups that live. MG_AT_ONCE: fewer at a time, where the machine
# is emulated and 200 processes take longer than the product's own limits of 2 and 3 seconds.
#
# sandbox: MG_GPUS=8
# alone: beside others so many creates take longer than the product's own limits, too.

load suite

teardown() { explain_failure; }

AT_ONCE=${MG_AT_ONCE:-200}
N=${MG_STORM:-200} # a multiple of 40, so that cards and containers fit evenly

# storm N SIZE: N bundles, all created at the same time. Exit statuses in $MG/storm/ID.status.
storm() {
  local n=$1 size=$2 i id pids=()
  rm -rf "$MG/storm"
  mkdir -p "$MG/storm"
  bundle pattern --ann "mpsgate.io/gpu-mem=$size"
  for ((i = 0; i < n; i++)); do
    id=s$i
    mkdir -p "$MG/b/$id"
    sed "s|$(cgroup_of pattern)|$(cgroup_of "$id")|; s|\"path\": \"rootfs\"|\"path\": \"$MG/b/pattern/rootfs\"|" \
      "$MG/b/pattern/config.json" >"$MG/b/$id/config.json"
  done
  for ((i = 0; i < n; i++)); do
    id=s$i
    (
      status=0
      mpsgate-runtime --root "$RUNC_ROOT" "${FLAGS[@]}" create --bundle "$MG/b/$id" "$id" >"$MG/storm/$id.out" 2>&1 </dev/null || status=$?
      echo "$status" >"$MG/storm/$id.status"
    ) 3>&- &
    pids+=($!)
    if (((i + 1) % AT_ONCE == 0)); then wait "${pids[@]}"; pids=(); fi
  done
  ((${#pids[@]} == 0)) || wait "${pids[@]}"
}

# recount: the ledger against the cgroups with a live process, and each card against its memory.
recount() {
  assert_equal "grants against live cgroups" "$(status_json | jq -r '[.grants[].container_id] | sort | .[]')" "$(cgroups_live | sort)"
  assert_equal "reservations that became no grant" "$(status_json | jq '[.grants[] | select(.state != "active")] | length')" 0
  local wrong
  wrong=$(status_json | jq -c '. as $all | .cards[] | . as $c
    | ([$all.grants[] | select(.card == $c.uuid) | .memory_mib] | add // 0) as $sum
    | select($sum != .granted_mib or $sum > .memory_mib or .free_mib != .memory_mib - $sum)
    | {index, sum: $sum, granted_mib, free_mib, memory_mib}')
  assert_equal "cards whose numbers do not fit" "$wrong" ""
}

succeeded() { cat "$MG/storm"/*.status | grep -cx 0; }
delete_storm() {
  "$REAL" --root "$RUNC_ROOT" list -q |
    xargs -P 8 -I{} mpsgate-runtime --root "$RUNC_ROOT" delete --force {}
}

@test "as many at once as fit exactly: all get in, every card is full" {
  storm "$N" $((8 * CARD_MEMORY / N))Mi # of 200, 600 MiB each: 25 on each card
  assert_equal "created" "$(succeeded)" "$N"
  recount
  assert_equal "grants on each card" "$(status_json | jq -c '[.grants | group_by(.card)[] | length] | unique')" "[$((N / 8))]"
}

@test "restart of the daemon with all these grants: the same ledger" {
  local before
  before=$(status_json | jq -cS '[.grants[] | {container_id, card, memory_mib, pid, instance}] | sort_by(.container_id)')
  daemon_stop KILL
  daemon_start
  assert_equal "grants" "$(status_json | jq -cS '[.grants[] | {container_id, card, memory_mib, pid, instance}] | sort_by(.container_id)')" "$before"
  recount
}

@test "all deleted: all free, no cgroup, no record" {
  delete_storm
  wait_for 60 "all memory free" is_free
  assert_equal "cgroups" "$(cgroups_live)" ""
  wait_for 10 "no record of an applied grant" bash -c '[[ -z $(ls -A /run/mpsgate/grants 2>/dev/null) ]]'
}

@test "a quarter more than there are places: every place is taken, the rest read why not, no card over its memory" {
  local places=$((N * 4 / 5))
  storm "$N" $((8 * CARD_MEMORY / places))Mi # of 200, 768 MiB each: 20 on each card
  recount
  assert_equal "created" "$(succeeded)" "$places"
  assert_equal "refused by name" "$(grep -l 'E_NO_CAPACITY' "$MG/storm"/*.out | wc -l)" $((N - places))
  delete_storm
  wait_for 60 "all memory free" is_free
}

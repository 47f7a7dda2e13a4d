#!/usr/bin/env bats
# Many pods at once, and something taken away in the middle: mpsgated, containerd, the API server.
# None is refused, none is lost; the seconds stand beside those of as many pods without GPU memory.
# MG_SELECT set: fewer pods.
# nightly: many pods and much waiting; scheduler_losses.bats replaces mpsgated each time

load scheduler

UNIT=mpsgate.io/gpu-mem-256mi
PODS=60
[[ -z ${MG_SELECT:-} ]] || PODS=20

setup_file() {
  cluster_start
  cluster_follow
  sed -i '/^\[kubernetes\]/a memory_units_mib = [256]' /etc/mpsgate/config.toml
  daemon_stop
  daemon_start
  extender_start
  wait_for 60 "the node has its units" has_allocatable 120 mpsgate.io/gpu-mem-256mi
}

teardown_file() {
  extender_stop
  cluster_stop
}

teardown() {
  explain_failure
  [[ ${BATS_TEST_COMPLETED:-} == 1 ]] || { cluster_log; kubectl get pods -o wide >&2; tail -n 5 "$K8S"/log/extender-*.log >&2; }
  cluster_reset
}

# come NAME [RESOURCE]: so many pods at once, each with one of it.
come() {
  local POD_TO=(cat)
  pod "$1" "${2:+.spec.hostIPC = true | .spec.containers[0].resources.limits[\"$2\"] = \"1\"}" |
    jq --argjson n "$PODS" '{apiVersion: "v1", kind: "List", items: [range($n) as $i | .metadata.name += "-\($i)"]}' | kubectl create -f - >/dev/null
}
running() { kubectl get pods -o json 2>/dev/null | jq '[.items[] | select(.status.phase == "Running")] | length'; }
run_now() { (($(running) >= $1)); } # N
# all_of_them BEGIN: until all run; says the seconds since BEGIN.
all_of_them() {
  wait_for 240 "all $PODS run" run_now "$PODS"
  echo "# all $PODS pods ran after $((SECONDS - $1)) s" >&3
  assert_equal "pods that kubelet failed" "$(kubectl get pods -o json | jq -c '[.items[] | select(.status.phase == "Failed") | {name: .metadata.name, message: .status.message}]')" "[]"
}
none_refused() {
  assert_equal "refusals" "$(kubectl get events -A -o json | jq -c '[.items[] | select(.reason == "GPUMemoryRefused" or .reason == "GPUPodNotAdmitted").message]')" "[]"
  wait_for 30 "each has its memory once" each_once
}
each_once() { [[ $(memory_of_grants | jq -c '[length, add]') == "[$PODS,$((PODS * 256))]" ]]; }

@test "without GPU memory, as the measure" {
  local begin=$SECONDS
  come plain
  all_of_them "$begin"
}

@test "mpsgated is replaced in the middle" {
  local begin=$SECONDS
  come one "$UNIT"
  wait_for 120 "some run" run_now $((PODS / 4))
  daemon_stop
  daemon_start
  all_of_them "$begin"
  none_refused
}

@test "containerd is restarted in the middle" {
  local begin=$SECONDS
  come two "$UNIT"
  wait_for 120 "some run" run_now $((PODS / 4))
  containerd_stop
  containerd_start
  all_of_them "$begin"
  none_refused
}

@test "the API server is away for 20 s in the middle" {
  local begin=$SECONDS
  come three "$UNIT"
  wait_for 120 "some run" run_now $((PODS / 4))
  api_stop
  sleep 20 # nothing can happen: what is tried over and over is tried in vain
  api_start
  all_of_them "$begin"
  none_refused
}

#!/usr/bin/env bats
# What only a booted systemd shows: it makes the scopes, and on daemon-reload writes their device
# rules anew.

load engine.bash

WANT=(--ipc --gpu 7Gi)

# bats test_tags=machine
@test "systemctl daemon-reload in mid-run: the granted card stays open, the other one closed, exec has its limit" {
  local id card scope
  engine_up got "${WANT[@]}" -- sleep 600
  id=$(engine_id got) card=$(grant "$(engine_id got)" .card_index)
  scope=$(sed -n 's|^0::.*/\([^/]*\.scope\).*|\1|p' "/proc/$(engine_pid got)/cgroup")
  [[ -n $scope ]] || fail "no scope of systemd: $(<"/proc/$(engine_pid got)/cgroup")"
  devices_as_granted got "$card"
  systemctl daemon-reload
  devices_as_granted got "$card"
  systemctl set-property --runtime "$scope" CPUWeight=50
  devices_as_granted got "$card"
  exec_limit got
  assert_equal "grants" "$(granted_ids)" "$id"
}

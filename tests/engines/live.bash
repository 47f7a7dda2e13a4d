# live.bash: the machine as the node (tests/vm/live.bash made it): mpsgated is a unit. Last, as it
# replaces.
# shellcheck shell=bash

REAL=$(type -P "${MG_REAL_RUNTIME:-runc}")

daemon_runs() { systemctl --quiet is-active mpsgated; }
daemon_stop() { systemctl stop mpsgated; }
daemon_start() {
  systemctl start mpsgated
  wait_for 60 "mpsgated is settled" settled
}
# live_start, live_stop: the settings of the cell: its runtime, and what its adapter wants.
live_start() {
  mkdir -p "$MG/log"
  cp /etc/mpsgate/config.toml "$MG/settings.before"
  sed -i "/^\[runtime\]/,/^\[/s|^path = .*|path = \"$REAL\"|" /etc/mpsgate/config.toml
  sed -i "$SETTINGS" /etc/mpsgate/config.toml
  systemctl restart mpsgated
  wait_for 60 "mpsgated is settled" settled
}
live_stop() {
  cp "$MG/settings.before" /etc/mpsgate/config.toml
  systemctl restart mpsgated
  wait_for 60 "mpsgated is settled" settled
}
explain_failure() {
  [[ ${BATS_TEST_COMPLETED:-} == 1 ]] && return 0
  {
    timeout 20 mpsgate status || true
    journalctl --no-pager -n 20 -u 'mpsgate*' || true
  } >&2
}

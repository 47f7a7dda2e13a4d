# live.bash: the machine itself as the node: mpsgate in /usr/bin and under systemd, with the units
# of packaging/systemd; two simulated cards that are there from boot. Nothing here undoes what it
# does, because the machine is thrown away.
# shellcheck shell=bash

# shellcheck source=tests/e2e/mpsgate.bash
source "${BASH_SOURCE[0]%/*}/../e2e/mpsgate.bash"

# simulated_driver: cards that are there after each boot, in compute mode DEFAULT, as a driver
# brings them up. The unit is not started.
simulated_driver() {
  sim_cards 2
  cat >/usr/local/sbin/simulated-gpu <<'BOOT'
#!/bin/bash
set -e
for n in 0 1 255; do mknod -m 666 "/dev/nvidia$n" c 195 "$n"; done
mv /dev/nvidia255 /dev/nvidiactl
mknod -m 666 /dev/nvidia-uvm c 510 0
mknod -m 666 /dev/nvidia-uvm-tools c 510 1
sed '0,/^$/s/^$/195 nvidia\n195 nvidiactl\n510 nvidia-uvm\n/' /proc/devices >/run/devices
mount --bind /run/devices /proc/devices
file=$(<"$1")
jq '.cards[].compute_mode = "DEFAULT"' <<<"$file" >"$1"
BOOT
  chmod 755 /usr/local/sbin/simulated-gpu
  cat >/etc/systemd/system/simulated-gpu.service <<UNIT
[Unit]
Before=mpsgated.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/simulated-gpu $NVML/nvml.json
[Install]
WantedBy=multi-user.target
UNIT
}

# live_install: before the first file.
live_install() {
  local file
  for file in mpsgate mpsgated mpsgate-runtime mpsgate-hook mpsgate-gate; do install -m 755 "$MG_OUT/$file" /usr/bin/; done
  install -m 644 /task/packaging/systemd/*.service /etc/systemd/system/
  simulated_driver
  settings 's/^manage.*/manage = []/'
  # The watchdog of 30 s would make a test of a minute.
  mkdir -p /etc/systemd/system/mpsgated.service.d
  printf '[Service]\nWatchdogSec=10\n' >/etc/systemd/system/mpsgated.service.d/test.conf
  systemctl daemon-reload
  systemctl enable --quiet --now simulated-gpu.service mpsgated.service
  wait_for 60 "mpsgated answers" settled
  mpsgate enable 0
  mpsgate enable 1
}

unit_of() { systemctl show --value -p "$2" "$1"; } # UNIT PROPERTY
unit_is() { [[ $(unit_of "$1" "$2") == "$3" ]]; }  # UNIT PROPERTY VALUE
main_pid() { unit_of mpsgated MainPID; }
another_pid() { local pid; pid=$(main_pid); [[ $pid != 0 && $pid != "$1" ]] && unit_is mpsgated ActiveState active; } # THAN
daemon_pids() { unit_of mpsgate-mps@0 MainPID; unit_of mpsgate-mps@1 MainPID; }

# The default for all files here.
teardown() { explain_live; }
explain_live() {
  [[ ${BATS_TEST_COMPLETED:-} == 1 ]] && return 0
  {
    timeout 20 mpsgate status || true
    systemctl --no-pager -n 0 list-units 'mpsgate*' || true
    journalctl --no-pager -n 20 -u 'mpsgate*' || true
  } >&2
}

#!/usr/bin/env bats
# The package mpsgate-scheduler on a machine that is booted: its unit under a real systemd, beside
# an API server of ours (api_server.pl) that has a node, a card and a Lease. What it decides and
# binds is for tests/k8s.

load live

UNIT=mpsgate-scheduler
# As kube-scheduler asks it.
SCHEDULER=https://127.0.0.1:39999
TLS=/task/debs/tls
API_PORT=6999
LEASE=/root/lease.json

setup_file() {
  systemd-run --quiet --unit api-server perl /task/tests/vm/api_server.pl "$API_PORT" "$LEASE"
  mkdir -p /etc/kubernetes
}

teardown() {
  [[ ${BATS_TEST_COMPLETED:-} == 1 ]] && return 0
  {
    systemctl --no-pager status "$UNIT" api-server || true
    journalctl --no-pager -n 20 -u "$UNIT" || true
  } >&2
}

teardown_file() {
  systemctl stop api-server || true
  rm -rf /etc/kubernetes/mpsgate-scheduler.conf "/etc/systemd/system/$UNIT.service.d"
}

apt() { try env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@"; }
asked() { curl -fsS --cacert "$TLS/ca.crt" --cert "$TLS/client.crt" --key "$TLS/client.key" "$@"; } # [OPTION...] URL
state() { echo "$(unit_of "$UNIT" ActiveState) $(unit_of "$UNIT" Result) $(unit_of "$UNIT" NRestarts)"; }
another_pid() { local pid; pid=$(unit_of "$UNIT" MainPID); [[ $pid != 0 && $pid != "$1" ]] && unit_is "$UNIT" ActiveState active; } # THAN
arguments() { echo "ARGUMENTS=\"$*\"" >/etc/default/mpsgate-scheduler; }
# tls: with the certificates that the unit is handed.
tls() {
  local given=/run/credentials/$UNIT.service
  arguments --listen 127.0.0.1:39999 --tls-cert "$given/tls.crt" --tls-key "$given/tls.key" --tls-client-ca "$given/client-ca.crt"
}

@test "the package starts nothing; with a kubeconfig and certificates the unit runs, leads, and answers over TLS" {
  apt install /task/debs/new/mpsgate-scheduler_*.deb
  assert_equal "unit" "$(unit_of "$UNIT" ActiveState) $(unit_of "$UNIT" UnitFileState)" "inactive disabled"
  # With a CA, as every one has: the machine knows none by itself, and kube makes no client without.
  jq -n --arg server "http://127.0.0.1:$API_PORT" --arg ca "$(base64 -w0 "$TLS/ca.crt")" '{apiVersion: "v1", kind: "Config",
    "current-context": "x", contexts: [{name: "x", context: {cluster: "c", user: "u"}}],
    clusters: [{name: "c", cluster: {server: $server, "certificate-authority-data": $ca}}],
    users: [{name: "u", user: {token: "t"}}]}' >/etc/kubernetes/mpsgate-scheduler.conf
  # Root's alone, as the keys below: the process itself could read neither.
  chmod 600 /etc/kubernetes/mpsgate-scheduler.conf "$TLS"/*.key
  mkdir -p "/etc/systemd/system/$UNIT.service.d"
  printf '[Service]\n' >"/etc/systemd/system/$UNIT.service.d/tls.conf"
  printf 'LoadCredential=%s:%s\n' tls.crt "$TLS/server.crt" tls.key "$TLS/server.key" client-ca.crt "$TLS/ca.crt" \
    >>"/etc/systemd/system/$UNIT.service.d/tls.conf"
  tls
  systemctl daemon-reload
  try systemctl enable --now "$UNIT"
  wait_for 30 "it is ready" asked "$SCHEDULER/readyz"
  wait_for 30 "it leads" asked "$SCHEDULER/leaderz"
  try systemctl is-active "$UNIT"
  assert_equal "state" "$(state)" "active success 0"
  local answer
  answer=$(asked --data '{"Pod": {"metadata": {"name": "p", "namespace": "default", "uid": "u"}, "spec": {"containers": [
    {"name": "c", "resources": {"limits": {"aliyun.com/gpu-mem": "7"}}}]}}, "NodeNames": ["n1", "n2"]}' "$SCHEDULER/mpsgate/filter")
  assert_equal "nodes" "$(jq -c .NodeNames <<<"$answer")" '["n1"]'
  try fail curl -fsS --cacert "$TLS/ca.crt" "$SCHEDULER/readyz"
}

@test "what the unit takes away is taken from the process" {
  local pid uid
  pid=$(unit_of "$UNIT" MainPID)
  uid=$(stat -c %u "/proc/$pid")
  # The range of DynamicUser=.
  ((uid >= 61184 && uid <= 65519)) || fail "it runs as uid $uid"
  assert_equal "capabilities" "$(grep -E '^Cap(Prm|Eff|Bnd|Amb)' "/proc/$pid/status" | awk '{print $2}' | sort -u)" 0000000000000000
  assert_equal "new privileges, seccomp" "$(awk '/^(NoNewPrivs|Seccomp):/ {print $2}' "/proc/$pid/status" | paste -sd ' ')" "1 2"
  assert_equal "devices" "$(nsenter -m -t "$pid" find /dev -name 'nvidia*')" ""
  try systemd-analyze verify --man=no "$UNIT.service"
  assert_equal "output" "$stdout$stderr" ""
  local limit found
  limit=$(sed -n "s/^| exposure of \`$UNIT.service\`[^|]*| ≤ \([0-9]*\)\.\([0-9]\) .*/\1\2/p" /task/debs/SPECIFICATION.md)
  found=$(systemd-analyze security --no-pager "$UNIT.service" | sed -n 's/.*exposure level for .*: \([0-9]*\)\.\([0-9]\) .*/\1\2/p')
  [[ -n $limit && -n $found ]] || fail "limit '$limit', found '$found'"
  echo "# $found tenths, at most $limit" >&3
  ((found <= limit)) || fail "$found tenths, at most $limit"
}

@test "killed, it is started again and leads; stopped, it gives its lease back and ends with 0" {
  local pid
  pid=$(unit_of "$UNIT" MainPID)
  systemctl kill -s KILL "$UNIT"
  wait_for 30 "another process" another_pid "$pid"
  assert_equal "state" "$(state)" "active success 1"
  # The lease of the one that was killed runs out first.
  wait_for 60 "it leads" asked "$SCHEDULER/leaderz"
  [[ -n $(jq -r '.spec.holderIdentity // ""' "$LEASE") ]] || fail "nobody has the lease"
  try systemctl stop "$UNIT"
  assert_equal "state" "$(unit_of "$UNIT" ActiveState) $(unit_of "$UNIT" Result) $(unit_of "$UNIT" ExecMainStatus)" "inactive success 0"
  assert_equal "the lease" "$(jq -r '.spec.holderIdentity // ""' "$LEASE")" ""
}

@test "a setting that cannot do stands in the journal with what to do, and is not tried again" {
  local from
  from=$(date +%s)
  systemctl stop "$UNIT"
  arguments --listen 0.0.0.0:39999
  try any systemctl start "$UNIT"
  wait_for 30 "it has ended" unit_is "$UNIT" ActiveState failed
  assert_equal "state" "$(state) $(unit_of "$UNIT" ExecMainStatus)" "failed exit-code 0 78"
  assert_contains "journal" "$(journalctl --no-pager -u "$UNIT" --since "@$from")" \
    "whoever reaches 0.0.0.0:39999 could have pods bound: there is no --tls-client-ca" "name the CA of kube-scheduler's client certificate"
  arguments --listen nowhere
  try any systemctl start "$UNIT"
  wait_for 30 "it has ended" unit_is "$UNIT" ActiveState failed
  assert_equal "state" "$(state) $(unit_of "$UNIT" ExecMainStatus)" "failed exit-code 0 64"
  assert_contains "journal" "$(journalctl --no-pager -u "$UNIT" --since "@$from")" "invalid value 'nowhere' for '--listen"
  tls
  try systemctl start "$UNIT"
  wait_for 30 "it is ready" asked "$SCHEDULER/readyz"
}

@test "its removal stops it, and purge leaves nothing" {
  apt purge mpsgate-scheduler
  assert_equal "processes" "$(pgrep -l mpsgate-sched)" ""
  assert_equal "units" "$(systemctl list-units --plain --no-legend "$UNIT*"; systemctl list-unit-files --no-legend "$UNIT*")" ""
  [[ ! -e /etc/default/mpsgate-scheduler ]] || fail "its settings are there"
}

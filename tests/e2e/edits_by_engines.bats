#!/usr/bin/env bats
# What namespaces.bats and edits.bats try on a runtime, as Docker and Podman write it.

load suite
load podman

SETTINGS='/^\[mps\]/i [policy]\nunallocated = "strip"\nprivileged = "close"'

setup_file() {
  runtime_below
  node_start
  docker_start --add-runtime mpsgate=/usr/bin/mpsgate-runtime --default-runtime mpsgate
  if command -v podman >/dev/null; then podman_start; fi
  mkdir -p /etc/cdi
  cat >/etc/cdi/nvidia.json <<'JSON'
{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "1", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia1"}]}}]}
JSON
}

teardown_file() {
  docker_stop
  podman_clear
  node_stop
}

teardown() {
  explain_failure
  docker_clear
  node_reset
}

PODMAN_RUN=(run --rm --network none --security-opt seccomp=unconfined)
OPENS='busybox mknod /tmp/n c 195 1; : </tmp/n'
ASKS=(--env MPSGATE_GPU_MEM=1Gi --network none --ipc host)

@test "Docker, strip: a rule for every character device opens no card; other devices stay open" {
  local rule
  for rule in 'c *:* rwm' 'c *:1 rwm' 'a *:* rwm' 'c 195:* rwm'; do
    try_docker any run --rm --network none --device-cgroup-rule "$rule" bb sh -c "$OPENS"
    assert_contains "$rule" "$stderr" "not permitted"
  done
  try_docker any run --rm --network none --device-cgroup-rule 'c *:* rwm' bb sh -c 'busybox mknod /tmp/n c 10 229; : </tmp/n'
  refute_contains "another device" "$stderr" "not permitted"
}

@test "Docker: with a request the host's PID namespace becomes one of its own; another container's and a mount of /proc are refused" {
  try_docker run -d --name victim --network none bb sleep 600
  try_docker run --rm "${ASKS[@]}" --pid host bb sh -c 'echo I am $$; cat /proc/[0-9]*/comm'
  assert_contains "its own" "$stdout" "I am 1"
  refute_contains "what it sees" "$stdout" sleep dockerd
  try_docker run -d --name own "${ASKS[@]}" --pid host bb sleep 600
  try_docker exec own sh -c 'cat /proc/[0-9]*/comm'
  refute_contains "what exec sees" "$stdout" dockerd
  try_docker rm -f own
  try_docker fail run --rm "${ASKS[@]}" -v /proc:/host/proc:ro bb true
  assert_contains "a mount" "$stderr" E_HOST_PID
  try_docker fail run --rm "${ASKS[@]}" --user 1000 --cap-drop ALL --pid container:victim bb true
  assert_contains "another's" "$stderr" E_HOST_PID
  try_docker run --rm --network none --pid host bb true
  try_docker run --rm --network none --pid container:victim bb true
  try_docker run --rm "${ASKS[@]}" bb true
  try_docker rm -f victim
}

@test "Podman, close: a privileged container opens no card, with a card's own rule by CDI and without" {
  command -v podman >/dev/null || skip "podman is not installed"
  try_podman any "${PODMAN_RUN[@]}" --cgroup-parent "$MG_CGROUP" --privileged bb sh -c "$OPENS"
  assert_contains "privileged" "$stderr" "not permitted"
  try_podman any "${PODMAN_RUN[@]}" --cgroup-parent "$MG_CGROUP" --privileged --device nvidia.com/gpu=1 bb sh -c "$OPENS"
  assert_contains "with the card by CDI" "$stderr" "not permitted"
  try_podman any "${PODMAN_RUN[@]}" --cgroup-parent "$MG_CGROUP" --device-cgroup-rule 'c *:* rwm' --cap-add MKNOD bb sh -c "$OPENS"
  assert_contains "stripped" "$stderr" "not permitted"
}

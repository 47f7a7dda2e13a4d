#!/usr/bin/env bats
# What a container has at /dev/shm, and its IPC namespace, against what the MPS servers of the node
# were seen to do: policy.ipc, W_SHM and E_NO_SHM. The server is the tests' own, below NVIDIA's
# control daemon.

load mpsgate

OWN='(.mounts[] | select(.destination == "/dev/shm")) |= {destination, type: "tmpfs", source: "shm", options: ["size=64m"]}'

setup() {
  [[ -n ${MG_MPS_CONTROL:-} ]] || skip "no MPS control daemon of NVIDIA's"
  mkdir -p "$MG/control"
  cp "$(control_program)" "$MG_OUT/fakes/nvidia-cuda-mps-server" "$MG/control/"
  sim_cards
  settings "s|^control = .*|control = \"$MG/control/nvidia-cuda-mps-control\"|; \$a [policy]\nipc = \"auto\""
  mkdir -p "$MG/log"
  : >"$MG/log/mpsgated.log"
  daemon_start
  log=/run/mpsgate/mps/0/log
}

teardown() {
  [[ -n ${MG_MPS_CONTROL:-} ]] || return 0
  explain_failure
  delete_all
  node_stop
  rm -f /dev/shm/cuda.shm.*
}

seen() { [[ $(jq -r .shared_memory /run/mpsgate/node.json) == "$1" ]]; } # WORD

# server_with WORDS SEEN: a server that says so has been looked at.
server_with() {
  [[ -z $1 ]] || echo "$1" >"$log/fake-server-region"
  granted first 1Gi --ann mpsgate.io/gpu=0
  wait_for 20 "mpsgated has looked at the server" seen "$2"
}

not_granted() { # ID CODE [OPTION...]
  local id=$1 code=$2
  shift 2
  refused "$id" "$code" --ann mpsgate.io/gpu-mem=1Gi --ann mpsgate.io/gpu=0 "$@"
}

@test "until a server was seen, auto is as require-host, and another /dev/shm is warned of" {
  not_granted own E_NO_HOST_IPC --private-ipc
  assert_equal "unknown" "$(jq -r .shared_memory /run/mpsgate/node.json)" unknown
  granted first 1Gi --ann mpsgate.io/gpu=0
  assert_equal "none is warned of with the host's" "$(grep -c W_SHM "$MG/log/mpsgated.log" || true)" 0
  granted other 1Gi --ann mpsgate.io/gpu=0 --jq "$OWN"
  wait_for 5 "the log has it" grep -q 'container=other code=W_SHM action=warned reason="it has a tmpfs of its own at /dev/shm' "$MG/log/mpsgated.log"
  mpsgate status >"$MG/status"
  assert_contains "status" "$(<"$MG/status")" "W_SHM"
}

@test "of a server without a named region nothing is needed: its own namespace and /dev/shm do, and nobody is warned" {
  server_with anonymous anonymous
  granted own 1Gi --ann mpsgate.io/gpu=0 --private-ipc
  granted other 1Gi --ann mpsgate.io/gpu=0 --jq "$OWN"
  assert_equal "warned" "$(grep -c W_SHM "$MG/log/mpsgated.log" || true)" 0
  try any mpsgate doctor --output json
  assert_contains "doctor" "$stdout" "need neither it nor the host's /dev/shm"
}

# bats test_tags=runtime
@test "of one with a named region its /dev/shm is needed and its namespace is not" {
  server_with named named
  granted own 1Gi --ann mpsgate.io/gpu=0 --private-ipc \
    --jq '(.mounts[] | select(.destination == "/dev/shm")) |= {destination, type: "bind", source: "/dev/shm", options: ["rbind"]}'
  not_granted neither E_NO_HOST_IPC --private-ipc
  granted other 1Gi --ann mpsgate.io/gpu=0 --jq "$OWN"
  wait_for 5 "the log has it" grep -q "container=other code=W_SHM .*with this node's driver" "$MG/log/mpsgated.log"
}

@test "what a server says twice, or of which the kernel shows the contrary, counts for nothing" {
  server_with "named anonymous" unknown
  not_granted own E_NO_HOST_IPC --private-ipc
  delete_all
  mpsgate mps restart 0 --yes >/dev/null
  wait_for 30 "the card is ready" card_is ready 0
  server_with anonymous anonymous
  # Somebody writes a second line in its name.
  local server
  server=$(mpsgate status --output json | jq -r '.cards[0].mps.servers[0].pid')
  printf '[2026-01-01 00:00:00.000 Server %s] Created anonymous shared memory region x\n' "$server" >>"$log/control.log"
  wait_for 60 "it counts for nothing" seen unknown
  not_granted again E_NO_HOST_IPC --private-ipc
}

@test "refused only where the node has shown that such a client does not attach" {
  server_with named named
  answered own-shm no 1.2.3
  granted other 1Gi --ann mpsgate.io/gpu=0 --jq "$OWN"
  answered own-shm no
  wait_for 60 "the answer counts" seen required
  not_granted refused E_NO_SHM --jq "$OWN"
  assert_contains "what it has" "$stderr" "has a tmpfs of its own at /dev/shm"
  assert_contains "what to do" "$stderr" "mount nothing at /dev/shm"
  bundle plain --jq "$OWN"
  create plain
  answered own-shm yes
  wait_for 60 "the answer counts" seen anonymous
  granted fine 1Gi --ann mpsgate.io/gpu=0 --jq "$OWN"
}

# bats test_tags=runtime
@test "twice, missing, over it, by a link of the image: what comes out counts" {
  server_with named named
  local host='{destination: "/dev/shm", type: "bind", source: "/dev/shm", options: ["rbind"]}' tmpfs='{destination: "/dev/shm/", type: "tmpfs", source: "shm"}'
  local count=0
  warned_of() { # ID FILTER
    granted "$1" 1Gi --ann mpsgate.io/gpu=0 --jq "$2"
    wait_for 5 "$1 is warned of" grep -q "container=$1 code=W_SHM" "$MG/log/mpsgated.log"
    delete "$1"
  }
  warned_of twice ".mounts += [$tmpfs]"
  warned_of read '(.mounts[] | select(.destination == "/dev/shm")).options = ["rbind", "ro"]'
  warned_of missing '.mounts |= map(select(.destination != "/dev/shm"))'
  granted back 1Gi --ann mpsgate.io/gpu=0 --jq ".mounts += [$tmpfs, $host]"
  # By the image's link the mount stands at another place.
  bundle linked --ann mpsgate.io/gpu-mem=1Gi --ann mpsgate.io/gpu=0
  mkdir -p "$MG/b/linked/rootfs/place" "$MG/b/linked/rootfs/dev"
  rm -rf "$MG/b/linked/rootfs/dev/shm"
  create linked
  count=$(grep -c 'W_SHM' "$MG/log/mpsgated.log")
  assert_equal "warned of three" "$count" 3
}

#!/usr/bin/env bats
# `mpsgate qualify`: what the node that has the card has shown before anything is promised: the
# questions, who asks them, and what follows from their answers. Clients that keep no limit, do not
# attach or crash are in qualify_clients.bats; what happens while a card is asked is in
# qualify_meanwhile.bats.
# sandbox: MG_GPUS=1
# shellcheck disable=SC2030,SC2031 # bats runs each test in a subshell

load qualify

@test "every question is answered, the answers steer, and nothing is left" {
  seen_by_nvml 3>&- &
  qualify 0 -o json
  kill $!
  echo "$stdout" >&2
  assert_equal "answers" "$(jq -r '.answers | map("\(.question) \(.verdict)") | join(", ")' <<<"$stdout")" \
    "attach yes, commands yes, own-shm yes, limit yes, bypass yes, processes yes, detour unanswered"
  nothing_is_left
  assert_equal "kept" "$(jq -r '.answers | length' "/var/lib/mpsgate/qualification/$CARD.json")" 7
  assert_equal "its mode" "$(stat -c %a "/var/lib/mpsgate/qualification/$CARD.json")" 600
  granted web 2Gi
  wait_for 10 "its level" level_is web "mps+watchdog, proven here $(date -u +%F) (580.00.00, simulated)"
  # docs/run.md: it needs v1 or systemd.
  if [[ -d /sys/fs/cgroup/devices ]]; then
    stranger mpsgate run --gpu-mem 1Gi --gpu 0 --name plain -- sleep 600
    wait_for 10 "a process's level" level_is plain "mps+watchdog, proven here $(date -u +%F) (580.00.00, simulated)"
    kill_listed "$MG/strangers"
    wait_for 10 "its memory is free" not_granted plain
  fi
  # They outlive mpsgated, and count for its driver.
  daemon_stop
  daemon_start
  wait_for 20 "its level after a restart" level_is web "mps+watchdog, proven here $(date -u +%F) (580.00.00, simulated)"
  assert_equal "what clients need at /dev/shm" "$(jq -r .shared_memory /run/mpsgate/node.json)" anonymous
}

@test "--full asks for two users, one client's end, and two at work; what it found outlives the next asking" {
  qualify any --full -o json
  assert_equal "users and terminate" "$(answer users) $(answer terminate)" "yes yes"
  assert_equal "throughput" "$(answer throughput)" yes
  # Answered in limits_memory.bats: it needs cgroup v2 and a driver that has such limits.
  assert_equal "cgroup" "$(answer cgroup)" unanswered
  assert_contains "cgroup" "$(seen cgroup)" "its cgroup has no limit of the driver's: "
  assert_contains "seen" "$(seen users), $(seen terminate)" "2048 MiB: 2048 MiB; uid 65534, 4096 MiB: 4096 MiB" "its neighbour goes on"
  qualify any -o json
  assert_equal "kept" "$(jq -r '[.answers[] | select(.question == "users" or .question == "terminate") | .verdict] | join(" ")' \
    "/var/lib/mpsgate/qualification/$CARD.json")" "yes yes"
  nothing_is_left
}

@test "where a second user fails, or no client can be ended alone, nobody relies on it" {
  fake alone
  qualify 1 --full -o json
  assert_equal "users" "$(answer users)" no
  assert_contains "what was seen" "$(seen users)" "uid 65534 beside uid 0: "
  fake immortal
  granted web 2Gi
  refused other E_UID --ann mpsgate.io/gpu-mem=1Gi --jq '.process.user = {uid: 65534, gid: 65534}'
  delete web
  qualify 1 --full -o json
  assert_equal "users and terminate" "$(answer users) $(answer terminate)" "yes no"
  assert_contains "status" "$(mpsgate status)" "The GPU work of one client cannot be ended alone on this card: the client goes on as before"
  granted web 2Gi
  try_oci kill web KILL
  assert_equal "kills that asked nobody first" "$(mpsgate status -o json | jq .kills_unprepared)" 1
}

@test "clients that take turns are found out" {
  fake slicing
  qualify any --full -o json
  assert_equal "throughput" "$(answer throughput)" no
  assert_contains "status" "$(mpsgate status)" "Clients take turns on this card, as without MPS: one alone launched "
}

@test "a client that needs the server's /dev/shm makes it a condition" {
  fake shm
  qualify any -o json
  assert_equal "attach and own-shm" "$(answer attach) $(answer own-shm)" "yes no"
  assert_equal "what clients need at /dev/shm" "$(jq -r .shared_memory /run/mpsgate/node.json)" required
}

@test "enable asks a GPU that is no simulation, what is due is asked, and the way past MPS is tried" {
  local library="$MG/fakes/libcuda.so.1"
  mpsgate disable 0
  daemon_stop
  # The same fake without its mark: mpsgated takes it for a driver.
  sed -i 's/mpsgate_simulated_gpus/mpsgate_simulated_gpuX/' "$MG_NVML/libnvidia-ml.so.1"
  daemon_start
  fake exclusive
  LIMIT=100 try mpsgate enable 0 --library "$library"
  assert_contains "enable" "$stdout" "is managed now" "detour     yes" "cuDevicePrimaryCtxRetain failed" "guarantee level of a grant"
  LIMIT=100 try mpsgate qualify --due --library "$library"
  assert_equal "what is due" "$stdout$stderr" ""
  rm "/var/lib/mpsgate/qualification/$CARD.json" /usr/bin/fake-libcuda.word
  mpsgate reload
  wait_for 20 "status says so" status_has "it was never asked"
  assert_contains "status" "$(mpsgate status)" "GPU 0: what holds on it is not proven: it was never asked" "mpsgate qualify 0"
  granted web 1Gi
  LIMIT=100 try mpsgate qualify --due --library "$library"
  assert_equal "with a grant" "$stdout$stderr" ""
  delete web
  LIMIT=100 try mpsgate qualify --due --library "$library"
  assert_contains "what was due" "$stdout" "detour     no" "it got the card"
  assert_contains "status" "$(mpsgate status)" "A process past MPS gets this card"
  fake strange
  qualify any --report
  assert_contains "detour" "$(grep '^| detour ' <<<"$stdout")" "another reason than a busy card" "| unanswered, "
  refute_contains "the page for an issue" "$stdout" "$CARD" "mpsgate-qualify-" "$(hostname)"
}

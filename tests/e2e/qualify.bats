#!/usr/bin/env bats
# `mpsgate qualify`: what the node that has the card has shown before anything is promised. Fakes of
# driver, server and libcuda answer each question both ways; what they answer shows nothing about a
# GPU, and the card says that it is simulated.
# sandbox: MG_GPUS=1
# shellcheck disable=SC2030,SC2031 # bats runs each test in a subshell

load helpers
load mpsgate

CARD=GPU-00000000-0000-4000-8000-000000000000

setup_file() {
  local faked=$MG/fakes
  mkdir -p "$faked" "$MG/nvml"
  install -t "$faked" "$MG_OUT"/fakes/nvidia-cuda-mps-{control,server}
  echo 580 >"$faked/fake-mps-version"
  install -t "$faked" "$MG_OUT/fakes/libcuda.so.1"
  install -t "$MG/nvml" "$MG_OUT/fakes/libnvidia-ml.so.1"
  rootfs "$MG/rootfs"
}

setup() {
  export MG_NVML=$MG/nvml MG_MPS_CONTROL=$MG/fakes/nvidia-cuda-mps-control
  jq -n --arg uuid "$CARD" '{driver_version: "580.00.00", cuda_driver_version: "13.0", cards: [{
    uuid: $uuid, index: 0, minor: 0, name: "Simulated H200", memory_total_mib: 143771, memory_used_mib: 0,
    compute_capability: "9.0", mig: "disabled", compute_mode: "DEFAULT", pci_bus_id: "00000000:3A:00.0",
    processes: []}]}' >"$MG_NVML/nvml.json"
  touch /dev/shm/mpsgate-fake-server
  settings 's/^manage.*/manage = []/'
  daemon_start
  assert_contains "enable" "$(mpsgate enable 0 2>&1)" "is managed now" "not asked what holds on it: the GPU is simulated"
}

teardown() {
  explain_failure
  rm -f /usr/bin/fake-libcuda.word /dev/shm/mpsgate-fake-*
  delete_all || true
  mpsgate disable 0 >&2 || true
  daemon_stop || true
  rm -rf /var/lib/mpsgate/qualification
}

# seen_by_nvml: what a driver's NVML says of the client of the question `processes`, which is the
# only one that lives for so long: one that makes its context, an idle one, and then one with 256
# MiB more.
seen_by_nvml() {
  local pid mib=300 i ticks=0 last=''
  for ((i = 0; i < 300; i++)); do
    pid=$(mpsgate status -o json 2>/dev/null | jq -r '[.grants[] | select(.state == "active") | .pid] | first // empty')
    if [[ -n $pid ]]; then
      [[ $pid == "$last" ]] || ticks=0
      last=$pid ticks=$((ticks + 1))
      if ((ticks <= 2)); then mib=14; elif ((ticks <= 10)); then mib=300; else mib=600; fi
      uses "$pid" "$mib" 2>/dev/null
    fi
    sleep 0.5
  done
}

# qualify STATUS [OPTION...]: of the card, with the fakes; its answers are in $stdout.
qualify() {
  local status=$1
  shift
  LIMIT=100 try "$status" mpsgate qualify 0 --library "$MG/fakes/libcuda.so.1" "$@"
}
answer() { jq -r --arg name "$1" '.answers[] | select(.question == $name) | .verdict' <<<"$stdout"; }
seen() { jq -r --arg name "$1" '.answers[] | select(.question == $name) | .seen' <<<"$stdout"; }
level_of() { grant "$1" '"\(.guarantee), \(.proof)"'; }
fake() { echo "$1" >/usr/bin/fake-libcuda.word; }
nothing_is_left() {
  assert_equal "grants" "$(mpsgate status -o json | jq '.grants | length')" 0
  assert_equal "containers" "$(find /run/mpsgate/qualify -mindepth 1 -maxdepth 1 2>/dev/null)" ""
  assert_equal "bundles" "$(find /run -maxdepth 1 -name 'mpsgate-probe.*')" ""
  assert_contains "the card" "$(card 0 .state)" "${1:-ready}"
}

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
level_is() { [[ $(level_of "$1") == "$2" ]]; }

@test "a lying node is caught: a limit that is set and does not hold is no promise, and the doctor is red" {
  fake boundless
  qualify 1 -o json
  assert_equal "limit" "$(answer limit)" no
  assert_contains "limit" "$(seen limit)" "a client with 2048 MiB got 16384"
  nothing_is_left
  granted web 2Gi
  assert_contains "its level" "$(level_of web)" "mps, limit not held on this card: a client with 2048 MiB got 16384"
  assert_contains "status" "$(mpsgate status)" "The memory limit does not hold on this card"
  try any mpsgate doctor
  grep -E '^fail +qualified' <<<"$stdout" || fail "$stdout"
}

@test "a client that stops where no limit is proves nothing" {
  fake stingy
  qualify any -o json
  assert_equal "limit and bypass" "$(answer limit) $(answer bypass)" "unanswered unanswered"
  assert_contains "limit" "$(seen limit)" "a client with 2048 MiB got 1: no limit of memory stops it there"
  granted web 2Gi
  refute_contains "its level" "$(level_of web)" "proven here" "limit not held"
}

@test "a client that keeps to its variable alone, and to nothing without it, is told with its figures" {
  fake obedient
  qualify any -o json
  assert_equal "limit and bypass" "$(answer limit) $(answer bypass)" "yes no"
  assert_contains "evidence" "$(jq -r '.answers[] | select(.question == "bypass") | .evidence' <<<"$stdout")" "unset: 16384 MiB"
  granted web 2Gi
  refute_contains "its level" "$(level_of web)" "limit not held"
}

@test "a client that drops its limit with a value that nobody can read is the watchdog's, and no failure of the card" {
  fake unreadable
  seen_by_nvml 3>&- &
  qualify 0 -o json
  kill $!
  assert_equal "limit and bypass" "$(answer limit) $(answer bypass)" "yes no"
  assert_contains "evidence" "$(jq -r '.answers[] | select(.question == "bypass") | .evidence' <<<"$stdout")" \
    "unset: 2048 MiB" "naming a GPU that is not there: 16384 MiB" "unreadable: 16384 MiB"
  assert_equal "what fails" "$(mpsgate status -o json | jq -c '[.cards[].failures[]?]')" "[]"
  try any mpsgate doctor
  assert_equal "doctor" "$(grep -E '^fail +qualified' <<<"$stdout" || true)" ""
  granted web 2Gi
  wait_for 10 "its level" level_is web "mps+watchdog, proven here $(date -u +%F) (580.00.00, simulated)"
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

@test "where no client attaches, containers that ask are refused with the reason, and asking again opens the card" {
  fake deaf
  qualify 1 -o json
  assert_equal "attach" "$(answer attach)" no
  assert_equal "limit" "$(answer limit): $(seen limit)" "unanswered: no CUDA client attaches: see attach"
  refused x E_GPU_UNHEALTHY --ann mpsgate.io/gpu-mem=1Gi
  assert_contains "the refusal" "$stderr" "let no CUDA client attach" "mpsgate qualify 0"
  rm /usr/bin/fake-libcuda.word
  qualify any -o json
  assert_equal "attach" "$(answer attach)" yes
  granted web 1Gi
}

@test "a client that needs the server's /dev/shm makes it a condition" {
  fake shm
  qualify any -o json
  assert_equal "attach and own-shm" "$(answer attach) $(answer own-shm)" "yes no"
  assert_equal "what clients need at /dev/shm" "$(jq -r .shared_memory /run/mpsgate/node.json)" required
}

@test "a library that crashes, hangs or talks is ended, counts as no, and nothing is left" {
  fake crash
  qualify 1 -o json
  assert_contains "attach" "$(answer attach): $(seen attach)" "no: the client ended"
  nothing_is_left "let no CUDA client attach"
  fake chatty
  qualify any -o json
  assert_equal "attach" "$(answer attach)" yes
  fake hang
  qualify 1 -o json
  assert_equal "attach" "$(answer attach): $(seen attach)" "no: no answer in time"
  nothing_is_left "let no CUDA client attach"
}

@test "a client that somebody kills is asked a second time, and that answer counts" {
  local asks
  fake hang
  mpsgate qualify 0 --library "$MG/fakes/libcuda.so.1" -o json >"$BATS_TEST_TMPDIR/asked" 2>"$BATS_TEST_TMPDIR/said" 3>&- &
  asks=$!
  wait_for 20 "its client is there" one_is_active
  # It comes to the library a moment later.
  sleep 2
  kill -KILL "$(mpsgate status -o json | jq '.grants[0].pid')"
  rm /usr/bin/fake-libcuda.word
  wait "$asks" || true
  stdout=$(<"$BATS_TEST_TMPDIR/asked")
  assert_equal "attach" "$(answer attach)" yes
  assert_contains "what was before" "$(jq -r '.answers[0].evidence' <<<"$stdout")" "asked a second time, because at first: the client ended: "
  granted web 1Gi
}

@test "a no while the control daemon or the gate ends is none: nothing is refused, and it is asked again" {
  local asks what
  fake hang
  for what in "control daemon" gate; do
    mpsgate qualify 0 --library "$MG/fakes/libcuda.so.1" -o json >"$BATS_TEST_TMPDIR/asked" 2>"$BATS_TEST_TMPDIR/said" 3>&- &
    asks=$!
    wait_for 20 "its client is there" one_is_active
    case $what in
      gate) pkill -KILL -f "^/usr/bin/mpsgate-gate --card 0 " ;;
      *) kill -KILL "$(card 0 .mps.pid)" ;;
    esac
    wait "$asks" || true
    stdout=$(<"$BATS_TEST_TMPDIR/asked")
    assert_equal "attach" "$(answer attach): $(seen attach)" "unanswered: no answer in time"
    assert_contains "what was seen meanwhile" "$(jq -r '.answers[0].meanwhile' <<<"$stdout")" "$what"
    # A server that outlived its control daemon holds the card until somebody ends it.
    [[ $what == gate ]] || pkill -KILL -f nvidia-cuda-mps-server || true
    wait_for 20 "the card is ready" card_is ready 0
    assert_contains "it is due" "$(card 0 .qualify)" "no answer counts to attach" "meanwhile"
  done
  # What hangs with nothing else about it is a no, as ever.
  qualify 1 -o json
  assert_equal "attach" "$(answer attach): $(seen attach)" "no: no answer in time"
  assert_equal "it is due" "$(card 0 .qualify)" null
}
one_is_active() { [[ $(mpsgate status -o json | jq '[.grants[] | select(.state == "active")] | length') == 1 ]]; }

@test "a no beside a process of nobody is none, and one of a process that is only drawn counts" {
  fake boundless
  stranger sleep 600
  uses "$stranger" 9000
  LIMIT=20 try fail mpsgate qualify 0
  assert_contains "who uses it" "$stderr" "pid $stranger" E_GPU_IN_USE
  uses
  later_used() { wait_for 20 "the card is being asked" card_is qualifying 0 && uses "$stranger" 9000; }
  later_used 3>&- &
  qualify any -o json
  assert_equal "limit" "$(answer limit)" unanswered
  assert_contains "what was seen meanwhile" "$(jq -r '.answers[] | select(.question == "limit") | .meanwhile' <<<"$stdout")" \
    "processes without a grant used it: pid $stranger"
  uses
  granted web 2Gi
  refute_contains "its level" "$(level_of web)" "limit not held"
}

@test "a container of the same name below another runtime root asks nothing and waits" {
  local id
  mpsgate qualify 0 --library "$MG/fakes/libcuda.so.1" >"$BATS_TEST_TMPDIR/asked" 2>&1 3>&- &
  wait_for 20 "its client is there" one_is_active
  id=$(mpsgate status -o json | jq -r '.grants[0].container_id')
  granted "${id%-*}x" 1Gi
  assert_equal "when it came" "$(card 0 .state)" ready
  wait $! || true
  assert_contains "what was asked" "$(<"$BATS_TEST_TMPDIR/asked")" "attach     yes"
}

@test "a client past MPS is found out" {
  fake past
  qualify 1 -o json
  assert_equal "attach" "$(answer attach): $(seen attach)" "no: a context past MPS: CUDA says that it is no MPS client"
}

@test "a card with grants is not asked, and a container that comes meanwhile waits" {
  granted web 1Gi
  LIMIT=20 try 1 mpsgate qualify 0
  assert_contains "the refusal" "$stderr" E_GPU_IN_USE "a container has a grant on it"
  delete web
  mpsgate qualify 0 --library "$MG/fakes/libcuda.so.1" >"$BATS_TEST_TMPDIR/asked" 2>&1 3>&- &
  wait_for 10 "the card is being asked" card_is qualifying 0
  LIMIT=20 try fail mpsgate qualify 0
  assert_contains "a second one" "$stderr" "another mpsgate qualify is at work"
  granted late 1Gi
  assert_equal "when it came" "$(card 0 .state)" ready
  wait $! || true
  assert_contains "what was asked" "$(<"$BATS_TEST_TMPDIR/asked")" "attach     yes"
}

@test "killed in the middle, of another driver, torn, or another's: no answer counts that was not given" {
  local file=/var/lib/mpsgate/qualification/$CARD.json asks
  mpsgate qualify 0 --library "$MG/fakes/libcuda.so.1" >"$BATS_TEST_TMPDIR/asked" 2>&1 3>&- &
  asks=$!
  wait_for 10 "the card is being asked" card_is qualifying 0
  kill -TERM "$asks"
  wait "$asks" && fail "it ended as if nothing had been"
  assert_contains "what it says" "$(<"$BATS_TEST_TMPDIR/asked")" "ended by a signal"
  nothing_is_left
  [[ ! -e $file ]] || fail "half of the answers were kept"
  mpsgate qualify 0 --library "$MG/fakes/libcuda.so.1" >"$BATS_TEST_TMPDIR/asked" 2>&1 3>&- &
  asks=$!
  wait_for 10 "the card is being asked" card_is qualifying 0
  daemon_stop KILL
  daemon_start
  wait "$asks" && fail "its answers were taken"
  assert_contains "what it says" "$(<"$BATS_TEST_TMPDIR/asked")" "no card is being asked by that name any more"
  [[ ! -e $file ]] || fail "answers were kept of which mpsgated knows nothing"
  mkdir -p "${file%/*}"
  echo '{"format": 2}' >"$file"
  wait_for 20 "status says why" status_has "its answers cannot be read: $file: it has format 2"
  assert_equal "the file" "$(<"$file")" '{"format": 2}'
}
status_has() { mpsgate status -o json | grep -qF "$1"; }

@test "where local engines are not trusted, as beside a kubelet, the containers that ask are" {
  printf '[trust]\nlocal = "off"\n' >>/etc/mpsgate/config.toml
  mpsgate reload
  refused x E_UNCONFIRMED --ann mpsgate.io/gpu-mem=1Gi
  qualify any -o json
  assert_equal "attach and limit" "$(answer attach) $(answer limit)" "yes yes"
  refused x E_UNCONFIRMED --ann mpsgate.io/gpu-mem=1Gi
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
  qualify any -o json
  assert_equal "detour" "$(answer detour)" unanswered
  assert_contains "detour" "$(seen detour)" "another reason than a busy card"
  try mpsgate qualify 0 --library "$library" --report || true
  refute_contains "the page for an issue" "$stdout" "$CARD" "mpsgate-qualify-" "$(hostname)"
}

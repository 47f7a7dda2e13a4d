# mpsgate.bash: the product in the sandbox: simulated cards, settings, the daemon, what it says.
# shellcheck shell=bash

# shellcheck source=tests/e2e/helpers.bash
source "${BASH_SOURCE[0]%/*}/helpers.bash"

NVML=${MG_NVML:-$MG/nvml}
NODE_MEMORY=16384  # MiB of each simulated card; 15360 of it can be granted (whole GiB after 512)
CARD_MEMORY=15360
SETTINGS=''        # a file's own, for `settings`
CARDS=${MG_GPUS:-2} # simulated ones of a file, for `node_start` and `node_reset`

# uuid N: of simulated card N.
uuid() { printf 'GPU-00000000-0000-4000-8000-%012d' "$1"; }

# sim_cards [N [JQ]]: N cards (default: the sandbox's nodes) as NVML shows them, changed by JQ.
sim_cards() {
  local n=${1:-$MG_GPUS} filter=${2:-.}
  mkdir -p "$NVML"
  [[ -f $NVML/libnvidia-ml.so.1 ]] || cp "$MG_OUT/fakes/libnvidia-ml.so.1" "$NVML/"
  jq -n --argjson n "$n" --argjson mib "$NODE_MEMORY" '{
      driver_version: "550.163.01", cuda_driver_version: "12.4",
      cards: [range($n) as $i | {
        uuid: ("GPU-00000000-0000-4000-8000-" + ("000000000000" + ($i | tostring))[-12:]),
        index: $i, minor: $i, name: "Simulated T4", memory_total_mib: $mib, memory_used_mib: 0,
        compute_capability: "7.5", mig: "unsupported", compute_mode: "DEFAULT",
        pci_bus_id: ("00000000:" + (["3A", "3B", "3C", "3D", "AA", "AB", "AC", "AD"][$i]) + ":00.0"), processes: []
      }]}' | jq "$filter" >"$NVML/nvml.json.new"
  mv "$NVML/nvml.json.new" "$NVML/nvml.json"
}

# uses [PID MIB]...: what NVML says of card 0 from now on.
uses() {
  local list='[]'
  while (($#)); do
    list=$(jq -c --argjson pid "$1" --argjson mib "$2" '. + [{pid: $pid, used_mib: $mib, kind: "mps"}]' <<<"$list")
    shift 2
  done
  jq --argjson list "$list" '.cards[0].processes = $list' "$NVML/nvml.json" >"$NVML/nvml.json.next"
  mv "$NVML/nvml.json.next" "$NVML/nvml.json"
}

# The real control daemon where it can be had (tests/e2e/run found it), else the fake.
control_program() { echo "${MG_MPS_CONTROL:-$MG_OUT/fakes/nvidia-cuda-mps-control}"; }

# rootfs_libcuda DIR: cuda-client, and NVIDIA's client library of the control daemon's branch as
# $LIBCUDA; fails, saying why, where there is none. MG_LIBCUDA=FILE names it.
LIBCUDA=/usr/bin/libcuda.so.1
rootfs_libcuda() {
  local library=${MG_LIBCUDA:-}
  if [[ -z $library ]]; then
    [[ ${MG_MPS_CONTROL:-} =~ nvidia-cuda-mps-([0-9]+) ]] || { echo "needs a control daemon of NVIDIA's, unpacked by tests/env" >&2; return 1; }
    library=$("${BASH_SOURCE[0]%/*}/../env/nvidia-libcuda.sh" "${BASH_REMATCH[1]}") || return 1
  fi
  rootfs_program "$1" "$MG_OUT/fakes/cuda-client"
  rootfs_program "$1" "$library"
}

# libcuda_command DIR: for a shell in a container without a C library, where DIR is what
# rootfs_libcuda made: it runs cuda-client.
libcuda_command() { echo "$1/lib64/ld-linux-*.so.2 --library-path \$(echo $1/lib/*-linux-gnu) $1/usr/bin/cuda-client $1$LIBCUDA"; }

# client_row RUNTIME UID IPC: a row of the table in tests/README.md: a client was served or seen
# there.
client_row() {
  local branch=${MG_MPS_BRANCH:-its-own}
  [[ ! ${MG_MPS_CONTROL:-} =~ nvidia-cuda-mps-([0-9]+) ]] || branch=${BASH_REMATCH[1]}
  echo "# client: branch $branch, $1, uid $2, $3 IPC: attached" >&3
}

# pipe_of CARD: its control daemon's directory. On the node it is empty: the daemon has a mount
# namespace of its own, and root alone looks into it.
pipe_of() { echo "/proc/$(card "$1" .mps.pid)/root/run/mpsgate/mps/$1/pipe"; }

# mps_asks CARD COMMAND: of its control daemon, as root on the node. NVIDIA's front-end gives up
# where the daemon serves another one at that moment, as mpsgated's.
mps_asks() {
  local i control said
  control=$(sed -n 's/^control = "\(.*\)"/\1/p' /etc/mpsgate/config.toml)
  for i in {1..5}; do
    if said=$(echo "$2" | CUDA_MPS_PIPE_DIRECTORY=$(pipe_of "$1") "$control") && [[ $said != "Cannot "* ]]; then
      [[ -z $said ]] || echo "$said"
      return 0
    fi
    sleep 0.3
  done
  echo "$said" >&2
  return 1
}

# answered QUESTION VERDICT [DRIVER]: the only answer of each managed card, with its driver or
# another.
answered() {
  local uuid dir=/var/lib/mpsgate/qualification
  mkdir -p "$dir"
  for uuid in $(status_json | jq -r '.cards[] | select(.managed) | .uuid'); do
    status_json | jq --arg uuid "$uuid" --arg question "$1" --arg verdict "$2" --arg driver "${3:-}" '{format: 1,
      subject: {card: $uuid, driver: (if $driver == "" then .driver else $driver end), control: "", questions: 1, simulated},
      answers: [{$question, expected: "", seen: "so it was", $verdict, evidence: "", mib: null, granted_mib: null, took_ms: 0, at_ms: 0}]}' >"$dir/$uuid.json"
  done
  mpsgate reload >/dev/null
}

# own_ipc_does, own_ipc_ends: the node has shown that a client with a /dev/shm of its own attaches,
# and policy.ipc follows that.
own_ipc_does() {
  cp /etc/mpsgate/config.toml "$MG/config.before"
  answered own-shm yes
  printf '[policy]\nipc = "auto"\n' >>/etc/mpsgate/config.toml
  mpsgate reload >/dev/null
  wait_for 60 "the node's answer counts" grep -q '"shared_memory":"anonymous"' /run/mpsgate/node.json
}
own_ipc_ends() {
  rm -r /var/lib/mpsgate/qualification
  cp "$MG/config.before" /etc/mpsgate/config.toml
  mpsgate reload >/dev/null
}

# A user namespace of its own, in which root is the host's 100000; IPC stays the host's. Without
# sysfs and mqueue, which only the owner of the network and IPC namespaces may mount (runc 1.1.5),
# and with the sandbox's /proc: the kernel gives no new one where part of the old is covered, as
# /proc/devices is here.
USERNS='.linux.namespaces += [{type: "user"}]
  | .linux.uidMappings = [{containerID: 0, hostID: 100000, size: 65536}] | .linux.gidMappings = .linux.uidMappings
  | .mounts |= map(select(.type != "sysfs" and .type != "mqueue" and .type != "cgroup"))
  | (.mounts[] | select(.type == "proc")) |= {destination: "/proc", type: "bind", source: "/proc", options: ["rbind"]}
  | .linux.namespaces |= map(select(.type != "pid")) | .linux.maskedPaths = [] | .linux.readonlyPaths = []'
# userns_rootfs ID: the root file system of a bundle that has it is its root's.
userns_rootfs() {
  rm -rf "${MG:?}/b/$1/rootfs"
  cp -a "$MG/rootfs" "$MG/b/$1/rootfs"
  chown -R 100000:100000 "$MG/b/$1/rootfs"
  chmod 711 "$MG" "$MG/b" "$MG/b/$1"
}

# settings [SED SCRIPT]: /etc/mpsgate/config.toml for this sandbox, changed by a sed script; without
# one by $SETTINGS.
settings() {
  mkdir -p /etc/mpsgate
  sed "${1-$SETTINGS}" >/etc/mpsgate/config.toml <<EOF
[runtime]
path = "$REAL"
[gpus]
manage = "all"
[inject]
mode = "devices"
[mps]
control = "$(control_program)"
[nvml]
library = "$NVML/libnvidia-ml.so.1"
EOF
}

# runtime_below: sets $MG_REAL_RUNTIME where runc alone cannot run a privileged container: engines
# list all capabilities, also one that root on this machine lacks, and runc fails over it.
runtime_below() {
  local bounding
  bounding=$(sed -n 's/^CapBnd:\t//p' /proc/self/status)
  (((0x$bounding >> 24) & 1)) && return 0 # CAP_SYS_RESOURCE
  mkdir -p "$MG/below"
  cat >"$MG/below/runc" <<'SH'
#!/bin/bash
before='' bundle=''
for word; do
  [[ $before != --bundle ]] || bundle=$word
  before=$word
done
if [[ -n $bundle ]] && grep -q CAP_SYS_RESOURCE "$bundle/config.json"; then
  less=$(jq '.process.capabilities |= map_values(. - ["CAP_SYS_RESOURCE"])' "$bundle/config.json")
  echo "$less" >"$bundle/config.json"
fi
exec /usr/sbin/runc "$@"
SH
  chmod +x "$MG/below/runc"
  export MG_REAL_RUNTIME=$MG/below/runc
  REAL=$MG_REAL_RUNTIME # what `settings` writes
}

# settled: mpsgated answers, has looked at NVML, and every card is ready or has a reason not to be.
# Slurped, because jq 1.6 is content with no input at all.
settled() {
  status_json | jq -se '.[0] | .cards != null and (.nvml_error // "" | contains("not answered yet") | not)
    and all(.cards[]; .state != "starting")'
}

# daemon_start: mpsgated on /etc/mpsgate/config.toml, until it is settled.
daemon_start() {
  mkdir -p "$MG/log"
  mpsgated >>"$MG/log/mpsgated.log" 2>&1 3>&- &
  echo $! >"$MG/mpsgated.pid"
  wait_for 30 "mpsgated has prepared its cards" settled || { tail -30 "$MG/log/mpsgated.log" >&2; return 1; }
}

# daemon_stop [SIGNAL]: TERM is the clean way.
daemon_stop() {
  local pid
  [[ -f $MG/mpsgated.pid ]] || return 0
  pid=$(<"$MG/mpsgated.pid")
  rm -f "$MG/mpsgated.pid"
  kill -CONT "$pid" 2>/dev/null || true
  kill "-${1:-TERM}" "$pid" 2>/dev/null || true
  wait_for 20 "mpsgated ends" gone "$pid" || { kill -KILL "$pid"; return 1; }
}

# daemon_with [SED SCRIPT]: anew, with these settings.
daemon_with() {
  daemon_stop
  settings "$@"
  daemon_start
}

# node_start [N]: cards, settings, daemon. node_stop: the containers, the daemon, the channel.
# node_anew [SED SCRIPT]: both.
# node_reset: no container is left, mpsgated runs, all memory is free.
node_start() {
  sim_cards "${1:-$CARDS}"
  settings
  daemon_start
}

node_stop() {
  delete_all
  daemon_stop
  mps_kill
  rm -rf /run/mpsgate /var/lib/mpsgate/*
}

node_anew() {
  node_stop
  sim_cards
  settings "$@"
  daemon_start
}

node_reset() {
  delete_all
  [[ -f $MG/mpsgated.pid ]] || daemon_start
  assert_free "$CARDS"
}

# What outlives mpsgated by design: the holder that it started, the control daemons, and the gates.
mps_pids() { pgrep -x nvidia-cuda-mps || true; } # the kernel keeps 15 letters of a name
# mps_pids_are PIDS: to be waited for, as mpsgated's own commands have the same name for a moment.
mps_pids_are() { [[ $(mps_pids) == "$1" ]]; }
holder_pid() { pgrep -f '^mpsgated hold ' || true; }
mps_kill() {
  local pid
  # The holder first: it starts what it is asked for.
  for pid in $(holder_pid) $(pgrep -x mpsgate-gate) $(mps_pids); do
    kill -KILL "$pid" 2>/dev/null || true
    wait_for 10 "holder, gate or control daemon $pid ends" gone "$pid"
  done
}

# --- what the daemon says -------------------------------------------------------------------------

status_json() { mpsgate status -o json; }
# What is recorded of all grants: what they use and how firmly they are held is of the moment.
recorded_grants() { status_json | jq -S "[.grants[] | del(.used_mib, .cap_mib, .guarantee, .proof)]"; }
card() { status_json | jq -r --argjson i "$1" ".cards[] | select(.index == \$i) | $2"; } # INDEX FIELD
card_is() { [[ $(card "$2" .state) == "$1" ]]; } # STATE INDEX
says() { [[ $(card "$1" .state) == *"$2"* ]]; } # INDEX PART
card_is_not() { [[ $(card "$2" .state) != "$1" ]]; }
# grant ID FIELD: of a process its name alone will do, where it is one user's.
grant() { status_json | jq -r --arg id "$1" ".grants[] | select(.container_id == \$id or (.container_id | endswith(\"/\" + \$id))) | $2"; }
grant_is() { [[ $(grant "$1" .state) == "$2" ]]; } # ID STATE
granted_ids() { status_json | jq -r '[.grants[].container_id] | sort | join(" ")'; }
free_total() { status_json | jq '[.cards[] | select(.managed) | .free_mib] | add'; }
is_free() { [[ $(free_total) == $((CARD_MEMORY * ${1:-$MG_GPUS})) && -z $(granted_ids) ]]; }
actions() { status_json | jq -r '[.actions[] | "\(.container_id) \(.what)"] | join(", ")'; }
acted() { [[ -n $(actions) ]]; }
not_granted() { [[ -z $(grant "$1" .container_id) ]]; }

assert_free() { wait_for 10 "all memory free" is_free "$@" || { status_json >&2; return 1; }; }

# granted ID SIZE [BUNDLE OPTION...]: a running container with a grant; its init sleeps.
granted() {
  local id=$1 size=$2
  shift 2
  bundle "$id" --ann "mpsgate.io/gpu-mem=$size" "$@"
  create "$id"
  assert_equal "the grant of $id" "$(grant "$id" .state)" active
  start "$id"
}

# env_in ID NAME: NAME in the environment of the container's init.
pid_of() { oci state "$1" | jq .pid; } # ID: of its init
env_in() { environment_of "$(oci state "$1" | jq .pid)" | sed -n "s/^$2=//p"; }

# --- refusals -------------------------------------------------------------------------------------

# assert_refusal_text ID CODE: of the last `try`: on stderr and, as one JSON line, in --log.
assert_refusal_text() {
  local id=$1 code=$2 msg
  assert_contains "stderr of the refusal" "$stderr" "mpsgate: refused container \"$id\": " "[$code]" "hint: "
  [[ $stderr =~ hint:\ [^[:space:]] ]] || fail "a refusal without a hint:" "$stderr"
  msg=$(jq -r 'select(.level == "error") | .msg' "$MG/log/oci.json" | head -c 4000) ||
    fail "--log is not JSON:" "$(cat "$MG/log/oci.json")"
  assert_contains "msg in --log" "$msg" "refused container \"$id\"" "[$code]" "hint: "
  jq -e 'select(.level == "error") | .time | fromdate' "$MG/log/oci.json" >/dev/null || fail "no time in $(cat "$MG/log/oci.json")"
}

# refused ID CODE [BUNDLE OPTION...]: create fails with CODE, spec and node stay as they were.
refused() {
  local id=$1 code=$2 before ids
  shift 2
  bundle "$id" "$@"
  before=$(sha256sum <"$MG/b/$id/config.json") ids=$(container_ids)
  create fail "$id"
  assert_refusal_text "$id" "$code"
  assert_equal "config.json after a refusal" "$(sha256sum <"$MG/b/$id/config.json")" "$before"
  assert_equal "files in the bundle" "$(cd "$MG/b/$id" && printf '%s ' *)" "config.json rootfs "
  assert_equal "containers after a refusal" "$(container_ids)" "$ids"
  rm -rf "${MG:?}/b/$id"
}

# allowed ID [BUNDLE OPTION...]: the neighbour of a refusal: created, started, deleted.
allowed() {
  local id=$1
  shift
  bundle "$id" "$@"
  create "$id"
  start "$id"
  delete "$id"
}

# on failure, what the node knew
explain_failure() {
  [[ ${BATS_TEST_COMPLETED:-} == 1 ]] && return 0
  {
    echo "--- mpsgate status"
    timeout 5 mpsgate status 2>&1 || true
    echo "--- mpsgated.log"
    tail -40 "$MG/log/mpsgated.log" 2>/dev/null || true
  } >&2
}

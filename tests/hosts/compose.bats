#!/usr/bin/env bats
# Docker Compose and podman-compose, with the sample of docs/compose.md as it stands but for its
# image. vllm and nvidia-smi are stand-ins; NVIDIA's client library is its own.
# sandbox: MG_GPUS=1
# packages: sid
# needs: dockerd docker docker-compose containerd

MG_ENGINES=$MG_REPO/tests/engines MG_ENGINE=docker
load ../engines/engine
load ../e2e/gate

setup_file() {
  export SETTINGS=''
  gate_files
  [[ -f $MG/skip ]] || SETTINGS=$GATE_SETTINGS
  stand_ins
  cell_start
  ln -sf "$(type -P docker-compose)" "$DOCKER_CONFIG/cli-plugins/docker-compose"
}

teardown() {
  [[ ! -f $MG/compose/compose.yaml ]] || docker compose -f "$MG/compose/compose.yaml" down -t 0 >/dev/null 2>&1 || true
  [[ ! -x $MG/bin/podman ]] || "$MG/bin/podman" rm -af -t 0 >/dev/null 2>&1
  cell_teardown
}

# stand_ins: what the sample's image has: a vllm that says with what it was started, and an
# nvidia-smi that knows the card by its UUID alone.
stand_ins() {
  local bin=$MG/rootfs/bin
  ln -sf busybox "$bin/awk"
  # shellcheck disable=SC2016 # for the container's shell
  printf '#!/bin/sh\necho "vllm $*"\nexec sleep 600\n' >"$bin/vllm"
  # shellcheck disable=SC2016
  printf '#!/bin/sh\ncase "$*" in "--id=%s --query-gpu=memory.total"*) echo %s ;; *) echo "No devices were found"; exit 6 ;; esac\n' \
    "$(uuid 0)" "$NODE_MEMORY" >"$bin/nvidia-smi"
  chmod 755 "$bin/vllm" "$bin/nvidia-smi"
}

# sample [SED SCRIPT]: the page's first file of YAML.
sample() {
  mkdir -p "$MG/compose"
  sed -n '/^```yaml$/,/^```$/p' "$MG_REPO/docs/compose.md" | sed '/^```$/q' | sed '/^```/d' >"$MG/compose/page.yaml"
  sed "s|vllm/vllm-openai|bb|; ${1:-}" "$MG/compose/page.yaml" >"$MG/compose/compose.yaml"
}
# service NAME LINE...: one more.
service() {
  printf '  %s:\n    image: bb\n    command: [sleep, "600"]\n    network_mode: none\n' "$1"
  printf '    %s\n' "${@:2}"
} >>"$MG/compose/compose.yaml"
# alone NAME LINE...: a file of this service.
alone() { mkdir -p "$MG/compose"; echo services: >"$MG/compose/compose.yaml"; service "$@"; }

compose() { # [STATUS] ARG...
  local want rest
  want "$@"
  try "$want" "${DOCKER[@]}" compose -f "$MG/compose/compose.yaml" "${rest[@]}"
}
id_of() { docker compose -f "$MG/compose/compose.yaml" ps -q "$1"; } # SERVICE
env_of() { environment_of "$(docker inspect -f '{{.State.Pid}}' "$(id_of "$1")")" | sed -n "s/^$2=//p"; } # SERVICE VARIABLE
# sizes: of all grants.
sizes() { status_json | jq -c '[.grants[].memory_mib] | sort'; }
sizes_are() { [[ $(sizes) == "$1" ]]; }
said() { docker compose -f "$MG/compose/compose.yaml" logs "$1" 2>&1 | grep -qF -- "$2"; } # SERVICE TEXT

@test "the page's two services share a card: grants, sizes from what they were told, restart, stop and start, down" {
  sample
  local service first
  compose up -d
  assert_equal "grants" "$(sizes)" "[2048,7168]"
  for service in llm:7168:0.3984 embedder:2048:0.0859; do
    IFS=: read -r service mib share <<<"$service"
    assert_equal "grant of $service" "$(grant "$(id_of "$service")" .memory_mib)" "$mib"
    assert_equal "MiB told to $service" "$(env_of "$service" MPSGATE_GPU_MEM_MIB)" "$mib"
    assert_equal "card told to $service" "$(env_of "$service" MPSGATE_GPU_UUID)" "$(uuid 0)"
    wait_for 10 "$service says its size" said "$service" "--gpu-memory-utilization $share"
    compose exec -T "$service" env
    assert_contains "environment of exec" "$stdout" "MPSGATE_GPU_MEM_MIB=$mib" "MPSGATE_GPU_UUID=$(uuid 0)"
  done
  assert_equal "granted of the card" "$(card 0 .granted_mib)" 9216
  first=$(grant "$(id_of llm)" .instance)
  compose restart -t 0
  assert_equal "grants after a restart" "$(sizes)" "[2048,7168]"
  assert_equal "granted of the card" "$(card 0 .granted_mib)" 9216
  [[ $(grant "$(id_of llm)" .instance) != "$first" ]] || fail "the instance was used again"
  assert_equal "MiB told after a restart" "$(env_of llm MPSGATE_GPU_MEM_MIB)" 7168
  compose stop -t 0 embedder
  wait_for 10 "one is left" sizes_are "[7168]"
  compose start embedder
  assert_equal "grants after a start" "$(sizes)" "[2048,7168]"
  compose down -t 0
  assert_free
}

@test "a service is made larger: its program keeps what it was told, exec is told the new amount, a new one the old" {
  alone llm "ipc: host" "environment: {MPSGATE_GPU_MEM: 7Gi}"
  compose up -d
  try mpsgate resize "$(id_of llm)" 9Gi
  assert_equal "MiB told to its program" "$(env_of llm MPSGATE_GPU_MEM_MIB)" 7168
  compose exec -T llm env
  assert_contains "environment of exec" "$stdout" MPSGATE_GPU_MEM_MIB=9216 CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=9216M
  compose restart -t 0
  assert_equal "MiB told after a restart" "$(env_of llm MPSGATE_GPU_MEM_MIB)" 7168
}

@test "what a container is told counts as nothing in another one: in an image, in a file, by exec" {
  alone llm "ipc: host" "environment: {MPSGATE_GPU_MEM: 2Gi, MPSGATE_GPU_MEM_MIB: 9999, MPSGATE_GPU_UUID: GPU-x}"
  service plain "environment: {MPSGATE_GPU_MEM_MIB: 9999, MPSGATE_GPU_UUID: GPU-x}"
  compose up -d
  assert_equal "grants" "$(sizes)" "[2048]"
  assert_equal "MiB told" "$(env_of llm MPSGATE_GPU_MEM_MIB) $(env_of llm MPSGATE_GPU_UUID)" "2048 $(uuid 0)"
  compose exec -T -e MPSGATE_GPU_MEM_MIB=1 llm env
  assert_equal "MiB told by exec" "$(grep MPSGATE_GPU_MEM_MIB <<<"$stdout")" MPSGATE_GPU_MEM_MIB=2048
  # A commit of it, started once without and once with a request of its own.
  try "${DOCKER[@]}" commit "$(id_of llm)" again
  compose down -t 0
  try "${DOCKER[@]}" run --rm --network none --ipc host --env MPSGATE_GPU_MEM=1Gi again env
  assert_contains "environment" "$stdout" MPSGATE_GPU_MEM_MIB=1024 "MPSGATE_GPU_UUID=$(uuid 0)"
  refute_contains "environment" "$stdout" 9999 GPU-x
}

@test "annotations ask as variables do" {
  alone llm "ipc: host" "annotations: {mpsgate.io/gpu-mem: 2Gi}"
  compose up -d
  assert_equal "MiB told" "$(env_of llm MPSGATE_GPU_MEM_MIB)" 2048
}

@test "a third service that does not fit: Compose shows the sentence, the others go on" {
  sample
  compose up -d
  service third "ipc: host" "environment: {MPSGATE_GPU_MEM: 7Gi}"
  compose fail up -d
  assert_contains "what Compose shows" "$stdout$stderr" "[E_NO_CAPACITY]" "it asks for 7 GiB" "hint: " "$(id_of llm | cut -c1-12)"
  assert_equal "grants" "$(sizes)" "[2048,7168]"
  assert_contains "the others" "$(docker compose -f "$MG/compose/compose.yaml" ps --format '{{.Service}} {{.State}}')" "llm running" "embedder running"
}

@test "whole cards are refused, and beside a request of no use" {
  local devices="deploy: {resources: {reservations: {devices: [{driver: nvidia, count: all, capabilities: [gpu]}]}}}"
  alone all "$devices"
  compose fail up -d
  assert_contains "what Compose shows" "$stdout$stderr" "mpsgate: refused container" "[E_NVIDIA_HOOK]" "hint: "
  compose down
  alone all "environment: {NVIDIA_VISIBLE_DEVICES: all}"
  compose fail up -d
  assert_contains "what Compose shows" "$stdout$stderr" "[E_VISIBLE_DEVICES]"
  compose down
  alone all "$devices" "ipc: host" "environment: {MPSGATE_GPU_MEM: 2Gi}"
  compose up -d
  assert_equal "its card" "$(env_of all NVIDIA_VISIBLE_DEVICES)" "$(uuid 0)"
}

@test "gpus: all is refused, or nothing, where Compose is older than that word" {
  alone all "gpus: all"
  if [[ $(printf '%s\n' 2.30 "$(docker compose version --short)" | sort -V | head -1) != 2.30 ]]; then
    compose up -d
    compose exec -T all ls /dev
    refute_contains "its nodes" "$stdout" nvidia
    return
  fi
  compose fail up -d
  assert_contains "what Compose shows" "$stdout$stderr" "mpsgate: refused container" "[E_NVIDIA_HOOK]" "hint: "
}

@test "without ipc: host it is refused, and runs where the node has shown that it needs none" {
  sample '/^  ipc: host$/d'
  refute_contains "the file" "$(<"$MG/compose/compose.yaml")" ipc:
  compose fail up -d
  assert_contains "what Compose shows" "$stdout$stderr" "[E_NO_HOST_IPC]" "ipc: host"
  compose down -t 0
  own_ipc_does
  compose up -d
  assert_equal "grants" "$(sizes)" "[2048,7168]"
  compose down -t 0
  own_ipc_ends
}

@test "NVIDIA's own client library attaches up to the server, through the service's door" {
  gate_needed
  server_says_word
  sample
  compose up -d
  local service
  for service in llm embedder; do
    compose exec -T "$service" cuda-client "$LIBCUDA"
    assert_equal "cuInit in $service" "${stdout##* }" "$WORD"
    assert_contains "the gate's log" "$(grep 'client handed over' "$card/log/gate.log")" "container=$(id_of "$service")"
  done
}

@test "podman-compose: the page's two services by variable and by annotation, restart and down" {
  command -v podman podman-compose >/dev/null && [[ -x /usr/lib/cni/bridge ]] || skip "there is no podman-compose with CNI's plugins"
  podman_stands
  # Published ports need more of a network than there is here.
  sample '/^    ports:/d'
  # It knows no `ipc:`, and ends with 0 whatever becomes of its containers.
  podman_compose up -d
  assert_contains "what podman-compose shows" "$stdout$stderr" "[E_NO_HOST_IPC]" "--ipc=host"
  assert_free
  podman_compose down -t 0
  podman_compose --podman-run-args=--ipc=host up -d
  assert_equal "grants" "$(sizes)" "[2048,7168]"
  try "$MG/bin/podman" exec compose_llm_1 env
  assert_contains "environment of exec" "$stdout" MPSGATE_GPU_MEM_MIB=7168 "MPSGATE_GPU_UUID=$(uuid 0)"
  podman_compose restart -t 0
  assert_equal "grants after a restart" "$(sizes)" "[2048,7168]"
  podman_compose down -t 0
  assert_free
  sample '/^    ports:/d; s/^    environment:/    annotations:/; s|MPSGATE_GPU_MEM:|mpsgate.io/gpu-mem:|'
  podman_compose --podman-run-args=--ipc=host up -d
  assert_equal "grants by annotations" "$(sizes)" "[2048,7168]"
}

# podman_stands: Podman with directories of its own, as the program that podman-compose runs, and
# the image bb.
podman_stands() {
  mkdir -p "$MG/bin" "$MG/podman" /etc/containers
  [[ -f /etc/containers/policy.json ]] || echo '{"default": [{"type": "insecureAcceptAnything"}]}' >/etc/containers/policy.json
  # Root without CAP_SYS_RESOURCE may not raise limits.
  cat >"$MG/bin/podman" <<SH
#!/bin/bash
options=()
[[ \$1 != run && \$1 != create ]] || options=(--cgroup-parent $MG_CGROUP --ulimit nofile=1024:1024 --ulimit nproc=1000:1000)
exec /usr/bin/podman --root $MG/podman --runroot $MG/podman.run --tmpdir $MG/podman.tmp --storage-driver vfs --events-backend file \\
  --cgroup-manager cgroupfs --runtime /usr/bin/mpsgate-runtime "\$1" "\${options[@]}" "\${@:2}"
SH
  chmod 755 "$MG/bin/podman"
  tar -C "$MG/rootfs" -c . | "$MG/bin/podman" import - bb >/dev/null 2>&1
}
podman_compose() { try env -u DOCKER_CONFIG -C "$MG/compose" podman-compose --podman-path "$MG/bin/podman" -f compose.yaml "$@"; }

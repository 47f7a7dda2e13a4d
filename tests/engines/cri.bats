#!/usr/bin/env bats
# What only pods have: the pause container, the pod's own annotations, the default handler, a
# kubelet.

load engine.bash
load ../e2e/token.bash

teardown() {
  kubelet_goes
  cell_teardown
}

WANT=(--ipc --gpu 7Gi)

@test "the pod's annotation is on its pause container too, which has no grant and is not touched" {
  local pause
  engine_up got "${WANT[@]}" -- sleep 600
  assert_equal "grants" "$(granted_ids)" "$(engine_id got)"
  pause=$(spec_at "$(<"$CRI_PODS/got/sandbox")")
  assert_equal "annotation of the pause container" "$(jq -r '.annotations["mpsgate.io/gpu-mem"]' "$pause")" 7Gi
  assert_equal "its hooks and limits" "$(jq -c '[.hooks, (.process.env[] | select(startswith("CUDA")))]' "$pause")" '[null]'
}

@test "hostIPC as a pod spec gives it: the entry is there, and names the host's namespace" {
  engine_up got "${WANT[@]}" -- sleep 600
  assert_contains "namespace entry" "$(jq -c '.linux.namespaces' "$(engine_spec got)")" '"type":"ipc","path":"'"$HOST_IPC_AT"
  assert_equal "namespace" "$(readlink "/proc/$(engine_pid got)/ns/ipc")" "$(readlink /proc/self/ns/ipc)"
}

# What policy.host_pid = "own", the default, says. In the cells of CRI-O, too.
@test "hostPID as a pod spec gives it: with a request it is a PID namespace of its own; without, the host's" {
  local pid
  CRI_PIDS=NODE engine_up got "${WANT[@]}" -- sleep 600
  own_pids got
  pid=$(engine_pid got)
  granted_pid "$(engine_id got)" "$pid" || fail "its grant: $(mpsgate status)"
  assert_equal "its memory" "$(grant "$(engine_id got)" .memory_mib)" 7168
  assert_equal "its limit" "$(init_env got CUDA_MPS_PINNED_DEVICE_MEM_LIMIT)" 0=7168M
  exec_limit got
  CRI_PIDS=NODE engine_up plain -- sleep 600
  assert_equal "the neighbour's PID namespace" "$(readlink "/proc/$(engine_pid plain)/ns/pid")" "$(readlink /proc/self/ns/pid)"
}

@test "a pod that calls itself a pause container is none" {
  local forged=(--pod-ann io.kubernetes.cri.container-type=sandbox --pod-ann io.kubernetes.cri-o.ContainerType=sandbox)
  refusal E_NO_HOST_IPC lone "${forged[@]}" --gpu 7Gi -- true
  refusal E_VISIBLE_DEVICES all "${forged[@]}" --env NVIDIA_VISIBLE_DEVICES=all -- true
  engine_once neighbour "${forged[@]}" -- true
}

@test "the default handler is ours: a pod that names none is evaluated alike" {
  UNDER='' refusal E_VISIBLE_DEVICES all --env NVIDIA_VISIBLE_DEVICES=all -- true
  UNDER='' engine_once neighbour -- true
}

@test "with a kubelet a pod's annotation is not trusted; without the device plugin its event says so" {
  kubelet_appears
  engine_once sidecar "${WANT[@]}" -- true
  printf '[kubernetes]\ndevice_plugin = "off"\n' >>/etc/mpsgate/config.toml
  mpsgate reload
  wait_for 30 "it serves no more" jq -e '.device_plugin | not' /run/mpsgate/node.json
  refusal E_UNCONFIRMED pod "${WANT[@]}" -- true
  engine_once ordinary -- true
  sed -i '/^\[kubernetes\]/,$d' /etc/mpsgate/config.toml
  mpsgate reload
}

@test "with a token a container gets what it says, its pod's author notwithstanding; another pod's does not" {
  kubelet_appears
  local token
  token=$(token 7168)
  engine_up got --ipc --ann "mpsgate.io/grant=$token" --pod-ann aliyun.com/gpu-mem=80 -- sleep 600
  assert_equal "memory" "$(grant "$(engine_id got)" .memory_mib)" 7168
  refusal E_UNCONFIRMED thief --ipc --ann "mpsgate.io/grant=$token" -- true
  assert_contains "whose it is" "$stderr" "of pod uid-got"
  refusal E_UNCONFIRMED forged --ipc --ann mpsgate.io/grant=t --ann mpsgate.io/gpu-mem=1Gi -- true
  engine_once ordinary -- true
}

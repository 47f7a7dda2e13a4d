#!/usr/bin/env bats
# Below a kubelet: a pod's container gets what the device plugin's token says, whatever the pod's
# author writes, and nobody gets it a second time; who is exempt is told by namespace and image. The
# runtime is called as containerd's CRI calls it; what containerd itself makes of such annotations
# is in tests/engines/cri.bats.

load pods

@test "what the token says is granted; what the pod's author writes beside it changes nothing" {
  local of forged
  for forged in '' aliyun.com/gpu-mem=80 mpsgate.io/gpu-mem=9Gi mpsgate.io/gpu-mem=much aliyun.com/gpu-count=2 mpsgate.io/gpu=1; do
    of pod-1 main "$(token 7168)"
    podded x "${of[@]}" ${forged:+--ann "$forged"}
    assert_equal "memory with '$forged'" "$(grant x .memory_mib)" 7168
    assert_contains "its limit" "$(oci exec x env)" "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M"
    delete x
  done
}

@test "restarts of the container may bring its token again, also after mpsgated's; others may not" {
  local of mine
  mine=$(token 2048)
  of pod-1 main "$mine"
  podded first "${of[@]}"
  delete first
  podded second "${of[@]}"
  daemon_stop KILL
  daemon_start
  of pod-1 sidecar "$mine"
  refused third E_UNCONFIRMED "${of[@]}"
  assert_contains "whose it is" "$stderr" "first brought by container main of pod pod-1"
  of pod-2 main "$mine"
  refused third E_UNCONFIRMED "${of[@]}"
  delete second
  of pod-1 main "$mine"
  podded fourth "${of[@]}"
}

@test "a token that is forged, another node's, or without an engine's word for its pod does not count" {
  local of good
  good=$(token 1024)
  of pod-1 main "${good%?}A"
  [[ $good != "${good%?}A" ]] || of pod-1 main "${good%?}B"
  refused x E_UNCONFIRMED "${of[@]}"
  of pod-1 main anything
  refused x E_UNCONFIRMED "${of[@]}"
  assert_contains "what to do" "$stderr" "remove mpsgate.io/grant"
  of pod-1 main "mpsgate1.0123456789abcdef.${good#*.*.}"
  refused x E_UNCONFIRMED "${of[@]}"
  assert_contains "the key" "$stderr" "key 0123456789abcdef, which this node does not have"
  refused x E_UNCONFIRMED --ann "mpsgate.io/grant=$good"
  assert_contains "what is missing" "$stderr" "does not say to which container of which pod"
  of pod-1 main "$good"
  refused x E_UNCONFIRMED "${of[@]}" --jq '.linux.cgroupsPath = "/kubepods/burstable/pod-2/x"'
  podded y "${of[@]}"
}

@test "beside the device plugin a pod's annotations ask for nothing, and get nothing; without it they are refused" {
  local of mine forged plugin=/var/lib/kubelet/device-plugins/mpsgate-aliyun.com_gpu-mem.sock
  wait_for 30 "the device plugin serves" [ -S "$plugin" ]
  of pod-1 side ''
  mine=("${of[@]:0:10}")
  for forged in mpsgate.io/gpu-mem=1Gi aliyun.com/gpu-mem=80 mpsgate.io/gpu-compute=much aliyun.com/gpu-count=2; do
    allowed x "${mine[@]}" --ann "$forged"
    assert_contains "what the log says" "$(tail -5 "$MG/log/mpsgated.log")" "annotation ${forged%=*} asks for GPU memory"
    refused x E_VISIBLE_DEVICES "${mine[@]}" --ann "$forged" --env NVIDIA_VISIBLE_DEVICES=all
  done
  printf '[kubernetes]\ndevice_plugin = "off"\n' >>/etc/mpsgate/config.toml
  mpsgate reload
  wait_for 30 "it serves no more" test ! -e "$plugin"
  wait_for 30 "the shim is told" jq -e '.device_plugin | not' /run/mpsgate/node.json
  refused x E_UNCONFIRMED "${mine[@]}" --ann mpsgate.io/gpu-mem=1Gi
  assert_contains "what to do" "$stderr" "resources.limits"
  sed -i '/^\[kubernetes\]/,$d' /etc/mpsgate/config.toml
  mpsgate reload
  wait_for 30 "it serves again" jq -e .device_plugin /run/mpsgate/node.json
}

@test "the keys are root's alone; one that others could have read confirms nobody" {
  local of keys=/var/lib/mpsgate/tokens/keys.json
  assert_equal "modes" "$(stat -c '%a %u' "${keys%/*}" "$keys" | xargs)" "700 0 600 0"
  of pod-1 main "$(token 1024)"
  daemon_stop
  chmod 644 "$keys"
  daemon_start
  refused x E_UNCONFIRMED "${of[@]}"
  assert_contains "why" "$stderr" "keys.json is of mode 0644"
  chmod 600 "$keys"
  podded x "${of[@]}"
}

@test "an exempt namespace and image reaches the cards without a grant; each alone does not, nor does another engine's" {
  local all=(--env NVIDIA_VISIBLE_DEVICES=all) of
  printf '[[policy.exempt]]\nnamespace = "gpu-operator"\nimage = "nvcr.io/nvidia/k8s/dcgm-exporter"\n' >>/etc/mpsgate/config.toml
  exporter gpu-operator nvcr.io/nvidia/k8s/dcgm-exporter:3.3.9
  allowed x "${all[@]}" "${of[@]}"
  assert_contains "what the log says" "$(grep E_VISIBLE_DEVICES "$MG/log/mpsgated.log")" 'let through by policy.exempt (namespace gpu-operator, image nvcr'
  exporter default nvcr.io/nvidia/k8s/dcgm-exporter:3.3.9
  refused x E_VISIBLE_DEVICES "${all[@]}" "${of[@]}"
  exporter gpu-operator evil.io/dcgm-exporter
  refused x E_VISIBLE_DEVICES "${all[@]}" "${of[@]}"
  exporter gpu-operator nvcr.io/nvidia/k8s/dcgm-exporter
  RUNC_ROOT=$MG/runc refused x E_VISIBLE_DEVICES "${all[@]}" "${of[@]}"
}
exporter() { # NAMESPACE IMAGE
  of pod-1 main ''
  of=("${of[@]:0:4}" --ann "io.kubernetes.cri.sandbox-namespace=$1" "${of[@]:6:4}" --ann "io.kubernetes.cri.image-name=$2")
}

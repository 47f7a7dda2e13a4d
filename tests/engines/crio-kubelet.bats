#!/usr/bin/env bats
# A kubelet above CRI-O, alone, with pods of files: what becomes of their limits, what their status
# says, and by which names images are known then. $MPSGATE_K8S_BIN has it.

load engine.bash

K=$MG/kubelet
setup_file() {
  has_kubelet || return 0
  registry_start
  # A kubelet says who asks: nobody else is trusted.
  SETTINGS='' cell_start
  pinned_image
  kubelet_start
}

teardown_file() {
  has_kubelet || return 0
  pods_clear
  kubelet_stop
  # Kubelet takes sandboxes away at its leisure.
  for pod in $("$CRI" call ListPodSandbox | sed -n 's/^ *id: "\(.*\)"/\1/p'); do
    "$CRI" call StopPodSandbox "pod_sandbox_id: \"$pod\""
    "$CRI" call RemovePodSandbox "pod_sandbox_id: \"$pod\""
  done
  kill "$(<"$K/registry.pid")"
  cell_stop
  umount /var/log
}

setup() { has_kubelet || skip "MPSGATE_K8S_BIN names no folder with a kubelet"; }

teardown() {
  has_kubelet || return 0
  [[ ${BATS_TEST_COMPLETED:-} == 1 ]] || grep -E '^[EF][0-9]{4} ' "$K/log" | tail -n 8 | cut -c1-500 >&2
  [[ -f $MG/crio.pid ]] || engine_back
  sed -i '/^\[\[policy/,$d' /etc/mpsgate/config.toml
  pods_clear
  cell_teardown
}

has_kubelet() { [[ -x ${MPSGATE_K8S_BIN:-}/kubelet ]]; }

# Its ports are its own: others on this machine may have the same. What it wants of others are
# sockets of files.
kubelet_start() {
  local root roots=(/sys/fs/cgroup/*/)
  [[ ! -f /sys/fs/cgroup/cgroup.controllers ]] || roots=(/sys/fs/cgroup)
  for root in "${roots[@]}"; do mkdir -p "$root$MG_CGROUP"; done
  mkdir -p "$K"/{pods,manifests,certs}
  # Links to pods' output, at a place that is built in.
  mount -t tmpfs log /var/log
  cat >"$K/config.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
readOnlyPort: 10255
cgroupDriver: cgroupfs
cgroupRoot: $MG_CGROUP
enforceNodeAllocatable: []
failSwapOn: false
evictionHard: {}
imageGCHighThresholdPercent: 100
staticPodPath: $K/manifests
fileCheckFrequency: 1s
podLogsDir: $K/pods
containerRuntimeEndpoint: unix://$CRI_SOCKET
$(! grep -q '"failCgroupV1[",]' "$MPSGATE_K8S_BIN/kubelet" || echo "failCgroupV1: false")
YAML
  # shellcheck disable=SC2016 # for that shell
  unshare --net -- bash -c 'ip link set lo up && exec "$@"' bash "$MPSGATE_K8S_BIN/kubelet" --config "$K/config.yaml" \
    --root-dir /var/lib/kubelet --cert-dir "$K/certs" --hostname-override node1 --node-ip 127.0.0.1 --v 2 >"$K/log" 2>&1 </dev/null 3>&- &
  echo $! >"$K/pid"
  disown # a shell reports the end of its children
  wait_for 90 "kubelet answers" kubelet_pods || { tail -n 5 "$K/log" | cut -c1-500 >&2; return 1; }
  wait_for 60 "it has the device plugin" registered
}
registered() { status_json | jq -se '.[0].device_plugin | length > 0 and all(.[]; .registered_ms != null)'; }
kubelet_stop() {
  local pid
  pid=$(<"$K/pid")
  kill "$pid"
  wait_for 30 "kubelet ends" gone "$pid"
}
kubelet_pods() { nsenter --net="/proc/$(<"$K/pid")/ns/net" curl -sf http://127.0.0.1:10255/pods; }

# pod NAME [JQ]: a pod of a file, changed by JQ.
pod() {
  jq -n --arg name "$1" '{apiVersion: "v1", kind: "Pod", metadata: {name: $name, namespace: "default"},
    spec: {hostNetwork: true, hostIPC: true, terminationGracePeriodSeconds: 0, containers: [
      {name: "main", image: "docker.io/library/bb:latest", imagePullPolicy: "IfNotPresent", command: ["sleep", "600"]}]}}' |
    jq "${2:-.}" >"$K/$1.json"
  mv "$K/$1.json" "$K/manifests/"
}
asks() { pod "$1" ".spec.containers[0].resources.limits = {\"aliyun.com/gpu-mem\": $2} | ${3:-.}"; } # NAME GIB [JQ]
all() { pod "$1" ".spec.containers[0].env = [{name: \"NVIDIA_VISIBLE_DEVICES\", value: \"all\"}] | ${2:-.}"; } # NAME [JQ]
# status_of NAME: of its container, as kubelet has it.
status_of() { kubelet_pods | jq -c --arg name "$1-node1" '.items[] | select(.metadata.name == $name) | .status.containerStatuses[0]'; }
runs() { status_of "$1" | jq -e '.state.running' >/dev/null; }
# shows NAME TEXT: in what kubectl describe pod would print.
shows() {
  local said
  said=$(status_of "$1" | jq -r '[.state, .lastState] | map(.[]?.message // "") | join("\n")')
  echo "$said"
  [[ $said == *"$2"* ]]
}
of() { kubelet_pods | jq -r --arg name "$1-node1" '.items[] | select(.metadata.name == $name) | .status.containerStatuses[0].containerID | sub(".*://"; "")'; } # NAME: its container
pods_clear() {
  rm -f "$K"/manifests/*
  wait_for 60 "the pods have gone" no_pods
}
no_pods() { [[ -z $("$CRI" call ListContainers 'filter { state { state: CONTAINER_RUNNING } }') && $(kubelet_pods | jq '.items | length') == 0 ]]; }

# An image that has no name but by its digest, as CRI-O pulls it.
registry_start() {
  mkdir -p "$K/registry/blobs" "$K/registry/pinned/manifests" /etc/containers/registries.conf.d
  free_port >"$K/port"
  printf '[[registry]]\nlocation = "127.0.0.1:%s"\ninsecure = true\n' "$(<"$K/port")" >/etc/containers/registries.conf.d/test.conf
  perl "$MG_REPO/tests/k8s/registry" "$K/registry" "$(<"$K/port")" >/dev/null 2>&1 </dev/null 3>&- &
  echo $! >"$K/registry.pid"
  disown
}
pinned_image() {
  local dir=$K/push blob digest
  tar -C "$MG/rootfs" -c . | "${STORAGE[@]}" import --change 'ENV PATH=/bin:/usr/bin' --change 'ENV PINNED=yes' - localhost/pinned >/dev/null
  "${STORAGE[@]}" push --quiet --format oci localhost/pinned "dir:$dir"
  "${STORAGE[@]}" rmi localhost/pinned >/dev/null
  digest=sha256:$(sha256sum <"$dir/manifest.json" | cut -c1-64)
  mv "$dir/manifest.json" "$K/registry/pinned/manifests/$digest"
  for blob in "$dir"/*; do
    [[ ${#blob} != $((${#dir} + 65)) ]] || mv "$blob" "$K/registry/blobs/sha256:${blob##*/}"
  done
  echo "127.0.0.1:$(<"$K/port")/pinned@$digest" >"$K/pinned"
}
# exempt IMAGE: in place of those of before.
exempt() {
  sed -i '/^\[\[policy/,$d' /etc/mpsgate/config.toml
  printf '[[policy.exempt]]\nnamespace = "default"\nimage = "%s"\n' "$1" >>/etc/mpsgate/config.toml
  mpsgate reload
}

@test "limits of 7 GiB become a grant of 7 GiB, of init and of what is exec'd, whatever else the pod writes" {
  asks got 7 '.metadata.annotations = {"aliyun.com/gpu-mem": "80", "mpsgate.io/gpu-mem": "80Gi", "io.kubernetes.cri-o.ContainerType": "sandbox"}'
  wait_for 90 "it runs" runs got
  local id
  id=$(of got)
  assert_equal "grant" "$(grant "$id" '"\(.state) \(.memory_mib)"')" "active 7168"
  assert_contains "environment" "$(environment_of "$(grant "$id" .pid)")" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M
  try "$CRI" call ExecSync "container_id: \"$id\" cmd: \"env\" timeout: 20"
  assert_contains "environment of exec" "$stdout" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M
  rm "$K/manifests/got.json"
  assert_free_in 60
}
assert_free_in() { wait_for "$1" "all memory free" is_free; }

@test "what is refused says so in the pod's status, and its neighbour runs" {
  asks lone 1 '.spec.hostIPC = false'
  all greedy
  pod forged '.metadata.annotations = {"aliyun.com/gpu-mem": "7", "mpsgate.io/grant": "mpsgate1.a.b.c", "io.kubernetes.cri-o.ContainerType": "sandbox"}'
  pod neighbour
  wait_for 90 "the lone one's status" shows lone "[E_NO_HOST_IPC]"
  assert_contains "the hint" "$(status_of lone)" "hostIPC: true"
  wait_for 60 "the greedy one's status" shows greedy "NVIDIA_VISIBLE_DEVICES=all names every GPU"
  wait_for 60 "the forged one's status" shows forged "[E_UNCONFIRMED]"
  wait_for 60 "the neighbour runs" runs neighbour
  assert_equal "grants" "$(granted_ids)" ""
}

@test "kill -9 of CRI-O: the container and its grant are the same when kubelet sees CRI-O again" {
  asks got 7
  wait_for 90 "it runs" runs got
  local id pid
  id=$(of got) pid=$(grant "$(of got)" .pid)
  engine_kill got
  granted_pid "$id" "$pid" || fail "the grant went with the engine"
  engine_back
  # Kubelet has asked for all pods by then.
  pod later
  wait_for 120 "a pod that comes later runs" runs later
  runs got || fail "$(status_of got)"
  assert_equal "its container" "$(of got)" "$id"
  assert_equal "grants" "$(granted_ids)" "$id"
  granted_pid "$id" "$pid" || fail "another process has the grant"
}

@test "an exempt image by its name, which kubelet does not say to CRI-O" {
  exempt docker.io/library/bb
  all exporter
  wait_for 90 "it runs" runs exporter
  local spec
  spec=$(spec_at "$(of exporter)")
  [[ $(jq -r '.annotations["io.kubernetes.cri-o.Image"]' "$spec") == "$(image_id)" ]] || fail "CRI-O was told a name"
  exempt docker.io/library/other
  all another
  wait_for 60 "another's status" shows another "[E_VISIBLE_DEVICES]"
}

@test "an exempt image by its digest, with and without its repository, and no other's digest" {
  local image
  image=$(<"$K/pinned")
  for entry in "$image" "${image#*@}"; do
    exempt "$entry"
    all "exporter-${#entry}" ".spec.containers[0].image = \"$image\""
    wait_for 90 "it runs by $entry" runs "exporter-${#entry}"
  done
  exempt "${image%@*}@sha256:$(printf '%064d' 0)"
  all another ".spec.containers[0].image = \"$image\""
  wait_for 60 "another's status" shows another "[E_VISIBLE_DEVICES]"
}

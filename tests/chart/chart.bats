#!/usr/bin/env bats
# packaging/kubernetes: the chart rendered by Helm for three sets of values, checked against Kubernetes' own schemas, and what the
# rendered objects promise. No cluster: what only one can show is named in docs/kubernetes.md. MPSGATE_BLESS=1 writes golden/.

setup_file() {
  export top tools work=$BATS_FILE_TMPDIR
  top=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  tools=$("$top/tests/env/install.sh" chart-tools 2>/dev/null) || skip "Helm and the schemas are not here: tests/env/install.sh chart (PyPI)"
  export PYTHONPATH=$tools HELM_CACHE_HOME=$work/helm HELM_CONFIG_HOME=$work/helm HELM_DATA_HOME=$work/helm
  export chart=$top/packaging/kubernetes/chart
  local values
  for values in "$BATS_TEST_DIRNAME"/values/*.yaml; do
    render "$(basename "$values" .yaml)" --values "$values"
  done
}

helm() { "$tools/bin/helm" "$@"; }

# render NAME ARGUMENT...: into $work/NAME.yaml and, as a list of objects, $work/NAME.json.
render() {
  local name=$1
  shift
  helm template mpsgate "$chart" --namespace mpsgate-system "$@" >"$work/$name.yaml"
  python3 -c 'import json, sys, yaml; print(json.dumps([d for d in yaml.safe_load_all(sys.stdin) if d]))' <"$work/$name.yaml" >"$work/$name.json"
}

object() { jq -e --arg kind "$2" --arg name "$3" '.[] | select(.kind == $kind and .metadata.name == $name)' "$work/$1.json"; } # SET KIND NAME
daemon_set() { object "$1" DaemonSet "$2"; }
pod() { daemon_set "$1" "$2" | jq .spec.template; } # SET DAEMONSET
settings() { object "$1" ConfigMap mpsgate | jq -r '.data["config.toml"]'; }
sets() { basename -s .yaml "$BATS_TEST_DIRNAME"/values/*.yaml; }
is_equal() { [[ $1 == "$2" ]] || { printf 'found:  %s\nwanted: %s\n' "$1" "$2"; return 1; }; }

# refuses WORDS ARGUMENT...: rendering fails, and says so.
refuses() {
  local words=$1
  shift
  if helm template mpsgate "$chart" --set image.repository=r/mpsgate "$@" >"$work/out" 2>&1; then
    echo "not refused: $*"
    return 1
  fi
  grep -qF -- "$words" "$work/out" || { echo "$*: without the words '$words':"; cat "$work/out"; return 1; }
}

@test "helm lint finds nothing, and the chart's version is the workspace's" {
  local set version
  for set in $(sets); do helm lint --strict "$chart" --values "$BATS_TEST_DIRNAME/values/$set.yaml" >"$work/lint" || { cat "$work/lint"; return 1; }; done
  version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$top/Cargo.toml")
  is_equal "$(sed -n 's/^\(version\|appVersion\): //p' "$chart/Chart.yaml" | xargs)" "$version $version"
}

@test "every object fits the strict schemas of Kubernetes 1.25 to 1.37, the samples too" {
  local version failed=0
  sed 's/<NODE_NAME>/node-1/' "$top/packaging/kubernetes/samples/mps-sample.yaml" >"$work/sample.yaml"
  for version in 1.25.0 1.28.0 1.31.0 1.34.0 1.37.0; do
    python3 "$BATS_TEST_DIRNAME/validate.py" "$version" "$work"/{default,all,bare,sample}.yaml "$top/packaging/kubernetes/samples/nos-mps-partitioning.yaml" || failed=1
  done
  ((failed == 0))
  # The check can fail.
  sed 's/hostIPC: true/hostIpc: true/' "$work/default.yaml" >"$work/spoilt.yaml"
  if python3 "$BATS_TEST_DIRNAME/validate.py" 1.34.0 "$work/spoilt.yaml"; then return 1; fi
}

@test "what is rendered is what golden/ shows" {
  local set
  for set in $(sets); do
    [[ ${MPSGATE_BLESS:-} != 1 ]] || { mkdir -p "$BATS_TEST_DIRNAME/golden" && cp "$work/$set.yaml" "$BATS_TEST_DIRNAME/golden/"; }
    diff -u "$BATS_TEST_DIRNAME/golden/$set.yaml" "$work/$set.yaml"
  done
}

@test "the values' schema refuses what is wrong, and names it" {
  refuses "image.repository is empty" --set image.repository=
  refuses repository --set image.repository=Registry/Image
  refuses "imagee" --set imagee.tag=1
  refuses "installer" --set installer.engine=rkt
  refuses "engineConfig" --set installer.engineConfig=relative/path
  refuses "digest" --set image.digest=sha256:12
  refuses "holder" --set holder.limits.memory=1Gi
  refuses "maxUnavailable" --set mpsgated.maxUnavailable=0
  refuses "nodes" --set-json 'mpsgated.nodes=[]'
  refuses "nodes" --set-json 'holder.nodes=[{"gpu":"yes"}]'
  refuses "port" --set metrics.port=70000
  refuses "config" --set config.polcy.ipc=any
  refuses "supervisor" --set config.mps.supervisor=fork
  refuses "exempt" --set 'config.policy.exempt[0].namespace=x'
  refuses "metrics.podMonitor.enabled without metrics.enabled" --set metrics.podMonitor.enabled=true
  refuses "neither text" --set-json 'config.gpus.reserve_mib=1.5'
  refuses "runtimeClass.create without" --set runtimeClass.create=true,runtimeClass.name=
}

@test "the settings are read by mpsgate without a complaint, and say what the chart promises" {
  local set mpsgate=${MG_OUT:-$top/out}/mpsgate
  [[ -x $mpsgate ]] || skip "no $mpsgate: make build"
  for set in $(sets); do
    settings "$set" >"$work/$set.toml"
    chmod 644 "$work/$set.toml"
    "$mpsgate" configure podman --settings "$work/$set.toml" --config "$work/containers.conf" --state "$work/state" >"$work/out" 2>&1 ||
      { cat "$work/$set.toml" "$work/out"; return 1; }
    grep -q '^supervisor = "holder"$' "$work/$set.toml"
  done
  # The check can fail.
  sed 's/^supervisor.*/supervisor = "holders"/' "$work/all.toml" >"$work/spoilt.toml"
  if "$mpsgate" configure podman --settings "$work/spoilt.toml" --config "$work/containers.conf" --state "$work/state"; then return 1; fi
  grep -q '^manage = "all"$' "$work/default.toml"
  grep -q '^manage = \["GPU-8d4ff3a6-0000-0000-0000-000000000000"\]$' "$work/all.toml"
  grep -q '^reserve_mib = 2048$' "$work/all.toml"
  grep -q '^listen = "0.0.0.0:19500"$' "$work/all.toml"
}

@test "the chart's own images are exempt by repository or digest, never by a tag" {
  settings default | grep -qxF 'exempt = [{image = "registry.example.com:5000/gpu/mpsgate", namespace = "mpsgate-system"}]'
  # mpsgated by its digest; the holder has a tag of its own, so its repository.
  settings all | grep -F 'exempt = ' >"$work/exempt"
  grep -qF '{image = "registry.example.com/mpsgate@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", namespace = "mpsgate-system"}' "$work/exempt"
  grep -qF '{image = "nvcr.io/nvidia/k8s/dcgm-exporter", namespace = "gpu-operator"}' "$work/exempt"
}

@test "the holder is replaced by nobody but the operator" {
  local set holder
  for set in $(sets); do
    holder=$(daemon_set "$set" mpsgate-holder)
    jq -e '.spec.updateStrategy == {type: "OnDelete"} and .spec.template.spec.priorityClassName == "system-node-critical"
      and .spec.template.metadata.labels["app.aliyun.com/name"] == "mps-control-daemon"
      and (.spec.template.spec.containers[0] | has("livenessProbe") or (.resources | has("limits")) | not)
      and .spec.template.spec.automountServiceAccountToken == false' <<<"$holder"
  done
}

@test "a new version of chart and mpsgated, and new settings, leave the holder's pod as it is" {
  cp -r "$chart" "$work/next"
  sed -i 's/^\(version\|appVersion\): .*/\1: 9.9.9/' "$work/next/Chart.yaml"
  chart=$work/next render next --values "$BATS_TEST_DIRNAME/values/default.yaml" --set holder.tag=0.1.0,config.log.level=debug
  is_equal "$(pod next mpsgate-holder)" "$(pod default mpsgate-holder)"
  [[ $(pod next mpsgate) != "$(pod default mpsgate)" ]]
}

@test "nodes are chosen by either label, and by the one that mpsgated keeps while it has their cards" {
  terms() { pod "$1" "$2" | jq -c '[.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[].matchExpressions[] | {(.key): (.values // .operator)}]'; }
  is_equal "$(terms default mpsgate-holder)" '[{"ack.node.gpu.schedule":["mps"]},{"nos.nebuly.com/gpu-partitioning":["mps","hybrid"]},{"mpsgate.io/shared":"Exists"}]'
  is_equal "$(terms default mpsgate)" '[{"ack.node.gpu.schedule":["mps","share"]},{"nos.nebuly.com/gpu-partitioning":["mps","hybrid"]},{"mpsgate.io/shared":"Exists"}]'
  is_equal "$(terms all mpsgate)" '[{"nvidia.com/gpu.present":"Exists"}]'
  # By the name that mpsgated writes.
  grep -q '^pub const SHARED: &str = "mpsgate.io/shared";$' "$top/src/kubernetes/src/node.rs"
}

@test "mpsgated knows its node's name and may ask the API server; the holder asks nothing" {
  local set
  for set in $(sets); do
    pod "$set" mpsgate | jq -e '.spec.automountServiceAccountToken
      and (.spec.containers[0].env | any(. == {name: "NODE_NAME", valueFrom: {fieldRef: {fieldPath: "spec.nodeName"}}}))'
  done
}

@test "both pods have the node's pids and IPC, and every privilege stands beside its reason" {
  local set name
  for set in $(sets); do
    for name in mpsgate-holder mpsgate; do pod "$set" "$name" | jq -e '.spec | .hostPID and .hostIPC and (has("hostNetwork") | not)'; done
  done
  # A comment before each of them, in what is rendered too.
  awk '/^ *(hostPID|hostIPC): true|^ *privileged: true/ { if (before !~ /#/) { print FILENAME ": no reason above: " $0; bad = 1 } } { before = $0 } END { exit bad }' "$work/default.yaml"
}

@test "the holder starts what mpsgated asks for: mps.control is one value" {
  is_equal "$(pod all mpsgate-holder | jq -c '.spec.containers[0].command')" '["/usr/bin/mpsgated","hold","--control","/opt/nvidia/bin/nvidia-cuda-mps-control"]'
  settings all | grep -qx 'control = "/opt/nvidia/bin/nvidia-cuda-mps-control"'
}

@test "the rules of RBAC are the same for all values, and mpsgated alone has them" {
  local set
  for set in $(sets); do
    is_equal "$(object "$set" ClusterRole mpsgate | jq -c '[.rules[] | {(.resources | join(" ")): (.verbs | join(" "))}] | add')" \
      '{"pods":"list watch","nodes":"list watch patch","nodes/status":"patch","events":"create patch"}'
    is_equal "$(pod "$set" mpsgate | jq -r .spec.serviceAccountName)" mpsgate
    is_equal "$(pod "$set" mpsgate-holder | jq -r .spec.serviceAccountName)" null
  done
}

@test "the installer does what its values say" {
  installer() { pod "$1" mpsgate | jq -c '.spec.initContainers[0].command // "none"'; }
  is_equal "$(installer default)" '["/usr/bin/mpsgate","node-install","--settings=/chart/config.toml","--engine=containerd"]'
  is_equal "$(installer all)" '["/usr/bin/mpsgate","node-install","--settings=/chart/config.toml","--engine=containerd","--engine-config=/var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl","--restart-engine"]'
  is_equal "$(installer bare)" '"none"'
  render none --values "$BATS_TEST_DIRNAME/values/default.yaml" --set installer.engine=none
  is_equal "$(installer none)" '["/usr/bin/mpsgate","node-install","--settings=/chart/config.toml"]'
}

@test "the Job's sample is the page's, from its first line to its last" {
  is_equal "$(sed '/^#/d' "$top/packaging/kubernetes/samples/mps-sample.yaml" | sha256sum | cut -d' ' -f1)" 8aacf6c5f5eaa8ffb6be3d9d67e0b38105479b7ab92e848374e1feb00ea724e8
}

#!/usr/bin/env bats
# packaging/kubernetes: the chart rendered by Helm for five sets of values, checked against
# Kubernetes' own schemas, and what the rendered objects promise. No cluster: what only one can show
# is named in docs/kubernetes.md. MPSGATE_BLESS=1 writes golden/: of `cluster` all, of the other
# sets what they have otherwise (differences.py).

setup_file() {
  export top tools work=$BATS_FILE_TMPDIR
  top=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  tools=$("$top/tests/env/install.sh" chart-tools 2>/dev/null) || skip "Helm and the schemas are not here: tests/env/install.sh chart (PyPI)"
  export PYTHONPATH=$tools HELM_CACHE_HOME=$work/helm HELM_CONFIG_HOME=$work/helm HELM_DATA_HOME=$work/helm
  export chart=$top/packaging/kubernetes/chart
  local set
  for set in $(sets); do render_set "$set" "$set"; done
  # Helm's own certificate is another in each rendering, so never in golden/.
  render_own generated
}

helm() { "$tools/bin/helm" "$@"; }

# render NAME ARGUMENT...: into $work/NAME.yaml and, as a list of objects, $work/NAME.json.
render() {
  local name=$1
  shift
  helm template mpsgate "$chart" --namespace mpsgate-system "$@" >"$work/$name.yaml"
  python3 -c 'import json, sys, yaml; print(json.dumps([d for d in yaml.load_all(sys.stdin, yaml.CSafeLoader) if d]))' <"$work/$name.yaml" >"$work/$name.json"
}

# render_set NAME SET ARGUMENT...: Helm's own version of Kubernetes has no claims.
render_set() {
  local version=()
  [[ $2 != dra ]] || version=(--kube-version v1.36.2)
  render "$1" --values "$BATS_TEST_DIRNAME/values/$2.yaml" "${version[@]}" "${@:3}"
}

# render_own NAME ARGUMENT...: as `cluster`, with Helm's own certificates.
render_own() {
  render "$1" --values "$BATS_TEST_DIRNAME/values/cluster.yaml" --set scheduler.webhook.tls.certManager.enabled=false \
    --set scheduler.tls.secretName=,scheduler.tls.caBundle=,scheduler.tls.clientSecretName=,scheduler.tls.clientCaBundle= "${@:2}"
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
  for set in $(sets); do helm lint --strict "$chart" --kube-version v1.36.2 --values "$BATS_TEST_DIRNAME/values/$set.yaml" >"$work/lint" || { cat "$work/lint"; return 1; }; done
  version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$top/Cargo.toml")
  is_equal "$(sed -n 's/^\(version\|appVersion\): //p' "$chart/Chart.yaml" | xargs)" "$version $version"
}

@test "every object fits the strict schemas of Kubernetes 1.25 to 1.37, the samples too" {
  local version set failed=0
  awk '/^```yaml$/ { shown = 1; print "---"; next } /^```$/ { shown = 0 } shown' "$top/docs/dra.md" >"$work/page.yaml"
  sed 's/<NODE_NAME>/node-1/' "$top/packaging/kubernetes/samples/mps-sample.yaml" >"$work/sample.yaml"
  for version in 1.25.0 1.28.0 1.31.0 1.34.0 1.37.0; do
    # As Helm renders it for that version: what it has not is not there.
    for set in all bare cluster default; do render "of-$set" --values "$BATS_TEST_DIRNAME/values/$set.yaml" --kube-version "$version" --set admissionPolicies=auto; done
    render of-generated --values "$BATS_TEST_DIRNAME/values/all.yaml" --kube-version "$version" --set admissionPolicies=auto \
      --set scheduler.tls.secretName=,scheduler.tls.caBundle=,scheduler.tls.clientSecretName=,scheduler.tls.clientCaBundle=
    python3 "$BATS_TEST_DIRNAME/validate.py" "$version" "$work"/of-{default,all,bare,cluster,generated}.yaml "$work/sample.yaml" "$top/packaging/kubernetes/samples/nos-mps-partitioning.yaml" || failed=1
  done
  # Claims, and the objects that a page shows of them.
  for version in 1.34.0 1.36.0 1.37.0; do
    render of-dra --values "$BATS_TEST_DIRNAME/values/dra.yaml" --kube-version "$version"
    python3 "$BATS_TEST_DIRNAME/validate.py" "$version" "$work/of-dra.yaml" "$work/page.yaml" || failed=1
  done
  ((failed == 0))
  # The check can fail.
  sed 's/hostIPC: true/hostIpc: true/' "$work/default.yaml" >"$work/spoilt.yaml"
  if python3 "$BATS_TEST_DIRNAME/validate.py" 1.34.0 "$work/spoilt.yaml"; then return 1; fi
}

@test "what is rendered is what golden/ shows" {
  local set golden=$BATS_TEST_DIRNAME/golden
  mkdir "$work/golden"
  cp "$work/cluster.yaml" "$work/golden/"
  for set in $(sets); do
    [[ $set == cluster ]] || python3 "$BATS_TEST_DIRNAME/differences.py" "$work/cluster.yaml" "$work/$set.yaml" >"$work/golden/$set.diff"
  done
  [[ ${MPSGATE_BLESS:-} != 1 ]] || cp "$work"/golden/* "$golden/"
  diff -ru "$golden" "$work/golden"
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
  refuses "ipc" --set config.policy.ipc=host
  refuses "supervisor" --set config.mps.supervisor=fork
  refuses "exempt" --set 'config.policy.exempt[0].namespace=x'
  refuses "metrics.podMonitor.enabled without metrics.enabled" --set metrics.podMonitor.enabled=true
  refuses "neither text" --set-json 'config.gpus.reserve_mib=1.5'
  refuses "slices" --set-json 'scheduler.slices=["10gb"]'
  refuses "placement" --set scheduler.placement=random
  refuses "url" --set scheduler.extender.url=http://scheduler
  refuses "schedulerName" --set scheduler.enabled=true,scheduler.ownKubeScheduler.enabled=true,scheduler.ownKubeScheduler.schedulerName=default-scheduler
  refuses "failurePolicy" --set scheduler.webhook.failurePolicy=ignore
  refuses "caBundle" --set scheduler.webhook.tls.caBundle="-----BEGIN CERTIFICATE-----"
  refuses "scheduler.webhook.enabled without scheduler.enabled" --set scheduler.webhook.enabled=true
  refuses "scheduler.ownKubeScheduler.enabled without scheduler.enabled" --set scheduler.ownKubeScheduler.enabled=true
  refuses "tls.secretName without caBundle" --set scheduler.enabled=true,scheduler.tls.secretName=x
  refuses "tls.secretName without clientCaBundle" --set scheduler.enabled=true,scheduler.tls.secretName=x,scheduler.tls.caBundle=x
  refuses "without clientSecretName" --set scheduler.enabled=true,scheduler.ownKubeScheduler.enabled=true,scheduler.tls.secretName=x,scheduler.tls.caBundle=x,scheduler.tls.clientCaBundle=x
  refuses "go with secretName" --set scheduler.enabled=true,scheduler.tls.clientCaBundle=x
  refuses "keep one of the two" --set scheduler.enabled=true,scheduler.tls.enabled=false,scheduler.tls.secretName=x
  refuses "scheduler.extender.url is http:" --set scheduler.enabled=true,scheduler.extender.url=http://10.96.0.53:39999/mpsgate
  refuses "scheduler.extender.url is https:" --set scheduler.enabled=true,scheduler.tls.enabled=false,scheduler.extender.url=https://10.96.0.53:39999/mpsgate
  refuses "admissionPolicies" --set admissionPolicies=yes
  refuses "nobody could ask the extender" --set scheduler.enabled=true,networkPolicy.enabled=true
  refuses "extenderFrom" --set-json 'networkPolicy.extenderFrom=[{"cidr":"10.0.0.1/32"}]'
  refuses "secretName without caBundle" --set scheduler.enabled=true,scheduler.webhook.enabled=true,scheduler.webhook.tls.secretName=x
  refuses "keep one" --set scheduler.enabled=true,scheduler.webhook.enabled=true,scheduler.webhook.tls.secretName=x,scheduler.webhook.tls.certManager.enabled=true
  refuses "timeoutSeconds" --set removal.timeoutSeconds=0
  refuses "removal" --set removal.enabled=yes
  refuses "runtimeClass.create without" --set runtimeClass.create=true,runtimeClass.name=
  refuses "dra" --set dra.enabled=yes --kube-version v1.36.2
  refuses "dra.enabled needs the API resource.k8s.io/v1" --set dra.enabled=true --kube-version v1.33.9
  refuses "set dra.enabled alone" --set config.kubernetes.dra=on --kube-version v1.36.2
  refuses "set dra.enabled alone" --set dra.enabled=true,config.kubernetes.dra=auto --kube-version v1.36.2
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

@test "the gates are a container of mpsgated's pod: no card, no account of the API server, no file but the doors" {
  local set
  for set in $(sets); do
    pod "$set" mpsgate | jq -e '.spec.containers[] | select(.name == "gate")
      | .command == ["/usr/bin/mpsgate-gate", "--every-card"] and .securityContext.readOnlyRootFilesystem
        and (.resources | has("limits") | not) and .env == [{name: "NVIDIA_VISIBLE_DEVICES", value: "void"}]
        and ([.volumeMounts[] | "\(.mountPath) \(.readOnly // false)"] == ["/run/mpsgate/mps false", "/sys/fs/cgroup true"])'
  done
  # Values of a release that did not know it: helm upgrade --reuse-values.
  render reused --values "$BATS_TEST_DIRNAME/values/default.yaml" --set mpsgated.gateResources=null
  pod reused mpsgate | jq -e '.spec.containers[1] | .name == "gate" and .resources == null'
}

@test "a container of mpsgated's pod asks the GPUs, where the installer puts programs onto the node: no account of its own, no card" {
  local asks='.spec.containers[] | select(.name == "qualify")'
  pod default mpsgate | jq -e "$asks"' | .command == ["/usr/bin/mpsgate", "qualify", "--due", "--from-pod", "--every=900"] and .volumeMounts == null
    and .securityContext.readOnlyRootFilesystem and .env == [{name: "NVIDIA_VISIBLE_DEVICES", value: "void"}]'
  local set
  for set in mpsgated.qualifySeconds=0 mpsgated.qualifySeconds=null installer.enabled=false; do
    render never --values "$BATS_TEST_DIRNAME/values/default.yaml" --set "$set"
    is_equal "$set: $(pod never mpsgate | jq "[$asks] | length")" "$set: 0"
  done
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

@test "claims are off unless they are switched on, and then bring their class, their rights and kubelet's directories, and nothing else" {
  local set
  for set in all bare cluster default; do
    jq -e 'all(.[]; .kind != "DeviceClass") and (tostring | test("resource.k8s.io|POD_UID|kubelet/plugins") | not)' "$work/$set.json"
    if settings "$set" | grep -q '^dra'; then return 1; fi
    pod "$set" mpsgate | jq -e '.spec.containers[0].volumeMounts | any(. == {name: "run-cdi", mountPath: "/var/run/cdi", readOnly: true})'
  done
  # An API that is there is enough, whatever the version says; so are values of a release that did
  # not know them.
  render there --values "$BATS_TEST_DIRNAME/values/dra.yaml" --api-versions resource.k8s.io/v1
  object there DeviceClass shared-gpu.mpsgate.io
  render reused --values "$BATS_TEST_DIRNAME/values/default.yaml" --set dra=null
  is_equal "$(cat "$work/reused.yaml")" "$(cat "$work/default.yaml")"

  settings dra | grep -A1 -xF '[kubernetes]' | grep -qxF 'dra = "on"'
  object dra DeviceClass shared-gpu.mpsgate.io | jq -e '.apiVersion == "resource.k8s.io/v1"
    and .spec == {selectors: [{cel: {expression: "device.driver == \"mpsgate.io\" && device.allowMultipleAllocations == true"}}]}'
  is_equal "$(object dra ClusterRole mpsgate-dra | jq -c '.rules[] | [.apiGroups[0], .resources[0], (.verbs | join(" ")), .resourceNames]')" \
    '["resource.k8s.io","resourceslices","list watch create update delete",null]
["resource.k8s.io","resourceclaims","get",null]
["resource.k8s.io","resourceclaims/status","patch",null]
["resource.k8s.io","resourceclaims/driver","associated-node:patch",["mpsgate.io"]]'
  is_equal "$(object dra ClusterRoleBinding mpsgate-dra | jq -c '[.roleRef.name, .subjects]')" '["mpsgate-dra",[{"kind":"ServiceAccount","name":"mpsgate","namespace":"mpsgate-system"}]]'
  is_equal "$(object dra ClusterRoleBinding mpsgate-scheduler-dra | jq -c '[.roleRef.name, .subjects[].name]')" '["mpsgate-scheduler-dra","mpsgate-scheduler"]'
  pod dra mpsgate | jq -e '.spec.containers[0] | any(.env[]; . == {name: "POD_UID", valueFrom: {fieldRef: {fieldPath: "metadata.uid"}}})
    and ([.volumeMounts[] | select(.mountPath | test("cdi|kubelet/plugins")) | "\(.mountPath) \(.readOnly // false)"] == ["/etc/cdi true", "/var/run/cdi false", "/var/lib/kubelet/plugins_registry false", "/var/lib/kubelet/plugins/mpsgate.io false"])'
  # mpsgated alone has them, and the holder is the same pod as without.
  pod dra mpsgate | jq -e '.spec | ((.initContainers // []) + .containers[1:]) | all(.[]; tostring | test("kubelet/plugins|run-cdi|POD_UID") | not)'
  is_equal "$(daemon_set dra mpsgate-holder)" "$(daemon_set default mpsgate-holder)"
}

extenders() { object "$1" ConfigMap mpsgate-scheduler-extender | jq -r '.data["extenders.yaml"]' | python3 -c 'import json, sys, yaml; print(json.dumps(yaml.safe_load(sys.stdin)["extenders"]))'; } # SET
deployment() { object "$1" Deployment "$2" | jq .spec.template.spec; } # SET DEPLOYMENT

@test "the cluster's side is off unless it is switched on, and then leaves the nodes' side as it is" {
  local kind
  for kind in Deployment Service Secret PodDisruptionBudget NetworkPolicy ValidatingWebhookConfiguration MutatingWebhookConfiguration; do
    jq -e --arg kind "$kind" 'all(.[]; .kind != $kind)' "$work/default.json"
  done
  is_equal "$(jq -cS '[.[] | select(.kind == "DaemonSet" or .metadata.name == "mpsgate")]' "$work/cluster.json")" \
    "$(jq -cS '[.[] | select(.kind == "DaemonSet" or .metadata.name == "mpsgate")]' "$work/default.json")"
}

@test "the cluster's side has no privilege, and every rule about that stands beside its reason" {
  local set name
  for set in cluster all generated; do
    for name in mpsgate-scheduler mpsgate-kube-scheduler; do
      deployment "$set" "$name" | jq -e '.securityContext.runAsNonRoot and .securityContext.runAsUser > 0
        and .securityContext.seccompProfile.type == "RuntimeDefault" and all(.containers[];
          .securityContext == {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: ["ALL"]}})
        and (has("hostPID") or has("hostIPC") or has("hostNetwork") or has("runtimeClassName") | not)'
    done
    deployment "$set" mpsgate-scheduler | jq -e '.containers[0].env | any(. == {name: "NVIDIA_VISIBLE_DEVICES", value: "void"})'
  done
  awk '/allowPrivilegeEscalation:|readOnlyRootFilesystem:|capabilities:|seccompProfile:|runAsNonRoot:|fsGroup:/ && !/privileged/ {
    if (before !~ /#/) { print FILENAME ": no reason above: " $0; bad = 1 } } { before = $0 } END { exit bad }' \
    <(sed -n '/^kind: Deployment/,/^---/p' "$work/cluster.yaml")
}

@test "kube-scheduler asks the replica that binds, and for every resource that was named" {
  object all Service mpsgate-scheduler | jq -e '.spec.selector["mpsgate.io/active"] == "true" and .spec.clusterIP == "10.96.0.53" and .spec.ports[0].nodePort == 32767'
  is_equal "$(extenders all | jq -c '[.[0].managedResources[] | {(.name): .ignoredByScheduler}] | add')" \
    '{"aliyun.com/gpu-mem":false,"aliyun.com/gpu-core.percentage":true,"nvidia.com/gpu-10gb":false,"nvidia.com/gpu-20gb":false,"mpsgate.io/gpu-mem-512mi":false}'
  is_equal "$(extenders all | jq -c '.[0] | [.urlPrefix, .filterVerb, .prioritizeVerb, .preemptVerb, .bindVerb, .weight, .enableHTTPS, .tlsConfig.caData, .httpTimeout, .nodeCacheCapable, .ignorable]')" \
    '["https://10.96.0.53:19501/mpsgate","filter","prioritize","preempt","bind",7,true,"RVhURU5ERVI=","2s",true,false]'
  is_equal "$(extenders cluster | jq -r '.[0].urlPrefix')" https://mpsgate-scheduler.mpsgate-system.svc:39999/mpsgate
  # For claims it is asked about all pods, how well nodes suit, and nothing else.
  is_equal "$(extenders cluster | jq length) $(extenders dra | jq length)" "1 2"
  is_equal "$(extenders dra | jq -Sc '.[1]')" "$(extenders dra | jq -Sc '.[0] | del(.filterVerb, .preemptVerb, .bindVerb, .managedResources)
    + {prioritizeVerb: "prioritize-claims", ignorable: true}')"
}

volumes() { deployment "$1" "$2" | jq -c "$3"; } # SET DEPLOYMENT FILTER

@test "the extender speaks TLS and knows kube-scheduler by its certificate, by default" {
  local set secret
  for set in all cluster generated; do
    deployment "$set" mpsgate-scheduler | jq -e '.containers[0].command | contains(["--tls-cert=/tls/tls.crt", "--tls-key=/tls/tls.key", "--tls-client-ca=/tls/client-ca.crt"])'
    # No insecure connection: kube-scheduler makes one of HTTPS without a CA. No key but in a
    # Secret.
    extenders "$set" | jq -e '.[0] | .enableHTTPS and (.urlPrefix | startswith("https:")) and (.tlsConfig.caData | length > 0) and .tlsConfig.insecure != true
      and .tlsConfig.certFile == "/etc/kubernetes/mpsgate/tls.crt" and .tlsConfig.keyFile == "/etc/kubernetes/mpsgate/tls.key"'
    jq -e 'all(.[]; .kind == "Secret" or (tostring | contains("PRIVATE KEY") | not))' "$work/$set.json"
  done
  is_equal "$(volumes all mpsgate-kube-scheduler '.volumes[] | select(.name == "client").secret.secretName')" '"extender-client"'
  is_equal "$(volumes generated mpsgate-kube-scheduler '.volumes[] | select(.name == "client").secret.secretName')" '"mpsgate-scheduler-client"'
  is_equal "$(object all ConfigMap mpsgate-scheduler-client-ca | jq -r '.data["client-ca.crt"]')" CLIENTS

  # Helm's own: two CAs, each verifies its own certificate alone, and neither's key is anywhere.
  for secret in tls client; do
    object generated Secret "mpsgate-scheduler-$secret" | jq -r '.data["tls.crt"] | @base64d' >"$work/$secret.crt"
    object generated Secret "mpsgate-scheduler-$secret" | jq -r '.data["ca.crt"] | @base64d' >"$work/$secret.ca"
    openssl verify -CAfile "$work/$secret.ca" "$work/$secret.crt"
  done
  openssl verify -CAfile "$work/tls.ca" -verify_hostname mpsgate-scheduler.mpsgate-system.svc "$work/tls.crt"
  openssl verify -CAfile "$work/client.ca" -purpose sslclient "$work/client.crt"
  if openssl verify -CAfile "$work/tls.ca" "$work/client.crt"; then return 1; fi
  if openssl verify -CAfile "$work/client.ca" "$work/tls.crt"; then return 1; fi
  is_equal "$(extenders generated | jq -r '.[0].tlsConfig | .serverName, .caData')" "mpsgate-scheduler.mpsgate-system.svc
$(object generated Secret mpsgate-scheduler-tls | jq -r '.data["ca.crt"]')"
  is_equal "$(object generated ConfigMap mpsgate-scheduler-client-ca | jq -r '.data["client-ca.crt"]' | openssl x509 -noout -fingerprint)" "$(openssl x509 -noout -fingerprint <"$work/client.ca")"
  # Each Secret's key is its certificate's, so no CA's.
  jq -c '.[] | select(.kind == "Secret") | .data | map_values(@base64d)' "$work/generated.json" | while read -r secret; do
    is_equal "$(jq -r '."tls.key"' <<<"$secret" | openssl pkey -pubout)" "$(jq -r '."tls.crt"' <<<"$secret" | openssl x509 -noout -pubkey)"
    is_equal "$(jq -r keys[] <<<"$secret" | xargs)" "ca.crt tls.crt tls.key"
  done

  # Off, it is off everywhere.
  render_own plaintext --set scheduler.tls.enabled=false
  extenders plaintext | jq -e '.[0] | .enableHTTPS == false and (has("tlsConfig") | not) and (.urlPrefix | startswith("http:"))'
  deployment plaintext mpsgate-scheduler | jq -e '.containers[0].command | all(.[]; startswith("--tls") | not) and index("--allow-anonymous") != null'
  jq -e 'all(.[]; tostring | contains("--allow-anonymous") | not)' "$work/generated.json"
  jq -e 'all(.[]; .metadata.name | test("scheduler-(tls|client)") | not)' "$work/plaintext.json"
}

@test "health and metrics are on a port of their own, and Prometheus trusts no unverified certificate" {
  local set
  for set in all cluster generated; do
    deployment "$set" mpsgate-scheduler | jq -e '.containers[0] | [.livenessProbe.httpGet, .readinessProbe.httpGet] == [{path: "/healthz", port: "probes"}, {path: "/readyz", port: "probes"}]
      and any(.ports[]; .name == "probes" and .containerPort != 39999)'
  done
  deployment all mpsgate-scheduler | jq -e '.containers[0].command | contains(["--probe-listen=0.0.0.0:19503"])'
  object all PodMonitor mpsgate-scheduler | jq -e '.spec.podMetricsEndpoints == [{port: "probes", interval: "15s"}]'
  jq -e 'all(.[]; tostring | contains("insecureSkipVerify") | not)' "$work/all.json"
}

@test "network policies let kube-scheduler to the extender, Prometheus to the metrics, and everybody to the webhook" {
  local set
  for set in default bare cluster generated; do jq -e 'all(.[]; .kind != "NetworkPolicy")' "$work/$set.json"; done
  is_equal "$(object all NetworkPolicy mpsgate-scheduler | jq -c '[.spec.ingress[] | {(.ports[0].port): (.from // "everybody")}] | add')" \
    '{"extender":[{"podSelector":{"matchLabels":{"app.kubernetes.io/component":"kube-scheduler","app.kubernetes.io/instance":"mpsgate","app.kubernetes.io/name":"mpsgate"}}},{"ipBlock":{"cidr":"10.0.0.1/32"}}],"probes":[{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"monitoring"}}}],"webhook":"everybody"}'
  is_equal "$(object all NetworkPolicy mpsgate | jq -c '[.spec.ingress[].ports[0].port]')" '["metrics"]'
  # The labels that it goes by are those of the pods, and no port has an empty list, which would be
  # everybody.
  object all Deployment mpsgate-kube-scheduler | jq -e '.spec.template.metadata.labels | ."app.kubernetes.io/component" == "kube-scheduler" and ."app.kubernetes.io/name" == "mpsgate"'
  render_own nobody --set networkPolicy.enabled=true,metrics.enabled=true
  is_equal "$(jq -c '[.[] | select(.kind == "NetworkPolicy") | .spec.ingress[] | {(.ports[0].port): (.from | length)}] | add' "$work/nobody.json")" '{"extender":1,"webhook":0}'
}

@test "a node's token is that node's alone, by policies that are evaluated here" {
  local set
  for set in all cluster generated; do python3 "$BATS_TEST_DIRNAME/cel.py" policies "$work/$set.json" nodes events scheduler; done
  python3 "$BATS_TEST_DIRNAME/cel.py" policies "$work/dra.json" nodes events slices claims
  python3 "$BATS_TEST_DIRNAME/cel.py" policies "$work/all.json" removal
  # The check can fail: each rule is needed by a row of it.
  python3 "$BATS_TEST_DIRNAME/cel.py" needed "$work/cluster.json" nodes events scheduler
  python3 "$BATS_TEST_DIRNAME/cel.py" needed "$work/dra.json" slices claims
  python3 "$BATS_TEST_DIRNAME/cel.py" needed "$work/all.json" removal
  # They refuse, and are bound by their names; without the cluster's side there are two.
  is_equal "$(jq -c '[.[] | select(.kind == "ValidatingAdmissionPolicyBinding") | [.spec.policyName, .spec.validationActions[]]]' "$work/default.json")" '[["mpsgate-nodes","Deny"],["mpsgate-events","Deny"]]'
}

@test "policies are there from Kubernetes 1.30 on, and where they are asked for" {
  policies() { render version --values "$BATS_TEST_DIRNAME/values/default.yaml" "$@" && jq '[.[] | select(.kind == "ValidatingAdmissionPolicy")] | length' "$work/version.json"; }
  is_equal "$(policies --kube-version v1.29.9)" 0
  is_equal "$(policies --kube-version v1.30.0)" 2
  is_equal "$(policies --kube-version v1.34.1-eks-1a2b3c)" 2
  is_equal "$(policies --kube-version v1.34.1 --set admissionPolicies=false)" 0
  is_equal "$(policies --kube-version v1.29.9 --set admissionPolicies=true)" 2
  is_equal "$(policies --kube-version v1.36.2 --set dra.enabled=true)" 4
}

@test "the notes say what stays open: nodes before Kubernetes 1.30, an image by its tag, the extender without TLS" {
  # helm shows notes where there is a cluster: here they are rendered as an object's text.
  cp -r "$chart" "$work/noted"
  { echo '{{- define "test.notes" }}'; cat "$chart/templates/NOTES.txt"; echo '{{- end }}'; } >"$work/noted/templates/_notes.tpl"
  printf 'kind: Notes\ndata: |\n  {{- include "test.notes" . | nindent 2 }}\n' >"$work/noted/templates/notes.yaml"
  notes() { helm template mpsgate "$work/noted" --show-only templates/notes.yaml --namespace mpsgate-system --values "$BATS_TEST_DIRNAME/values/default.yaml" "$@"; }
  local digest
  digest=sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
  notes --set admissionPolicies=false | grep -qF 'whoever is root on one GPU node can write to the objects of all nodes'
  notes --kube-version v1.29.9 | grep -qF 'Kubernetes is older than 1.30'
  notes | grep -qF 'image.digest'
  notes --set image.digest=$digest,admissionPolicies=true >"$work/notes"
  if grep -qE 'image.digest|whoever is root on one' "$work/notes"; then cat "$work/notes"; return 1; fi
  grep -qF 'root on every GPU node' "$work/notes"
  notes --set removal.enabled=true | grep -qF 'is refused while containers have GPU memory'
  notes --set dra.enabled=true --kube-version v1.36.2 >"$work/notes"
  grep -qF 'kubectl get resourceslices' "$work/notes"
  if grep -qF 'DRAConsumableCapacity' "$work/notes"; then cat "$work/notes"; return 1; fi
  notes --set dra.enabled=true --kube-version v1.35.3 | grep -qF 'without the feature gate DRAConsumableCapacity'
  notes --set scheduler.enabled=true,scheduler.tls.enabled=false | grep -qF 'scheduler.tls.enabled is false'
  # A webhook that knows of no scheduler says so, and how to name one.
  local set
  notes --set scheduler.enabled=true,scheduler.webhook.enabled=true >"$work/notes"
  grep -qF 'knows of no scheduler that asks mpsgate-scheduler' "$work/notes"
  grep -qF -- '--set scheduler.webhook.steers={default-scheduler}' "$work/notes"
  for set in scheduler.webhook.enabled=false 'scheduler.webhook.enabled=true,scheduler.webhook.steers={default-scheduler}' \
    scheduler.webhook.enabled=true,scheduler.ownKubeScheduler.enabled=true; do
    notes --set "scheduler.enabled=true,$set" >"$work/notes"
    if grep -qF 'knows of no scheduler' "$work/notes"; then echo "$set"; cat "$work/notes"; return 1; fi
  done
}

@test "mpsgate-scheduler may change no pod elsewhere, and no lease but its own" {
  local set
  for set in all cluster; do
    is_equal "$(object "$set" ClusterRole mpsgate-scheduler | jq -c '[.rules[] | {(.resources | join(" ")): (.verbs | join(" "))}] | add')" \
      '{"pods":"get list watch","pods/binding":"create","nodes":"list watch","runtimeclasses":"list watch"}'
    is_equal "$(object "$set" Role mpsgate-scheduler | jq -c '[.rules[] | [.resources[0], (.verbs | join(" ")), .resourceNames]]')" \
      '[["leases","create",null],["leases","get update",["mpsgate-scheduler"]],["pods","patch",null]]'
    # Nobody has a right to everything, nor to rights, Secrets or other people's processes; bound
    # are the chart's own accounts alone.
    jq -e 'all(.[] | select(.kind == "Role" or .kind == "ClusterRole") | .rules[]; (.resources + .verbs + .apiGroups | index("*") | not)
      and all(.resources[]; test("secret|role|exec|proxy|token|webhook") | not))' "$work/$set.json"
    jq -e 'all(.[] | select(.kind | endswith("RoleBinding")) | .subjects[]; .kind == "ServiceAccount" and .namespace == "mpsgate-system")' "$work/$set.json"
  done
}

removal() { jq -c '[.[] | select(.metadata.name | contains("removal"))]' "$work/$1.json"; } # SET

@test "what a removal needs is there while the chart is being removed, and never else" {
  local set step
  render removed --values "$BATS_TEST_DIRNAME/values/default.yaml" --set removal.enabled=true
  for set in removed all; do
    # Each is a hook's, goes when its step is done, and comes before what needs it.
    removal "$set" | jq -e 'all(.[]; .metadata.annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded")'
    is_equal "$(removal "$set" | jq -r '.[].metadata | .annotations as $a | "\($a["helm.sh/hook-weight"]) \($a["helm.sh/hook"]) \(.name)"' | sort -n | uniq -c | xargs)" \
      "2 -3 pre-delete,post-delete mpsgate-removal 3 -2 pre-delete,post-delete mpsgate-removal 2 -1 pre-delete,post-delete mpsgate-removal 1 0 post-delete mpsgate-removal-end 1 0 pre-delete mpsgate-removal-begin"
    for step in begin end; do
      object "$set" Job "mpsgate-removal-$step" | jq -e '.spec | .backoffLimit == 0 and .activeDeadlineSeconds < 300 and (.template.spec | .restartPolicy == "Never" and .securityContext.runAsNonRoot
        and .serviceAccountName == "mpsgate-removal" and .containers[0].securityContext == {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: ["ALL"]}}
        and (has("hostPID") or has("hostIPC") or has("hostNetwork") or has("volumes") or has("runtimeClassName") | not))'
    done
    # It may write nodes' objects, of which a policy leaves one annotation, and delete two Leases.
    # The policy comes before the right, and is there when the release's own are gone.
    object "$set" ValidatingAdmissionPolicy mpsgate-removal | jq -e '.spec.failurePolicy == "Fail"'
    object "$set" ValidatingAdmissionPolicyBinding mpsgate-removal | jq -e '.spec == {policyName: "mpsgate-removal", validationActions: ["Deny"]}'
    is_equal "$(removal "$set" | jq -c '[.[] | select(.kind == "ClusterRole" or .kind == "Role") | .rules[] | [.resources[0], (.verbs | join(" ")), .resourceNames]]')" \
      '[["nodes","list patch",null],["pods","list",null],["leases","delete",["mpsgate-scheduler","mpsgate-kube-scheduler"]]]'
  done
  is_equal "$(object all Job mpsgate-removal-begin | jq -c '.spec.template.spec.containers[0].command')" '["/usr/bin/mpsgate-scheduler","--removal=begin","--removal-timeout=100"]'
  # Off, there is nothing of it; nor in what is applied without Helm, where its Jobs would run at
  # once.
  for set in bare default cluster generated; do
    is_equal "$(removal "$set")" "[]"
    jq -e 'all(.[]; .metadata.annotations // {} | has("helm.sh/hook") | not)' "$work/$set.json"
  done
}

@test "a removal waits for each of the chart's pods, and deletes each of its Leases" {
  local components
  components=$(jq -r '[.[] | select(.kind == "DaemonSet" or .kind == "Deployment") | .spec.template.metadata.labels | select(."app.kubernetes.io/instance" == "mpsgate")."app.kubernetes.io/component"] | sort | join(",")' "$work/cluster.json")
  is_equal "$components" holder,kube-scheduler,mpsgated,scheduler
  render_own removed --set removal.enabled=true
  object removed Job mpsgate-removal-end | jq -r '.spec.template.spec.containers[0].command[]' >"$work/end"
  is_equal "$(sed -n 's/^--removal-pods=app.kubernetes.io\/instance=mpsgate,app.kubernetes.io\/component in (\(.*\))$/\1/p' "$work/end" | tr , '\n' | sort | paste -sd,)" "$components"
  is_equal "$(sed -n 's/^--removal-lease=//p' "$work/end" | xargs)" "mpsgate-scheduler mpsgate-kube-scheduler"
  object cluster Deployment mpsgate-scheduler | jq -e '.spec.template.spec.containers[0].command | index("--lease-name=mpsgate-scheduler")'
  object cluster ConfigMap mpsgate-kube-scheduler | jq -e '.data["config.yaml"] | contains("resourceName: mpsgate-kube-scheduler")'
}

@test "what answers the network has a limit of memory" {
  deployment cluster mpsgate-scheduler | jq -e '.containers[0].resources.limits.memory == "1Gi"'
}

@test "no card is given to what needs none, and the image names none" {
  local set
  for set in $(sets); do
    is_equal "$(jq -r '[.[] | select(.spec.template) | .metadata.name as $of | .spec.template.spec | (.containers + (.initContainers // []))[] | select(.env // [] | any(. == {name: "NVIDIA_VISIBLE_DEVICES", value: "all"})) | .name] | unique | join(" ")' "$work/$set.json")" "holder mpsgated"
  done
  is_equal "$(pod default mpsgate | jq -c '.spec.initContainers[0].env')" '[{"name":"NVIDIA_VISIBLE_DEVICES","value":"void"}]'
  grep -qE '^ENV NVIDIA_VISIBLE_DEVICES=void' "$top/packaging/container/Containerfile"
  # No base that is another one tomorrow.
  grep -qE '^ARG BASE$' "$top/packaging/container/Containerfile"
  if grep -nE ':latest' "$top/packaging/container/Containerfile"; then return 1; fi
}

@test "the chart's own kube-scheduler has the same entry, its own name, lease and roles, and the cluster's version" {
  config() { object "$1" ConfigMap mpsgate-kube-scheduler | jq -r '.data["config.yaml"]' | python3 -c 'import json, sys, yaml; print(json.dumps(yaml.safe_load(sys.stdin)))'; }
  is_equal "$(config all | jq -c .extenders)" "$(extenders all | jq -c .)"
  is_equal "$(config all | jq -c '[.profiles[].schedulerName, .leaderElection.resourceName, .leaderElection.resourceNamespace]')" '["gpu-scheduler","mpsgate-kube-scheduler","mpsgate-system"]'
  is_equal "$(jq -c '[.[] | select(.subjects[0].name == "mpsgate-kube-scheduler") | .roleRef.name] | sort' "$work/cluster.json")" \
    '["extension-apiserver-authentication-reader","mpsgate-kube-scheduler","system:kube-scheduler","system:volume-scheduler"]'
  local version wanted
  while read -r version wanted; do
    render version --values "$BATS_TEST_DIRNAME/values/cluster.yaml" --kube-version "$version"
    is_equal "$(deployment version mpsgate-kube-scheduler | jq -r '.containers[0].image') $(config version | jq -r .apiVersion)" "registry.k8s.io/kube-scheduler:$wanted"
  done <<'END'
v1.34.1-eks-1a2b3c v1.34.1 kubescheduler.config.k8s.io/v1
v1.34.1+k3s1 v1.34.1 kubescheduler.config.k8s.io/v1
v1.24.9 v1.24.9 kubescheduler.config.k8s.io/v1beta2
v1.20.2 v1.20.2 kubescheduler.config.k8s.io/v1beta1
END
  # Other settings are other pods.
  [[ $(object all Deployment mpsgate-kube-scheduler | jq -r '.spec.template.metadata.annotations["mpsgate.io/config"]') != \
    $(object cluster Deployment mpsgate-kube-scheduler | jq -r '.spec.template.metadata.annotations["mpsgate.io/config"]') ]]
}

@test "the webhook stops nothing by its absence, nor its own namespace, and templates by nothing" {
  object cluster ValidatingWebhookConfiguration mpsgate-scheduler | jq -e 'all(.webhooks[]; .failurePolicy == "Ignore" and .sideEffects == "None" and .timeoutSeconds <= 5)'
  is_equal "$(object all ValidatingWebhookConfiguration mpsgate-scheduler | jq -c '[.webhooks[] | {(.name): .failurePolicy}] | add')" '{"pods.mpsgate.io":"Fail","placements.mpsgate.io":"Fail","templates.mpsgate.io":"Ignore"}'
  local set
  for set in all cluster generated; do
    jq -e '[.[] | select(.kind | endswith("WebhookConfiguration")) | .webhooks[]] | length > 0 and all(.[]; (has("objectSelector") | not)
      and any(.namespaceSelector.matchExpressions[]; . == {key: "kubernetes.io/metadata.name", operator: "NotIn", values: ["mpsgate-system"]}))' "$work/$set.json"
  done
  object cluster ValidatingWebhookConfiguration mpsgate-scheduler | jq -e 'all(.webhooks[]; any(.namespaceSelector.matchExpressions[]; .values == ["kube-system"]))'
}

@test "the webhook is asked for what it has a word on, and left alone by all others" {
  local set
  for set in all cluster; do python3 "$BATS_TEST_DIRNAME/cel.py" conditions "$work/$set.json" "$top/src/scheduler/tests/golden/webhook.jsonl"; done
  # The check can fail.
  sed "s/'NVIDIA_VISIBLE_DEVICES'/'OTHER'/g" "$work/all.json" >"$work/spoilt.json"
  if python3 "$BATS_TEST_DIRNAME/cel.py" conditions "$work/spoilt.json" "$top/src/scheduler/tests/golden/webhook.jsonl"; then return 1; fi
  # Before 1.28 there are no conditions; then no change of any pod waits for it.
  render version --values "$BATS_TEST_DIRNAME/values/all.yaml" --kube-version v1.27.9 --set admissionPolicies=false
  jq -e '[.[] | select(.kind | endswith("WebhookConfiguration")) | .webhooks[]] | all(.[]; has("matchConditions") | not)
    and any(.[]; .name == "placements.mpsgate.io" and .failurePolicy == "Ignore")' "$work/version.json"
}

@test "pods are changed only where that is switched on" {
  render plain --values "$BATS_TEST_DIRNAME/values/cluster.yaml" --set scheduler.webhook.mutate.schedulerName=
  jq -e 'all(.[]; .kind != "MutatingWebhookConfiguration")' "$work/plain.json"
  arguments() { deployment "$1" mpsgate-scheduler | jq -c '[.containers[0].command[] | select(startswith("--webhook-listen") or startswith("--webhook-tls") or startswith("--tls") | not)]'; }
  is_equal "$(arguments plain)" '["/usr/bin/mpsgate-scheduler","--listen=0.0.0.0:39999","--placement=binpack","--lease-name=mpsgate-scheduler","--probe-listen=0.0.0.0:39997","--webhook-scheduler-account=system:serviceaccount:mpsgate-system:mpsgate-scheduler","--webhook-steers=mpsgate"]'
  is_equal "$(arguments all)" '["/usr/bin/mpsgate-scheduler","--listen=0.0.0.0:19501","--placement=spread","--lease-name=mpsgate-scheduler","--probe-listen=0.0.0.0:19503","--webhook-scheduler-account=system:serviceaccount:mpsgate-system:mpsgate-scheduler","--webhook-exempt=gpu-operator=nvcr.io/nvidia/k8s/dcgm-exporter","--webhook-host-ipc","--webhook-scheduler-name=gpu-scheduler","--webhook-replaces=ack-co-scheduler","--webhook-replaces=nos-scheduler","--webhook-steers=default-scheduler","--webhook-steers=gpu-scheduler"]'
  object all MutatingWebhookConfiguration mpsgate-scheduler
}

@test "the webhook's certificate is the operator's, cert-manager's, or Helm's own for the Service's name" {
  is_equal "$(jq -r '[.[] | select(.kind | endswith("WebhookConfiguration")) | .webhooks[].clientConfig.caBundle] | unique[]' "$work/all.json")" V0VCSE9PSw==
  jq -e '[.[] | select(.kind | endswith("WebhookConfiguration"))] | all(.[]; .metadata.annotations["cert-manager.io/inject-ca-from"] == "mpsgate-system/mpsgate-scheduler-webhook"
    and all(.webhooks[]; .clientConfig | has("caBundle") | not))' "$work/cluster.json"
  object cluster Certificate mpsgate-scheduler-webhook | jq -e '.spec.dnsNames == ["mpsgate-scheduler-webhook.mpsgate-system.svc"] and .spec.secretName == "mpsgate-scheduler-webhook"'
  # One certificate in all its places, which verifies by its CA and for the name.
  local secret
  secret=$(object generated Secret mpsgate-scheduler-webhook)
  jq -r '.data["tls.crt"] | @base64d' <<<"$secret" >"$work/tls.crt"
  jq -r '.data["ca.crt"] | @base64d' <<<"$secret" >"$work/ca.crt"
  is_equal "$(jq -r '[.[] | select(.kind | endswith("WebhookConfiguration")) | .webhooks[].clientConfig.caBundle] | unique | length' "$work/generated.json")" 1
  is_equal "$(object generated ValidatingWebhookConfiguration mpsgate-scheduler | jq -r '.webhooks[0].clientConfig.caBundle')" "$(jq -r '.data["ca.crt"]' <<<"$secret")"
  openssl verify -CAfile "$work/ca.crt" -verify_hostname mpsgate-scheduler-webhook.mpsgate-system.svc "$work/tls.crt"
  if openssl verify -CAfile "$work/ca.crt" -verify_hostname other.mpsgate-system.svc "$work/tls.crt"; then return 1; fi
}

@test "the installer does what its values say" {
  installer() { pod "$1" mpsgate | jq -c '.spec.initContainers[0].command // "none"'; }
  is_equal "$(installer default)" '["/usr/bin/mpsgate","node-install","--settings=/chart/config.toml","--choose-runtime","--engine=containerd"]'
  is_equal "$(installer all)" '["/usr/bin/mpsgate","node-install","--settings=/chart/config.toml","--engine=containerd","--engine-config=/var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl","--restart-engine"]'
  is_equal "$(installer bare)" '"none"'
  render none --values "$BATS_TEST_DIRNAME/values/default.yaml" --set installer.engine=none
  is_equal "$(installer none)" '["/usr/bin/mpsgate","node-install","--settings=/chart/config.toml","--choose-runtime"]'
}

@test "a RuntimeClass is made unless it is somebody else's, and never without a name" {
  local set
  for set in default cluster all; do jq -e 'any(.[]; .kind == "RuntimeClass" and .handler == "nvidia")' "$work/$set.json"; done
  jq -e 'all(.[]; .kind != "RuntimeClass")' "$work/bare.json"
  render kept --values "$BATS_TEST_DIRNAME/values/default.yaml" --set runtimeClass.create=false
  jq -e 'all(.[]; .kind != "RuntimeClass")' "$work/kept.json"
}

@test "the webhook knows whom the nodes exempt" {
  local words
  words=$(object all Deployment mpsgate-scheduler | jq -c '[.spec.template.spec.containers[0].command[] | select(startswith("--webhook-exempt"))]')
  is_equal "$words" '["--webhook-exempt=gpu-operator=nvcr.io/nvidia/k8s/dcgm-exporter"]'
}

@test "the webhook knows whether nodes take claims that are made of limits" {
  local allowed words
  for allowed in true false; do
    render "claims-$allowed" --values "$BATS_TEST_DIRNAME/values/cluster.yaml" --set config.kubernetes.dra_extended_resources="$allowed"
    words=$(deployment "claims-$allowed" mpsgate-scheduler | jq '[.containers[0].command[] | select(. == "--webhook-extended-resources")] | length')
    settings "claims-$allowed" | grep -qxF "dra_extended_resources = $allowed"
    is_equal "$words" "$([[ $allowed == true ]] && echo 1 || echo 0)"
  done
}

@test "the webhook knows the nodes' policy.ipc, and writes hostIPC under require-host alone" {
  local word words
  for word in require-host auto any; do
    render "$word" --values "$BATS_TEST_DIRNAME/values/cluster.yaml" --set config.policy.ipc="$word",scheduler.webhook.mutate.hostIPC=true,scheduler.webhook.mutate.schedulerName=
    words=$(deployment "$word" mpsgate-scheduler | jq -r '[.containers[0].command[] | select(startswith("--webhook-ipc") or . == "--webhook-host-ipc")] | join(" ")')
    settings "$word" | grep -qxF "ipc = \"$word\""
    if [[ $word == require-host ]]; then
      is_equal "$words" "--webhook-ipc=require-host --webhook-host-ipc"
      object "$word" MutatingWebhookConfiguration mpsgate-scheduler
    else
      is_equal "$words" "--webhook-ipc=$word"
      # It would change nothing.
      jq -e 'all(.[]; .kind != "MutatingWebhookConfiguration")' "$work/$word.json"
    fi
  done
}

@test "the Job's sample is the page's, from its first line to its last" {
  is_equal "$(sed '/^#/d' "$top/packaging/kubernetes/samples/mps-sample.yaml" | sha256sum | cut -d' ' -f1)" 8aacf6c5f5eaa8ffb6be3d9d67e0b38105479b7ab92e848374e1feb00ea724e8
}

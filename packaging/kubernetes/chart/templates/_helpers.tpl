{{- /* Whether the RuntimeClass is the release's to make: told so, or auto and nobody else's is there. */}}
{{- define "mpsgate.makes-class" -}}
{{- with .Values.runtimeClass }}
{{- if eq (toString .create) "true" }}true
{{- else if and .name (eq (toString .create) "auto") }}
{{- $there := lookup "node.k8s.io/v1" "RuntimeClass" "" .name }}
{{- $by := printf "%s/%s" (dig "metadata" "annotations" "meta.helm.sh/release-namespace" "" $there) (dig "metadata" "annotations" "meta.helm.sh/release-name" "" $there) }}
{{- if or (not $there) (eq $by (printf "%s/%s" $.Release.Namespace $.Release.Name)) }}true{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Whether there are hooks of `helm uninstall`: told so, or auto and a cluster can be asked. What `helm template` has rendered is applied
       without Helm, and then a hook is a Job like any other, which would have every node give its cards back at once. */}}
{{- define "mpsgate.has-removal" -}}
{{- /* Not there in a release of before, whose values --reuse-values takes. */}}
{{- $enabled := toString (dig "removal" "enabled" "auto" (deepCopy .Values | toYaml | fromYaml)) }}
{{- if eq $enabled "true" }}true
{{- else if and (eq $enabled "auto") (lookup "v1" "Namespace" "" "kube-system") }}true
{{- end }}
{{- end }}

{{- /* Not empty where nodes give GPU memory by claims. A cluster without them is told here; a version is enough for `helm template`, which
       asks none. */}}
{{- define "mpsgate.has-dra" -}}
{{- /* Not there in a release of before, whose values --reuse-values takes. */}}
{{- $enabled := dig "dra" "enabled" false (deepCopy .Values | toYaml | fromYaml) }}
{{- $said := toString (dig "kubernetes" "dra" "" .Values.config) }}
{{- if or (and $enabled $said (ne $said "on")) (and (not $enabled) (eq $said "on")) }}
{{- fail (printf "config.kubernetes.dra is %s, but dra.enabled is %t: set dra.enabled alone, which brings mpsgated's rights and the DeviceClass along" $said $enabled) }}
{{- end }}
{{- if $enabled }}
{{- if not (or (.Capabilities.APIVersions.Has "resource.k8s.io/v1") (semverCompare ">=1.34.0-0" .Capabilities.KubeVersion.Version)) }}
{{- fail (printf "dra.enabled needs the API resource.k8s.io/v1, of Kubernetes 1.34 and newer, and this is %s; `helm template` takes it from --kube-version" .Capabilities.KubeVersion.Version) }}
{{- end -}}
true
{{- end }}
{{- end }}

{{- define "mpsgate.name" -}}
{{- if contains "mpsgate" .Release.Name }}{{ .Release.Name | trunc 48 | trimSuffix "-" }}{{ else }}{{ printf "%s-mpsgate" .Release.Name | trunc 48 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- /* Of objects, not of pods: a new chart version must not be a new pod. */}}
{{- define "mpsgate.labels" -}}
app.kubernetes.io/name: mpsgate
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end }}

{{- define "mpsgate.repository" -}}
{{ required "image.repository is empty: no image of mpsgate is published. Build packaging/container/Containerfile, push it to a registry of yours, and name it here without a tag" .Values.image.repository }}
{{- end }}

{{- /* [repository, tag, digest] */}}
{{- define "mpsgate.image" -}}
{{- $repository := index . 0 }}{{ $tag := index . 1 }}{{ $digest := index . 2 }}
{{- if $digest }}{{ printf "%s@%s" $repository $digest }}{{ else }}{{ printf "%s:%s" $repository $tag }}{{ end }}
{{- end }}

{{- define "mpsgate.mpsgated-image" -}}
{{ include "mpsgate.image" (list (include "mpsgate.repository" .) (.Values.image.tag | default .Chart.AppVersion) .Values.image.digest) }}
{{- end }}

{{- /* A tag of its own is meant, whatever digest mpsgated has. */}}
{{- define "mpsgate.holder-image" -}}
{{- $digest := .Values.holder.digest }}
{{- if not .Values.holder.tag }}{{ $digest = $digest | default .Values.image.digest }}{{ end }}
{{- include "mpsgate.image" (list (include "mpsgate.repository" .) (.Values.holder.tag | default .Values.image.tag | default .Chart.AppVersion) $digest) }}
{{- end }}

{{- /* The one program that the holder starts: mps.control of the settings. */}}
{{- define "mpsgate.control" -}}
{{ dig "mps" "control" "/usr/bin/nvidia-cuda-mps-control" .Values.config }}
{{- end }}

{{- /* One value of TOML. Helm's own toToml makes 1024 into 1024.0, which is refused. */}}
{{- define "mpsgate.toml" -}}
{{- if kindIs "string" . }}{{ . | toJson }}
{{- else if kindIs "bool" . }}{{ . }}
{{- else if kindIs "slice" . }}[{{ range $i, $item := . }}{{ if $i }}, {{ end }}{{ include "mpsgate.toml" $item }}{{ end }}]
{{- else if kindIs "map" . }}{ {{- $first := true }}{{ range $key, $value := . }}{{ if not $first }}, {{ end }}{{ $first = false }}{{ $key }} = {{ include "mpsgate.toml" $value }}{{ end -}} }
{{- else if eq (toString .) (toString (int64 .)) }}{{ int64 . }}
{{- else if eq (float64 .) (float64 (int64 .)) }}{{ int64 . }}
{{- else }}{{ fail (printf "config: %v is neither text, a whole number, true or false, nor a list of these" .) }}
{{- end }}
{{- end }}

{{- define "mpsgate.config" -}}
{{- $added := dict "gpus" (dict "manage" "all") "mps" (dict "supervisor" "holder") }}
{{- if .Values.metrics.enabled }}{{ $_ := set $added "metrics" (dict "listen" (printf "0.0.0.0:%d" (int .Values.metrics.port))) }}{{ end }}
{{- if include "mpsgate.has-dra" . }}{{ $_ := set $added "kubernetes" (dict "dra" "on") }}{{ end }}
{{- $config := merge (deepCopy .Values.config) $added }}
{{- $own := list (include "mpsgate.mpsgated-image" .) (include "mpsgate.holder-image" .) | uniq }}
{{- $exempt := dig "policy" "exempt" (list) .Values.config }}
{{- range $own }}
{{- /* By repository where it has a tag, which can be moved and is not accepted. */}}
{{- $image := contains "@" . | ternary . (regexReplaceAll ":[^:/]*$" . "") }}
{{- $exempt = append $exempt (dict "namespace" $.Release.Namespace "image" $image) }}
{{- end }}
{{- $_ := set $config "policy" (merge (dict "exempt" ($exempt | uniq)) (get $config "policy" | default dict)) }}
{{- range $section, $keys := $config }}
[{{ $section }}]
{{- range $key, $value := $keys }}
{{ $key }} = {{ include "mpsgate.toml" $value }}
{{- end }}
{{ end }}
{{- end }}

{{- /* Labels of the nodes, as alternatives: a nodeSelector has none. */}}
{{- define "mpsgate.affinity" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      {{- range . }}
      - {{ toJson . }}
      {{- end }}
{{- end }}

{{- /* What both pods have in common. */}}
{{- define "mpsgate.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .Values.runtimeClass.name }}
runtimeClassName: {{ . }}
{{- end }}
# Not to be evicted when the node runs short: without either, no container gets GPU memory here.
priorityClassName: system-node-critical
{{- with .Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
# Callers, containers and MPS clients are known by their pids, and all of these are the node's.
hostPID: true
# MPS servers and their clients share memory, and clients are in the node's IPC namespace.
hostIPC: true
{{- end }}

{{- /* Not empty where the webhook writes hostIPC into pods: it is switched on, and the nodes want it. */}}
{{- define "mpsgate.webhook-host-ipc" -}}
{{- if and .Values.scheduler.webhook.mutate.hostIPC (eq (dig "policy" "ipc" "require-host" .Values.config) "require-host") }}true{{ end }}
{{- end }}

{{- define "mpsgate.scheduler" -}}
{{ include "mpsgate.name" . }}-scheduler
{{- end }}

{{- define "mpsgate.scheduler-selector" -}}
app.kubernetes.io/name: mpsgate
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: scheduler
{{- end }}

{{- /* [root, component]: what the pods of the cluster's side have in common. */}}
{{- define "mpsgate.cluster-pod" -}}
{{- $component := index . 1 }}
{{- with index . 0 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
# While it is away, no pod with GPU memory is placed.
priorityClassName: {{ .Values.scheduler.priorityClassName }}
{{- with .Values.scheduler.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .Values.scheduler.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
affinity:
  podAntiAffinity:
    # Not both on one node, where there is another.
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              app.kubernetes.io/instance: {{ .Release.Name }}
              app.kubernetes.io/component: {{ $component }}
securityContext:
  # It opens ports above 1024 and reads what is mounted: no privilege of root's is of use to it.
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  # The group of the mounted certificates' files.
  fsGroup: 65532
  # The engine's list of system calls, which some engines leave out unless told.
  seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- end }}

{{- define "mpsgate.no-privileges" -}}
# No program that it starts could gain what it has not, and it starts none.
allowPrivilegeEscalation: false
# It writes no file.
readOnlyRootFilesystem: true
# Nothing that it does needs one.
capabilities: {drop: [ALL]}
{{- end }}

{{- define "mpsgate.extender-client-path" -}}
/etc/kubernetes/mpsgate
{{- end }}

{{- define "mpsgate.scheduler-host" -}}
{{ include "mpsgate.scheduler" . }}.{{ .Release.Namespace }}.svc
{{- end }}

{{- /* Where the extender's certificates come from: secret, generated or none. */}}
{{- define "mpsgate.extender-certificate" -}}
{{- $s := .Values.scheduler }}
{{- with $s.tls }}
{{- if not .enabled }}
{{- if or .secretName .caBundle .clientSecretName .clientCaBundle }}{{ fail "scheduler.tls.enabled is false, but there are certificates beside it: keep one of the two" }}{{ end -}}
none
{{- else if .secretName }}
{{- $_ := required "scheduler.tls.secretName without caBundle: kube-scheduler would send its pods to whoever answers" .caBundle }}
{{- $_ := required "scheduler.tls.secretName without clientCaBundle: whoever reaches the port could bind any pod" .clientCaBundle }}
{{- if $s.ownKubeScheduler.enabled }}{{ $_ := required "scheduler.tls.secretName without clientSecretName: the chart's kube-scheduler has to show a certificate of a client" .clientSecretName }}{{ end -}}
secret
{{- else }}
{{- if or .caBundle .clientSecretName .clientCaBundle }}{{ fail "scheduler.tls: caBundle, clientSecretName and clientCaBundle go with secretName; without any of them Helm makes all certificates" }}{{ end -}}
generated
{{- end }}
{{- if and $s.extender.url (ne .enabled (hasPrefix "https:" $s.extender.url)) }}{{ fail (printf "scheduler.extender.url is %s, but scheduler.tls.enabled is %t" $s.extender.url .enabled) }}{{ end }}
{{- end }}
{{- end }}

{{- define "mpsgate.extender-secret" -}}
{{ .Values.scheduler.tls.secretName | default (printf "%s-tls" (include "mpsgate.scheduler" .)) }}
{{- end }}

{{- define "mpsgate.extender-client-secret" -}}
{{ .Values.scheduler.tls.clientSecretName | default (printf "%s-client" (include "mpsgate.scheduler" .)) }}
{{- end }}

{{- /* [root, name of a Secret, host]: what that Secret has from an earlier rendering, else a new certificate of a new CA, whose key is
       dropped: nobody can sign another. Once for all templates of a rendering. Base64. */}}
{{- define "mpsgate.generated" -}}
{{- $root := index . 0 }}{{ $secret := index . 1 }}{{ $host := index . 2 }}
{{- $all := get $root.Values "mpsgateGenerated" | default dict }}
{{- $made := get $all $secret }}
{{- if not $made }}
{{- $there := lookup "v1" "Secret" $root.Release.Namespace $secret }}
{{- $data := get $there "data" | default dict }}
{{- if and (hasKey $data "ca.crt") (hasKey $data "tls.crt") (hasKey $data "tls.key") }}
{{- $made = pick $data "ca.crt" "tls.crt" "tls.key" }}
{{- else }}
{{- $ca := genCA $secret 3650 }}
{{- $cert := genSignedCert $host nil (list $host) 3650 $ca }}
{{- $made = dict "ca.crt" ($ca.Cert | b64enc) "tls.crt" ($cert.Cert | b64enc) "tls.key" ($cert.Key | b64enc) }}
{{- end }}
{{- $_ := set $all $secret $made }}
{{- $_ := set $root.Values "mpsgateGenerated" $all }}
{{- end }}
{{- $made | toJson }}
{{- end }}

{{- define "mpsgate.extender-generated" -}}
{{ include "mpsgate.generated" (list . (include "mpsgate.extender-secret" .) (include "mpsgate.scheduler-host" .)) }}
{{- end }}

{{- /* Another CA than the server's: the one certificate must not do for the other. */}}
{{- define "mpsgate.extender-client-generated" -}}
{{ include "mpsgate.generated" (list . (include "mpsgate.extender-client-secret" .) "kube-scheduler") }}
{{- end }}

{{- /* How kube-scheduler reaches mpsgate-scheduler, in each entry of `extenders`. Keys stay in their Secret: the files are where the
       chart's kube-scheduler has it mounted. */}}
{{- define "mpsgate.extender-reach" -}}
{{- $s := .Values.scheduler }}
{{- $from := include "mpsgate.extender-certificate" . }}
{{- $tls := ne $from "none" -}}
urlPrefix: {{ $s.extender.url | default (printf "%s://%s:%d/mpsgate" ($tls | ternary "https" "http") (include "mpsgate.scheduler-host" .) (int $s.port)) }}
enableHTTPS: {{ $tls }}
{{- if $tls }}
# Without a CA kube-scheduler would believe any certificate. Its own one is what it may bind pods by.
tlsConfig:
  {{- if eq $from "generated" }}
  # The certificate is for this name, whatever address it is reached by.
  serverName: {{ include "mpsgate.scheduler-host" . }}
  caData: {{ get (include "mpsgate.extender-generated" . | fromJson) "ca.crt" }}
  {{- else }}
  caData: {{ $s.tls.caBundle }}
  {{- end }}
  certFile: {{ include "mpsgate.extender-client-path" . }}/tls.crt
  keyFile: {{ include "mpsgate.extender-client-path" . }}/tls.key
{{- end }}
httpTimeout: {{ $s.extender.timeout }}
# Names of nodes are enough: it knows their cards itself.
nodeCacheCapable: true
# Its score counts as much as that many plugins of weight 1.
weight: {{ $s.extender.weight }}
{{- end }}

{{- /* The entries of `extenders`. */}}
{{- define "mpsgate.extender" -}}
{{- $s := .Values.scheduler -}}
- {{ include "mpsgate.extender-reach" . | nindent 2 | trim }}
  filterVerb: filter
  prioritizeVerb: prioritize
  preemptVerb: preempt
  bindVerb: bind
  # Without an answer no pod with GPU memory is placed: a guess would be refused on the node.
  ignorable: false
  # Pods that ask for one of these are its own to bind; others never wait for it.
  managedResources:
    - {name: aliyun.com/gpu-mem, ignoredByScheduler: false}
    # No node offers it as a number of its own: the cards' ledger counts it.
    - {name: aliyun.com/gpu-core.percentage, ignoredByScheduler: true}
    {{- range $s.slices }}
    - {name: nvidia.com/gpu-{{ int . }}gb, ignoredByScheduler: false}
    {{- end }}
    {{- range $s.units }}
    - {name: mpsgate.io/gpu-mem-{{ int . }}mi, ignoredByScheduler: false}
    {{- end }}
{{- if include "mpsgate.has-dra" . }}
# It scores nodes for pods with claims, too. kube-scheduler knows no managedResources for claims, so it asks here about every pod.
- {{ include "mpsgate.extender-reach" . | nindent 2 | trim }}
  prioritizeVerb: prioritize-claims
  # A pod is placed without the score, too: kube-scheduler itself counts what claims take.
  ignorable: true
{{- end }}
{{- end }}

{{- /* KubeSchedulerConfiguration's version for this cluster. */}}
{{- define "mpsgate.scheduler-api" -}}
{{- $version := .Capabilities.KubeVersion.Version }}
{{- if semverCompare ">=1.25.0-0" $version }}kubescheduler.config.k8s.io/v1
{{- else if semverCompare ">=1.22.0-0" $version }}kubescheduler.config.k8s.io/v1beta2
{{- else }}kubescheduler.config.k8s.io/v1beta1
{{- end }}
{{- end }}

{{- define "mpsgate.kube-scheduler" -}}
{{ include "mpsgate.name" . }}-kube-scheduler
{{- end }}

{{- /* The cluster's own version, without what a provider adds to it (v1.34.1-eks-1a2b, v1.34.1+k3s1). */}}
{{- define "mpsgate.kube-scheduler-image" -}}
{{- with .Values.scheduler.ownKubeScheduler.image }}
{{- include "mpsgate.image" (list .repository (.tag | default (regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" $.Capabilities.KubeVersion.Version)) .digest) }}
{{- end }}
{{- end }}

{{- /* Where the webhook's certificate comes from: secret, cert-manager or generated. */}}
{{- define "mpsgate.webhook-certificate" -}}
{{- with .Values.scheduler.webhook.tls }}
{{- if and .secretName .certManager.enabled }}{{ fail "scheduler.webhook.tls: secretName and certManager.enabled are two ways to the same; keep one" }}
{{- else if .certManager.enabled }}cert-manager
{{- else if .secretName }}secret
{{- else }}generated
{{- end }}
{{- end }}
{{- end }}

{{- define "mpsgate.webhook-secret" -}}
{{ .Values.scheduler.webhook.tls.secretName | default (printf "%s-webhook" (include "mpsgate.scheduler" .)) }}
{{- end }}

{{- define "mpsgate.webhook-host" -}}
{{ include "mpsgate.scheduler" . }}-webhook.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "mpsgate.webhook-generated" -}}
{{ include "mpsgate.generated" (list . (include "mpsgate.webhook-secret" .) (include "mpsgate.webhook-host" .)) }}
{{- end }}

{{- /* What both webhook configurations have in common: [root, path]. */}}
{{- define "mpsgate.webhook-client" -}}
{{- $root := index . 0 }}{{ $path := index . 1 }}
{{- $from := include "mpsgate.webhook-certificate" $root }}
clientConfig:
  service:
    name: {{ include "mpsgate.scheduler" $root }}-webhook
    namespace: {{ $root.Release.Namespace }}
    path: {{ $path }}
    port: 443
  {{- if eq $from "generated" }}
  caBundle: {{ get (include "mpsgate.webhook-generated" $root | fromJson) "ca.crt" }}
  {{- else if eq $from "secret" }}
  caBundle: {{ required "scheduler.webhook.tls.secretName without caBundle: the API server could not know the certificate" $root.Values.scheduler.webhook.tls.caBundle }}
  {{- end }}
admissionReviewVersions: [v1]
sideEffects: None
timeoutSeconds: {{ $root.Values.scheduler.webhook.timeoutSeconds }}
namespaceSelector:
  {{- $selector := deepCopy $root.Values.scheduler.webhook.namespaceSelector }}
  {{- /* Its own pods must be able to start without it. */}}
  {{- $own := dict "key" "kubernetes.io/metadata.name" "operator" "NotIn" "values" (list $root.Release.Namespace) }}
  {{- $_ := set $selector "matchExpressions" (append (get $selector "matchExpressions" | default list) $own) }}
  {{- toYaml $selector | nindent 2 }}
{{- end }}

{{- /* CEL: the pod template of a review's object as p, whose kind is in [path]. Over-broad on purpose: what is not matched is let through
       unseen, so everything that the webhook could say something of has to match. A test holds the two together. */}}
{{- define "mpsgate.webhook-pods" -}}
[{{ . }}].exists(p,
  (has(p.metadata) && has(p.metadata.annotations) && p.metadata.annotations != null && p.metadata.annotations.exists(a,
    a in ['mpsgate.io/gpu-mem', 'aliyun.com/gpu-mem', 'nvidia.cdi.k8s.io'] || a.startsWith('cdi.k8s.io/') || a.startsWith('nvidia.cdi.k8s.io/') ||
    a in {{ include "mpsgate.webhook-placements" . }})) ||
  (has(p.spec) && p.spec != null && (
    [has(p.spec.containers) && p.spec.containers != null ? p.spec.containers : [],
     has(p.spec.initContainers) && p.spec.initContainers != null ? p.spec.initContainers : [],
     has(p.spec.ephemeralContainers) && p.spec.ephemeralContainers != null ? p.spec.ephemeralContainers : []].exists(cs, cs.exists(c,
      (has(c.env) && c.env != null && c.env.exists(e, has(e.name) && (e.name.startsWith('DOCKER_RESOURCE_') ||
        e.name in ['NVIDIA_VISIBLE_DEVICES', 'CUDA_VERSION', 'NVIDIA_MIG_CONFIG_DEVICES', 'NVIDIA_MIG_MONITOR_DEVICES', 'NVIDIA_IMEX_CHANNELS']))) ||
      (has(c.volumeMounts) && c.volumeMounts != null && c.volumeMounts.exists(m,
        (has(m.mountPath) && m.mountPath.contains('nvidia-container-devices')) || (has(m.subPath) && m.subPath.contains('nvidia')) || has(m.subPathExpr))) ||
      (has(c.resources) && c.resources != null && (
        (has(c.resources.limits) && c.resources.limits != null && c.resources.limits.exists(r,
          r.startsWith('aliyun.com/') || r.startsWith('nvidia.com/') || r.contains('mpsgate.io'))) ||
        (has(c.resources.requests) && c.resources.requests != null && c.resources.requests.exists(r,
          r.startsWith('aliyun.com/') || r.startsWith('nvidia.com/') || r.contains('mpsgate.io'))))))) ||
    (has(p.spec.volumes) && p.spec.volumes != null && p.spec.volumes.exists(v,
      has(v.hostPath) && v.hostPath != null && has(v.hostPath.path) && v.hostPath.path.contains('nvidia'))))))
{{- end }}

{{- /* Annotations that a scheduler writes: WRITTEN of src/kubernetes/src/placed.rs, which a test compares. */}}
{{- define "mpsgate.webhook-placements" -}}
['mpsgate.io/placement', 'ALIYUN_COM_GPU_MEM_IDX', 'ALIYUN_COM_GPU_MEM_POD', 'ALIYUN_COM_GPU_MEM_DEV', 'ALIYUN_COM_GPU_MEM_ASSIGNED', 'ALIYUN_COM_GPU_MEM_ASSUME_TIME', 'scheduler.framework.gpushare.allocation', 'scheduler.framework.gpushare.assigned', 'scheduler.framework.gpushare.assume-time']
{{- end }}

{{- /* Whether webhooks take conditions of their own: on by default from Kubernetes 1.28. */}}
{{- define "mpsgate.has-match-conditions" -}}
{{- if semverCompare ">=1.28.0-0" .Capabilities.KubeVersion.Version }}true{{ end }}
{{- end }}

{{- /* [root, CEL of the pod or template]: everything else is left alone. */}}
{{- define "mpsgate.webhook-match" -}}
{{- if include "mpsgate.has-match-conditions" (index . 0) }}
matchConditions:
  # What has nothing of GPUs in it never waits for the webhook.
  - name: gpu
    expression: |-
      {{- include "mpsgate.webhook-pods" (index . 1) | nindent 6 }}
{{- end }}
{{- end }}

{{- /* A pod's update: only where a scheduler's annotation, or the number of cards, is another than before; and while it has no node, where
       it tolerates something else, and has something in it that the webhook could say something of. */}}
{{- define "mpsgate.webhook-match-update" -}}
{{- if include "mpsgate.has-match-conditions" . }}
matchConditions:
  # Labels, finalizers and all that is somebody else's never wait for the webhook.
  - name: placement
    expression: |-
      {{ include "mpsgate.webhook-placements" . }}.exists(a,
        (has(object.metadata.annotations) && a in object.metadata.annotations ? [object.metadata.annotations[a]] : []) !=
        (has(oldObject.metadata.annotations) && a in oldObject.metadata.annotations ? [oldObject.metadata.annotations[a]] : [])) ||
      (has(object.metadata.labels) && 'aliyun.com/gpu-count' in object.metadata.labels ? [object.metadata.labels['aliyun.com/gpu-count']] : []) !=
      (has(oldObject.metadata.labels) && 'aliyun.com/gpu-count' in oldObject.metadata.labels ? [oldObject.metadata.labels['aliyun.com/gpu-count']] : []) ||
      ((!has(oldObject.spec.nodeName) || oldObject.spec.nodeName == '') &&
      (has(object.spec.tolerations) ? object.spec.tolerations : []) != (has(oldObject.spec.tolerations) ? oldObject.spec.tolerations : []) &&
      {{ include "mpsgate.webhook-pods" "object" | nindent 6 | trim }})
{{- end }}
{{- end }}

{{- define "mpsgate.webhook-annotations" -}}
{{- if eq (include "mpsgate.webhook-certificate" .) "cert-manager" }}
annotations:
  # cert-manager writes caBundle.
  cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/{{ include "mpsgate.scheduler" . }}-webhook
{{- end }}
{{- end }}

{{- /* Whether policies of admission are rendered: from Kubernetes 1.30 there are any, and tokens that say their node. */}}
{{- define "mpsgate.has-policies" -}}
{{- $wanted := toString .Values.admissionPolicies }}
{{- if or (eq $wanted "true") (and (eq $wanted "auto") (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version)) }}true{{ end }}
{{- end }}

{{- /* [root, which policy]: it refuses, everywhere. A third is the object's annotations. */}}
{{- define "mpsgate.policy-binding" -}}
{{- $name := printf "%s-%s" (include "mpsgate.name" (index . 0)) (index . 1) -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "mpsgate.labels" (index . 0) | nindent 4 }}
  {{- if gt (len .) 2 }}
  annotations:
    {{- index . 2 | nindent 4 }}
  {{- end }}
spec:
  policyName: {{ $name }}
  validationActions: [Deny]
{{- end }}

{{- /* CEL: what the API server knows of a token beside its user; empty where it knows nothing. */}}
{{- define "mpsgate.cel-extra" -}}
has(request.userInfo.extra) && '{{ . }}' in request.userInfo.extra && size(request.userInfo.extra['{{ . }}']) == 1 ? request.userInfo.extra['{{ . }}'][0] : ''
{{- end }}

{{- define "mpsgate.cel-own-node" -}}
- name: ownNode
  expression: {{ include "mpsgate.cel-extra" "authentication.kubernetes.io/node-name" | quote }}
{{- end }}

{{- /* CEL variables: [path, name]: a map of the object and of what it was, empty where there is none. */}}
{{- define "mpsgate.cel-maps" -}}
{{- $path := index . 0 }}{{ $name := index . 1 }}
{{- range $object, $variable := dict "object" $name "oldObject" (printf "old%s" ($name | title)) }}
{{- $has := list }}{{ $at := $object }}
{{- range splitList "." $path }}{{ $at = printf "%s.%s" $at . }}{{ $has = append $has (printf "has(%s)" $at) }}{{ end }}
- name: {{ $variable }}
  expression: {{ printf "%s ? %s : {}" (join " && " $has) $at | quote }}
{{- end }}
{{- end }}

{{- /* CEL: [map, map before, keys]: no value but that of these keys differs, none came and none went. */}}
{{- define "mpsgate.cel-same" -}}
{{- $new := index . 0 }}{{ $old := index . 1 }}{{ $free := index . 2 -}}
{{ $new }}.all(k, k in [{{ $free }}] || (k in {{ $old }} && {{ $new }}[k] == {{ $old }}[k])) && {{ $old }}.all(k, k in [{{ $free }}] || k in {{ $new }})
{{- end }}

{{- define "mpsgate.kube-scheduler-config" -}}
apiVersion: {{ include "mpsgate.scheduler-api" . }}
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceLock: leases
  resourceName: {{ include "mpsgate.kube-scheduler" . }}
  resourceNamespace: {{ .Release.Namespace }}
profiles:
  - schedulerName: {{ .Values.scheduler.ownKubeScheduler.schedulerName }}
extenders:
{{- include "mpsgate.extender" . | trim | nindent 2 }}
{{- end }}

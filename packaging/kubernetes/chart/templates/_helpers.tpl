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

{{- define "mpsgate.scheduler" -}}
{{ include "mpsgate.name" . }}-scheduler
{{- end }}

{{- define "mpsgate.scheduler-selector" -}}
app.kubernetes.io/name: mpsgate
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: scheduler
{{- end }}

{{- define "mpsgate.scheduler-scheme" -}}
{{ if .Values.scheduler.tls.secretName }}, scheme: HTTPS{{ end }}
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

{{- define "mpsgate.scheduler-host" -}}
{{ include "mpsgate.scheduler" . }}.{{ .Release.Namespace }}.svc
{{- end }}

{{- /* The entry of `extenders`. */}}
{{- define "mpsgate.extender" -}}
{{- $s := .Values.scheduler }}
- urlPrefix: {{ $s.extender.url | default (printf "%s://%s:%d/mpsgate" (empty $s.tls.secretName | ternary "http" "https") (include "mpsgate.scheduler-host" .) (int $s.port)) }}
  filterVerb: filter
  prioritizeVerb: prioritize
  preemptVerb: preempt
  bindVerb: bind
  # Its score counts as much as that many plugins of weight 1.
  weight: {{ $s.extender.weight }}
  enableHTTPS: {{ not (empty $s.tls.secretName) }}
  {{- if and $s.tls.secretName $s.tls.caBundle }}
  tlsConfig: {caData: {{ $s.tls.caBundle }}}
  {{- end }}
  httpTimeout: {{ $s.extender.timeout }}
  # Names of nodes are enough: it knows their cards itself.
  nodeCacheCapable: true
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

{{- /* The certificate that an earlier release of this name has, else a new one: once for all templates of a rendering. Base64. */}}
{{- define "mpsgate.webhook-generated" -}}
{{- $made := get .Values "mpsgateGenerated" }}
{{- if not $made }}
{{- $host := include "mpsgate.webhook-host" . }}
{{- $there := lookup "v1" "Secret" .Release.Namespace (include "mpsgate.webhook-secret" .) }}
{{- $data := get $there "data" | default dict }}
{{- if and (hasKey $data "ca.crt") (hasKey $data "tls.crt") (hasKey $data "tls.key") }}
{{- $made = pick $data "ca.crt" "tls.crt" "tls.key" }}
{{- else }}
{{- $ca := genCA (include "mpsgate.scheduler" .) 3650 }}
{{- $cert := genSignedCert $host nil (list $host) 3650 $ca }}
{{- $made = dict "ca.crt" ($ca.Cert | b64enc) "tls.crt" ($cert.Cert | b64enc) "tls.key" ($cert.Key | b64enc) }}
{{- end }}
{{- $_ := set .Values "mpsgateGenerated" $made }}
{{- end }}
{{- $made | toJson }}
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

{{- define "mpsgate.webhook-annotations" -}}
{{- if eq (include "mpsgate.webhook-certificate" .) "cert-manager" }}
annotations:
  # cert-manager writes caBundle.
  cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/{{ include "mpsgate.scheduler" . }}-webhook
{{- end }}
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

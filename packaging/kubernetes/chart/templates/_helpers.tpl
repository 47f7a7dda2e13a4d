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

{{/* Names and labels of the chart's objects. */}}

{{- define "platform.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40 characters: longer names are made of it. */}}
{{- define "platform.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "platform.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Of objects that belong to no namespace. */}}
{{- define "platform.clusterwide" -}}
{{- printf "%s-%s" .Release.Namespace (include "platform.fullname" .) -}}
{{- end -}}

{{/* The namespaces that runs are in, as a list in JSON. */}}
{{- define "platform.namespaces" -}}
{{- $names := list -}}
{{- range .Values.teams }}{{ $names = append $names .namespace }}{{ end -}}
{{- $names | toJson -}}
{{- end -}}

{{/* Whether the chart makes a team's namespace, or "": (list . $team). The release's own is there before the chart. */}}
{{- define "platform.isCreated" -}}
{{- $team := last . -}}
{{- if and (dig "create" true $team) (ne $team.namespace (first .).Release.Namespace) }}true{{ end -}}
{{- end -}}

{{/* The values as they are for a team, in JSON: (list . $team). Its own are laid over the release's. In an object store of the
release each team has a folder, as run names are unique within one only. */}}
{{- define "platform.teamValues" -}}
{{- $team := last . -}}
{{- $values := mergeOverwrite (deepCopy (first .).Values) (deepCopy (pick $team "studies" "runs" "data" "checkpoints" "budget" "counts" "warm")) -}}
{{- if and $values.checkpoints.url (not (dig "checkpoints" "url" "" $team)) -}}
{{- $_ := set $values.checkpoints "url" (printf "%s/%s" (trimSuffix "/" $values.checkpoints.url) $team.namespace) -}}
{{- end -}}
{{- with $team.queue }}{{ $_ := set $values.studies "queue" .name }}{{ end -}}
{{- with $team.priorityClass }}{{ $_ := set $values.studies "priorityClass" . }}{{ end -}}
{{- $values | toJson -}}
{{- end -}}

{{- define "platform.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
app.kubernetes.io/name: {{ include "platform.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: trialplane
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
{{- end -}}

{{/* By which services and controllers find the pods of one component: (list . "mlflow"). They can never change. */}}
{{- define "platform.selector" -}}
{{- $top := first . -}}
app.kubernetes.io/name: {{ include "platform.name" $top | quote }}
app.kubernetes.io/instance: {{ $top.Release.Name | quote }}
app.kubernetes.io/component: {{ last . }}
{{- end -}}

{{/* Labels of a component's pod: (list . "mlflow"). Network policies go by the role. */}}
{{- define "platform.podLabels" -}}
{{ include "platform.labels" (first .) }}
app.kubernetes.io/component: {{ last . }}
trialplane.io/role: {{ last . }}
{{- end -}}

{{/* name:tag or name@digest of an image: (list . .Values.image.trial). */}}
{{- define "platform.image" -}}
{{- $top := first . -}}
{{- $image := last . -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default $top.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* A PriorityClass of runs by its name in the values, one of ours by its short name or any other: (list . "low"). */}}
{{- define "platform.priorityClass" -}}
{{- $top := first . -}}
{{- $wanted := last . -}}
{{- $ours := false -}}
{{- range $top.Values.priorityClasses.classes -}}
{{- if eq .name $wanted }}{{- $ours = true }}{{- end -}}
{{- end -}}
{{- if not $ours -}}
{{- $wanted -}}
{{- else if $top.Values.priorityClasses.enabled -}}
{{- printf "%s-%s" $top.Release.Namespace $wanted -}}
{{- end -}}
{{- end -}}

{{/* That of the platform's own pods. */}}
{{- define "platform.ownPriorityClass" -}}
{{- printf "%s-platform" .Release.Namespace -}}
{{- end -}}

{{/* That of the pods that hold room for runs. */}}
{{- define "platform.warmPriorityClass" -}}
{{- printf "%s-warm" .Release.Namespace -}}
{{- end -}}

{{/* What jobs may ask for, as a map in JSON: (dict "Values" of a team "Release" .Release). Kubernetes itself gives pods without a
PriorityClass the cluster's default one. */}}
{{- define "platform.allowed" -}}
{{- $classes := list -}}
{{- range .Values.studies.allowed.priorityClasses }}{{ with include "platform.priorityClass" (list $ .) }}{{ $classes = append $classes . }}{{ end }}{{ end -}}
{{- range (lookup "scheduling.k8s.io/v1" "PriorityClass" "" "").items }}{{ if .globalDefault }}{{ $classes = append $classes .metadata.name }}{{ end }}{{ end -}}
{{- set (pick .Values.studies.allowed "tolerations" "labels" "annotations") "priority_classes" $classes | toJson -}}
{{- end -}}

{{/* Annotation of what outlives the release. */}}
{{- define "platform.keep" -}}
{{- if .Values.keepVolumes }}
annotations:
  helm.sh/resource-policy: keep
{{- end }}
{{- end -}}

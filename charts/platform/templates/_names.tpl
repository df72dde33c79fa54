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

{{/* The PriorityClass of runs: one of ours by its short name, or any other. */}}
{{- define "platform.priorityClass" -}}
{{- $wanted := .Values.studies.priorityClass -}}
{{- $ours := false -}}
{{- range .Values.priorityClasses.classes -}}
{{- if eq .name $wanted }}{{- $ours = true }}{{- end -}}
{{- end -}}
{{- if not $ours -}}
{{- $wanted -}}
{{- else if .Values.priorityClasses.enabled -}}
{{- printf "%s-%s" .Release.Namespace $wanted -}}
{{- end -}}
{{- end -}}

{{/* Annotation of what outlives the release. */}}
{{- define "platform.keep" -}}
{{- if .Values.keepVolumes }}
annotations:
  helm.sh/resource-policy: keep
{{- end }}
{{- end -}}

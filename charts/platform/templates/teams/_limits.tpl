{{/* What all runs of a team may have together, what each of its containers has that says nothing, and where they queue. */}}
{{- define "platform.team.limits" -}}
{{- with .Team.quota }}
apiVersion: v1
kind: ResourceQuota
metadata:
  name: {{ include "platform.fullname" $ }}
  {{- include "platform.team.metadata" $ | nindent 2 }}
spec:
  hard:
    {{- toYaml . | nindent 4 }}
---
{{- end }}
{{- with .Values.counts }}
apiVersion: v1
kind: ResourceQuota
metadata:
  name: {{ include "platform.fullname" $ }}-counts
  {{- include "platform.team.metadata" $ | nindent 2 }}
spec:
  hard:
    {{- toYaml . | nindent 4 }}
---
{{- end }}
{{- with .Team.limits }}
apiVersion: v1
kind: LimitRange
metadata:
  name: {{ include "platform.fullname" $ }}
  {{- include "platform.team.metadata" $ | nindent 2 }}
spec:
  limits:
    {{- toYaml . | nindent 4 }}
---
{{- end }}
{{- with .Team.queue }}
apiVersion: kueue.x-k8s.io/{{ ternary "v1beta2" "v1beta1" ($.Capabilities.APIVersions.Has "kueue.x-k8s.io/v1beta2") }}
kind: LocalQueue
metadata:
  name: {{ .name | quote }}
  {{- include "platform.team.metadata" $ | nindent 2 }}
spec:
  clusterQueue: {{ .clusterQueue | quote }}
{{- end }}
{{- end -}}

{{/* The rest of an object's metadata, for those in a team's namespace. */}}
{{- define "platform.team.metadata" -}}
namespace: {{ .Team.namespace | quote }}
labels:
  {{- include "platform.labels" . | nindent 2 }}
{{- end -}}

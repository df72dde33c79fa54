{{/* Volumes of runs, of data sets and of checkpoints. */}}
{{- define "platform.team.claims" -}}
{{- range $name := list "runs" "data" "checkpoints" }}
{{- $volume := index $.Values $name }}
{{- if and $volume.enabled (not $volume.existingClaim) }}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ include "platform.fullname" $ }}-{{ $name }}
  namespace: {{ $.Team.namespace | quote }}
  labels:
    {{- include "platform.labels" $ | nindent 4 }}
    app.kubernetes.io/component: {{ $name }}
  {{- include "platform.keep" $ | nindent 2 }}
spec:
  {{- include "platform.claimSpec" $volume | nindent 2 }}
---
{{- end }}
{{- end }}
{{- end -}}

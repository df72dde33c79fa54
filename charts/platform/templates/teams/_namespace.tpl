{{/* The namespace itself. The release's own is there before the chart, and one with `create: false` is somebody else's. */}}
{{- define "platform.team.namespace" -}}
{{- if include "platform.isCreated" (list . .Team) }}
{{- $restricted := dict "pod-security.kubernetes.io/enforce" "restricted" "pod-security.kubernetes.io/enforce-version" "latest" }}
{{- /* With the namespace all that is in it would go. */}}
{{- $kept := ternary (dict "helm.sh/resource-policy" "keep") dict .Values.keepVolumes }}
apiVersion: v1
kind: Namespace
metadata:
  name: {{ .Team.namespace | quote }}
  labels:
    {{- include "platform.labels" . | nindent 4 }}
    {{- toYaml (merge (dict "trialplane.io/control" .Release.Namespace) (.Team.labels | default dict) $restricted) | nindent 4 }}
  {{- with merge $kept (.Team.annotations | default dict) }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

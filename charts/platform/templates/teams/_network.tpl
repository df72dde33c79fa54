{{/* Nobody reaches anybody but by a policy, and each run has its own, which the operator makes. Short-lived pods that work on
volumes, as those that remove the files of a deleted run, need no network. In a namespace that is somebody else's the other pods
are left alone. */}}
{{- define "platform.team.network" -}}
{{- if .Values.networkPolicy.enabled }}
{{- if ne .Team.namespace .Release.Namespace }}
{{- $ofRuns := dict "matchExpressions" (list (dict "key" "trialplane.io/run" "operator" "Exists")) }}
{{ include "platform.network.default" (list . .Team.namespace (ternary dict $ofRuns (eq (include "platform.isCreated" (list . .Team)) "true"))) }}
---
{{- end }}
{{ include "platform.network.head" (list . "volumes" .Team.namespace) }}
  ingress: []
  egress: []
{{- end }}
{{- end -}}

{{/* What pods of a run may reach beside each other, and who may reach them; the operator makes each run's policies of it
(`trialplane/plan/network.py`). */}}
{{- define "platform.network.runs" -}}
{{- $values := .Values.networkPolicy -}}
enabled: {{ $values.enabled }}
head:
  ingress:
    # The study's status.
    - from:
        {{- include "platform.network.ours" (list . "gateway") | trim | nindent 8 }}
      ports:
        - port: 8090
    {{- with $values.prometheusNamespace }}
    - from:
        {{- include "platform.network.namespace" . | nindent 8 }}
      ports:
        - port: 8090
        - port: 8080
    {{- end }}
    {{- include "platform.network.more" $values.controller.ingress }}
  egress:
    {{- include "platform.network.dns" . | nindent 4 }}
    - to:
        {{- include "platform.network.ours" (list . "gateway") | trim | nindent 8 }}
      ports:
        - port: 8080
    {{- include "platform.network.more" $values.controller.egress }}
# Head pods with Ray's autoscaler.
autoscaler:
  {{- if $values.apiServer.fromHeads }}
  egress:
    - {{- with include "platform.network.apiServer" . | trim }}
      to:
        {{- . | nindent 8 }}
      {{- end }}
      ports:
        {{- range $values.apiServer.ports }}
        - port: {{ . }}
        {{- end }}
  {{- else }}
  egress: []
  {{- end }}
# The gateway, which leads to MLflow; no database, no API server.
trial:
  ingress:
    {{- toYaml $values.trial.ingress | nindent 4 }}
  egress:
    {{- include "platform.network.dns" . | nindent 4 }}
    - to:
        {{- include "platform.network.ours" (list . "gateway") | trim | nindent 8 }}
      ports:
        - port: 8080
    {{- if .Values.checkpoints.url }}
    # The object store of checkpoints, and whoever gives credentials for it.
    - ports:
        {{- range .Values.checkpoints.ports }}
        - port: {{ . }}
        {{- end }}
    {{- end }}
    {{- include "platform.network.more" $values.trial.egress }}
{{- end -}}

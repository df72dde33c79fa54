{{/* What all pods of the chart have in common: the Pod Security Standard `restricted`, a read-only root, no token but the operator's and the gateway's. */}}

{{/* The start of a pod's spec: (dict "top" . "account" "mlflow" "user" 1000 "values" .Values.mlflow), and "token" true for one that asks
the API server. */}}
{{- define "platform.podSpec" -}}
serviceAccountName: {{ include "platform.fullname" .top }}-{{ .account }}
automountServiceAccountToken: {{ .token | default false }}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .user }}
  runAsGroup: {{ .user }}
  fsGroup: {{ .user }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- if and .top.Values.priorityClasses.platform.enabled (ne .account "controller") }}
priorityClassName: {{ include "platform.ownPriorityClass" .top }}
{{- end }}
{{- with .top.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "platform.securityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
runAsNonRoot: true
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Image of the controller, on which all of ours but PostgreSQL run. */}}
{{- define "platform.controllerImage" -}}
image: {{ include "platform.image" (list . .Values.image.controller) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end -}}

{{/* A variable from a secret: (list "NAME" "secret" "key"). */}}
{{- define "platform.secretEnv" -}}
- name: {{ index . 0 }}
  valueFrom:
    secretKeyRef:
      name: {{ index . 1 | quote }}
      key: {{ index . 2 | quote }}
{{- end -}}

{{/* Spec of a claim: the values of a volume. */}}
{{- define "platform.claimSpec" -}}
accessModes:
  {{- toYaml .accessModes | nindent 2 }}
{{- with .storageClass }}
storageClassName: {{ . | quote }}
{{- end }}
resources:
  requests:
    storage: {{ .size | quote }}
{{- end -}}

{{/* Annotation by which pods start anew when passwords of PostgreSQL are given that differ. Slow to compute on purpose: who
may look at pods could else try words. Generated ones never change, so nothing is marked. */}}
{{- define "platform.passwordsMark" -}}
{{- $given := .Values.postgresql.passwords -}}
checksum/passwords: {{ if and .Values.postgresql.enabled (or $given.admin $given.ledger $given.mlflow) -}}
{{ derivePassword 1 "long" (toJson $given) "postgresql" .Release.Namespace | sha256sum }}
{{- else }}generated{{ end }}
{{- end -}}

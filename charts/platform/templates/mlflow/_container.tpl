{{/* What the MLflow server and the step before it share. */}}

{{- define "platform.mlflow.env" -}}
- name: HOME
  value: /tmp
{{ include "platform.secretEnv" (list "MLFLOW_BACKEND_STORE_URI" (include "platform.mlflow.database" .) (include "platform.mlflow.databaseKey" .)) }}
# Of each of its two stores in each worker, and of that of users with mlflow.auth.enabled: 10 connections at most.
- name: MLFLOW_SQLALCHEMYSTORE_POOL_SIZE
  value: "5"
- name: MLFLOW_SQLALCHEMYSTORE_MAX_OVERFLOW
  value: "5"
# Its runner of evaluation jobs would be as large as the server.
- name: MLFLOW_SERVER_ENABLE_JOB_EXECUTION
  value: "false"
# It would send usage data of its pages to its makers.
- name: MLFLOW_DISABLE_TELEMETRY
  value: "true"
{{- if .Values.mlflow.auth.enabled }}
{{- $secret := include "platform.mlflow.secret" . }}
- name: MLFLOW_AUTH_CONFIG_PATH
  value: /etc/mlflow/auth.ini
- name: MLFLOW_DEFAULT_PERMISSION
  value: {{ .Values.mlflow.auth.defaultPermission }}
{{ include "platform.secretEnv" (list "MLFLOW_AUTH_ADMIN_USERNAME" $secret "username") }}
{{ include "platform.secretEnv" (list "MLFLOW_AUTH_ADMIN_PASSWORD" $secret "password") }}
{{ include "platform.secretEnv" (list "MLFLOW_FLASK_SERVER_SECRET_KEY" $secret "flask-secret-key") }}
{{- end }}
{{- with .Values.mlflow.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "platform.mlflow.mounts" -}}
- name: tmp
  mountPath: /tmp
- name: config
  mountPath: /etc/mlflow
- name: scripts
  mountPath: /scripts
  readOnly: true
{{- end -}}

{{/* /health does not touch the database; readiness does. A restart would not mend a database. */}}
{{- define "platform.mlflow.probes" -}}
startupProbe:
  httpGet: {path: /health, port: http}
  periodSeconds: 3
  timeoutSeconds: 5
  failureThreshold: 100
livenessProbe:
  httpGet: {path: /health, port: http}
  periodSeconds: 20
  timeoutSeconds: 10
  failureThreshold: 6
readinessProbe:
  {{- if .Values.mlflow.auth.enabled }}
  exec:
    command: [python, /scripts/ready.py]
  {{- else }}
  httpGet:
    path: /api/2.0/mlflow/experiments/search?max_results=1
    port: http
    httpHeaders:
      - {name: Host, value: "localhost:5000"}
  {{- end }}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 3
{{- end -}}

{{/* What the MLflow server and the step before it share. */}}

{{- define "platform.mlflow.env" -}}
- name: HOME
  value: /tmp
{{ include "platform.secretEnv" (list "MLFLOW_BACKEND_STORE_URI" (include "platform.mlflow.database" .) (include "platform.mlflow.databaseKey" .)) }}
# Of each of its two stores in each worker: 10 connections at most.
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
# Kubeflow's plugin: each team's namespace is a workspace, and RBAC says who may do what in it.
- name: MLFLOW_K8S_AUTH_AUTHORIZATION_MODE
  value: subject_access_review
- name: MLFLOW_K8S_WORKSPACE_LABEL_SELECTOR
  value: kubernetes.io/metadata.name in ({{ include "platform.namespaces" . | fromJsonArray | join "," }})
# Seconds for which an answer of the API server counts.
- name: MLFLOW_K8S_AUTH_CACHE_TTL_SECONDS
  value: "60"
# A version of a registered model is made of an artifact in its workspace. A URL of the object store could be another team's.
# A version of a prompt has none: MLflow's client and its pages send a placeholder each, which MLflow takes for prompts only.
- name: MLFLOW_CREATE_MODEL_VERSION_SOURCE_VALIDATION_REGEX
  value: ^((mlflow-artifacts|models):/[^/].*|prompt-template|dummy-source)$
{{- with .Values.mlflow.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "platform.mlflow.mounts" -}}
- name: tmp
  mountPath: /tmp
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
  httpGet:
    path: /api/2.0/mlflow/experiments/search?max_results=1
    port: http
    httpHeaders:
      - {name: Host, value: "localhost:5000"}
      # of nobody, who sees nothing
      - {name: X-Remote-User, value: probe}
      - {name: X-MLFLOW-WORKSPACE, value: {{ (first .Values.teams).namespace }}}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 3
{{- end -}}

{{/* Where MLflow, the databases and the gateway are, and the secrets that go with them; the chart's or external ones. */}}

{{/* Secret with the URL of the studies' database. */}}
{{- define "platform.ledger.secret" -}}
{{- if .Values.postgresql.enabled -}}
{{ include "platform.fullname" . }}-ledger
{{- else -}}
{{ .Values.externalDatabase.ledger.secret }}
{{- end -}}
{{- end -}}

{{- define "platform.ledger.key" -}}
{{ ternary "url" .Values.externalDatabase.ledger.key .Values.postgresql.enabled }}
{{- end -}}

{{/* Where the release's PostgreSQL is, seen from any namespace: host:port; "" for an external one. */}}
{{- define "platform.database" -}}
{{- if .Values.postgresql.enabled -}}
{{ include "platform.fullname" . }}-postgresql.{{ .Release.Namespace }}.svc:5432
{{- end -}}
{{- end -}}

{{/* Secret with the URL of MLflow's database. */}}
{{- define "platform.mlflow.database" -}}
{{- if .Values.postgresql.enabled -}}
{{ include "platform.fullname" . }}-mlflow-database
{{- else -}}
{{ .Values.externalDatabase.mlflow.secret }}
{{- end -}}
{{- end -}}

{{- define "platform.mlflow.databaseKey" -}}
{{ ternary "url" .Values.externalDatabase.mlflow.key .Values.postgresql.enabled }}
{{- end -}}

{{/* Scheme of the gateway's URLs. */}}
{{- define "platform.gateway.scheme" -}}
{{ ternary "http" "https" (empty .Values.gateway.tls.secret) }}
{{- end -}}

{{/* Host name of MLflow's service, good in every namespace. */}}
{{- define "platform.mlflow.host" -}}
{{ include "platform.fullname" . }}-mlflow.{{ .Release.Namespace }}.svc
{{- end -}}

{{- define "platform.mlflow.url" -}}
{{- if .Values.mlflow.enabled -}}
http://{{ include "platform.mlflow.host" . }}:5000
{{- else -}}
{{ .Values.mlflow.trackingUri }}
{{- end -}}
{{- end -}}

{{/* Secret with the login for MLflow, or nothing. */}}
{{- define "platform.mlflow.secret" -}}
{{- if not .Values.mlflow.enabled -}}
{{ .Values.mlflow.existingSecret }}
{{- end -}}
{{- end -}}

{{/* Host headers that the MLflow server answers to: with and without a port, for clients send both. */}}
{{- define "platform.mlflow.allowedHosts" -}}
{{- $name := printf "%s-mlflow" (include "platform.fullname" .) -}}
{{- $place := printf "%s.%s" $name .Release.Namespace -}}
{{- $svc := printf "%s.svc" $place -}}
{{- $whole := printf "%s.%s" $svc .Values.clusterDomain -}}
{{- $hosts := list -}}
{{- range list $name $place $svc $whole "localhost" "127.0.0.1" -}}
{{- $hosts = concat $hosts (list . (printf "%s:*" .)) -}}
{{- end -}}
{{- join "," $hosts -}}
{{- end -}}

{{/* Names of the claims of head pods and trial pods, or nothing. */}}
{{- define "platform.runs.claim" -}}
{{- if .Values.runs.enabled -}}
{{ .Values.runs.existingClaim | default (printf "%s-runs" (include "platform.fullname" .)) }}
{{- end -}}
{{- end -}}

{{- define "platform.data.claim" -}}
{{- if .Values.data.enabled -}}
{{ .Values.data.existingClaim | default (printf "%s-data" (include "platform.fullname" .)) }}
{{- end -}}
{{- end -}}

{{- define "platform.checkpoints.claim" -}}
{{- if .Values.checkpoints.enabled -}}
{{ .Values.checkpoints.existingClaim | default (printf "%s-checkpoints" (include "platform.fullname" .)) }}
{{- end -}}
{{- end -}}

{{/* Names of secrets that are the chart's business, as a list in JSON. */}}
{{- define "platform.protectedSecrets" -}}
{{- $names := list (include "platform.ledger.secret" .) -}}
{{- if .Values.postgresql.enabled }}{{- $names = append $names (printf "%s-postgresql" (include "platform.fullname" .)) }}{{- end -}}
{{- if .Values.mlflow.enabled -}}
{{- $names = append $names (include "platform.mlflow.database" .) -}}
{{- range .Values.mlflow.extraEnvFrom }}{{- with (.secretRef).name }}{{- $names = append $names . }}{{- end }}{{- end -}}
{{- range .Values.mlflow.extraEnv }}{{- with ((.valueFrom).secretKeyRef).name }}{{- $names = append $names . }}{{- end }}{{- end -}}
{{- end -}}
{{- with include "platform.mlflow.secret" . }}{{- $names = append $names . }}{{- end -}}
{{- $names | uniq | toJson -}}
{{- end -}}

{{/* A size like 50Gi in bytes; the values' schema has checked its form. */}}
{{- define "platform.bytes" -}}
{{- $unit := regexFind "[kKMGTPE]i?$" . -}}
{{- $bytes := float64 (trimSuffix $unit .) -}}
{{- range until (index (dict "" 0 "k" 1 "K" 1 "M" 2 "G" 3 "T" 4 "P" 5 "E" 6) (trimSuffix "i" $unit)) -}}
{{- $bytes = mulf $bytes (ternary 1024 1000 (hasSuffix "i" $unit)) -}}
{{- end -}}
{{ int64 $bytes }}
{{- end -}}

{{/* What the runs of each team may keep, in JSON: by namespace, in bytes. Where values name no budget, teams have equal shares of the
volumes, of PostgreSQL's the half: indexes and its log of writes are on it, too. */}}
{{- define "platform.budgets" -}}
{{- $budgets := dict -}}
{{- range $team := .Values.teams -}}
{{- $values := include "platform.teamValues" (list $ $team) | fromJson -}}
{{- $budget := dict "artifacts" nil -}}
{{- if $values.budget.database -}}
{{- $_ := set $budget "database" (include "platform.bytes" $values.budget.database | int64) -}}
{{- else if $values.postgresql.enabled -}}
{{- $_ := set $budget "database" (div (include "platform.bytes" $values.postgresql.size | int64) (mul 2 (len $.Values.teams))) -}}
{{- else -}}
{{- $_ := set $budget "database" (int64 1073741824) -}}
{{- end -}}
{{- if $values.budget.artifacts -}}
{{- $_ := set $budget "artifacts" (include "platform.bytes" $values.budget.artifacts | int64) -}}
{{- else if and $values.mlflow.enabled (not $values.mlflow.artifacts.uri) (not $values.mlflow.artifacts.existingClaim) -}}
{{- $_ := set $budget "artifacts" (div (include "platform.bytes" $values.mlflow.artifacts.size | int64) (len $.Values.teams)) -}}
{{- end -}}
{{- $_ := set $budgets $team.namespace $budget -}}
{{- end -}}
{{- toJson $budgets -}}
{{- end -}}

{{/* A list in CEL of one in JSON. */}}
{{- define "platform.celList" -}}
[{{ range $index, $one := fromJsonArray . }}{{ if $index }}, {{ end }}'{{ $one | replace "\\" "\\\\" | replace "'" "\\'" }}'{{ end }}]
{{- end -}}

{{/* The most connections to PostgreSQL: of a gateway 8 and one for each run that it has open, of an operator 8, of a worker of
MLflow 10 for each of its two stores, and 20 for updates, the superuser and whoever takes backups. */}}
{{- define "platform.connections" -}}
{{- $gateways := mul .Values.gateway.replicas (add 8 .Values.gateway.maxRuns) -}}
{{- $mlflow := ternary (mul .Values.mlflow.replicas .Values.mlflow.workers 20) 0 .Values.mlflow.enabled -}}
{{- add $gateways (mul .Values.operator.replicas 8) $mlflow 20 -}}
{{- end -}}

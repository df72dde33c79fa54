{{/* Those of all teams. */}}
{{- define "platform.sites" -}}
{{- range $team := .Values.teams }}
{{- $values := include "platform.teamValues" (list $ $team) | fromJson }}
{{ include "platform.team.site" (dict "Team" $team "Values" $values "Release" $.Release "Chart" $.Chart) }}
{{- end }}
{{- end -}}

{{/* What `platform` and the operator have to know of this namespace. */}}
{{- define "platform.team.site" -}}
{{- $fullname := include "platform.fullname" . }}
{{- $images := dict
      "controller" (include "platform.image" (list . .Values.image.controller))
      "trial" (include "platform.image" (list . .Values.image.trial))
      "pull_policy" .Values.image.pullPolicy
      "pull_secrets" .Values.image.pullSecrets }}
{{- /* Services of the cluster are not behind a proxy; a proxy without exceptions would get all that runs say to the gateway. */}}
{{- $env := .Values.studies.env }}
{{- $proxies := dict }}
{{- range $name, $value := $env }}{{- $_ := set $proxies (upper $name) $value }}{{- end }}
{{- if and (or $proxies.HTTP_PROXY $proxies.HTTPS_PROXY $proxies.ALL_PROXY) (not (hasKey $proxies "NO_PROXY")) }}
{{- $env = merge (dict "NO_PROXY" (printf "localhost,127.0.0.1,.svc,.%s" .Values.clusterDomain)) $env }}
{{- end }}
{{- $site := dict
      "version" .Chart.Version
      "release" .Release.Name
      "control" .Release.Namespace
      "images" $images
      "gateway" (dict "service" (printf "%s-gateway" $fullname) "port" 8080 "tls" (eq (include "platform.gateway.scheme" .) "https"))
      "database" (include "platform.database" .)
      "ledger" (dict "name" (include "platform.ledger.secret" .) "key" (include "platform.ledger.key" .))
      "runs" (dict "claim" (include "platform.runs.claim" .))
      "data" (dict "claim" (include "platform.data.claim" .))
      "checkpoints" (dict
        "claim" (include "platform.checkpoints.claim" .)
        "url" .Values.checkpoints.url
        "secret" .Values.checkpoints.secret
        "grace" .Values.checkpoints.grace)
      "install" (dict
        "enabled" .Values.studies.install.enabled
        "index" .Values.studies.install.index
        "max_size" .Values.studies.install.maxSize
        "timeout" .Values.studies.install.timeout
        "egress" .Values.studies.install.egress)
      "controller_account" (printf "%s-controller" $fullname)
      "trial_account" (printf "%s-trial" $fullname)
      "controller" .Values.studies.controller
      "overcommit" .Values.studies.overcommit
      "priority_class" (include "platform.priorityClass" (list . .Values.studies.priorityClass))
      "allowed" (include "platform.allowed" . | fromJson)
      "queue" .Values.studies.queue
      "autoscale" .Values.studies.autoscale
      "node_selector" .Values.studies.nodeSelector
      "tolerations" .Values.studies.tolerations
      "env" $env
      "scratch" .Values.studies.scratch
      "prices" (dict "gpu_hour" .Values.studies.prices.gpuHour "cpu_hour" .Values.studies.prices.cpuHour)
      "gpu_shares" .Values.studies.gpuShares
      "run_ttl" .Values.operator.runTtl
      "network" (include "platform.network.runs" . | fromYaml) }}
# The one object by which `platform` on a laptop finds what it needs to know of this team; read by trialplane/plan/site.py.
apiVersion: v1
kind: ConfigMap
metadata:
  name: trialplane
  namespace: {{ .Team.namespace | quote }}
  labels:
    {{- include "platform.labels" . | nindent 4 }}
data:
  site.json: |
    {{- toPrettyJson $site | nindent 4 }}
  {{- if .Values.gateway.tls.secret }}
  gateway-ca.crt: |
    {{- .Values.gateway.tls.ca | nindent 4 }}
  {{- end }}
{{- end -}}

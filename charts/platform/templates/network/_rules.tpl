{{/* Pieces of network policies. Pods are chosen by their role; there is one release per namespace. */}}

{{/* Start of the policy of one role: (list . "trial"). */}}
{{- define "platform.network.head" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "platform.fullname" (first .) }}-{{ last . }}
  labels:
    {{- include "platform.labels" (first .) | nindent 4 }}
    app.kubernetes.io/component: {{ last . }}
spec:
  podSelector:
    matchLabels:
      trialplane.io/role: {{ last . }}
  policyTypes: [Ingress, Egress]
{{- end -}}

{{/* Peers by role: (list "trial" "controller"). */}}
{{- define "platform.network.roles" -}}
{{- range . }}
- podSelector:
    matchLabels:
      trialplane.io/role: {{ . }}
{{- end }}
{{- end -}}

{{/* A namespace as a peer. */}}
{{- define "platform.network.namespace" -}}
- namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ . | quote }}
{{- end -}}

{{- define "platform.network.dns" -}}
- to:
    {{- include "platform.network.namespace" .Values.networkPolicy.dns.namespace | nindent 4 }}
    {{- range .Values.networkPolicy.dns.cidrs }}
    - ipBlock:
        cidr: {{ . | quote }}
    {{- end }}
  ports:
    {{- range .Values.networkPolicy.dns.ports }}
    - {port: {{ . }}, protocol: UDP}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
{{- end -}}

{{/* The way to the databases: ours, or any host. */}}
{{- define "platform.network.database" -}}
{{- if .Values.postgresql.enabled }}
- to:
    {{- include "platform.network.roles" (list "postgresql") | trim | nindent 4 }}
  ports:
    - port: 5432
{{- else }}
- ports:
    - port: {{ .Values.externalDatabase.port }}
{{- end }}
{{- end -}}

{{/* The way to MLflow: ours, or any host at the port of its URL. */}}
{{- define "platform.network.mlflow" -}}
{{- if .Values.mlflow.enabled }}
- to:
    {{- include "platform.network.roles" (list "mlflow") | trim | nindent 4 }}
  ports:
    - port: 5000
{{- else }}
{{- $url := urlParse .Values.mlflow.trackingUri }}
- ports:
    - port: {{ regexFind ":[0-9]+$" $url.host | trimPrefix ":" | default (ternary "443" "80" (eq $url.scheme "https")) }}
{{- end }}
{{- end -}}

{{/* The API server as a peer, or nothing: anybody. */}}
{{- define "platform.network.apiServer" -}}
{{- range .Values.networkPolicy.apiServer.cidrs }}
- ipBlock:
    cidr: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Rules from the values, in a list that may have none. */}}
{{- define "platform.network.more" -}}
{{- with . }}
{{- toYaml . | nindent 4 }}
{{- end }}
{{- end -}}

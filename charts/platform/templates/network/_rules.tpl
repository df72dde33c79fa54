{{/* Pieces of network policies. Pods are chosen by their role; those of runs by the namespaces that runs are in, too. */}}

{{/* Nobody reaches anybody but by a policy: (list . "vision" dict), the namespace and the selector of its pods. */}}
{{- define "platform.network.default" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "platform.fullname" (first .) }}-default
  namespace: {{ index . 1 | quote }}
  labels:
    {{- include "platform.labels" (first .) | nindent 4 }}
spec:
  podSelector: {{ last . | toJson }}
  policyTypes: [Ingress, Egress]
{{- end -}}

{{/* Start of the policy of one role: (list . "mlflow" .Release.Namespace), the last one its namespace. */}}
{{- define "platform.network.head" -}}
{{- $role := index . 1 -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "platform.fullname" (first .) }}-{{ $role }}
  namespace: {{ last . | quote }}
  labels:
    {{- include "platform.labels" (first .) | nindent 4 }}
    app.kubernetes.io/component: {{ $role }}
spec:
  podSelector:
    matchLabels:
      trialplane.io/role: {{ $role }}
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

{{/* The same of the release's namespace, seen from any: (list . "gateway"). */}}
{{- define "platform.network.ours" -}}
{{- $top := first . -}}
{{- range rest . }}
- namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ $top.Release.Namespace | quote }}
  podSelector:
    matchLabels:
      trialplane.io/role: {{ . }}
{{- end }}
{{- end -}}

{{/* The same of runs, wherever runs are: (list . "controller"). */}}
{{- define "platform.network.ofRuns" -}}
{{- $top := first . -}}
{{- range rest . }}
- namespaceSelector:
    matchExpressions:
      - key: kubernetes.io/metadata.name
        operator: In
        values: {{ include "platform.namespaces" $top }}
  podSelector:
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
    {{- include "platform.network.ours" (list . "mlflow") | trim | nindent 4 }}
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

{{/* The way to the API server. */}}
{{- define "platform.network.toApiServer" -}}
- {{- with include "platform.network.apiServer" . | trim }}
  to:
    {{- . | nindent 4 }}
  {{- end }}
  ports:
    {{- range .Values.networkPolicy.apiServer.ports }}
    - port: {{ . }}
    {{- end }}
{{- end -}}

{{/* Rules from the values, in a list that may have none. */}}
{{- define "platform.network.more" -}}
{{- with . }}
{{- toYaml . | nindent 4 }}
{{- end }}
{{- end -}}

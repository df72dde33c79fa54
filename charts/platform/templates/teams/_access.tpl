{{/* Of no pod, and without rights: by a token of the one or the other the gateway knows that somebody is a user of this namespace,
or only views it. Their names are the same everywhere: laptops ask for tokens of them. The others are for a run's two kinds of pods, so that a cloud can give each its
own rights. */}}
{{- define "platform.team.accounts" -}}
{{- range $name := list "controller" "trial" }}
{{ include "platform.account" (list $ (printf "%s-%s" (include "platform.fullname" $) $name) (index $.Values.serviceAccounts $name) $.Team.namespace) }}
---
{{- end }}
{{ include "platform.account" (list . "trialplane-user" dict .Team.namespace) }}
---
{{ include "platform.account" (list . "trialplane-viewer" dict .Team.namespace) }}
{{- end -}}

{{/* Who may do what in a team's namespace: its users, and the operator. */}}
{{- define "platform.team.roles" -}}
# What `platform` on a laptop needs, verb by verb. Its name is the same everywhere: messages to users contain it.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: trialplane-user
  {{- include "platform.team.metadata" . | nindent 2 }}
rules:
  # submit, pause, scale, resume, delete: all of them change a Run, of which the operator makes the rest
  - apiGroups: [trialplane.io]
    resources: [runs]
    verbs: [get, list, watch, create, patch, update, delete]
  # its code, in up to eight ConfigMaps: made beside it, never changed, and gone with it
  - apiGroups: [""]
    resources: [configmaps]
    verbs: [get, list, create]
  {{- include "platform.team.reading" . | nindent 2 }}
  # Who asks the gateway says so by a token of this account, made for minutes. The account itself may do nothing.
  - apiGroups: [""]
    resources: [serviceaccounts/token]
    resourceNames: [trialplane-user]
    verbs: [create]
---
# What those need who only look: `list`, `status`, `results`, `logs`, `ui`. Nothing of it changes anything.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: trialplane-viewer
  {{- include "platform.team.metadata" . | nindent 2 }}
rules:
  - apiGroups: [trialplane.io]
    resources: [runs]
    verbs: [get, list, watch]
  # the site, and the code of runs
  - apiGroups: [""]
    resources: [configmaps]
    verbs: [get, list]
  {{- include "platform.team.reading" . | nindent 2 }}
  # The gateway lets whoever has a token of this account read, and nothing else.
  - apiGroups: [""]
    resources: [serviceaccounts/token]
    resourceNames: [trialplane-viewer]
    verbs: [create]
{{- range $role, $rules := .Files.Get "files/mlflow-roles.yaml" | fromYaml }}
---
# In MLflow: of users and viewers by what their token says, and of the runs here. The gateway names these groups to MLflow, which
# asks for their rights; nobody is a member of one at the API server.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: trialplane-mlflow-{{ $role }}
  {{- include "platform.team.metadata" $ | nindent 2 }}
rules:
  {{- range $resource, $verbs := $rules }}
  - apiGroups: [mlflow.kubeflow.org]
    resources: [{{ $resource }}]
    verbs: {{ toJson $verbs }}
  {{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: trialplane-mlflow-{{ $role }}
  {{- include "platform.team.metadata" $ | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: trialplane-mlflow-{{ $role }}
subjects:
  - kind: Group
    name: {{ printf "trialplane:%s:%s" $role $.Team.namespace | quote }}
    apiGroup: rbac.authorization.k8s.io
{{- end }}
---
# The operator's rights, here and in no namespace of others.
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ include "platform.fullname" . }}-operator-runs
  {{- include "platform.team.metadata" . | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ include "platform.clusterwide" . }}-operator
subjects:
  - kind: ServiceAccount
    name: {{ include "platform.fullname" . }}-operator
    namespace: {{ .Release.Namespace | quote }}
{{- range $role := list "trialplane-user" "trialplane-viewer" }}
{{- with include "platform.subjects" (list $.Team $role) | trim }}
---
# Who may run studies here, and who may look at them.
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $role }}
  {{- include "platform.team.metadata" $ | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $role }}
subjects:
  {{- . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* What users and viewers may read in a team's namespace, beside its runs. */}}
{{- define "platform.team.reading" -}}
# why a pod does not run
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
- apiGroups: [""]
  resources: [events, services, persistentvolumeclaims, resourcequotas]
  verbs: [get, list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list]
- apiGroups: [apps]
  resources: [deployments, statefulsets]
  verbs: [get, list]
- apiGroups: [kueue.x-k8s.io]
  resources: [localqueues, workloads]
  verbs: [get, list]
# this namespace, which the doctor reads
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
{{- end -}}

{{/* The users of a team who have a Role, as RBAC has them: (list $team "trialplane-viewer"). */}}
{{- define "platform.subjects" -}}
{{- $team := first . -}}
{{- $views := eq (last .) "trialplane-viewer" -}}
{{- range $team.users }}
{{- if eq $views (dig "view" false .) }}
- kind: {{ .kind }}
  name: {{ .name | quote }}
  {{- if eq .kind "ServiceAccount" }}
  namespace: {{ .namespace | default $team.namespace | quote }}
  {{- else }}
  apiGroup: rbac.authorization.k8s.io
  {{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The users of all teams, each once. */}}
{{- define "platform.everybody" -}}
{{- $all := list -}}
{{- range $team := .Values.teams }}{{ range $role := list "trialplane-user" "trialplane-viewer" }}{{ with include "platform.subjects" (list $team $role) | fromYamlArray }}{{ $all = concat $all . }}{{ end }}{{ end }}{{ end -}}
{{- with $all | uniq }}{{ toYaml . }}{{ end -}}
{{- end -}}

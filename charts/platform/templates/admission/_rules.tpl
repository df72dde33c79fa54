{{/* Rules of the policy for pods that are about the host and about secrets. */}}

{{- define "platform.admission.host" -}}
- expression: "variables.volumes.all(v, !has(v.hostPath))"
  message: >-
    a pod of a run may not mount a path of its host (hostPath); put data on a claim (data.existingClaim of the chart), which
    trials find at /data
- expression: >-
    (!has(object.spec.hostNetwork) || !object.spec.hostNetwork) && (!has(object.spec.hostPID) || !object.spec.hostPID)
    && (!has(object.spec.hostIPC) || !object.spec.hostIPC)
  message: >-
    a pod of a run may not share its host's network, processes or memory (hostNetwork, hostPID, hostIPC)
- expression: >-
    variables.containers.all(c, !has(c.securityContext) || ((!has(c.securityContext.privileged)
    || !c.securityContext.privileged) && (!has(c.securityContext.capabilities)
    || !has(c.securityContext.capabilities.add) || c.securityContext.capabilities.add.size() == 0)))
  message: >-
    a pod of a run may not be privileged nor add capabilities; a GPU needs neither, ask for it with resources.gpus
- expression: >-
    variables.lasting.all(c, has(c.securityContext) && has(c.securityContext.readOnlyRootFilesystem)
    && c.securityContext.readOnlyRootFilesystem && has(c.securityContext.allowPrivilegeEscalation)
    && !c.securityContext.allowPrivilegeEscalation && has(c.securityContext.runAsNonRoot)
    && c.securityContext.runAsNonRoot)
  message: >-
    every container of a run's pod needs readOnlyRootFilesystem: true, runAsNonRoot: true and allowPrivilegeEscalation:
    false in its securityContext; write to /tmp or to the run's folder, and bake what must be installed into the image
{{- end -}}

{{- define "platform.admission.secrets" -}}
- expression: >-
    has(object.spec.automountServiceAccountToken) && !object.spec.automountServiceAccountToken
  message: >-
    a pod of a run may not have its service account's token: set automountServiceAccountToken: false, as the manifests of
    `platform submit` do
- expression: >-
    variables.autoscales || variables.volumes.all(v, !has(v.projected) || !has(v.projected.sources)
    || v.projected.sources.all(s, !has(s.serviceAccountToken) || (has(s.serviceAccountToken.audience)
    && s.serviceAccountToken.audience in variables.audiences)))
  message: >-
    a pod of a run may not mount a service account's token; only the head pod of a run with cluster.autoscale has one, and
    a cloud's identity needs its audience in admission.tokenAudiences of the chart
- expression: >-
    !variables.autoscales || variables.lasting.all(c, c.name == 'autoscaler' || !has(c.volumeMounts)
    || c.volumeMounts.all(m, !m.mountPath.startsWith('/var/run/secrets/kubernetes.io') && !variables.volumes.exists(v,
    v.name == m.name && has(v.projected) && has(v.projected.sources) && v.projected.sources.exists(s,
    has(s.serviceAccountToken) && !(has(s.serviceAccountToken.audience)
    && s.serviceAccountToken.audience in variables.audiences)))))
  message: >-
    of a head pod's containers only KubeRay's autoscaler may mount the token
- expression: >-
    variables.role != 'controller' || variables.containers.all(c, c.name == 'controller' || !has(c.volumeMounts)
    || c.volumeMounts.all(m, !variables.volumes.exists(v, v.name == m.name && has(v.secret))))
  message: >-
    of a head pod's containers only the controller's may mount its run's token; trials can start programs in Ray's
{{ include "platform.admission.unreferred" "only the controller's pod may read its run's token, and no pod of a run the secrets of the databases and of MLflow; runs log to MLflow through the gateway" }}
{{- end -}}

{{/* The chart's secrets, which are in its namespace; one of the same name elsewhere is that namespace's own. */}}
{{- define "platform.admission.forbidden" -}}
request.namespace == '{{ .Release.Namespace }}' ? {{ include "platform.celList" (include "platform.protectedSecrets" .) }} : []
{{- end -}}

{{/* Two rules with one message: neither variables nor volumes come from a secret in `variables.forbidden`, or from one with the
token of a run, of which a pod may mount `variables.own`. */}}
{{- define "platform.admission.unreferred" -}}
- expression: >-
    variables.containers.all(c, (!has(c.env) || c.env.all(e, !has(e.valueFrom) || !has(e.valueFrom.secretKeyRef)
    || !(e.valueFrom.secretKeyRef.name in variables.forbidden || e.valueFrom.secretKeyRef.name.endsWith('.token'))))
    && (!has(c.envFrom) || c.envFrom.all(f, !has(f.secretRef)
    || !(f.secretRef.name in variables.forbidden || f.secretRef.name.endsWith('.token')))))
  message: {{ . | quote }}
- expression: >-
    variables.volumes.all(v, (!has(v.secret) || v.secret.secretName == variables.own
    || !(v.secret.secretName in variables.forbidden || v.secret.secretName.endsWith('.token')))
    && (!has(v.projected) || !has(v.projected.sources) || v.projected.sources.all(s, !has(s.secret)
    || !(s.secret.name in variables.forbidden || s.secret.name.endsWith('.token')))))
  message: {{ . | quote }}
{{- end -}}

{{/* What each team's values allow pods of runs, as CEL maps by namespace: (list . "classes"), "tolerations" or "selector". */}}
{{- define "platform.admission.allowed" -}}
{{- $top := first . -}}
{{- $what := last . -}}
{{- $entries := list -}}
{{- range $team := $top.Values.teams -}}
{{- $values := include "platform.teamValues" (list $top $team) | fromJson -}}
{{- $studies := $values.studies -}}
{{- $allowed := include "platform.allowed" (dict "Values" $values "Release" $top.Release) | fromJson -}}
{{- $found := "" -}}
{{- if eq $what "classes" -}}
{{- $named := include "platform.priorityClass" (list (dict "Values" $values "Release" $top.Release) $studies.priorityClass) -}}
{{- $found = append $allowed.priority_classes $named | toJson -}}
{{- else if eq $what "selector" -}}
{{- $found = toJson ($studies.nodeSelector | default dict) -}}
{{- else -}}
{{- $whole := list -}}
{{- range concat $studies.tolerations $allowed.tolerations -}}
{{- $whole = append $whole (merge (pick . "key" "operator" "value" "effect") (dict "key" "" "operator" "Equal" "value" "" "effect" "")) -}}
{{- end -}}
{{- $found = toJson $whole -}}
{{- end -}}
{{- $entries = append $entries (printf "%s: %s" (toJson $team.namespace) $found) -}}
{{- end -}}
{ {{- join ", " $entries -}} }
{{- end -}}

{{/* Rules about what a job may ask of the scheduler. The operator decides alike (`kube/preflight.py`). Kubernetes itself gives
pods tolerations of lost and of full nodes. */}}
{{- define "platform.admission.placement" -}}
- expression: >-
    !has(object.spec.priorityClassName) || object.spec.priorityClassName == '' || (request.namespace in variables.classes
    && object.spec.priorityClassName in variables.classes[request.namespace])
  message: >-
    a pod of a run may have the PriorityClasses of studies.priorityClass and studies.allowed.priorityClasses of the chart; take
    cluster.priority_class out of the job, or have the class added there, as the cluster's default one if it has such
- expression: >-
    !has(object.spec.tolerations) || object.spec.tolerations.all(t,
    (has(t.key) && t.key in ['node.kubernetes.io/not-ready', 'node.kubernetes.io/unreachable',
    'node.kubernetes.io/memory-pressure'])
    || (has(t.key) && has(t.effect) && t.effect == 'NoSchedule' && variables.containers.exists(c, has(c.resources)
    && has(c.resources.limits) && t.key in c.resources.limits && c.resources.limits[t.key].matches('^[1-9]')))
    || (request.namespace in variables.tolerations && variables.tolerations[request.namespace].exists(a,
    (a.key == '' || (has(t.key) && t.key == a.key)) && (a.effect == '' || (has(t.effect) && t.effect == a.effect))
    && (a.operator == 'Exists' || (!(has(t.operator) && t.operator == 'Exists') && (has(t.value) ? t.value : '') == a.value)))))
  message: >-
    a pod of a run may tolerate the taints of studies.tolerations and studies.allowed.tolerations of the chart, and that of the
    GPUs that it has; take the others out of cluster.tolerations of the job, or have them added there
- expression: >-
    variables.role != 'trial' || !(request.namespace in variables.selectors)
    || variables.selectors[request.namespace].all(k, has(object.spec.nodeSelector) && k in object.spec.nodeSelector
    && object.spec.nodeSelector[k] == variables.selectors[request.namespace][k])
  message: >-
    a trial's pod needs the nodeSelector of studies.nodeSelector of the chart, which a job can add to and not change
{{- end -}}

{{/* Whether labels make a pod one of a run; `o` is the pod. */}}
{{- define "platform.admission.ofRun" -}}
has(o.metadata.labels) && ('ray.io/cluster' in o.metadata.labels || 'trialplane.io/run' in o.metadata.labels
|| ('trialplane.io/role' in o.metadata.labels
&& o.metadata.labels['trialplane.io/role'] in ['controller', 'trial']))
{{- end -}}

{{/* The role in the labels of a pod, or ''. */}}
{{- define "platform.admission.role" -}}
has({{ . }}.metadata.labels) && 'trialplane.io/role' in {{ . }}.metadata.labels ? {{ . }}.metadata.labels['trialplane.io/role'] : ''
{{- end -}}

{{/* The run in the labels of a pod, or ''. */}}
{{- define "platform.admission.run" -}}
has({{ . }}.metadata.labels) && 'trialplane.io/run' in {{ . }}.metadata.labels ? {{ . }}.metadata.labels['trialplane.io/run'] : ''
{{- end -}}

{{/* When pods are looked at: when they are made, get a container of `kubectl debug`, or a label that opens ways. What else
may change in a pod is none of the policies' business, and an older pod must be able to go. */}}
{{- define "platform.admission.occasions" -}}
- apiGroups: [""]
  apiVersions: [v1]
  operations: [CREATE]
  resources: [pods]
- apiGroups: [""]
  apiVersions: [v1]
  operations: [UPDATE]
  resources: [pods, pods/ephemeralcontainers]
{{- end -}}

{{- define "platform.admission.occasion" -}}
- name: made-or-changed
  expression: >-
    request.operation == 'CREATE' || (has(request.subResource) && request.subResource == 'ephemeralcontainers')
    || ({{ include "platform.admission.role" "object" }}) != ({{ include "platform.admission.role" "oldObject" }})
    || ({{ include "platform.admission.run" "object" }}) != ({{ include "platform.admission.run" "oldObject" }})
{{- end -}}

{{- define "platform.admission.everything" -}}
- name: containers
  expression: >-
    dyn(object.spec.containers) + (has(object.spec.initContainers) ? dyn(object.spec.initContainers) : [])
    + (has(object.spec.ephemeralContainers) ? dyn(object.spec.ephemeralContainers) : [])
- name: volumes
  expression: "has(object.spec.volumes) ? object.spec.volumes : []"
{{- end -}}

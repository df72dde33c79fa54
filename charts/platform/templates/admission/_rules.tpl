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
    variables.containers.all(c, has(c.securityContext) && has(c.securityContext.readOnlyRootFilesystem)
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
    || v.projected.sources.all(s, !has(s.serviceAccountToken)))
  message: >-
    a pod of a run may not mount a service account's token; only the head pod of a run with cluster.autoscale has one
- expression: >-
    !variables.autoscales || object.spec.containers.all(c, c.name == 'autoscaler' || !has(c.volumeMounts)
    || c.volumeMounts.all(m, !m.mountPath.startsWith('/var/run/secrets') && !variables.volumes.exists(v, v.name == m.name
    && has(v.projected) && has(v.projected.sources) && v.projected.sources.exists(s, has(s.serviceAccountToken)))))
  message: >-
    of a head pod's containers only KubeRay's autoscaler may mount the token
- expression: >-
    variables.role == 'controller' || variables.containers.all(c, (!has(c.env) || c.env.all(e, !has(e.valueFrom)
    || !has(e.valueFrom.secretKeyRef) || !(e.valueFrom.secretKeyRef.name in {{ include "platform.protectedSecrets" . }})))
    && (!has(c.envFrom) || c.envFrom.all(f, !has(f.secretRef)
    || !(f.secretRef.name in {{ include "platform.protectedSecrets" . }}))))
  message: >-
    only the controller's pod may read the secrets of the databases, of MLflow and of the gateway; a trial logs through its
    controller
- expression: >-
    variables.role == 'controller' || variables.volumes.all(v, (!has(v.secret)
    || !(v.secret.secretName in {{ include "platform.protectedSecrets" . }})) && (!has(v.projected)
    || !has(v.projected.sources) || v.projected.sources.all(s, !has(s.secret)
    || !(s.secret.name in {{ include "platform.protectedSecrets" . }}))))
  message: >-
    only the controller's pod may mount the secrets of the databases, of MLflow and of the gateway
{{- end -}}

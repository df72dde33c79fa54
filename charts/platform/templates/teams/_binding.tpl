{{/* Most storage classes bind a claim when the first pod uses it, and `helm install --wait` waits for that: this is the pod, which
does nothing. A Job cannot change, so each other one has another name. */}}
{{- define "platform.team.binding" -}}
{{- $claims := list }}
{{- range $name := list "runs" "checkpoints" }}
{{- $volume := index $.Values $name }}
{{- if and $volume.enabled (not $volume.existingClaim) }}
{{- $claims = append $claims (printf "%s-%s" (include "platform.fullname" $) $name) }}
{{- end }}
{{- end }}
{{- if $claims }}
{{- $values := dict "tolerations" .Values.studies.tolerations }}
{{- $image := include "platform.controllerImage" . }}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ include "platform.fullname" . }}-volumes-{{ list $claims $image $values.tolerations .Values.image.pullSecrets .Chart.Version | toJson | sha256sum | trunc 8 }}
  namespace: {{ .Team.namespace | quote }}
  labels:
    {{- include "platform.labels" . | nindent 4 }}
    app.kubernetes.io/component: volumes
spec:
  backoffLimit: 3
  template:
    metadata:
      labels:
        {{- include "platform.podLabels" (list . "volumes") | nindent 8 }}
    spec:
      {{- include "platform.podSpec" (dict "top" . "account" "controller" "user" 1000 "values" $values) | nindent 6 }}
      restartPolicy: Never
      containers:
        - name: volumes
          {{- $image | nindent 10 }}
          command: ["true"]
          resources:
            requests: {cpu: 10m, memory: 16Mi}
            limits: {cpu: 100m, memory: 64Mi}
          securityContext:
            {{- include "platform.securityContext" . | nindent 12 }}
          volumeMounts:
            - name: tmp
              mountPath: /tmp
            {{- range $index, $claim := $claims }}
            - name: volume-{{ $index }}
              mountPath: /volumes/{{ $index }}
            {{- end }}
      volumes:
        - name: tmp
          emptyDir: {sizeLimit: 16Mi}
        {{- range $index, $claim := $claims }}
        - name: volume-{{ $index }}
          persistentVolumeClaim:
            claimName: {{ $claim }}
        {{- end }}
{{- end }}
{{- end -}}

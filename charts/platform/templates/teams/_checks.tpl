{{/* What is wrong with `teams`, as a list in JSON. What is asked of the cluster is not known to `helm template`. */}}
{{- define "platform.teamComplaints" -}}
{{- $complaints := list -}}
{{- $own := .Release.Namespace -}}
{{- $names := include "platform.namespaces" . | fromJsonArray -}}
{{- $asks := not (empty (lookup "v1" "Namespace" "" "kube-system")) -}}
{{- if not $names -}}
{{- $complaints = append $complaints "teams: runs are in the namespaces of teams, and none is named; for one called vision add to your values\n\n    teams:\n      - namespace: vision\n\n  or type --set 'teams[0].namespace=vision'; `users` beside it says who may use it" -}}
{{- end -}}
{{- if .Capabilities.APIVersions.Has "ray.io/v1" -}}
{{- range (lookup "v1" "Namespace" "" "").items -}}
{{- $name := .metadata.name -}}
{{- if and (or (eq $name $own) (eq (index (.metadata.labels | default dict) "trialplane.io/control" | default "") $own)) (not (has $name $names)) -}}
{{- $runs := list -}}
{{- range (lookup "ray.io/v1" "RayCluster" $name "").items }}{{ with index (.metadata.labels | default dict) "trialplane.io/run" }}{{ $runs = append $runs . }}{{ end }}{{ end -}}
{{- if $runs -}}
{{- $complaints = append $complaints (printf "teams: %s is not in the list any more, and runs there have pods (%s): they would wait for their ledger and keep them; name it again, `platform cancel RUN --namespace %s` each that works, wait until their pods are gone, and then take it out" $name (join ", " $runs) $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $urls := dict -}}
{{- range $index, $team := .Values.teams | default list -}}
{{- $name := $team.namespace -}}
{{- $place := printf "teams[%d]" $index -}}
{{- if has $name (slice $names 0 $index) -}}
{{- $complaints = append $complaints (printf "%s.namespace: %s is there twice" $place $name) -}}
{{- end -}}
{{- if or (hasPrefix "kube-" $name) (and (eq $name "public") (ne $own "public")) -}}
{{- $complaints = append $complaints (printf "%s.namespace: no team can have %s, %s" $place $name (ternary "a name that is for Kubernetes itself" "the name of PostgreSQL's default schema" (hasPrefix "kube-" $name))) -}}
{{- end -}}
{{- $there := lookup "v1" "Namespace" "" $name -}}
{{- $annotations := ($there.metadata).annotations | default dict -}}
{{- $ours := and (eq (index $annotations "meta.helm.sh/release-name" | default "") $.Release.Name) (eq (index $annotations "meta.helm.sh/release-namespace" | default "") $own) -}}
{{- if and $there (include "platform.isCreated" (list $ $team)) (not $ours) -}}
{{- $complaints = append $complaints (printf "%s.namespace: there is a namespace %s, and this release did not make it: add `create: false` to use it as it is" $place $name) -}}
{{- end -}}
{{- if and $asks (not $there) (not (dig "create" true $team)) (ne $name $own) -}}
{{- $complaints = append $complaints (printf "%s.create is false, and there is no namespace %s: leave it out to have it made, or `kubectl create namespace %s` first" $place $name $name) -}}
{{- end -}}
{{- with lookup "v1" "ConfigMap" $name "trialplane" -}}
{{- $of := index (.metadata.annotations | default dict) "meta.helm.sh/release-namespace" | default "" -}}
{{- if ne $of $own -}}
{{- $complaints = append $complaints (printf "%s.namespace: %s is of the release in namespace %s: take it out there first" $place $name ($of | default "(none)")) -}}
{{- end -}}
{{- end -}}
{{- if and $team.queue $asks (not ($.Capabilities.APIVersions.Has "kueue.x-k8s.io/v1beta1")) (not ($.Capabilities.APIVersions.Has "kueue.x-k8s.io/v1beta2")) -}}
{{- $complaints = append $complaints (printf "%s.queue: the cluster does not know kueue.x-k8s.io: install Kueue first, or leave the queue out" $place) -}}
{{- end -}}
{{- $values := include "platform.teamValues" (list $ $team) | fromJson -}}
{{- if and $values.studies.install.enabled (not $values.studies.install.index) -}}
{{- $complaints = append $complaints (printf "studies.install.enabled is true for %s (%s): name the package index that its trial pods install from, and no other, in studies.install.index" $place $name) -}}
{{- end -}}
{{- if $team.checkpoints -}}
{{- $complaints = concat $complaints (include "platform.checkpointsComplaints" (list (printf "%s." $place) $values.checkpoints) | fromJsonArray) -}}
{{- end -}}
{{- if and $values.studies.autoscale $.Values.networkPolicy.enabled (not $.Values.networkPolicy.apiServer.fromHeads) -}}
{{- $key := printf "%sstudies.autoscale" (ternary (printf "%s." $place) "" (hasKey ($team.studies | default dict) "autoscale")) -}}
{{- $complaints = append $complaints (printf "%s is true, and networkPolicy.apiServer.fromHeads is false: Ray's autoscaler could not make a single trial pod; --set '%s=false' for studies that wait for all of their pods" $key $key) -}}
{{- end -}}
{{- with $values.checkpoints.url | trimSuffix "/" -}}
{{- if hasKey $urls . -}}
{{- $complaints = append $complaints (printf "%s.checkpoints.url: %s is that of %s too, and runs of one name would write over each other's checkpoints: give each team a path of its own" $place . (get $urls .)) -}}
{{- end -}}
{{- $_ := set $urls . (printf "%s (%s)" $place $name) -}}
{{- end -}}
{{- if and (eq $name $own) $values.checkpoints.secret (has $values.checkpoints.secret (include "platform.protectedSecrets" $ | fromJsonArray)) -}}
{{- $complaints = append $complaints (printf "%scheckpoints.secret: %s is a Secret of MLflow or a database, which no trial may read: give one that opens the store of checkpoints only" (ternary (printf "%s." $place) "" (hasKey ($team.checkpoints | default dict) "secret")) $values.checkpoints.secret) -}}
{{- end -}}
{{- range list "runs" "data" "checkpoints" -}}
{{- $found := lookup "v1" "PersistentVolumeClaim" $name (printf "%s-%s" (include "platform.fullname" $) .) -}}
{{- $key := ternary (printf "%s.%s" $place .) . (hasKey $team .) -}}
{{- $complaints = concat $complaints (include "platform.claimComplaints" (list $found $key (index $values .)) | fromJsonArray) -}}
{{- end -}}
{{- end -}}
{{- $complaints | uniq | toJson -}}
{{- end -}}

{{/* What is wrong with a place for checkpoints: (list "teams[0]." .Values.checkpoints). */}}
{{- define "platform.checkpointsComplaints" -}}
{{- $at := printf "%scheckpoints" (first .) -}}
{{- $values := last . -}}
{{- $complaints := list -}}
{{- if and $values.url $values.enabled -}}
{{- $complaints = append $complaints (printf "%s.url and %s.enabled are two places for checkpoints: which one? %s.enabled=false for the object store, or leave %s.url out for the volume" $at $at $at $at) -}}
{{- end -}}
{{- if and $values.secret (not $values.url) -}}
{{- $complaints = append $complaints (printf "%s.secret opens an object store, and %s.url names none: give the URL (s3://bucket/path), or leave the secret out" $at $at) -}}
{{- end -}}
{{- $complaints | toJson -}}
{{- end -}}

{{/* What Kubernetes would not let a claim change, and would report only halfway through the upgrade: (list $found "runs" .Values.runs). */}}
{{- define "platform.claimComplaints" -}}
{{- $found := first . -}}
{{- $key := index . 1 -}}
{{- $values := last . -}}
{{- $complaints := list -}}
{{- if and $found (not $values.existingClaim) (ne (toString (dig "enabled" true $values)) "false") -}}
{{- if ne (sortAlpha $found.spec.accessModes | join ",") (sortAlpha $values.accessModes | join ",") -}}
{{- $complaints = append $complaints (printf "%s.accessModes: the claim %s in namespace %s is there with %s, and Kubernetes lets no claim change them: set them as they are, or copy what is on it to another claim and name that in %s.existingClaim" $key $found.metadata.name $found.metadata.namespace (join ", " $found.spec.accessModes) $key) -}}
{{- end -}}
{{- if and $values.storageClass (ne $values.storageClass ($found.spec.storageClassName | default "")) -}}
{{- $complaints = append $complaints (printf "%s.storageClass: the claim %s in namespace %s is there with class %s, and Kubernetes lets no claim change it: set it as it is, or copy what is on it to another claim and name that in %s.existingClaim" $key $found.metadata.name $found.metadata.namespace ($found.spec.storageClassName | default "(none)") $key) -}}
{{- end -}}
{{- end -}}
{{- $complaints | toJson -}}
{{- end -}}

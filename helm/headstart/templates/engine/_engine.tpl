{{/*
The engine pods: what their containers have beside what headstart.pod* gives them.
*/}}
{{- define "headstart.isStateful" -}}
{{- if and (eq .Values.model.source.type "hf") .Values.model.persistence.enabled .Values.model.persistence.perReplica -}}
yes
{{- end -}}
{{- end }}

{{- define "headstart.engineReplicas" -}}
{{- if not (or .Values.autoscaling.hpa.enabled .Values.autoscaling.keda.enabled) }}
replicas: {{ .Values.replicaCount }}
{{- end }}
{{- end }}

{{/* One claim of all pods that only one node can mount. */}}
{{- define "headstart.hasNarrowClaim" -}}
{{- $keep := .Values.model.persistence -}}
{{- if and $keep.enabled (not $keep.perReplica) (not (has "ReadWriteMany" $keep.accessModes)) -}}
yes
{{- end -}}
{{- end }}

{{/* A pod cannot come beside the old one where every GPU is taken, or the claim on another node: the old one goes first. */}}
{{- define "headstart.engineStrategy" -}}
{{- $replaces := or (gt (int .Values.accelerator.count) 0) (eq (include "headstart.hasNarrowClaim" .) "yes") -}}
{{- if .Values.updateStrategy -}}
{{ toYaml .Values.updateStrategy }}
{{- else if include "headstart.isStateful" . -}}
type: RollingUpdate
{{- else -}}
type: RollingUpdate
rollingUpdate:
  maxSurge: {{ ternary 0 1 $replaces }}
  maxUnavailable: {{ ternary 1 0 $replaces }}
{{- end -}}
{{- end }}

{{/* Requests and limits, with the accelerator. */}}
{{- define "headstart.engineResources" -}}
{{- $resources := deepCopy (.Values.resources | default dict) -}}
{{- $gpu := .Values.accelerator -}}
{{- if and (eq $gpu.type "nvidia") (include "headstart.hasClaim" .) -}}
{{- $resources = set $resources "claims" (list (dict "name" "accelerator")) -}}
{{- else if and (eq $gpu.type "nvidia") (gt (int $gpu.count) 0) -}}
{{- $limits := set ($resources.limits | default dict) $gpu.resourceName (toString (int $gpu.count)) -}}
{{- $resources = set $resources "limits" $limits -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end }}

{{- define "headstart.hasClaim" -}}
{{- if or .Values.accelerator.dra.deviceClassName .Values.accelerator.dra.resourceClaimTemplateName -}}
yes
{{- end -}}
{{- end }}

{{- define "headstart.engineVolumes" -}}
{{- $source := .Values.model.source -}}
{{- if eq $source.type "pvc" }}
- name: model
  persistentVolumeClaim: {claimName: {{ $source.existingClaim | quote }}, readOnly: {{ $source.readOnly }}}
{{- else if eq $source.type "oci" }}
- name: model
  image: {reference: {{ $source.uri | quote }}, pullPolicy: {{ $source.pullPolicy }}}
{{- else if eq $source.type "hf" }}
{{- if not .Values.model.persistence.enabled }}
- name: model
  emptyDir: {{ with .Values.model.download.sizeLimit }}{sizeLimit: {{ . | quote }}}{{ else }}{}{{ end }}
{{- else if not .Values.model.persistence.perReplica }}
- name: model
  persistentVolumeClaim: {claimName: {{ default (printf "%s-model" (include "headstart.fullname" .)) .Values.model.persistence.existingClaim | quote }}}
{{- end }}
{{- with .Values.model.hfToken }}
{{- if .existingSecret }}
- name: hf-token
  secret: {secretName: {{ .existingSecret | quote }}, defaultMode: 0440, items: [{key: {{ .key | quote }}, path: token}]}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.shm.enabled }}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .Values.shm.size | quote }}}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "headstart.engineMounts" -}}
{{- $source := .Values.model.source -}}
{{- if eq $source.type "pvc" }}
- {name: model, mountPath: /models, readOnly: {{ $source.readOnly }}}
{{- else if has $source.type (list "oci" "hf") }}
- {name: model, mountPath: /models, readOnly: true}
{{- end }}
{{- if .Values.shm.enabled }}
- {name: shm, mountPath: /dev/shm}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Fetches the model before the engine starts, which then needs no network. */}}
{{- define "headstart.download" -}}
- name: download
  image: {{ include "headstart.engineImage" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    - download
    - {{ .Values.model.source.uri | quote }}
    {{- with .Values.model.source.revision }}
    - --revision
    - {{ . | quote }}
    {{- end }}
    - --to
    - {{ include "headstart.modelPath" . | quote }}
    {{- if .Values.model.hfToken.existingSecret }}
    - --token-file
    - /run/headstart/hf/token
    {{- end }}
  env:
    - {name: HOME, value: /scratch}
    - {name: HF_HOME, value: /scratch/hf}
    {{- with .Values.model.download.endpoint }}
    - {name: HF_ENDPOINT, value: {{ . | quote }}}
    {{- end }}
  {{- with .Values.securityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.model.download.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  volumeMounts:
    - {name: model, mountPath: /models}
    {{- if .Values.model.hfToken.existingSecret }}
    - {name: hf-token, mountPath: /run/headstart/hf, readOnly: true}
    {{- end }}
    - {name: scratch, mountPath: /scratch}
    - {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "headstart.engineContainer" -}}
{{- $pod := dict "root" . "component" "engine" "pod" .Values -}}
- name: engine
  image: {{ include "headstart.engineImage" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: {{ prepend (.Values.extraArgs | default list) "serve" | toJson }}
  env:
    {{- include "headstart.builtInEnv" $pod | nindent 4 }}
    {{- with .Values.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.extraEnvFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    {{- include "headstart.ports" $pod | trim | nindent 4 }}
  {{- include "headstart.probes" $pod | trim | nindent 2 }}
  {{- with .Values.securityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  resources:
    {{- include "headstart.engineResources" . | nindent 4 }}
  volumeMounts:
    {{- include "headstart.volumeMounts" $pod | nindent 4 }}
    {{- with include "headstart.engineMounts" . | trim }}{{ . | nindent 4 }}{{ end }}
{{- end }}

{{- define "headstart.enginePod" -}}
{{- $pod := dict "root" . "component" "engine" "pod" .Values -}}
metadata:
  {{- include "headstart.podMetadata" $pod | nindent 2 }}
spec:
  {{- include "headstart.podPlacement" $pod | nindent 2 }}
  {{- $downloads := eq .Values.model.source.type "hf" }}
  {{- if or $downloads .Values.initContainers }}
  initContainers:
    {{- if $downloads }}
    {{- include "headstart.download" . | nindent 4 }}
    {{- end }}
    {{- with include "headstart.extraContainers" (dict "root" . "list" .Values.initContainers) | trim }}{{ . | nindent 4 }}{{ end }}
  {{- end }}
  containers:
    {{- include "headstart.engineContainer" . | nindent 4 }}
    {{- with include "headstart.extraContainers" (dict "root" . "list" .Values.sidecars) | trim }}{{ . | nindent 4 }}{{ end }}
  volumes:
    {{- include "headstart.volumes" $pod | nindent 4 }}
    {{- with include "headstart.engineVolumes" . | trim }}{{ . | nindent 4 }}{{ end }}
  {{- if and (eq .Values.accelerator.type "nvidia") (include "headstart.hasClaim" .) }}
  resourceClaims:
    - name: accelerator
      resourceClaimTemplateName: {{ default (printf "%s-accelerator" (include "headstart.fullname" .)) .Values.accelerator.dra.resourceClaimTemplateName | quote }}
  {{- end }}
{{- end }}

{{- define "headstart.claimSpec" -}}
{{- with .Values.model.persistence -}}
accessModes: {{ toJson .accessModes }}
{{- with .storageClass }}
storageClassName: {{ . | quote }}
{{- end }}
resources:
  requests:
    storage: {{ .size | quote }}
{{- end }}
{{- end }}

{{- define "headstart.scaleTarget" -}}
apiVersion: apps/v1
kind: {{ ternary "StatefulSet" "Deployment" (eq (include "headstart.isStateful" .) "yes") }}
name: {{ include "headstart.engineName" . }}
{{- end }}

{{/* Requests that wait, on the pods and in the router. */}}
{{- define "headstart.waitingQuery" -}}
{{- $where := printf "namespace=%q" (include "headstart.namespace" .) -}}
sum(headstart_requests_waiting{{ "{" }}{{ $where }},pod=~"{{ include "headstart.engineName" . }}-.+"{{ "}" }}
{{- if .Values.operator.enabled }} or headstart_route_requests{{ "{" }}{{ $where }},pod=~"{{ include "headstart.operatorName" . }}-.+",state="waiting"{{ "}" }}{{ end -}}
)
{{- end }}

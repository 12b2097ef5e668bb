{{/*
What the pods of both components have in common. Each takes (dict "root" $ "component" "engine" "pod" the values of that
component's pods).
*/}}
{{- define "headstart.podMetadata" -}}
labels:
  {{- $own := include "headstart.podLabels" . | fromYaml }}
  {{- merge $own (.pod.podLabels | default dict) (.root.Values.commonLabels | default dict) | toYaml | nindent 2 }}
annotations:
  checksum/config: {{ include (printf "headstart.%sSettings" .component) .root | sha256sum | quote }}
  {{- with merge (dict) (.pod.podAnnotations | default dict) (.root.Values.commonAnnotations | default dict) }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* Where pods go, and how the kubelet treats them. */}}
{{- define "headstart.podPlacement" -}}
serviceAccountName: {{ include "headstart.serviceAccountName" . | quote }}
automountServiceAccountToken: {{ .pod.serviceAccount.automount }}
enableServiceLinks: false
terminationGracePeriodSeconds: {{ default (add (include "headstart.drainSeconds" .root) 10) .pod.terminationGracePeriodSeconds | int }}
{{- with .root.Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "headstart.podSecurity" . | fromYaml }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pod.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "headstart.tolerations" . }}
tolerations:
  {{- . | nindent 2 }}
{{- end }}
{{- with .pod.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .pod.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- $selector := dict "matchLabels" (include "headstart.selectorLabels" . | fromYaml) }}
  {{- $revision := and (eq .component "engine") (eq (include "headstart.isStateful" .root) "yes") | ternary (dict) (dict "matchLabelKeys" (list "pod-template-hash")) }}
  {{- $own := merge (dict "labelSelector" $selector) $revision }}
  {{- range .pod.topologySpreadConstraints }}
  {{- /* The pods that a rollout replaces do not count, or the new ones would stand where the old ones were not. */}}
  - {{- hasKey . "labelSelector" | ternary . (merge (deepCopy .) $own) | toYaml | nindent 4 }}
  {{- end }}
{{- end }}
{{- with .pod.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .pod.schedulerName }}
schedulerName: {{ . | quote }}
{{- end }}
{{- with .pod.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .pod.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pod.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A claim's folders belong to root until a group is named. Not without one: OpenShift chooses groups itself. */}}
{{- define "headstart.podSecurity" -}}
{{- $security := deepCopy (.pod.podSecurityContext | default dict) -}}
{{- $model := .root.Values.model -}}
{{- if and (eq .component "engine") (eq $model.source.type "hf") $model.persistence.enabled (not (hasKey $security "fsGroup")) -}}
{{- $security = set $security "fsGroup" 65532 -}}
{{- end -}}
{{- toYaml $security -}}
{{- end }}

{{- define "headstart.tolerations" -}}
{{- $gpu := .root.Values.accelerator -}}
{{- $list := .pod.tolerations | default list -}}
{{- if and (eq .component "engine") (eq $gpu.type "nvidia") $gpu.toleration -}}
{{- $list = append $list (dict "key" $gpu.resourceName "operator" "Exists" "effect" "NoSchedule") -}}
{{- end -}}
{{- if $list }}{{ toYaml $list }}{{ end -}}
{{- end }}

{{/* Environment that the chart sets, as a list. */}}
{{- define "headstart.builtInEnv" -}}
- name: HEADSTART_CONFIG_FILE
  value: /etc/headstart/headstart.yaml
- name: HOME
  value: /scratch
- name: HF_HOME
  value: /scratch/hf
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_UID
  valueFrom: {fieldRef: {fieldPath: metadata.uid}}
{{- if eq .component "engine" }}
{{- if .root.Values.model.offline }}
- name: HF_HUB_OFFLINE
  value: "1"
{{- end }}
{{- if and (eq .root.Values.accelerator.type "cpu") (dig "limits" "cpu" "" (.pod.resources | default dict)) }}
- name: HEADSTART_THREADS
  valueFrom: {resourceFieldRef: {containerName: engine, resource: limits.cpu, divisor: "1"}}
{{- end }}
{{- end }}
{{- include "headstart.telemetryEnv" . }}
{{- end }}

{{- define "headstart.telemetryEnv" -}}
{{- $telemetry := .root.Values.telemetry }}
{{- with $telemetry.otlp.endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
- name: OTEL_EXPORTER_OTLP_PROTOCOL
  value: {{ $telemetry.otlp.protocol }}
{{- with $telemetry.otlp.headersSecret }}
{{- if .name }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom: {secretKeyRef: {name: {{ .name | quote }}, key: {{ .key | quote }}}}
{{- end }}
{{- end }}
- name: OTEL_TRACES_EXPORTER
  value: {{ ternary "otlp" "none" $telemetry.traces.enabled }}
- name: OTEL_METRICS_EXPORTER
  value: {{ ternary "otlp" "none" $telemetry.metrics.otlp }}
{{- if $telemetry.traces.enabled }}
- name: OTEL_TRACES_SAMPLER
  value: {{ $telemetry.traces.sampler }}
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ $telemetry.traces.samplerArg | quote }}
{{- end }}
- name: OTEL_RESOURCE_ATTRIBUTES
  value: {{ include "headstart.resourceAttributes" $ | quote }}
{{- end }}
{{- end }}

{{- define "headstart.resourceAttributes" -}}
k8s.namespace.name=$(POD_NAMESPACE),k8s.pod.name=$(POD_NAME),k8s.pod.uid=$(POD_UID)
{{- range $key, $value := .root.Values.telemetry.resourceAttributes }},{{ $key }}={{ $value }}{{ end -}}
{{- end }}

{{/* Ports and probes of the main container. */}}
{{- define "headstart.ports" -}}
{{- range $name := list "grpc" "health" "http" "metrics" }}
- name: {{ $name }}
  containerPort: {{ index $.root.Values.server.ports $name }}
  protocol: TCP
{{- end }}
{{- end }}

{{- define "headstart.probes" -}}
{{- range $name := list "startup" "liveness" "readiness" }}
{{ $name }}Probe:
  grpc:
    port: {{ $.root.Values.server.ports.health }}
    service: {{ $name }}
  {{- toYaml (index $.pod.probes $name) | nindent 2 }}
{{- end }}
{{- end }}

{{/* Settings, secrets and the two writable folders. */}}
{{- define "headstart.volumes" -}}
- name: config
  configMap:
    name: {{ printf "%s-%s" (include "headstart.fullname" .root) .component | quote }}
{{- with include "headstart.secretFiles" . }}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- . | nindent 6 }}
{{- end }}
{{- with .root.Values.server.auth.existingSecret }}
- name: keys
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- with .root.Values.server.tls }}
{{- if .enabled }}
- name: tls
  secret:
    secretName: {{ ternary (default .existingSecret $.root.Values.operator.tls.existingSecret) .existingSecret (eq $.component "operator") | quote }}
    defaultMode: 0440
    items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]
{{- if include "headstart.podTls" $ }}
- name: pod-tls
  secret:
    secretName: {{ .existingSecret | quote }}
    defaultMode: 0440
    items:
      {{- if eq $.component "operator" }}
      - {key: {{ .caKey | quote }}, path: ca.crt}
      {{- end }}
      {{- with .clientCAKey }}
      - {key: {{ . | quote }}, path: client-ca.crt}
      {{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- range $name := list "scratch" "tmp" }}
- name: {{ $name }}
  {{- $options := dict }}
  {{- with $.pod.scratch.sizeLimit }}{{ $options = set $options "sizeLimit" . }}{{ end }}
  {{- with $.pod.scratch.medium }}{{ $options = set $options "medium" . }}{{ end }}
  emptyDir: {{ toJson $options }}
{{- end }}
{{- end }}

{{/* Whether a component needs certificates to trust others by. */}}
{{- define "headstart.podTls" -}}
{{- if or (eq .component "operator") .root.Values.server.tls.clientCAKey }}yes{{ end -}}
{{- end }}

{{/* Sources of /run/secrets/headstart: settings that are secrets, one a file. */}}
{{- define "headstart.secretFiles" -}}
{{- with .root.Values.hashSeed }}
{{- if .existingSecret }}
- secret: {name: {{ .existingSecret | quote }}, items: [{key: {{ .key | quote }}, path: cache__hash_seed}]}
{{- end }}
{{- end }}
{{- with .root.Values.server.auth }}
{{- if and .existingSecret (eq $.component "operator") }}
- secret: {name: {{ .existingSecret | quote }}, items: [{key: {{ .routerTenant | quote }}, path: operator__pod_key}]}
{{- end }}
{{- end }}
{{- end }}

{{- define "headstart.volumeMounts" -}}
- {name: config, mountPath: /etc/headstart, readOnly: true}
{{- if include "headstart.secretFiles" . }}
- {name: secrets, mountPath: /run/secrets/headstart, readOnly: true}
{{- end }}
{{- if .root.Values.server.auth.existingSecret }}
- {name: keys, mountPath: /run/headstart/keys, readOnly: true}
{{- end }}
{{- if .root.Values.server.tls.enabled }}
- {name: tls, mountPath: /run/headstart/tls, readOnly: true}
{{- if include "headstart.podTls" . }}
- {name: pod-tls, mountPath: /run/headstart/pod-tls, readOnly: true}
{{- end }}
{{- end }}
- {name: scratch, mountPath: /scratch}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{/* Containers of people's own, templates allowed. Takes (dict "root" $ "list" ...). */}}
{{- define "headstart.extraContainers" -}}
{{- range .list }}
- {{- tpl (toYaml .) $.root | nindent 2 }}
{{- end }}
{{- end }}

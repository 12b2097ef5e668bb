{{/*
What engine pods and router are told: the settings file of each, as the tree that headstart config --docs shows.
*/}}
{{- define "headstart.drainSeconds" -}}
{{- add (ceil .Values.server.drain.delaySeconds) (ceil .Values.server.drain.timeoutSeconds) -}}
{{- end }}

{{/* Where the model is in the engine container. */}}
{{- define "headstart.modelPath" -}}
{{- $source := .Values.model.source -}}
{{- if eq $source.type "embedded" -}}
smollm2-135m-instruct
{{- else if eq $source.type "path" -}}
{{ $source.uri }}
{{- else if eq $source.type "hf" -}}
/models/{{ regexReplaceAll "[^A-Za-z0-9.-]+" (printf "%s-%s" $source.uri (default "main" $source.revision)) "-" }}
{{- else -}}
/models{{ with $source.subPath }}/{{ . }}{{ end }}
{{- end -}}
{{- end }}

{{/* "" leaves it to the pod: the last part of the source. */}}
{{- define "headstart.servedName" -}}
{{- $source := .Values.model.source -}}
{{- if .Values.model.name -}}
{{ .Values.model.name }}
{{- else if eq $source.type "hf" -}}
{{ $source.uri }}
{{- else if and (has $source.type (list "pvc" "oci")) (not $source.subPath) -}}
{{ include "headstart.fullname" . }}
{{- end -}}
{{- end }}

{{/* Shared by both. */}}
{{- define "headstart.serverSettings" -}}
{{- $values := .Values -}}
host: {{ $values.server.host | quote }}
grpc_port: {{ $values.server.ports.grpc }}
health_port: {{ $values.server.ports.health }}
http_port: {{ $values.server.ports.http }}
metrics_port: {{ $values.server.ports.metrics }}
drain_delay_s: {{ $values.server.drain.delaySeconds }}
drain_timeout_s: {{ $values.server.drain.timeoutSeconds }}
{{- if $values.server.tls.enabled }}
tls:
  cert_file: /run/headstart/tls/tls.crt
  key_file: /run/headstart/tls/tls.key
  {{- if $values.server.tls.clientCAKey }}
  client_ca_file: /run/headstart/pod-tls/client-ca.crt
  {{- end }}
{{- end }}
{{- if $values.server.auth.existingSecret }}
auth:
  keys_dir: /run/headstart/keys
  admin_tenants: {{ prepend ($values.server.auth.adminTenants | default list) $values.server.auth.routerTenant | join "," | quote }}
  share_cache: {{ $values.server.auth.shareCache }}
{{- end }}
{{- end }}

{{- define "headstart.engineSettings" -}}
{{- $engine := omit (.Values.engine | default dict) "device" -}}
model:
  source: {{ include "headstart.modelPath" . | quote }}
  {{- with include "headstart.servedName" . }}
  served_name: {{ . | quote }}
  {{- end }}
  {{- with .Values.model.maxLen }}
  max_len: {{ int . }}
  {{- end }}
  dtype: {{ .Values.model.dtype }}
device: {{ default (ternary "cuda" "cpu" (eq .Values.accelerator.type "nvidia")) (.Values.engine | default dict).device | quote }}
{{- with $engine }}
{{ toYaml . }}
{{- end }}
server:
  {{- include "headstart.serverSettings" . | nindent 2 }}
telemetry:
  log_level: {{ .Values.telemetry.log.level }}
  log_format: {{ .Values.telemetry.log.format }}
  vllm_metric_names: {{ .Values.telemetry.metrics.vllmNames }}
  capture_content: {{ .Values.telemetry.traces.captureContent }}
{{- end }}

{{/* The name in the pods' certificate. */}}
{{- define "headstart.podServerName" -}}
{{- default (printf "%s.%s.svc" (include "headstart.engineName" .) (include "headstart.namespace" .)) .Values.server.tls.serverName -}}
{{- end }}

{{- define "headstart.operatorSettings" -}}
operator:
  namespace: {{ include "headstart.watchNamespace" . | quote }}
  pool_selector: {{ include "headstart.poolSelector" . | quote }}
  lease: {{ include "headstart.operatorName" . }}
  {{- if .Values.operator.defaultPool.create }}
  default_pool: {{ default (include "headstart.fullname" .) .Values.operator.defaultPool.name | quote }}
  selector: {{ include "headstart.selector" (dict "root" . "component" "engine") | quote }}
  pod_port: {{ .Values.server.ports.grpc }}
  {{- end }}
  {{- /* An owner must be in the namespace of what it owns. */}}
  {{- if eq (include "headstart.watchNamespace" .) (include "headstart.namespace" .) }}
  default_pool_owner: {{ include "headstart.operatorName" . }}
  {{- end }}
  {{- if .Values.server.tls.enabled }}
  pod_tls:
    ca_file: /run/headstart/pod-tls/ca.crt
    server_name: {{ include "headstart.podServerName" . | quote }}
    {{- if .Values.server.tls.clientCAKey }}
    cert_file: /run/headstart/tls/tls.crt
    key_file: /run/headstart/tls/tls.key
    {{- end }}
  {{- end }}
  {{- with .Values.operator.settings }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with ((.Values.engine | default dict).limits | default dict).max_prompt_bytes }}
limits:
  max_prompt_bytes: {{ toYaml . }}
{{- end }}
server:
  {{- include "headstart.serverSettings" . | nindent 2 }}
telemetry:
  log_level: {{ .Values.telemetry.log.level }}
  log_format: {{ .Values.telemetry.log.format }}
  capture_content: {{ .Values.telemetry.traces.captureContent }}
{{- end }}

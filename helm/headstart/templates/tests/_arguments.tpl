{{/* Not where nothing is kept, nor where the router sends the same prompt to another pod. */}}
{{- define "headstart.canCheckCache" -}}
{{- $cache := (.Values.engine | default dict).cache | default dict -}}
{{- $policy := (.Values.operator.settings | default dict).policy | default "" -}}
{{- $wanders := and .Values.operator.enabled (has $policy (list "round-robin" "least-loaded")) -}}
{{- if not (or $wanders (eq (toString $cache.enable_prefix_caching) "false")) }}yes{{ end -}}
{{- end }}

{{/* As many words as fill a KV block, since nothing shorter can be found again. */}}
{{- define "headstart.testPrompt" -}}
{{- $cache := (.Values.engine | default dict).cache | default dict -}}
{{- $repeats := div (default 16 $cache.block_size | int) 8 | add 1 | int -}}
{{ repeat $repeats "A prompt that begins like an earlier one starts where the shared blocks end. " | trim }}
{{- end }}

{{/* What the test sends. */}}
{{- define "headstart.testArguments" -}}
{{- $tls := .Values.server.tls -}}
- generate
- --endpoint={{ include "headstart.fullname" . }}.{{ include "headstart.namespace" . }}.svc:{{ .Values.service.ports.grpc }}
- --max-tokens=8
- --temperature=0
- --timeout={{ .Values.tests.timeoutSeconds }}
{{- with .Values.model.name }}
- {{ printf "--model=%s" . | quote }}
{{- end }}
{{- if include "headstart.canCheckCache" . }}
- --check-cache
{{- end }}
{{- if .Values.server.auth.existingSecret }}
- --api-key-file=/run/headstart/key/key
{{- end }}
{{- if $tls.enabled }}
- --ca-file=/run/headstart/tls/ca.crt
{{- if $tls.clientCAKey }}
- --cert-file=/run/headstart/tls/tls.crt
- --key-file=/run/headstart/tls/tls.key
{{- end }}
{{- if not .Values.operator.enabled }}
- {{ include "headstart.podServerName" . | printf "--tls-server-name=%s" | quote }}
{{- end }}
{{- end }}
- {{ include "headstart.testPrompt" . | quote }}
{{- end }}

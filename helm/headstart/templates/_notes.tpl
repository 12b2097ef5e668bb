{{/*
Parts of NOTES.txt.
*/}}
{{- define "headstart.notesTitle" -}}
Headstart {{ .Chart.AppVersion }} serves {{ include "headstart.notesModel" . }} from
{{- if not (or .Values.autoscaling.hpa.enabled .Values.autoscaling.keda.enabled) }} {{ .Values.replicaCount }}{{ end }} {{ ternary "GPU" "CPU" (eq .Values.accelerator.type "nvidia") }} pod(s)
{{- if .Values.operator.enabled }} behind a router{{ end }}.
{{- end }}

{{- define "headstart.notesLogs" -}}
kubectl -n {{ include "headstart.namespace" .root }} logs --tail=-1 -c {{ .container }} -l {{ include "headstart.selector" (dict "root" .root "component" "engine") }}
{{- end }}

{{/* The name that requests use: as the pod makes it of its source. */}}
{{- define "headstart.notesModel" -}}
{{- $path := include "headstart.modelPath" . | trimSuffix "/" -}}
{{- default (base $path | trimSuffix ".gguf") (include "headstart.servedName" .) -}}
{{- end }}

{{/* The Secret whose authority has signed what clients see. */}}
{{- define "headstart.frontSecret" -}}
{{- $own := ternary .Values.operator.tls.existingSecret "" .Values.operator.enabled -}}
{{- default (default .Values.server.tls.existingSecret $own) .Values.tests.caSecret -}}
{{- end }}

{{/* The name in the certificate that clients see. */}}
{{- define "headstart.notesServerName" -}}
{{- if .Values.operator.enabled -}}
{{ include "headstart.fullname" . }}.{{ include "headstart.namespace" . }}.svc
{{- else -}}
{{ include "headstart.podServerName" . }}
{{- end -}}
{{- end }}

{{- define "headstart.notesFlags" -}}
{{- $tls := .Values.server.tls -}}
{{- if $tls.enabled }} --ca-file ca.crt --tls-server-name {{ include "headstart.notesServerName" . }}{{ end -}}
{{- if and $tls.enabled $tls.clientCAKey }} --cert-file client.crt --key-file client.key{{ end -}}
{{- if include "headstart.canCheckCache" . }} --check-cache{{ end -}}
{{- end }}

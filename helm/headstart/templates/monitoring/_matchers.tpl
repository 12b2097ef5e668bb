{{/*
Which metrics are this release's: those that the PodMonitors of its components scrape, unless it is said.
*/}}
{{- define "headstart.engineMatchers" -}}
{{- default (include "headstart.jobMatchers" (dict "root" . "component" "engine")) .Values.monitoring.prometheusRule.engineMatchers -}}
{{- end }}

{{- define "headstart.operatorMatchers" -}}
{{- default (include "headstart.jobMatchers" (dict "root" . "component" "operator")) .Values.monitoring.prometheusRule.operatorMatchers -}}
{{- end }}

{{- define "headstart.jobMatchers" -}}
{{- $namespace := include "headstart.namespace" .root -}}
namespace="{{ $namespace }}", job="{{ $namespace }}/{{ include "headstart.fullname" .root }}-{{ .component }}"
{{- end }}

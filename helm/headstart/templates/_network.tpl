{{/*
Rules of network policies that more than one of them has.
*/}}
{{- define "headstart.frontRule" -}}
- ports: [{port: {{ .Values.server.ports.grpc }}, protocol: TCP}, {port: {{ .Values.server.ports.http }}, protocol: TCP}]
  {{- with .Values.networkPolicy.clients }}
  from:
    {{- toYaml . | nindent 4 }}
    {{- if $.Values.tests.enabled }}
    - podSelector:
        matchLabels:
          {{- include "headstart.selectorLabels" (dict "root" $ "component" "test") | nindent 10 }}
    {{- end }}
  {{- end }}
{{- end }}

{{- define "headstart.scrapeRule" -}}
{{- with .Values.networkPolicy.scrapers -}}
- ports: [{port: {{ $.Values.server.ports.metrics }}, protocol: TCP}]
  from:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- end }}

{{/* To each of `list` (peers and TCP ports), `more` rules, and to name servers when there is any of them. */}}
{{- define "headstart.egressRules" -}}
{{- range .list }}
- ports:
    {{- range .ports }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with .to }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- with .more }}
{{ toYaml . }}
{{- end }}
{{- if or .list .more }}
{{- with .root.Values.networkPolicy.dns }}
- ports:
    {{- range .ports }}
    - {port: {{ . }}, protocol: UDP}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with .to }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* `networkPolicy.otlp` with the port that telemetry.otlp.endpoint names, or that its exporter takes without one. */}}
{{- define "headstart.collector" -}}
{{- $otlp := .Values.telemetry.otlp -}}
{{- $named := regexFind ":[0-9]+$" (urlParse $otlp.endpoint).host | trimPrefix ":" -}}
{{- $isHttp := and (hasPrefix "http://" $otlp.endpoint) (eq $otlp.protocol "http/protobuf") -}}
{{- $port := $named | default (ternary 80 443 $isHttp) | int -}}
{{- $more := list -}}
{{- range .Values.networkPolicy.otlp.ports }}{{ $more = append $more (int .) }}{{ end -}}
{{- dict "to" .Values.networkPolicy.otlp.to "ports" (prepend $more $port | uniq) | toYaml -}}
{{- end }}

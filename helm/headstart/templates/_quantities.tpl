{{/*
What a quantity of Kubernetes is in plain numbers: 500m, 2Gi, 1.5e9. Only what the schema lets pass comes here.
*/}}
{{- define "headstart.quantity" -}}
{{- $text := toString . -}}
{{- $number := regexFind "^[+-]?[0-9.]+([eE][+-]?[0-9]+)?" $text -}}
{{- $suffix := trimPrefix $number $text -}}
{{- $factors := dict "" 1.0 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- mulf (float64 $number) (index $factors $suffix) -}}
{{- end }}

{{/* A line for each limit of `resources` that is below its request, which the API would not take; `key` is their key. */}}
{{- define "headstart.limitsBelowRequests" -}}
{{- $requests := (.resources | default dict).requests | default dict -}}
{{- range $name, $limit := (.resources | default dict).limits | default dict }}
{{- $request := index $requests $name }}
{{- if and (not (kindIs "invalid" $limit)) (not (kindIs "invalid" $request)) }}
{{- if lt (include "headstart.quantity" $limit | float64) (include "headstart.quantity" $request | float64) }}
{{ $.key }}.limits.{{ $name }}: {{ $limit }} is below {{ $.key }}.requests.{{ $name }}, {{ $request }}; set both
{{- end }}
{{- end }}
{{- end }}
{{- end }}

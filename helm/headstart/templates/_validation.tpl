{{/*
Rules across values. Each message names the key and says what to do; all that are broken are told together.
*/}}
{{- define "headstart.validate" -}}
{{- end }}

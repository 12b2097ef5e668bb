{{/*
Names and labels. The name that all objects begin with leaves room for suffixes.
*/}}
{{- define "headstart.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "headstart.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "headstart.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "headstart.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "headstart.engineName" -}}
{{ include "headstart.fullname" . }}-engine
{{- end }}

{{- define "headstart.operatorName" -}}
{{ include "headstart.fullname" . }}-operator
{{- end }}

{{- define "headstart.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end }}

{{/* Where the router's EnginePools and pods are. */}}
{{- define "headstart.watchNamespace" -}}
{{- default (include "headstart.namespace" .) .Values.operator.watchNamespace -}}
{{- end }}

{{/* Which component the client Service leads to. */}}
{{- define "headstart.front" -}}
{{- ternary "operator" "engine" .Values.operator.enabled -}}
{{- end }}

{{/* For selectors: never changes over a release's life. Takes (dict "root" $ "component" "engine"). */}}
{{- define "headstart.selectorLabels" -}}
app.kubernetes.io/name: {{ include "headstart.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* The same as a query. */}}
{{- define "headstart.selector" -}}
app.kubernetes.io/name={{ include "headstart.name" .root }},app.kubernetes.io/instance={{ .root.Release.Name }},app.kubernetes.io/component={{ .component }}
{{- end }}

{{- define "headstart.poolSelector" -}}
{{- default (printf "app.kubernetes.io/name=%s,app.kubernetes.io/instance=%s" (include "headstart.name" .) .Release.Name) .Values.operator.poolSelector -}}
{{- end }}

{{/* Labels that pods keep over an upgrade of the chart, so that it does not replace them. */}}
{{- define "headstart.podLabels" -}}
{{ include "headstart.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: headstart
{{- end }}

{{/* Labels of an object. `labels` are more of them; none takes the place of the chart's own. */}}
{{- define "headstart.labels" -}}
{{- $own := include "headstart.podLabels" . | fromYaml -}}
{{- $own = set $own "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- $own = set $own "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") -}}
{{- merge $own (.labels | default dict) (.root.Values.commonLabels | default dict) | toYaml -}}
{{- end }}

{{/* Of an object: takes (dict "root" $ "component" ... "name" ... "labels" more "annotations" more). */}}
{{- define "headstart.metadata" -}}
name: {{ .name | quote }}
namespace: {{ default (include "headstart.namespace" .root) .namespace | quote }}
labels:
  {{- include "headstart.labels" . | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) (.root.Values.commonAnnotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The service account of a component: takes (dict "root" $ "component" ... "pod" its values). */}}
{{- define "headstart.serviceAccountName" -}}
{{- $own := ternary (printf "%s-%s" (include "headstart.fullname" .root) .component) "default" .pod.serviceAccount.create -}}
{{- default $own .pod.serviceAccount.name -}}
{{- end }}

{{/* An image: takes (dict "root" $ "image" its values "repository" where they name none). */}}
{{- define "headstart.image" -}}
{{- $repository := default .repository .image.repository -}}
{{- with .root.Values.global.imageRegistry }}{{ trimSuffix "/" . }}/{{ end -}}
{{ $repository }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ default .root.Chart.AppVersion .image.tag }}{{ end -}}
{{- end }}

{{- define "headstart.engineImage" -}}
{{- $repository := ternary "headstart/pod-gpu" "headstart/pod-cpu" (eq .Values.accelerator.type "nvidia") -}}
{{- include "headstart.image" (dict "root" . "image" .Values.image "repository" $repository) -}}
{{- end }}

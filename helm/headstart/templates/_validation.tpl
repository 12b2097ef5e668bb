{{/*
Rules across values. Each message names the key and says what to do; all that are broken are told together.
*/}}
{{- define "headstart.validate" -}}
{{- $found := list -}}
{{- range $part := list "model" "scaling" "security" "accelerator" "telemetry" "router" "resources" "pods" -}}
{{- range include (printf "headstart.validate.%s" $part) $ | splitList "\n" -}}
{{- with trim . }}{{ $found = append $found . }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if $found -}}
{{- printf "\nthe values cannot work:\n- %s" (join "\n- " $found) | fail -}}
{{- end -}}
{{- end }}

{{- define "headstart.validate.model" -}}
{{- $source := .Values.model.source -}}
{{- $keep := .Values.model.persistence -}}
{{- if and (has $source.type (list "path" "hf" "oci")) (not $source.uri) }}
model.source.uri: say which, for model.source.type is {{ $source.type }}
{{- end }}
{{- if and (has $source.type (list "embedded" "pvc")) $source.uri }}
model.source.uri: has no meaning with model.source.type {{ $source.type }}; remove it
{{- end }}
{{- if and (eq $source.type "pvc") (not $source.existingClaim) }}
model.source.existingClaim: name the claim that has the model
{{- end }}
{{- if and (ne $source.type "pvc") $source.existingClaim }}
model.source.existingClaim: is for model.source.type pvc; to keep what hf fetches, use model.persistence
{{- end }}
{{- if and (ne $source.type "hf") (or $keep.enabled .Values.model.hfToken.existingSecret $source.revision) }}
model.source.type: model.persistence, model.hfToken and model.source.revision are for hf only
{{- end }}
{{- if and (eq $source.type "hf") (not (regexMatch "^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)?$" $source.uri)) }}
model.source.uri: {{ $source.uri }} is no Hugging Face id such as org/name
{{- end }}
{{- if and $source.subPath (not (has $source.type (list "pvc" "oci"))) }}
model.source.subPath: is for model.source.type pvc and oci
{{- end }}
{{- if and (eq $source.type "oci") (semverCompare "<1.31.0-0" .Capabilities.KubeVersion.Version) }}
model.source.type: oci needs image volumes, which Kubernetes has from 1.31 on; this is {{ .Capabilities.KubeVersion.Version }}
{{- end }}
{{- if and $keep.perReplica $keep.existingClaim }}
model.persistence.existingClaim: cannot be used with model.persistence.perReplica; choose one
{{- end }}
{{- end }}

{{/* The most engine pods that there may be at once, but for those that a rollout adds. */}}
{{- define "headstart.maxReplicas" -}}
{{- $scaling := .Values.autoscaling -}}
{{- if $scaling.hpa.enabled -}}{{ int $scaling.hpa.maxReplicas }}
{{- else if $scaling.keda.enabled -}}{{ int $scaling.keda.maxReplicas }}
{{- else -}}{{ int .Values.replicaCount }}
{{- end -}}
{{- end }}

{{- define "headstart.validate.scaling" -}}
{{- $scaling := .Values.autoscaling -}}
{{- $keep := .Values.model.persistence -}}
{{- if and $scaling.hpa.enabled $scaling.keda.enabled }}
autoscaling.keda.enabled: not together with autoscaling.hpa.enabled, for they would undo each other's work
{{- end }}
{{- range $name := list "hpa" "keda" }}
{{- with index $scaling $name }}
{{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) }}
autoscaling.{{ $name }}.minReplicas: {{ .minReplicas }} is more than maxReplicas, {{ .maxReplicas }}
{{- end }}
{{- end }}
{{- end }}
{{- if and $scaling.keda.enabled (not $scaling.keda.serverAddress) }}
autoscaling.keda.serverAddress: say where Prometheus is
{{- end }}
{{- if and (include "headstart.hasNarrowClaim" .) (gt (int (include "headstart.maxReplicas" .)) 1) }}
model.persistence.accessModes: several pods cannot share a {{ join "/" $keep.accessModes }} claim; use ReadWriteMany or model.persistence.perReplica
{{- end }}
{{- range $name, $pod := dict "" .Values "operator." .Values.operator }}
{{- with $pod.podDisruptionBudget }}
{{- if not (or (kindIs "invalid" .minAvailable) (kindIs "invalid" .maxUnavailable)) }}
{{ $name }}podDisruptionBudget.minAvailable: not together with maxUnavailable; choose one
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "headstart.validate.security" -}}
{{- $tls := .Values.server.tls -}}
{{- if and $tls.enabled (not $tls.existingSecret) }}
server.tls.existingSecret: name the Secret with tls.crt and tls.key
{{- end }}
{{- if and (not $tls.enabled) (or $tls.existingSecret $tls.clientCAKey $tls.serverName .Values.operator.tls.existingSecret) }}
server.tls.enabled: is false, so server.tls and operator.tls would have no effect; set it
{{- end }}
{{- with .Values.server.auth }}
{{- if and (not .existingSecret) (or .adminTenants .shareCache) }}
server.auth.existingSecret: name the Secret with the keys, for server.auth.adminTenants and shareCache have no effect without it
{{- end }}
{{- end }}
{{- /* A number of --set is of another type than one of a file. */}}
{{- $ports := .Values.server.ports -}}
{{- $numbers := list -}}
{{- range $ports }}{{ $numbers = append $numbers (int .) }}{{ end -}}
{{- if lt (uniq $numbers | len) 4 }}
server.ports: two of them are the same: {{ toJson $ports }}
{{- end }}
{{- if eq (int .Values.service.ports.grpc) (int .Values.service.ports.http) }}
service.ports: grpc and http are the same
{{- end }}
{{- if and .Values.service.externalTrafficPolicy (eq .Values.service.type "ClusterIP") }}
service.externalTrafficPolicy: is for service.type NodePort and LoadBalancer; remove it
{{- end }}
{{- if and .Values.gateway.grpcRoute.enabled (not .Values.gateway.grpcRoute.parentRefs) }}
gateway.grpcRoute.parentRefs: name the gateway
{{- end }}
{{- end }}

{{- define "headstart.validate.accelerator" -}}
{{- $gpu := .Values.accelerator -}}
{{- if and (eq $gpu.type "nvidia") (lt (int $gpu.count) 1) }}
accelerator.count: must be 1 when accelerator.type is nvidia
{{- end }}
{{- if and (eq $gpu.type "cpu") (or (int $gpu.count) (include "headstart.hasClaim" .)) }}
accelerator.type: is cpu, so accelerator.count and accelerator.dra would have no effect; set it to nvidia
{{- end }}
{{- if and $gpu.dra.deviceClassName $gpu.dra.resourceClaimTemplateName }}
accelerator.dra.resourceClaimTemplateName: not together with deviceClassName; choose one
{{- end }}
{{- if and (include "headstart.hasClaim" .) (semverCompare "<1.32.0-0" .Capabilities.KubeVersion.Version) }}
accelerator.dra: needs Kubernetes 1.32; this is {{ .Capabilities.KubeVersion.Version }}
{{- end }}
{{- if and (eq $gpu.type "cpu") (eq ((.Values.engine | default dict).device | default "cpu") "cuda") }}
engine.device: cuda needs accelerator.type nvidia
{{- end }}
{{- end }}

{{- define "headstart.validate.telemetry" -}}
{{- $telemetry := .Values.telemetry -}}
{{- if and (not $telemetry.otlp.endpoint) (or $telemetry.traces.enabled $telemetry.metrics.otlp $telemetry.otlp.headersSecret.name) }}
telemetry.otlp.endpoint: say where the collector is, for telemetry.traces, metrics.otlp or otlp.headersSecret ask for one
{{- end }}
{{- if and $telemetry.otlp.endpoint (not (or $telemetry.traces.enabled $telemetry.metrics.otlp)) }}
telemetry.traces.enabled: neither it nor telemetry.metrics.otlp is set, so nothing would be sent to telemetry.otlp.endpoint
{{- end }}
{{- end }}

{{/* The router follows one namespace. What it makes there can neither find this release's pods nor belong to it. */}}
{{- define "headstart.validate.router" -}}
{{- if and .Values.operator.enabled (ne (include "headstart.watchNamespace" .) (include "headstart.namespace" .)) }}
{{- if .Values.operator.defaultPool.create }}
operator.defaultPool.create: must be false when operator.watchNamespace is another namespace
{{- end }}
{{- if gt (int (include "headstart.maxReplicas" .)) 0 }}
operator.watchNamespace: the router would not find this release's engine pods in {{ include "headstart.namespace" . }}; set replicaCount to 0
{{- end }}
{{- end }}
{{- end }}

{{- define "headstart.validate.resources" -}}
{{- with .Values }}
{{- $all := dict "resources" .resources }}
{{- if .tests.enabled }}{{ $_ := set $all "tests.resources" .tests.resources }}{{ end }}
{{- if .operator.enabled }}{{ $_ := set $all "operator.resources" .operator.resources }}{{ end }}
{{- if eq .model.source.type "hf" }}{{ $_ := set $all "model.download.resources" .model.download.resources }}{{ end }}
{{- range $key, $resources := $all }}
{{- include "headstart.limitsBelowRequests" (dict "key" $key "resources" $resources) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "headstart.validate.pods" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" (include "headstart.fullname" .)) }}
fullnameOverride: a Service cannot be named {{ include "headstart.fullname" . }}, as the release's name asks; choose a name that begins with a letter and has no dots
{{- end }}
{{- $needed := int (include "headstart.drainSeconds" .) -}}
{{- range $name, $pod := dict "" .Values "operator." .Values.operator }}
{{- with $pod.terminationGracePeriodSeconds }}
{{- if le (int .) $needed }}
{{ $name }}terminationGracePeriodSeconds: {{ . }} cuts requests off; server.drain takes up to {{ $needed }} s, so set more or leave it out
{{- end }}
{{- end }}
{{- $component := ternary "operator" "engine" (eq $name "operator.") }}
{{- range $label, $_ := include "headstart.podLabels" (dict "root" $ "component" $component) | fromYaml }}
{{- if hasKey ($pod.podLabels | default dict) $label }}
{{ $name }}podLabels: {{ $label }} is the chart's own; remove it
{{- end }}
{{- end }}
{{- $known := include "headstart.builtInEnv" (dict "root" $ "component" $component "pod" $pod) | fromYamlArray }}
{{- $names := list }}
{{- range $known }}{{ $names = append $names .name }}{{ end }}
{{- range $pod.extraEnv }}
{{- if has .name $names }}
{{ $name }}extraEnv: {{ .name }} is set already, by the chart or twice; remove it
{{- end }}
{{- $names = append $names .name }}
{{- end }}
{{- $containers := list $component }}
{{- if and (eq $component "engine") (eq $.Values.model.source.type "hf") }}{{ $containers = append $containers "download" }}{{ end }}
{{- range $key := list "initContainers" "sidecars" }}
{{- range index $pod $key }}
{{- if has .name $containers }}
{{ $name }}{{ $key }}: a container is named {{ .name }} already, by the chart or twice; choose another name
{{- end }}
{{- $containers = append $containers .name }}
{{- end }}
{{- end }}
{{- $volumes := list "config" "secrets" "keys" "tls" "pod-tls" "scratch" "tmp" }}
{{- if eq $component "engine" }}{{ $volumes = concat $volumes (list "model" "hf-token" "shm") }}{{ end }}
{{- range $pod.extraVolumes }}
{{- if has .name $volumes }}
{{ $name }}extraVolumes: {{ .name }} is a volume's name already, of the chart or twice; choose another name
{{- end }}
{{- $volumes = append $volumes .name }}
{{- end }}
{{- $mounts := include "headstart.volumeMounts" (dict "root" $ "component" $component "pod" $pod) | fromYamlArray }}
{{- $paths := list "/models" "/dev/shm" }}
{{- range $mounts }}{{ $paths = append $paths .mountPath }}{{ end }}
{{- range $pod.extraVolumeMounts }}
{{- if has .mountPath $paths }}
{{ $name }}extraVolumeMounts: {{ .mountPath }} is taken
{{- end }}
{{- end }}
{{- end }}
{{- end }}

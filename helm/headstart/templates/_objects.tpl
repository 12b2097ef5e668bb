{{/*
Whole objects that both components have.
*/}}
{{- define "headstart.podDisruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "headstart.metadata" . | nindent 2 }}
spec:
  {{- $budget := .pod.podDisruptionBudget }}
  {{- if not (kindIs "invalid" $budget.minAvailable) }}
  minAvailable: {{ $budget.minAvailable }}
  {{- else }}
  maxUnavailable: {{ kindIs "invalid" $budget.maxUnavailable | ternary 1 $budget.maxUnavailable }}
  {{- end }}
  unhealthyPodEvictionPolicy: {{ $budget.unhealthyPodEvictionPolicy }}
  selector:
    matchLabels:
      {{- include "headstart.selectorLabels" . | nindent 6 }}
{{- end }}

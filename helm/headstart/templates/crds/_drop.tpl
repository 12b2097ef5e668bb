{{/*
What the release's previous manifest had and this one has not, helm deletes, unless the object in the cluster says
otherwise. The previous manifest cannot be seen from here, so every upgrade is held to it.
*/}}
{{- define "headstart.refuseToDrop" -}}
{{- $name := .definition.metadata.name -}}
{{- $annotations := .definition.metadata.annotations | default dict -}}
{{- $owner := index $annotations "meta.helm.sh/release-name" -}}
{{- if and .root.Release.IsUpgrade (ne (toString (index $annotations "helm.sh/resource-policy")) "keep") -}}
{{- $whose := "nobody" -}}
{{- with $owner -}}{{- $whose = printf "release %s" . -}}{{- end -}}
{{- printf "\ncrds: this upgrade may delete the CustomResourceDefinition %s, and so every EnginePool of the cluster, for the release does not bring it any more (it belongs to %s) and nothing says that it stays. Say so, and upgrade again:\n  kubectl annotate --overwrite crd %s helm.sh/resource-policy=keep\n" $name $whose $name | fail -}}
{{- end -}}
{{- end }}

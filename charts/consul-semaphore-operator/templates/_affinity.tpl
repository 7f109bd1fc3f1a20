{{/* The given affinity, with the pods of this release kept apart unless it says something of its own about that. */}}
{{- define "consul-semaphore-operator.affinity" -}}
{{- $affinity := deepCopy (default (dict) .Values.affinity) }}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (include "consul-semaphore-operator.selectorLabels" . | fromYaml)) }}
{{- if not (hasKey $affinity "podAntiAffinity") }}
{{- if eq .Values.antiAffinity "required" }}
{{- $_ := set $affinity "podAntiAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (list $term)) }}
{{- else if eq .Values.antiAffinity "preferred" }}
{{- $_ := set $affinity "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list (dict "weight" 100 "podAffinityTerm" $term))) }}
{{- end }}
{{- end }}
{{- with $affinity }}
{{- toYaml . }}
{{- end }}
{{- end }}

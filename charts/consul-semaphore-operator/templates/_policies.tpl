{{/*
An admission policy of files/, or its binding, with what is this release's own. Takes {root: $, text: of the object}.
*/}}
{{- define "consul-semaphore-operator.policy" -}}
{{- $root := .root }}
{{- $shipped := "system:serviceaccount:consul-semaphore-system:consul-semaphore-operator" }}
{{- $own := printf "system:serviceaccount:%s:%s" (include "consul-semaphore-operator.namespace" $root) (include "consul-semaphore-operator.serviceAccountName" $root) }}
{{- $operators := prepend (default (list) $root.Values.admissionPolicies.guard.operators) $own | uniq | join "', '" }}
{{- $object := .text | replace $shipped $operators | fromYaml }}
{{- $metadata := include "consul-semaphore-operator.metadata" (dict "root" $root) | fromYaml }}
{{- $_ := set $object "metadata" (set $metadata "name" $object.metadata.name) }}
{{- if and (not $root.Values.admissionPolicies.allowExemption) (hasKey $object.spec "matchResources") }}
{{- $selector := $object.spec.matchResources.namespaceSelector }}
{{- $kept := list }}
{{- range $selector.matchExpressions }}
{{- if ne .key "consul-semaphore.io/admission" }}{{ $kept = append $kept . }}{{ end }}
{{- end }}
{{- /* As in config/policies/operator.yaml: each namespace has this label. */}}
{{- $every := list (dict "key" "kubernetes.io/metadata.name" "operator" "Exists") }}
{{- $_ := set $selector "matchExpressions" (default $every $kept) }}
{{- end }}
{{- if and $root.Values.scope.namespaces (hasKey $object.spec "matchResources") }}
{{- $namespaces := dict "key" "kubernetes.io/metadata.name" "operator" "In" "values" $root.Values.scope.namespaces }}
{{- $selector := $object.spec.matchResources.namespaceSelector }}
{{- $_ := set $selector "matchExpressions" (append $selector.matchExpressions $namespaces) }}
{{- end }}
{{- toYaml $object }}
{{- end }}

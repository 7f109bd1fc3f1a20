{{/* What the objects are called, and the labels that all of them have. */}}

{{- define "consul-semaphore-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* That of the pod of `helm test`: it is none of those that the Service and the PodDisruptionBudget find. */}}
{{- define "consul-semaphore-operator.checkName" -}}
{{- printf "%s-check" (include "consul-semaphore-operator.name" . | trunc 57 | trimSuffix "-") }}
{{- end }}

{{/* At most 51 characters, so that what is added to it is still a name. */}}
{{- define "consul-semaphore-operator.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 51 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 51 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 51 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* The namespace of the operator, and of all objects that have no namespace value of their own. */}}
{{- define "consul-semaphore-operator.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{/*
What is called what outside of the release's namespace. An operator for a part of the cluster is not alone there, and the
others may be releases of the same name.
*/}}
{{- define "consul-semaphore-operator.outerName" -}}
{{- $name := include "consul-semaphore-operator.fullname" . }}
{{- if include "consul-semaphore-operator.isScoped" . }}
{{- printf "%s-%s" (include "consul-semaphore-operator.namespace" .) $name }}
{{- else }}
{{- $name }}
{{- end }}
{{- end }}

{{/* The same in a namespace that may be the release's. Takes {root: $, namespace: "" for that}. */}}
{{- define "consul-semaphore-operator.nameIn" -}}
{{- $own := include "consul-semaphore-operator.namespace" .root }}
{{- $outside := ne $own (default $own .namespace) }}
{{- include (ternary "consul-semaphore-operator.outerName" "consul-semaphore-operator.fullname" $outside) .root }}
{{- end }}

{{- define "consul-semaphore-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "consul-semaphore-operator.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/*
The metadata of an object, but for its name and namespace. Takes {root: $, labels: more labels, annotations: more of them}.
What is given goes before what is here, but for the labels that pods are found by.
*/}}
{{- define "consul-semaphore-operator.metadata" -}}
{{- $root := .root }}
{{- $chart := printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- $labels := dict "app.kubernetes.io/part-of" $root.Chart.Name "app.kubernetes.io/managed-by" $root.Release.Service "helm.sh/chart" $chart }}
{{- with $root.Chart.AppVersion }}
{{- $_ := set $labels "app.kubernetes.io/version" . }}
{{- end }}
{{- $found := include "consul-semaphore-operator.selectorLabels" $root | fromYaml -}}
labels:
  {{- merge $found (default (dict) .labels) (default (dict) $root.Values.commonLabels) $labels | toYaml | nindent 2 }}
{{- with merge (dict) (default (dict) .annotations) (default (dict) $root.Values.commonAnnotations) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "consul-semaphore-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "consul-semaphore-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* Whether the operator looks after a part of the cluster only: "true" or nothing. */}}
{{- define "consul-semaphore-operator.isScoped" -}}
{{- if or .Values.scope.namespaces .Values.scope.semaphoreSelector }}true{{ end }}
{{- end }}

{{/* The program's own default is for an operator that has the cluster for itself. */}}
{{- define "consul-semaphore-operator.leaseName" -}}
{{- if .Values.leaderElection.leaseName }}
{{- .Values.leaderElection.leaseName }}
{{- else if include "consul-semaphore-operator.isScoped" . }}
{{- printf "%s-%s" (include "consul-semaphore-operator.namespace" .) (include "consul-semaphore-operator.fullname" .) | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- print "consul-semaphore-operator" }}
{{- end }}
{{- end }}

{{/* The registry that a repository names: "" for Docker Hub's, which it need not name. */}}
{{- define "consul-semaphore-operator.registryOf" -}}
{{- $first := splitList "/" . | first }}
{{- if and (contains "/" .) (or (contains "." $first) (contains ":" $first) (eq $first "localhost")) }}{{ $first }}{{ end }}
{{- end }}

{{/* Where the image is, without a tag. */}}
{{- define "consul-semaphore-operator.repository" -}}
{{- $repository := .Values.image.repository }}
{{- with .Values.global.imageRegistry }}
{{- $own := include "consul-semaphore-operator.registryOf" $repository }}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) (trimPrefix (printf "%s/" $own) $repository) }}
{{- end }}
{{- $repository }}
{{- end }}

{{- define "consul-semaphore-operator.image" -}}
{{- $repository := include "consul-semaphore-operator.repository" . }}
{{- if .Values.image.digest }}
{{- printf "%s@%s" $repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* The Secrets to pull it with, as a list. */}}
{{- define "consul-semaphore-operator.pullSecrets" -}}
{{- $secrets := list }}
{{- range .Values.global.imagePullSecrets }}
{{- $secrets = append $secrets (ternary (dict "name" .) . (kindIs "string" .)) }}
{{- end }}
{{- range .Values.imagePullSecrets }}
{{- $secrets = append $secrets . }}
{{- end }}
{{- with uniq $secrets }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* The subjects of all bindings: the operator's own account. */}}
{{- define "consul-semaphore-operator.subjects" -}}
- kind: ServiceAccount
  name: {{ include "consul-semaphore-operator.serviceAccountName" . | quote }}
  namespace: {{ include "consul-semaphore-operator.namespace" . | quote }}
{{- end }}

{{/* Whether the API server has MutatingAdmissionPolicies: "true" or nothing. */}}
{{- define "consul-semaphore-operator.hasMutatingPolicies" -}}
{{- if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" }}true{{ end }}
{{- end }}

{{/* Whether the policy that needs them is part of the release: "true" or nothing. */}}
{{- define "consul-semaphore-operator.suspends" -}}
{{- $enabled := toString .Values.admissionPolicies.suspend.enabled }}
{{- if or (eq $enabled "true") (and (eq $enabled "auto") (include "consul-semaphore-operator.hasMutatingPolicies" .)) }}true{{ end }}
{{- end }}

{{/* Whether the web page is for others than who forwards a port to a pod's loopback: "true" or nothing. */}}
{{- define "consul-semaphore-operator.webIsShared" -}}
{{- if and .Values.web.enabled (eq .Values.web.auth "kubernetes") }}true{{ end }}
{{- end }}

{{/* "true" if the API server knows the expressions of the policies that limit the operator. */}}
{{- define "consul-semaphore-operator.limits" -}}
{{- if semverCompare ">=1.33.0-0" .Capabilities.KubeVersion.Version }}true{{ end }}
{{- end }}

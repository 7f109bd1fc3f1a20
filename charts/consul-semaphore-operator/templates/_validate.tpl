{{/* Conflicts between values that the schema can't express. Each message says what to do. */}}
{{- define "consul-semaphore-operator.validate" -}}
{{- $consul := .Values.consul }}
{{- if and .Values.image.digest .Values.image.tag }}
{{- fail "image.digest and image.tag are both set, and the tag would have no effect: to use the tag, set image.digest to an empty text; to use the digest, set image.tag to one" }}
{{- end }}
{{- if not $consul.login.authMethod }}
{{- range $part := list "audience" "bearerTokenFile" "meta" "datacenter" "namespace" "partition" }}
{{- if index $consul.login $part }}
{{- fail (printf "consul.login.%s is set, but consul.login.authMethod is not, so the operator does not log in: set consul.login.authMethod, or leave consul.login.%s out" $part $part) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and $consul.login.audience $consul.login.bearerTokenFile }}
{{- fail "consul.login.audience is for the ServiceAccount's token, but consul.login.bearerTokenFile names another token: leave one of the two out" }}
{{- end }}
{{- if and $consul.login.authMethod $consul.token.file }}
{{- fail "consul.login.authMethod and consul.token.file are both set: leave one of the two out" }}
{{- end }}
{{- if and $consul.tls.ca.secretName $consul.tls.ca.configMapName }}
{{- fail "consul.tls.ca.secretName and consul.tls.ca.configMapName are both set: leave one of the two out" }}
{{- end }}
{{- $ssl := false }}
{{- range .Values.extraEnv }}
{{- if eq .name "CONSUL_HTTP_SSL" }}{{ $ssl = true }}{{ end }}
{{- end }}
{{- if and (not $ssl) (include "consul-semaphore-operator.wantsTls" .) }}
{{- range splitList "," $consul.address }}
{{- $address := trim . }}
{{- if not (or (hasPrefix "https://" $address) (hasPrefix "unix://" $address)) }}
{{- fail (printf "consul.tls is set, but consul.address has %s, which is plain HTTP: write https://%s, or leave consul.tls out" $address (trimPrefix "http://" $address)) }}
{{- end }}
{{- end }}
{{- end }}
{{- if not (include "consul-semaphore-operator.serviceAccountName" .) }}
{{- fail "serviceAccount.create is false, and serviceAccount.name is empty: name an existing ServiceAccount. (The namespace has one called default, whose rights all its pods share)" }}
{{- end }}
{{- if and (not .Values.leaderElection.enabled) (gt (int .Values.replicaCount) 1) }}
{{- fail "leaderElection.enabled is false, and replicaCount is more than 1: all replicas would be active at once. Set replicaCount to 1, or enable the election" }}
{{- end }}
{{- if and (not .Values.leaderElection.enabled) (eq .Values.leaderElection.mode "consul") }}
{{- fail "leaderElection.mode is consul, but leaderElection.enabled is false, so there is no election: enable it, or leave the mode out" }}
{{- end }}
{{- with include "consul-semaphore-operator.memoryLimit" . }}
{{- $least := add 80 (default 40 $consul.memory | int) }}
{{- if lt (float64 .) (float64 $least) }}
{{- fail (printf "resources.limits.memory is %s, and with consul.memory=%d (40 by default) the operator can need %d MiB: set resources.limits.memory to at least %dMi, or lower consul.memory" (toString $.Values.resources.limits.memory) (default 40 $consul.memory | int) $least $least) }}
{{- end }}
{{- end }}
{{- if and (include "consul-semaphore-operator.isScoped" .) (eq .Values.leaderElection.leaseName "consul-semaphore-operator") }}
{{- fail "scope is set, but leaderElection.leaseName is the name that an operator for the whole cluster uses: set another name, or leave it empty" }}
{{- end }}
{{- if and .Values.web.enabled (eq (int .Values.web.port) (int .Values.http.port)) }}
{{- fail "web.port and http.port are the same: change one of the two" }}
{{- end }}
{{- if and .Values.traces.endpoint (eq .Values.traces.exporter "none") }}
{{- fail "traces.endpoint is set, and traces.exporter is none: set traces.exporter to otlp, or leave the endpoint out" }}
{{- end }}
{{- if .Values.podDisruptionBudget.enabled }}
{{- with .Values.podDisruptionBudget }}
{{- $replicas := int $.Values.replicaCount }}
{{- $least := default 0 .minAvailable }}
{{- if kindIs "string" $least }}
{{- $least = divf (mulf (trimSuffix "%" $least | int) $replicas) 100 | ceil }}
{{- end }}
{{- $none := and (kindIs "invalid" .minAvailable) (has (toString (default 0 .maxUnavailable)) (list "0" "0%")) }}
{{- if and (gt $replicas 0) (or $none (ge (int $least) $replicas)) }}
{{- fail (printf "podDisruptionBudget allows no disruption with %d replicas, so their nodes can't be drained: lower minAvailable, or set maxUnavailable to at least 1" $replicas) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.serviceMonitor.enabled (not .Values.service.enabled) }}
{{- fail "serviceMonitor.enabled needs service.enabled: enable it, or use podMonitor.enabled, which needs no Service" }}
{{- end }}
{{- if and .Values.serviceMonitor.enabled .Values.podMonitor.enabled }}
{{- fail "serviceMonitor.enabled and podMonitor.enabled are both true, so each pod would be scraped twice: disable one of the two" }}
{{- end }}
{{- range $value := list "serviceMonitor" "podMonitor" }}
{{- $monitor := index $.Values $value }}
{{- $away := ne (default (include "consul-semaphore-operator.namespace" $) $monitor.namespace) (include "consul-semaphore-operator.namespace" $) }}
{{- if and $monitor.enabled $.Values.http.tls.secretName $away (not $monitor.tlsConfig) }}
{{- fail (printf "%s.namespace is another namespace, where Prometheus finds no Secret %s with the CA of http.tls: set %s.tlsConfig, such as {ca: {configMap: {name: my-ca, key: ca.crt}}, serverName: %s.%s.svc}" $value $.Values.http.tls.secretName $value (include "consul-semaphore-operator.fullname" $) (include "consul-semaphore-operator.namespace" $)) }}
{{- end }}
{{- end }}
{{- if and .Values.podMonitor.enabled (ne .Values.metrics.auth "none") (not .Values.podMonitor.authorization) }}
{{- fail (printf "metrics.auth is %s, and a PodMonitor can't name the token of Prometheus' ServiceAccount: set podMonitor.authorization, such as {credentials: {name: prometheus-token, key: token}}, or use serviceMonitor" .Values.metrics.auth) }}
{{- end }}
{{- range $value, $kind := dict "serviceMonitor" "ServiceMonitor" "podMonitor" "PodMonitor" "prometheusRule" "PrometheusRule" }}
{{- if and (index $.Values $value).enabled (not ($.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" $kind))) }}
{{- fail (printf "%s.enabled is true, but the cluster has no monitoring.coreos.com/v1 %s: install the Prometheus Operator first, or set %s.enabled to false (helm template does not ask a cluster: add --api-versions monitoring.coreos.com/v1/%s)" $value $kind $value $kind) }}
{{- end }}
{{- end }}
{{- if and (eq (toString .Values.admissionPolicies.suspend.enabled) "true") (not (include "consul-semaphore-operator.hasMutatingPolicies" .)) }}
{{- fail "admissionPolicies.suspend.enabled is true, but the cluster has no admissionregistration.k8s.io/v1 MutatingAdmissionPolicy, which needs Kubernetes 1.36: set it to auto or false (helm template does not ask a cluster: add --api-versions admissionregistration.k8s.io/v1/MutatingAdmissionPolicy)" }}
{{- end }}
{{- $names := list }}
{{- range include "consul-semaphore-operator.env" . | fromYamlArray }}
{{- if has .name $names }}
{{- fail (printf "extraEnv has %s, which is already set: use the chart's value for it, or set it once" .name) }}
{{- end }}
{{- $names = append $names .name }}
{{- end }}
{{- $flags := list }}
{{- range include "consul-semaphore-operator.args" . | fromYamlArray }}
{{- $flag := first (splitList "=" .) }}
{{- if and (hasPrefix "--" $flag) (has $flag $flags) }}
{{- fail (printf "extraArgs has %s, which is already set: use the chart's value for it, or set it once" $flag) }}
{{- end }}
{{- $flags = append $flags $flag }}
{{- end }}
{{- end }}

{{/* The memory limit of the container in MiB, or nothing if there is none, or one that this can't read. */}}
{{- define "consul-semaphore-operator.memoryLimit" -}}
{{- $limits := default (dict) (default (dict) .Values.resources).limits }}
{{- with $limits.memory }}
{{- $text := ternary (toString .) (printf "%.0f" (float64 .)) (kindIs "string" .) }}
{{- if regexMatch "^[0-9.]+(Ki|Mi|Gi|Ti|k|M|G|T)?$" $text }}
{{- $units := dict "" 1 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 }}
{{- $unit := regexFind "[A-Za-z]*$" $text }}
{{- divf (mulf (trimSuffix $unit $text | float64) (index $units $unit)) 1048576 }}
{{- end }}
{{- end }}
{{- end }}

{{/* What the program is told: its arguments, its variables, and the files that these name. */}}

{{- define "consul-semaphore-operator.args" -}}
- run
- --log-format={{ .Values.log.format }}
{{- with .Values.log.filter }}
- {{ printf "--log-filter=%s" . | quote }}
{{- end }}
{{- if or (ne .Values.http.host "::") (ne (int .Values.http.port) 8080) }}
- {{ printf "--http-address=%s:%d" (include "consul-semaphore-operator.host" .) (int .Values.http.port) | quote }}
{{- end }}
{{- if .Values.http.tls.secretName }}
- --http-tls-cert-file=/etc/http-tls/{{ .Values.http.tls.certKey }}
- --http-tls-key-file=/etc/http-tls/{{ .Values.http.tls.keyKey }}
{{- end }}
{{- if ne .Values.metrics.auth "none" }}
- --metrics-auth={{ .Values.metrics.auth }}
{{- end }}
{{- if ne .Values.traces.exporter "none" }}
- --traces-exporter={{ .Values.traces.exporter }}
{{- end }}
{{- if include "consul-semaphore-operator.webIsShared" . }}
- {{ printf "--web-address=%s:%d" (include "consul-semaphore-operator.host" .) (int .Values.web.port) | quote }}
{{- else if .Values.web.enabled }}
- --web-address=127.0.0.1:{{ int .Values.web.port }}
- --web-auth=none
{{- end }}
{{- with .Values.consul.maxWatches }}
- --consul-max-watches={{ int . }}
{{- end }}
{{- with .Values.consul.memory }}
- --consul-memory={{ int . }}
{{- end }}
{{- with include "consul-semaphore-operator.sharedArgs" . | trim }}
{{ . }}
{{- end }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* Where it listens, with the brackets of IPv6. */}}
{{- define "consul-semaphore-operator.host" -}}
{{- $host := .Values.http.host | trimPrefix "[" | trimSuffix "]" }}
{{- ternary (printf "[%s]" $host) $host (contains ":" $host) }}
{{- end }}

{{/* What `check` is told, too. */}}
{{- define "consul-semaphore-operator.sharedArgs" -}}
{{- $consul := .Values.consul }}
{{- with .Values.clusterName }}
- --cluster-name={{ . }}
{{- end }}
{{- with .Values.clusterId }}
- --cluster-id={{ . }}
{{- end }}
{{- with .Values.tenancy.prefix }}
- {{ printf "--tenant-prefix=%s" . | quote }}
{{- end }}
{{- with .Values.tenancy.trustedNamespaces }}
- {{ printf "--trusted-namespaces=%s" (join "," .) | quote }}
{{- end }}
{{- with .Values.scope.namespaces }}
- --namespaces={{ join "," . }}
{{- end }}
{{- with .Values.scope.semaphoreSelector }}
- {{ printf "--semaphore-selector=%s" . | quote }}
{{- end }}
{{- with include "consul-semaphore-operator.workloads" . }}
- --workloads={{ . }}
{{- end }}
{{- with .Values.kinds.configMap }}
- {{ printf "--kinds=%s" . | quote }}
{{- end }}
{{- if not .Values.fairOrder }}
- --fair-order=false
{{- end }}
{{- with .Values.passOver }}
- --pass-over={{ . }}
{{- end }}
{{- if not .Values.leaderElection.enabled }}
- --leader-election=off
{{- else }}
{{- if ne .Values.leaderElection.mode "kubernetes" }}
- --leader-election={{ .Values.leaderElection.mode }}
{{- end }}
{{- with .Values.leaderElection.leaseDuration }}
- --lease-duration={{ . }}
{{- end }}
{{- end }}
{{- $lease := include "consul-semaphore-operator.leaseName" . }}
{{- if ne $lease "consul-semaphore-operator" }}
- --lease-name={{ $lease }}
{{- end }}
{{- with $consul.node }}
- --consul-node={{ . }}
{{- end }}
{{- if include "consul-semaphore-operator.hasCa" . }}
- --consul-ca-file=/etc/consul/ca/{{ $consul.tls.ca.key }}
{{- end }}
{{- if $consul.login.authMethod }}
- {{ printf "--consul-auth-method=%s" $consul.login.authMethod | quote }}
- --consul-bearer-token-file={{ default "/var/run/secrets/consul/token" $consul.login.bearerTokenFile }}
{{- with $consul.login.meta }}
{{- $pairs := list }}
{{- range $key, $value := . }}
{{- $pairs = append $pairs (printf "%s=%s" $key $value) }}
{{- end }}
- {{ printf "--consul-login-meta=%s" (join "," $pairs) | quote }}
{{- end }}
{{- range $part := list "datacenter" "namespace" "partition" }}
{{- with index $consul.login $part }}
- {{ printf "--consul-login-%s=%s" $part . | quote }}
{{- end }}
{{- end }}
{{- else if $consul.token.file }}
- --consul-token-file={{ $consul.token.file }}
{{- else if include "consul-semaphore-operator.mountsToken" . }}
- --consul-token-file=/etc/consul/token/{{ $consul.token.secretKey }}
{{- end }}
{{- end }}

{{/* The kinds of workloads that are on, by their plural names, with commas. */}}
{{- define "consul-semaphore-operator.workloads" -}}
{{- $on := list }}
{{- range $plural, $workload := .Values.workloads }}
{{- if $workload.enabled }}{{ $on = append $on $plural }}{{ end }}
{{- end }}
{{- join "," $on }}
{{- end }}

{{- define "consul-semaphore-operator.env" -}}
{{- $consul := .Values.consul }}
# The Lease of the leader election is in the pod's namespace, under the pod's name.
- name: LEADER_ELECTION_IDENTITY
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: LEADER_ELECTION_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
- name: CONSUL_HTTP_ADDR
  value: {{ $consul.address | quote }}
{{- with .Values.traces.endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- if include "consul-semaphore-operator.readsToken" . }}
- name: CONSUL_HTTP_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ $consul.token.secretName | quote }}
      key: {{ $consul.token.secretKey | quote }}
      optional: {{ $consul.token.optional }}
{{- end }}
{{- with $consul.httpAuth.secretName }}
- name: CONSUL_HTTP_AUTH
  valueFrom:
    secretKeyRef:
      name: {{ . | quote }}
      key: {{ $consul.httpAuth.secretKey | quote }}
{{- end }}
{{- with $consul.tls.serverName }}
- name: CONSUL_TLS_SERVER_NAME
  value: {{ . | quote }}
{{- end }}
{{- if not $consul.tls.verify }}
- name: CONSUL_HTTP_SSL_VERIFY
  value: "false"
{{- end }}
{{- if $consul.tls.client.secretName }}
- name: CONSUL_CLIENT_CERT
  value: /etc/consul/client/{{ $consul.tls.client.certKey }}
- name: CONSUL_CLIENT_KEY
  value: /etc/consul/client/{{ $consul.tls.client.keyKey }}
{{- end }}
{{- with $consul.namespace }}
- name: CONSUL_NAMESPACE
  value: {{ . | quote }}
{{- end }}
{{- with $consul.partition }}
- name: CONSUL_PARTITION
  value: {{ . | quote }}
{{- end }}
{{- end }}

{{/* Three ways of a token, of which at most one is gone: a login, a file, a Secret. */}}
{{- define "consul-semaphore-operator.usesSecret" -}}
{{- $consul := .Values.consul }}
{{- if and $consul.token.secretName (not $consul.token.file) (not $consul.login.authMethod) }}true{{ end }}
{{- end }}

{{- define "consul-semaphore-operator.mountsToken" -}}
{{- if and (include "consul-semaphore-operator.usesSecret" .) .Values.consul.token.asFile }}true{{ end }}
{{- end }}

{{- define "consul-semaphore-operator.readsToken" -}}
{{- if and (include "consul-semaphore-operator.usesSecret" .) (not .Values.consul.token.asFile) }}true{{ end }}
{{- end }}

{{- define "consul-semaphore-operator.hasCa" -}}
{{- if or .Values.consul.tls.ca.secretName .Values.consul.tls.ca.configMapName }}true{{ end }}
{{- end }}

{{/* Whether something is said of TLS to Consul. */}}
{{- define "consul-semaphore-operator.wantsTls" -}}
{{- $tls := .Values.consul.tls }}
{{- if or (include "consul-semaphore-operator.hasCa" .) $tls.client.secretName $tls.serverName (not $tls.verify) }}true{{ end }}
{{- end }}

{{- define "consul-semaphore-operator.mountsBearer" -}}
{{- if and .Values.consul.login.authMethod (not .Values.consul.login.bearerTokenFile) }}true{{ end }}
{{- end }}

{{- define "consul-semaphore-operator.volumeMounts" -}}
{{- if include "consul-semaphore-operator.mountsToken" . }}
- name: consul-token
  mountPath: /etc/consul/token
  readOnly: true
{{- end }}
{{- if include "consul-semaphore-operator.hasCa" . }}
- name: consul-ca
  mountPath: /etc/consul/ca
  readOnly: true
{{- end }}
{{- if .Values.consul.tls.client.secretName }}
- name: consul-client
  mountPath: /etc/consul/client
  readOnly: true
{{- end }}
{{- if include "consul-semaphore-operator.mountsBearer" . }}
- name: consul-bearer
  mountPath: /var/run/secrets/consul
  readOnly: true
{{- end }}
{{- if .Values.http.tls.secretName }}
- name: http-tls
  mountPath: /etc/http-tls
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Of each Secret only the keys that are read: one with an authority's certificate may have its key, too. */}}
{{- define "consul-semaphore-operator.volumes" -}}
{{- $consul := .Values.consul }}
{{- if include "consul-semaphore-operator.mountsToken" . }}
- name: consul-token
  secret:
    secretName: {{ $consul.token.secretName | quote }}
    optional: {{ $consul.token.optional }}
    items:
    - {key: {{ $consul.token.secretKey | quote }}, path: {{ $consul.token.secretKey | quote }}}
{{- end }}
{{- if $consul.tls.ca.secretName }}
- name: consul-ca
  secret:
    secretName: {{ $consul.tls.ca.secretName | quote }}
    items:
    - {key: {{ $consul.tls.ca.key | quote }}, path: {{ $consul.tls.ca.key | quote }}}
{{- else if $consul.tls.ca.configMapName }}
- name: consul-ca
  configMap:
    name: {{ $consul.tls.ca.configMapName | quote }}
    items:
    - {key: {{ $consul.tls.ca.key | quote }}, path: {{ $consul.tls.ca.key | quote }}}
{{- end }}
{{- with $consul.tls.client.secretName }}
- name: consul-client
  secret:
    secretName: {{ . | quote }}
    items:
    - {key: {{ $consul.tls.client.certKey | quote }}, path: {{ $consul.tls.client.certKey | quote }}}
    - {key: {{ $consul.tls.client.keyKey | quote }}, path: {{ $consul.tls.client.keyKey | quote }}}
{{- end }}
{{- if include "consul-semaphore-operator.mountsBearer" . }}
- name: consul-bearer
  projected:
    sources:
    - serviceAccountToken:
        path: token
        expirationSeconds: {{ int $consul.login.expirationSeconds }}
        {{- with $consul.login.audience }}
        audience: {{ . | quote }}
        {{- end }}
{{- end }}
{{- with .Values.http.tls }}
{{- if .secretName }}
- name: http-tls
  secret:
    secretName: {{ .secretName | quote }}
    items:
    - {key: {{ .certKey | quote }}, path: {{ .certKey | quote }}}
    - {key: {{ .keyKey | quote }}, path: {{ .keyKey | quote }}}
{{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

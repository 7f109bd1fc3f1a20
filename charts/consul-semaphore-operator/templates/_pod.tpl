{{/* What the pods of the operator and of its test have in common. */}}

{{- define "consul-semaphore-operator.podSettings" -}}
serviceAccountName: {{ include "consul-semaphore-operator.serviceAccountName" . | quote }}
# Also where the ServiceAccount says otherwise.
automountServiceAccountToken: true
{{- with include "consul-semaphore-operator.pullSecrets" . }}
imagePullSecrets:
  {{- . | nindent 2 }}
{{- end }}
# Otherwise the Services of the namespace become environment variables, some of them CONSUL_*.
enableServiceLinks: false
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "consul-semaphore-operator.volumes" . | trim }}
volumes:
  {{- . | nindent 2 }}
{{- end }}
{{- with .Values.initContainers }}
initContainers:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .Values.dnsPolicy }}
dnsPolicy: {{ . }}
{{- end }}
{{- with .Values.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "consul-semaphore-operator.containerSettings" -}}
image: {{ include "consul-semaphore-operator.image" . | quote }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
env:
  {{- include "consul-semaphore-operator.env" . | trim | nindent 2 }}
{{- with .Values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "consul-semaphore-operator.volumeMounts" . | trim }}
volumeMounts:
  {{- . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A probe. One of the port with TLS asks over TLS. Takes {root: $, probe: as in the values}. */}}
{{- define "consul-semaphore-operator.probe" -}}
{{- $probe := deepCopy .probe }}
{{- $http := .root.Values.http }}
{{- with $probe.httpGet }}
{{- if and $http.tls.secretName (not .scheme) (has (toString .port) (list "http" (toString (int $http.port)))) }}
{{- $_ := set . "scheme" "HTTPS" }}
{{- end }}
{{- end }}
{{- toYaml $probe }}
{{- end }}

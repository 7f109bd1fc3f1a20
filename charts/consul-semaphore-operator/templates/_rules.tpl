{{/* What the operator may do where it works, and no more. It reads no Secret. */}}
{{- define "consul-semaphore-operator.rules" -}}
# patch is for the finalizer.
- apiGroups: [consul-semaphore.io]
  resources: [consulsemaphores]
  verbs: [get, list, watch, patch]
- apiGroups: [consul-semaphore.io]
  resources: [consulsemaphores/status]
  verbs: [patch]
# patch is for suspending and starting a Job, and for the annotations that tell its slot; delete for
# those that are not to wait (consul-semaphore.io/on-contention: Skip).
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, patch, delete]
# patch is for the start time of a suspended Job, which Kubernetes clears by itself from 1.36 on.
- apiGroups: [batch]
  resources: [jobs/status]
  verbs: [patch]
# A Job's slot is given back when its pods are gone.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
# A workload that holds a slot keeps it until it has ended, also after its kind was switched off, which takes all other
# rights to the kind away: it is only read then.
- apiGroups: [jobset.x-k8s.io]
  resources: [jobsets]
  verbs: [get]
- apiGroups: [tekton.dev]
  resources: [pipelineruns, taskruns]
  verbs: [get, list]
- apiGroups: [argoproj.io]
  resources: [workflows]
  verbs: [get]
- apiGroups: [ray.io]
  resources: [rayjobs]
  verbs: [get]
- apiGroups: [trainer.kubeflow.org]
  resources: [trainjobs]
  verbs: [get]
- apiGroups: [kubeflow.org]
  resources: [mpijobs]
  verbs: [get]
- apiGroups: [sparkoperator.k8s.io]
  resources: [sparkapplications]
  verbs: [get]
# patch is for counting an event that happens again.
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{/* Whether the admission policies are in force, for a line in the log. */}}
{{- define "consul-semaphore-operator.policiesRule" -}}
- apiGroups: [admissionregistration.k8s.io]
  resources: [mutatingadmissionpolicies, mutatingadmissionpolicybindings]
  resourceNames: [suspend.consul-semaphore.io]
  verbs: [get]
- apiGroups: [admissionregistration.k8s.io]
  resources: [validatingadmissionpolicies, validatingadmissionpolicybindings]
  resourceNames:
  - guard.consul-semaphore.io
  - cronjobs.consul-semaphore.io
  - refuse.consul-semaphore.io
  - operator.jobs.consul-semaphore.io
  verbs: [get]
{{- end }}

{{/* The uid of kube-system is the cluster's id. */}}
{{- define "consul-semaphore-operator.clusterIdRule" -}}
- apiGroups: [""]
  resources: [namespaces]
  resourceNames: [kube-system]
  verbs: [get]
{{- end }}

{{/* Lets the operator ask the API server whose a token is, and what its user may do. Takes {root: $, name: of the role}. */}}
{{- define "consul-semaphore-operator.reviewer" }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ .name | quote }}
  {{- include "consul-semaphore-operator.metadata" (dict "root" .root) | nindent 2 }}
rules:
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ .name | quote }}
  {{- include "consul-semaphore-operator.metadata" (dict "root" .root) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ .name | quote }}
subjects:
{{ include "consul-semaphore-operator.subjects" .root }}
{{- end }}

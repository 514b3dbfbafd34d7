{{/* What the operator may do: the rules of manifests/rbac.yaml, which the tests run it with. Grouped by whom they are for. */}}
{{- define "docgrid.rules" -}}
# The pools that people declare: read, and given a status. Their spec is never written.
- apiGroups: [docgrid.dev]
  resources: [indexingworkers]
  verbs: [list, watch]
- apiGroups: [docgrid.dev]
  resources: [indexingworkers/status]
  verbs: [patch]
# The views of jobs.
- apiGroups: [docgrid.dev]
  resources: [indexingjobs]
  verbs: [list, watch, create, patch, delete]
# What a pool consists of. Deployments and ServiceAccounts go with their pool: the garbage collector deletes them.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
# Whether a worker's process has ended, and why.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
# What `kubectl describe` tells.
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{/* The operator's settings: what docs/operations/settings.md calls them, and the value that gives each. */}}
{{- define "docgrid.env" -}}
- name: DOCGRID_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.database.secretName | quote }}
      key: {{ .Values.database.secretKey | quote }}
- name: DOCGRID_DATABASE_POOLER
  value: {{ .Values.database.pooler | quote }}
- name: DOCGRID_OPERATOR_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: DOCGRID_OPERATOR_DEPLOYMENT_NAME
  value: {{ include "docgrid.operator" . | quote }}
- name: DOCGRID_OPERATOR_WORKER_IMAGE
  value: {{ include "docgrid.image" . | quote }}
{{- if .Values.watchAllNamespaces }}
- name: DOCGRID_OPERATOR_WATCH_NAMESPACES
  value: "*"
{{- else if .Values.watchNamespaces }}
- name: DOCGRID_OPERATOR_WATCH_NAMESPACES
  value: {{ join "," .Values.watchNamespaces | quote }}
{{- end }}
- name: DOCGRID_OPERATOR_VIEWS_LIMIT
  value: {{ .Values.views.limit | quote }}
- name: DOCGRID_OPERATOR_VIEWS_INTERVAL
  value: {{ .Values.views.interval | quote }}
- name: DOCGRID_OPERATOR_VIEWS_WRITES_PER_SECOND
  value: {{ .Values.views.writesPerSecond | quote }}
- name: DOCGRID_OPERATOR_VIEWS_REDACT
  value: {{ .Values.views.redact | quote }}
- name: DOCGRID_OPERATOR_RESYNC_INTERVAL
  value: {{ .Values.intervals.resync | quote }}
- name: DOCGRID_OPERATOR_LIVENESS_INTERVAL
  value: {{ .Values.intervals.liveness | quote }}
- name: DOCGRID_OPERATOR_STATUS_INTERVAL
  value: {{ .Values.intervals.status | quote }}
- name: DOCGRID_MAINTENANCE_KEEP_INDEXED
  value: {{ .Values.retention.keepIndexed | quote }}
- name: DOCGRID_MAINTENANCE_KEEP_FAILED
  value: {{ .Values.retention.keepFailed | quote }}
- name: DOCGRID_MAINTENANCE_KEEP_WORKERS
  value: {{ .Values.retention.keepWorkers | quote }}
- name: DOCGRID_WORKER_RETRY_INITIAL_DELAY
  value: {{ .Values.retries.initialDelay | quote }}
- name: DOCGRID_WORKER_RETRY_MAX_DELAY
  value: {{ .Values.retries.maxDelay | quote }}
- name: DOCGRID_WORKER_RETRY_JITTER
  value: {{ .Values.retries.jitter | quote }}
- name: DOCGRID_WORKER_MAX_DEFERRAL
  value: {{ .Values.retries.maxDeferral | quote }}
- name: DOCGRID_LOG_LEVEL
  value: {{ .Values.log.level | quote }}
- name: DOCGRID_LOG_FORMAT
  value: {{ .Values.log.format | quote }}
{{- end }}

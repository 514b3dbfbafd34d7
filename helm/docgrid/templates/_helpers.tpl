{{/* Names are the release's with a short ending, so two releases never share one: 53 + 10 characters at most. */}}
{{- define "docgrid.operator" -}}
{{ .Release.Name }}-operator
{{- end }}

{{/* What is not in the release's namespace is named for it too: <namespace>:<release>-operator. */}}
{{- define "docgrid.operator.elsewhere" -}}
{{ .Release.Namespace }}:{{ include "docgrid.operator" . }}
{{- end }}

{{- define "docgrid.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: docgrid
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* By which the operator's pod is found; it must never change for a Deployment. */}}
{{- define "docgrid.operator.selector" -}}
app.kubernetes.io/name: docgrid
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "docgrid.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{/* The namespaces besides the release's own in which the operator has rights, as JSON. */}}
{{- define "docgrid.otherNamespaces" -}}
{{- without .Values.watchNamespaces .Release.Namespace | toJson -}}
{{- end }}

{{/* An IndexingWorker's spec as YAML: one that names no database has the operator's. Takes root and spec. */}}
{{- define "docgrid.pool" -}}
{{- $database := dict "secretRef" (dict "name" .root.Values.database.secretName "key" .root.Values.database.secretKey) -}}
{{- if .spec.database -}}
{{- toYaml .spec -}}
{{- else -}}
{{- toYaml (set (deepCopy .spec) "database" $database) -}}
{{- end -}}
{{- end }}

{{/* Pod Security restricted: the pod's part. */}}
{{- define "docgrid.podSecurityContext" -}}
runAsNonRoot: true
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* Pod Security restricted: the container's part. */}}
{{- define "docgrid.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "docgrid.volumes" -}}
- name: tmp
  emptyDir: {}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "docgrid.volumeMounts" -}}
- name: tmp
  mountPath: /tmp
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Where pods may run and how their image is pulled. */}}
{{- define "docgrid.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
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
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end }}

{{/* What the schema can not say. Each refusal begins with the path of the value. */}}
{{- define "docgrid.validate" -}}
{{- $hint := "create it with: kubectl create secret generic docgrid-database --from-literal=url='postgresql://…'" }}
{{- $_ := required (printf "database.secretName: name the Secret that holds the database's address; %s" $hint) .Values.database.secretName }}
{{- if and .Values.database.pooler (not .Values.migrations.secretName) }}
  {{- fail "migrations.secretName: name a Secret whose address leads to PostgreSQL itself: migrations do not go through a pooler" }}
{{- end }}
{{- if and .Values.watchAllNamespaces .Values.watchNamespaces }}
  {{- fail "watchNamespaces: leave it empty with watchAllNamespaces, which includes them" }}
{{- end }}
{{- range $name := keys .Values.indexingWorkers | sortAlpha }}
  {{- if or (gt (len $name) 50) (not (regexMatch "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" $name)) }}
    {{- fail (printf "indexingWorkers.%s: the name of a pool has at most 50 characters: lower-case letters, digits and -" $name) }}
  {{- end }}
{{- end }}
{{- $own := list }}
{{- range include "docgrid.env" . | fromYamlArray }}{{ $own = append $own .name }}{{ end }}
{{- range $index, $variable := .Values.extraEnv }}
  {{- if has $variable.name $own }}
    {{- fail (printf "extraEnv[%d].name: the chart sets %s itself, from a value of its own: see README.md" $index $variable.name) }}
  {{- end }}
  {{- if regexMatch "^DOCGRID_(STORAGE|EMBEDDING)_" $variable.name }}
    {{- fail (printf "extraEnv[%d].name: %s is a setting of workers: it belongs to an IndexingWorker" $index $variable.name) }}
  {{- end }}
{{- end }}
{{- range $volume := .Values.extraVolumes }}
  {{- if eq $volume.name "tmp" }}{{ fail "extraVolumes: the volume tmp is the chart's own: choose another name" }}{{ end }}
{{- end }}
{{- include "docgrid.validate.alone" . }}
{{- include "docgrid.validate.kinds" . }}
{{- end }}

{{/* Kinds of a newer release, which an uninstall has kept, may hold fields that those of this one would drop. */}}
{{- define "docgrid.validate.kinds" -}}
{{- range $name := list "indexingworkers.docgrid.dev" "indexingjobs.docgrid.dev" }}
  {{- $installed := dig "metadata" "labels" "app.kubernetes.io/version" "" (lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $name) }}
  {{- if and $.Values.crds.enabled (regexMatch "^[0-9]+\\.[0-9]+\\.[0-9]+" $installed) }}
    {{- if eq ((semver $installed).Compare (semver $.Chart.AppVersion)) 1 }}
      {{- fail (printf "crds.enabled: the CustomResourceDefinition %s is of the newer release %s, this is %s: install that release or a newer one, or leave the kinds as they are with crds.enabled=false" $name $installed $.Chart.AppVersion) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Two operators of one namespace would look after the same IndexingWorkers, each with its own database. */}}
{{- define "docgrid.validate.alone" -}}
{{- range (lookup "apps/v1" "Deployment" .Release.Namespace "").items }}
  {{- $labels := dig "metadata" "labels" dict . }}
  {{- $instance := dig "app.kubernetes.io/instance" "" $labels }}
  {{- if and (eq (dig "app.kubernetes.io/name" "" $labels) "docgrid") (eq (dig "app.kubernetes.io/component" "" $labels) "operator") (ne $instance $.Release.Name) }}
    {{- fail (printf "namespace %s: the DocGrid release %s is there already, and one namespace has one operator: install into another namespace" $.Release.Namespace $instance) }}
  {{- end }}
{{- end }}
{{- end }}

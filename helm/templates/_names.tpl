{{/* Names and labels. */}}
{{- define "ostiary.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "ostiary.fullname" -}}
{{- $name := include "ostiary.name" . -}}
{{- $whole := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- default $whole .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* What selects pods, and never changes: (dict "root" $ "component" "gateway"). */}}
{{- define "ostiary.selector" -}}
app.kubernetes.io/name: {{ include "ostiary.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "ostiary.labels" -}}
{{ include "ostiary.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: ostiary
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "ostiary.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "ostiary.fullname" .) .Values.serviceAccount.name }}{{ else }}{{ default "default" .Values.serviceAccount.name }}{{ end -}}
{{- end -}}

{{/* An image: (dict "image" … "tag" "what an empty tag means"). */}}
{{- define "ostiary.image" -}}
{{ .image.repository }}{{ if .image.digest }}@{{ .image.digest }}{{ else }}:{{ default .tag .image.tag }}{{ end }}
{{- end -}}

{{/* 52 at most: a StatefulSet's pods have a label of its name and eleven characters more, and a label has 63. */}}
{{- define "ostiary.trial.name" -}}
{{ include "ostiary.fullname" . | trunc 35 | trimSuffix "-" }}-trial-postgresql
{{- end -}}

{{- define "attache.name" -}}
{{- $own := contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) -}}
{{- $own | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "attache.selector" -}}
app.kubernetes.io/name: attache
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "attache.labels" -}}
{{ include "attache.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "attache.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{ else }}{{ .Values.image.repository }}:{{ $tag }}{{ end }}
{{- end }}

{{- define "attache.configMap" -}}
{{- if and .Values.config.existingConfigMap .Values.config.files }}
{{- fail "config.files and config.existingConfigMap exclude each other: say one" }}
{{- end }}
{{- if not (or .Values.config.existingConfigMap .Values.config.files) }}
{{- fail "nothing to serve: give your documents, `--set-file config.files.routes\\.yaml=FILE`, or config.existingConfigMap" }}
{{- end }}
{{- .Values.config.existingConfigMap | default (include "attache.name" .) }}
{{- end }}

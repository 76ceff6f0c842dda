{{/* Names, labels and the image. */}}

{{- define "sluice.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* What the names of all objects begin with. A long one ends in a digest, so that two that begin alike stay two. */}}
{{- define "sluice.fullname" -}}
{{- $name := include "sluice.name" . -}}
{{- $joined := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- $full := default $joined .Values.fullnameOverride -}}
{{- if gt (len $full) 40 -}}
{{- $full = printf "%s-%s" ($full | trunc 31) ($full | sha256sum | trunc 8) -}}
{{- end -}}
{{- $full -}}
{{- end -}}

{{/* What selects all pods of the release; never changes. */}}
{{- define "sluice.selector" -}}
app.kubernetes.io/name: {{ include "sluice.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* Of pods: no versions, because a chart that changes nothing else must not restart them. */}}
{{- define "sluice.podLabels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/part-of: sluice
{{- end -}}

{{- define "sluice.labels" -}}
{{ include "sluice.podLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "sluice.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "sluice.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "sluice.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "sluice.cacheManagerAddress" -}}
{{ include "sluice.fullname" . }}-cache-manager.{{ .Release.Namespace }}.svc:8081
{{- end -}}

{{- define "sluice.name" -}}
{{- if contains "sluice" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-sluice" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "sluice.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "sluice.claim" -}}
{{ .Values.blobs.existingClaim | default (printf "%s-blobs" (include "sluice.name" .)) }}
{{- end }}

{{/* The volume of the blob folder. */}}
{{- define "sluice.blobs" -}}
{{- if .Values.blobs.shared -}}
persistentVolumeClaim: { claimName: {{ include "sluice.claim" . }} }
{{- else -}}
emptyDir: { sizeLimit: 2Gi }
{{- end }}
{{- end }}

{{/* What every pod has: the user of the image, no rights, a read-only file system. */}}
{{- define "sluice.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "sluice.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{/* The secret, the settings of all processes and those of this one. */}}
{{- define "sluice.environment" -}}
{{- range $name, $value := merge (dict) .own .root.Values.environment -}}
- name: {{ $name }}
  value: {{ $value | quote }}
{{ end }}
{{- end }}

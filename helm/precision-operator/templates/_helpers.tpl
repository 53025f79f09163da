{{- define "precision-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "precision-operator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "precision-operator.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "precision-operator.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "precision-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "precision-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "precision-operator.labels" -}}
{{ include "precision-operator.selectorLabels" . }}
app.kubernetes.io/part-of: genesis-precision
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "precision-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "precision-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is needed where serviceAccount.create is false: name the ServiceAccount to use" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "precision-operator.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* The operator's configuration file; settings.py says what each key means. */}}
{{- define "precision-operator.config" -}}
{{- merge (dict "watchNamespaces" .Values.watchNamespaces) .Values.config | toYaml }}
{{- end }}

{{/* Rules for the namespaces whose policies are watched: what the operator uses, and no more (tests/chart holds the table). */}}
{{- define "precision-operator.rules" -}}
- apiGroups: [precision.genesis.ai]
  resources: [precisionpolicies]
  verbs: [get, list, watch, patch]
- apiGroups: [precision.genesis.ai]
  resources: [precisionpolicies/status]
  verbs: [patch]
- apiGroups: [precision.genesis.ai]
  resources: [precisionincidents]
  verbs: [get, list, create, update, delete]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, patch]
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{/* A manifest of files/ with the chart's labels: these files are copies of crds/ and manifests/admission, which are the source. */}}
{{- define "precision-operator.manifest" -}}
{{- $root := .root }}
{{- $annotations := .annotations }}
{{- $account := printf "system:serviceaccount:%s:%s" $root.Release.Namespace (include "precision-operator.serviceAccountName" $root) }}
{{- $text := $root.Files.Get .file | replace "system:serviceaccount:precision-system:precision-operator" $account }}
{{- range $text := splitList "\n---\n" $text }}
{{- $object := fromYaml $text }}
{{- if hasKey $object "Error" }}{{ fail (printf "%s: %s" $.file $object.Error) }}{{ end }}
{{- $metadata := dict "name" $object.metadata.name "labels" (include "precision-operator.labels" $root | fromYaml) }}
{{- if $annotations }}{{ $_ := set $metadata "annotations" $annotations }}{{ end }}
{{- $_ := set $object "metadata" $metadata }}
---
{{ toYaml $object }}
{{- end }}
{{- end }}

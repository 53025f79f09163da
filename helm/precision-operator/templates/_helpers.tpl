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
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "precision-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "precision-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is needed where serviceAccount.create is false: name the ServiceAccount to use" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "precision-operator.image" -}}
{{- $missing := "image.registry is empty, and these images are published nowhere: push them by `make push REGISTRY=host/path`, then add `--set image.registry=host/path`" }}
{{- $name := printf "%s/%s" (required $missing .Values.image.registry) .Values.image.repository }}
{{- if .Values.image.digest -}}
{{ $name }}@{{ .Values.image.digest }}
{{- else -}}
{{ $name }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* Refuse a value that asks for a `kind` of the Prometheus operator which is not served. */}}
{{- define "precision-operator.requireMonitoring" -}}
{{- $api := printf "monitoring.coreos.com/v1/%s" .kind }}
{{- $value := printf "%s.enabled" (untitle .kind) }}
{{- if not (.root.Capabilities.APIVersions.Has $api) }}
{{- fail (printf "%s is true, and %s is not served: install the Prometheus operator, or add `--set %s=false`; without a cluster (`helm template`), add `--api-versions %s`" $value $api $value $api) }}
{{- end }}
{{- end }}

{{/* The operator's configuration file; settings.py says what each key means. An entry that an overlay made null is gone: of what the chart
has no default for, Helm keeps the null. */}}
{{- define "precision-operator.config" -}}
{{- $config := deepCopy .Values.config }}
{{- range $entries := list $config.prometheus $config.queries $config.notifications $config.messageTemplates }}
{{- range $name, $entry := $entries }}{{- if kindIs "invalid" $entry }}{{- $_ := unset $entries $name }}{{- end }}{{- end }}
{{- end }}
{{- $name := include "precision-operator.webhookName" . }}
{{- $webhook := dict "service" $name "secret" $name "certManager" .Values.admission.certManager.enabled "inject" .Values.admission.inject.enabled }}
{{- $admission := merge (dict "mode" (include "precision-operator.admissionMode" .)) $webhook .Values.admission.webhook }}
{{- $settings := dict "watchNamespaces" .Values.namespaces "admission" $admission }}
{{- with .Values.receiver }}{{- if .tokenSecret }}
{{- $receiver := dict "tokenFile" "/etc/precision-receiver/token" "port" .port "wakesPerSecond" .wakesPerSecond }}
{{- if .tlsSecret }}
{{- $receiver = merge $receiver (dict "certificateFile" "/etc/precision-receiver/tls.crt" "keyFile" "/etc/precision-receiver/tls.key") }}
{{- end }}
{{- $settings = set $settings "receiver" $receiver }}
{{- end }}{{- end }}
{{- merge $settings $config | toYaml }}
{{- end }}

{{/* Name of the Service that Alertmanager posts to. */}}
{{- define "precision-operator.alertsName" -}}
{{- printf "%s-alerts" (include "precision-operator.fullname" . | trunc 56 | trimSuffix "-") }}
{{- end }}

{{/* Rights on namespaced objects: what the operator uses, and no more (tests/chart holds the table). Of `patch precisionpolicies` the fence
leaves a dry run, which asks admission what it knows. */}}
{{- define "precision-operator.rules" -}}
- apiGroups: [precision.genesis.ai]
  resources: [precisionpolicies]
  verbs: [get, list, watch, patch]
- apiGroups: [precision.genesis.ai]
  resources: [precisionpolicies/status]
  verbs: [patch]
- apiGroups: [precision.genesis.ai]
  resources: [precisionassignments]
  verbs: [get, list, watch, create, update, delete]
- apiGroups: [precision.genesis.ai]
  resources: [precisionincidents]
  verbs: [get, list, create, update, delete]
{{ .Files.Get "files/kinds.yaml" | trim }}
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{/* Whether it is known what the cluster serves: `helm template` without a cluster knows no kinds. */}}
{{- define "precision-operator.clusterKnown" -}}
{{- if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingWebhookConfiguration" -}}true{{- end }}
{{- end }}

{{/* Policy or Webhook. Of Auto the operator is told what was installed, not Auto: a cluster that is upgraded must not lose its webhook before
its policies are there. */}}
{{- define "precision-operator.admissionMode" -}}
{{- if ne .Values.admission.mode "Auto" -}}
{{ .Values.admission.mode }}
{{- else if include "precision-operator.mutatingVersion" . -}}
Policy
{{- else -}}
Webhook
{{- end }}
{{- end }}

{{/* Name of the webhook's Service and of the Secret with its certificates. */}}
{{- define "precision-operator.webhookName" -}}
{{- printf "%s-webhook" (include "precision-operator.fullname" . | trunc 55 | trimSuffix "-") }}
{{- end }}

{{/* The version in which the cluster serves MutatingAdmissionPolicy; empty where it serves none. */}}
{{- define "precision-operator.mutatingVersion" -}}
{{- $versions := .Capabilities.APIVersions }}
{{- if $versions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" -}}
v1
{{- else if $versions.Has "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy" -}}
v1beta1
{{- else if not (include "precision-operator.clusterKnown" .) -}}
v1
{{- end }}
{{- end }}

{{/* A manifest of files/ with the chart's labels. `keep`: it outlives the release, because without CRDs, and without what enforces and guards
assignments, workloads that are held would start in FP16 again; only `kubectl precision uninstall` removes it. The files are copies of crds/,
manifests/admission and manifests/webhook, which are the source. The operator's account and namespace become the release's own. What mutates
takes the version that the cluster serves, or is left out. */}}
{{- define "precision-operator.manifest" -}}
{{- $root := .root }}
{{- $account := printf "system:serviceaccount:%s:%s" $root.Release.Namespace (include "precision-operator.serviceAccountName" $root) }}
{{- $excluded := printf "[kube-system, %s]" $root.Release.Namespace }}
{{- $version := include "precision-operator.mutatingVersion" $root }}
{{- $text := $root.Files.Get .file | replace "system:serviceaccount:precision-system:precision-operator" $account }}
{{- $text = $text | replace "[kube-system, precision-system]" $excluded }}
{{- range $text := splitList "\n---\n" $text }}
{{- $object := fromYaml $text }}
{{- if hasKey $object "Error" }}{{ fail (printf "%s: %s" $.file $object.Error) }}{{ end }}
{{- $mutates := hasPrefix "MutatingAdmission" $object.kind }}
{{- if or (not $mutates) $version }}
{{- if $mutates }}{{ $_ := set $object "apiVersion" (printf "admissionregistration.k8s.io/%s" $version) }}{{ end }}
{{- $metadata := dict "name" $object.metadata.name "labels" (include "precision-operator.labels" $root | fromYaml) }}
{{- $annotations := default dict $.annotations | deepCopy }}
{{- if $.keep }}{{ $_ := set $annotations "helm.sh/resource-policy" "keep" }}{{ end }}
{{- if $annotations }}{{ $_ := set $metadata "annotations" $annotations }}{{ end }}
{{- $_ := set $object "metadata" $metadata }}
{{- range $object.webhooks }}
{{- $_ := set .clientConfig.service "name" (include "precision-operator.webhookName" $root) }}
{{- $_ := set .clientConfig.service "namespace" $root.Release.Namespace }}
{{- end }}
---
{{ toYaml $object }}
{{- end }}
{{- end }}
{{- end }}

{{/* The values that lead to the runbooks and are no URL, with a space between: links of alerts and messages lead nowhere. */}}
{{- define "precision-operator.runbooksWithoutUrl" -}}
{{- $found := list -}}
{{- if and .Values.prometheusRule.enabled (not (contains "://" .Values.prometheusRule.runbookUrl)) -}}
{{- $found = append $found "prometheusRule.runbookUrl" -}}
{{- end -}}
{{- if and .Values.config.notifications (not (contains "://" .Values.config.incidents.runbookUrl)) -}}
{{- $found = append $found "config.incidents.runbookUrl" -}}
{{- end -}}
{{- join " " $found -}}
{{- end -}}

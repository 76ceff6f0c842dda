{{/* The configuration files. Each is a message of config.proto; what an operator sets under `config` is merged last. */}}

{{/* Beyond loopback in the pod, but for the admin service: `kubectl port-forward` reaches that one. */}}
{{- define "sluice.config.service" -}}
listen: 0.0.0.0:8081
metrics_listen: 0.0.0.0:8082
admin_listen: 127.0.0.1:8083
insecure_listen_anywhere: true
log_level: {{ .Values.logging.level }}
log_json: {{ .Values.logging.json }}
drain_s: {{ .Values.drainSeconds }}
{{- end -}}

{{- define "sluice.config.router" -}}
{{- $config := dict
  "service" (include "sluice.config.service" . | fromYaml)
  "http_listen" "0.0.0.0:8080"
  "cache_manager" (include "sluice.cacheManagerAddress" .)
  "split" .Values.split
  "api_keys_file" "/etc/sluice/auth/api-keys" -}}
{{- if .Values.cacheSecret.existingSecret -}}
{{- $_ := set $config "cache_secret_file" "/etc/sluice/cache/secret" -}}
{{- end -}}
{{- mergeOverwrite $config (deepCopy .Values.router.config) | toYaml -}}
{{- end -}}

{{- define "sluice.config.cache-manager" -}}
{{- $config := dict "service" (include "sluice.config.service" . | fromYaml) "blocks_max" .Values.cacheManager.blocksMax -}}
{{- mergeOverwrite $config (deepCopy .Values.cacheManager.config) | toYaml -}}
{{- end -}}

{{/* Of (root, values of the role). Short prompts stay local only where a decode worker computes prompts too. */}}
{{- define "sluice.config.worker" -}}
{{- $root := .root -}}
{{- $model := dict "path" $root.Values.model.path -}}
{{- with $root.Values.model.servedName -}}{{- $_ := set $model "served_name" . -}}{{- end -}}
{{- $config := dict
  "service" (include "sluice.config.service" $root | fromYaml)
  "model" $model
  "engine" (dict "threads" .values.cpus "kv_pool_mib" .values.kvPoolMib)
  "transport" (dict
    "backends" $root.Values.transport.backends
    "net_devices" $root.Values.transport.netDevices
    "trusted_network" true)
  "role" (.role)
  "cache_manager" (include "sluice.cacheManagerAddress" $root) -}}
{{- mergeOverwrite $config (deepCopy $root.Values.workers.config) (deepCopy .values.config) | toYaml -}}
{{- end -}}

{{- define "sluice.config.prefill" -}}
{{- include "sluice.config.worker" (dict "root" . "values" .Values.prefill "role" "prefill") -}}
{{- end -}}

{{- define "sluice.config.decode" -}}
{{- include "sluice.config.worker" (dict "root" . "values" .Values.decode "role" (eq .Values.split "always" | ternary "decode" "both")) -}}
{{- end -}}

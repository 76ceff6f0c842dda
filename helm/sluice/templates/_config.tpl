{{/* The configuration files. Each is a message of config.proto; what an operator sets under `config` is merged last. */}}

{{/* Beyond loopback in the pod, but for the admin service: `kubectl port-forward` reaches that one. */}}
{{- define "sluice.config.service" -}}
listen: 0.0.0.0:8081
metrics_listen: 0.0.0.0:8082
admin_listen: 127.0.0.1:8083
{{- if .Values.tls.secretPrefix }}
tls: {cert_file: /etc/sluice/tls/tls.crt, key_file: /etc/sluice/tls/tls.key, ca_file: /etc/sluice/tls/ca.crt}
insecure_metrics_anywhere: true
{{- else }}
insecure_listen_anywhere: true
{{- end }}
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
  "tenants_file" (printf "/etc/sluice/auth/%s" .Values.auth.key) -}}
{{- if .Values.tls.secretPrefix -}}
{{- $_ := set $config "insecure_clients_anywhere" true -}}
{{- else -}}
{{- $_ := set $config "claim_key_file" "/etc/sluice/auth/claim-key" -}}
{{- end -}}
{{- if .Values.cacheSecret.existingSecret -}}
{{- $_ := set $config "cache_secret_file" "/etc/sluice/cache/secret" -}}
{{- end -}}
{{- mergeOverwrite $config (deepCopy .Values.router.config) | toYaml -}}
{{- end -}}

{{- define "sluice.config.cache-manager" -}}
{{- $config := dict "service" (include "sluice.config.service" . | fromYaml) "blocks_max" .Values.cacheManager.blocksMax
  "tenants_file" (printf "/etc/sluice/auth/%s" .Values.auth.key) -}}
{{- mergeOverwrite $config (deepCopy .Values.cacheManager.config) | toYaml -}}
{{- end -}}

{{/* How pages travel, as JSON. */}}
{{- define "sluice.backends" -}}
{{- .Values.transport.backends | default (list (empty .Values.tls.secretPrefix | ternary "ucx-tcp" "tls")) | toJson -}}
{{- end -}}

{{/* Of (root, values of the role). Short prompts stay local only where a decode worker computes prompts too. */}}
{{- define "sluice.config.worker" -}}
{{- $root := .root -}}
{{- $model := dict "path" $root.Values.model.path -}}
{{- with $root.Values.model.servedName -}}{{- $_ := set $model "served_name" . -}}{{- end -}}
{{- $backends := include "sluice.backends" $root | fromJsonArray -}}
{{- $transport := dict "backends" $backends -}}
{{- if has "tls" $backends -}}
{{- $_ := set $transport "listen" "0.0.0.0:8090" -}}
{{- end -}}
{{- if or (has "ucx-tcp" $backends) (has "ucx-rdma" $backends) -}}
{{- $transport = mergeOverwrite $transport (dict "net_devices" $root.Values.transport.netDevices "trusted_network" true) -}}
{{- end -}}
{{- $config := dict
  "service" (include "sluice.config.service" $root | fromYaml)
  "model" $model
  "engine" (dict "threads" .values.cpus "kv_pool_mib" .values.kvPoolMib)
  "transport" $transport
  "role" (.role)
  "cache_manager" (include "sluice.cacheManagerAddress" $root) -}}
{{- if not $root.Values.tls.secretPrefix -}}
{{- $_ := set $config "claim_key_file" "/etc/sluice/auth/claim-key" -}}
{{- end -}}
{{- mergeOverwrite $config (deepCopy $root.Values.workers.config) (deepCopy .values.config) | toYaml -}}
{{- end -}}

{{- define "sluice.config.prefill" -}}
{{- include "sluice.config.worker" (dict "root" . "values" .Values.prefill "role" "prefill") -}}
{{- end -}}

{{- define "sluice.config.decode" -}}
{{- include "sluice.config.worker" (dict "root" . "values" .Values.decode "role" (eq .Values.split "always" | ternary "decode" "both")) -}}
{{- end -}}

{{/* The parts that all components share. Each template gets (root, name, values), name being the component's. */}}

{{- define "sluice.componentSelector" -}}
{{ include "sluice.selector" .root }}
app.kubernetes.io/component: {{ .name }}
{{- end -}}

{{- define "sluice.componentMetadata" -}}
name: {{ include "sluice.fullname" .root }}-{{ .name }}
labels:
  {{- include "sluice.labels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .name }}
{{- end -}}

{{- define "sluice.configMap" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  {{- include "sluice.componentMetadata" . | nindent 2 }}
data:
  config.yaml: |
    {{- include (printf "sluice.config.%s" .name) .root | nindent 4 }}
{{- end -}}

{{/* Of workers: cores and memory follow from the same values as their configuration. */}}
{{- define "sluice.workerResources" -}}
{{- $memory := printf "%dMi" (add .values.kvPoolMib .values.modelMib .values.overheadMib) -}}
{{- $amounts := dict "cpu" (toString .values.cpus) "memory" $memory -}}
{{- $limits := deepCopy $amounts -}}
{{- if has "ucx-rdma" .root.Values.transport.backends -}}
{{- $_ := set $limits .root.Values.rdma.resourceName (toString .root.Values.rdma.count) -}}
{{- end -}}
{{- mergeOverwrite (dict "requests" $amounts "limits" $limits) (deepCopy .values.resources) | toYaml -}}
{{- end -}}

{{- define "sluice.isWorker" -}}
{{- if has .name (list "prefill" "decode") -}}true{{- end -}}
{{- end -}}

{{- define "sluice.asRoot" -}}
{{- if and (include "sluice.isWorker" .) .root.Values.rdma.ipcLock (has "ucx-rdma" .root.Values.transport.backends) -}}true{{- end -}}
{{- end -}}

{{- define "sluice.podSecurityContext" -}}
{{- $root := include "sluice.asRoot" . -}}
{{- $user := int64 .root.Values.runAsUser -}}
runAsNonRoot: {{ empty $root }}
{{- if $root }}
runAsUser: 0
{{- else if $user }}
runAsUser: {{ $user }}
{{- end }}
{{- with $user }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "sluice.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  {{- if . }}
  add: [IPC_LOCK]
  {{- end }}
{{- end -}}

{{/* A kubelet has no certificate of ours: behind mTLS it asks the metrics port. */}}
{{- define "sluice.probe" -}}
{{- if and .parent.root.Values.tls.secretPrefix (ne .parent.name "router") -}}
httpGet: {port: 8082, path: {{ .path }}}
{{- else -}}
grpc: {port: 8081, service: {{ .concern }}}
{{- end -}}
{{- end -}}

{{/* Workers are told apart by their pods' names and reached at their addresses. UCX reads its ports from the environment; without
a range it takes any, which no network policy could name. */}}
{{- define "sluice.container" -}}
{{- $pod := .pod -}}
name: {{ .name }}
image: {{ include "sluice.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
command: [sluice-{{ .name }}]
args:
  - --config=/etc/sluice/config/config.yaml
  - --set=service.name=$(POD_NAME)
  {{- if include "sluice.isWorker" . }}
  - --set=service.advertise=$(POD_IP):8081
  {{- end }}
env:
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  {{- if include "sluice.isWorker" . }}
  - name: POD_IP
    valueFrom: {fieldRef: {fieldPath: status.podIP}}
  - name: UCX_TCP_PORT_RANGE
    value: 8090-8097
  {{- end }}
  {{- with $pod.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  {{- if eq .name "router" }}
  - {name: http, containerPort: 8080}
  {{- end }}
  - {name: grpc, containerPort: 8081}
  - {name: metrics, containerPort: 8082}
startupProbe:
  {{- include "sluice.probe" (dict "parent" . "concern" "startup" "path" "/live") | nindent 2 }}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: {{ div (add .root.Values.startSeconds 1) 2 }}
readinessProbe:
  {{- include "sluice.probe" (dict "parent" . "concern" "readiness" "path" "/ready") | nindent 2 }}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
livenessProbe:
  {{- include "sluice.probe" (dict "parent" . "concern" "liveness" "path" "/live") | nindent 2 }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
  # What stands still does not drain: its streams wait for it to be gone, not for the pod's whole grace.
  terminationGracePeriodSeconds: 15
lifecycle:
  preStop:
    sleep: {seconds: 5}
resources:
  {{- .resources | nindent 2 }}
securityContext:
  {{- include "sluice.containerSecurityContext" (include "sluice.asRoot" .) | nindent 2 }}
volumeMounts:
  - {name: config, mountPath: /etc/sluice/config, readOnly: true}
  {{- if .root.Values.tls.secretPrefix }}
  - {name: tls, mountPath: /etc/sluice/tls, readOnly: true}
  {{- end }}
  {{- if include "sluice.mountsAuth" . }}
  - {name: auth, mountPath: /etc/sluice/auth, readOnly: true}
  {{- end }}
  {{- if eq .name "router" }}
  {{- if .root.Values.cacheSecret.existingSecret }}
  - {name: cache-secret, mountPath: /etc/sluice/cache, readOnly: true}
  {{- end }}
  {{- end }}
  {{- if include "sluice.mountsModel" . }}
  - {name: model, mountPath: /models, readOnly: true}
  {{- end }}
{{- end -}}

{{/* Routers need the tokenizer of the model. */}}
{{- define "sluice.mountsModel" -}}
{{- if and (ne .name "cache-manager") (ne .root.Values.model.path "toy") -}}true{{- end -}}
{{- end -}}

{{/* Routers need all of it; the cache-manager the shares; workers, where certificates do not say who calls, the key of the routers'
claims. */}}
{{- define "sluice.mountsAuth" -}}
{{- if or (has .name (list "router" "cache-manager")) (not .root.Values.tls.secretPrefix) -}}true{{- end -}}
{{- end -}}

{{/* Of (root, entries): the whole secret without entries. */}}
{{- define "sluice.authVolume" -}}
- name: auth
  secret:
    secretName: {{ .root.Values.auth.existingSecret | quote }}
    defaultMode: 0440
    {{- with .entries }}
    items:
      {{- range . }}
      - {key: {{ . | quote }}, path: {{ . | quote }}}
      {{- end }}
    {{- end }}
{{- end -}}

{{- define "sluice.volumes" -}}
- name: config
  configMap: {name: {{ include "sluice.fullname" .root }}-{{ .name }}}
{{- with .root.Values.tls.secretPrefix }}
- name: tls
  secret:
    secretName: {{ . }}-{{ $.name }}
    defaultMode: 0440
    items:
      - {key: tls.crt, path: tls.crt}
      - {key: tls.key, path: tls.key}
      - {key: ca.crt, path: ca.crt}
{{- end }}
{{- if include "sluice.mountsAuth" . }}
{{- $entry := eq .name "cache-manager" | ternary .root.Values.auth.key "claim-key" }}
{{ include "sluice.authVolume" (dict "root" .root "entries" (eq .name "router" | ternary list (list $entry))) }}
{{- end }}
{{- if eq .name "router" }}
{{- with .root.Values.cacheSecret }}
{{- if .existingSecret }}
- name: cache-secret
  secret:
    secretName: {{ .existingSecret | quote }}
    defaultMode: 0440
    items: [{key: {{ .key | quote }}, path: secret}]
{{- end }}
{{- end }}
{{- end }}
{{- if include "sluice.mountsModel" . }}
- name: model
  {{- with .root.Values.model.volume }}
  {{- if .existingClaim }}
  persistentVolumeClaim: {claimName: {{ .existingClaim | quote }}, readOnly: true}
  {{- else if .hostPath }}
  hostPath: {path: {{ .hostPath | quote }}, type: Directory}
  {{- else }}
  image: {reference: {{ .image | quote }}, pullPolicy: {{ $.root.Values.image.pullPolicy }}}
  {{- end }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* What every pod has, that of `helm test` too. (root, name, pod) */}}
{{- define "sluice.podBase" -}}
serviceAccountName: {{ include "sluice.serviceAccount" .root | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- include "sluice.podSecurityContext" . | nindent 2 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "priorityClassName" "runtimeClassName" }}
{{- with get $.pod $key }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "sluice.podSpec" -}}
{{ include "sluice.podBase" . }}
terminationGracePeriodSeconds: {{ add .root.Values.drainSeconds 15 }}
{{- with .pod.topologySpread.keys }}
topologySpreadConstraints:
  {{- range . }}
  - topologyKey: {{ . | quote }}
    maxSkew: 1
    whenUnsatisfiable: {{ $.pod.topologySpread.whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "sluice.componentSelector" $ | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end }}
containers:
  - {{- include "sluice.container" . | nindent 4 }}
volumes:
  {{- include "sluice.volumes" . | nindent 2 }}
{{- end -}}

{{/* (root, name, values, replicas, resources, strategy); without replicas an autoscaler sets them. */}}
{{- define "sluice.deployment" -}}
{{- $pod := mergeOverwrite (deepCopy .root.Values.pod) (deepCopy .values.pod) -}}
{{- $args := merge (dict "pod" $pod) . -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "sluice.componentMetadata" . | nindent 2 }}
spec:
  {{- if not (kindIs "invalid" .replicas) }}
  replicas: {{ .replicas }}
  {{- end }}
  revisionHistoryLimit: 3
  # A pod may have to wait for the room of one that drains.
  progressDeadlineSeconds: {{ add .root.Values.startSeconds .root.Values.drainSeconds 60 }}
  selector:
    matchLabels:
      {{- include "sluice.componentSelector" . | nindent 6 }}
  strategy:
    {{- toYaml .strategy | nindent 4 }}
  template:
    metadata:
      annotations:
        sluice/config-sha256: {{ include (printf "sluice.config.%s" .name) .root | sha256sum }}
        {{- with $pod.annotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      labels:
        {{- include "sluice.podLabels" .root | nindent 8 }}
        app.kubernetes.io/component: {{ .name }}
        {{- if include "sluice.isWorker" . }}
        llm-d.ai/inference-serving: "true"
        llm-d.ai/role: {{ .name }}
        {{- end }}
        {{- with $pod.labels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      {{- include "sluice.podSpec" $args | nindent 6 }}
{{- end -}}

{{- define "sluice.autoscaler" -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "sluice.componentMetadata" . | nindent 2 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ include "sluice.fullname" .root }}-{{ .name }}}
  minReplicas: {{ .values.autoscaling.minReplicas }}
  maxReplicas: {{ .values.autoscaling.maxReplicas }}
  # A pod that goes must drain first, so one at a time and not at once. Kubernetes takes no longer period than half an hour.
  behavior:
    scaleDown:
      stabilizationWindowSeconds: 300
      policies: [{type: Pods, value: 1, periodSeconds: {{ min 1800 (add .root.Values.drainSeconds 15) }}}]
  metrics:
    {{- if eq .name "router" }}
    - type: Resource
      resource: {name: cpu, target: {type: Utilization, averageUtilization: {{ .values.autoscaling.cpuPercent }}}}
    {{- else }}
    - type: Pods
      pods:
        metric: {name: {{ .values.autoscaling.metric }}}
        target: {type: AverageValue, averageValue: {{ .values.autoscaling.averageValue | quote }}}
    {{- end }}
{{- end -}}

{{/* Values that each look right and do not fit together. Each message names the value and the way out. */}}
{{- define "sluice.validate" -}}
{{- $v := .Values -}}
{{- $name := include "sluice.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "the release is called %q, and services cannot be called %q: set fullnameOverride to lower-case letters, digits and -, the first a letter" .Release.Name $name) -}}
{{- end -}}
{{- if eq $v.image.tag "latest" -}}
{{- fail "image.tag is \"latest\", which names another image on every node: set a version, or image.digest" -}}
{{- end -}}
{{- if and $v.tls.issuer.name (not $v.tls.secretPrefix) -}}
{{- fail (printf "tls.issuer.name is %q: set tls.secretPrefix too, where the certificates shall go" $v.tls.issuer.name) -}}
{{- end -}}
{{- if not (or $v.insecurePlaintext $v.tls.secretPrefix) -}}
{{- fail "insecurePlaintext is false, and tls.secretPrefix names no certificates: the services would refuse to listen beyond loopback. Set tls.secretPrefix (values.yaml says what the secrets hold), or insecurePlaintext to true if the network of this cluster may carry prompts in plaintext" -}}
{{- end -}}
{{- if and $v.insecurePlaintext $v.tls.secretPrefix -}}
{{- fail (printf "insecurePlaintext is true, but tls.secretPrefix is %q: set one of them" $v.tls.secretPrefix) -}}
{{- end -}}
{{- if and (has "tls" $v.transport.backends) (not $v.tls.secretPrefix) -}}
{{- fail "transport.backends names tls: set tls.secretPrefix to the secrets with the certificates" -}}
{{- end -}}
{{- if not $v.auth.existingSecret -}}
{{- fail (printf "auth.existingSecret is missing: name a secret whose entry %q is a tenants file (sluice tenants add makes one); without it nobody could call the routers" $v.auth.key) -}}
{{- end -}}
{{- $volumes := compact (list $v.model.volume.existingClaim $v.model.volume.hostPath $v.model.volume.image) -}}
{{- if and (eq $v.model.path "toy") $volumes -}}
{{- fail "model.volume is set, but model.path is \"toy\": give the path of the model under /models" -}}
{{- end -}}
{{- if ne $v.model.path "toy" -}}
{{- if ne (len $volumes) 1 -}}
{{- fail (printf "model.path is %q: set exactly one of model.volume.existingClaim, model.volume.hostPath and model.volume.image" $v.model.path) -}}
{{- end -}}
{{- end -}}
{{- if and $v.model.volume.image (semverCompare "<1.33.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "model.volume.image needs Kubernetes 1.33 or later, this is %s: use model.volume.existingClaim" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if has "ucx-rdma" $v.transport.backends -}}
{{- if not $v.rdma.resourceName -}}
{{- fail "transport.backends names ucx-rdma: set rdma.resourceName to the resource of your device plugin, such as rdma/hca" -}}
{{- end -}}
{{- else if $v.rdma.resourceName -}}
{{- fail (printf "rdma.resourceName is %q, but transport.backends does not name ucx-rdma (see values-rdma.yaml)" $v.rdma.resourceName) -}}
{{- end -}}
{{- if and $v.monitoring.serviceMonitor.enabled $v.networkPolicy.enabled (not $v.networkPolicy.monitoring) -}}
{{- fail "monitoring.serviceMonitor.enabled is true, but networkPolicy.monitoring lets nobody read the metrics: name the peers of your Prometheus" -}}
{{- end -}}
{{- if $v.ingress.enabled -}}
{{- if not $v.ingress.host -}}
{{- fail "ingress.enabled is true: set ingress.host" -}}
{{- end -}}
{{- if and $v.ingress.tls.issuer.name (not $v.ingress.tls.secretName) -}}
{{- fail "ingress.tls.issuer.name is set: set ingress.tls.secretName too, where the certificate shall go" -}}
{{- end -}}
{{- end -}}
{{- range $key := list "kv_format" "page_tokens" -}}
{{- $prefill := dig "engine" $key "" (mergeOverwrite (deepCopy $v.workers.config) (deepCopy $v.prefill.config)) -}}
{{- $decode := dig "engine" $key "" (mergeOverwrite (deepCopy $v.workers.config) (deepCopy $v.decode.config)) -}}
{{- if ne (toString $prefill) (toString $decode) -}}
{{- fail (printf "engine.%s is %q for prefill and %q for decode: they could not hand pages over; set it in workers.config" $key (toString $prefill) (toString $decode)) -}}
{{- end -}}
{{- end -}}
{{- with $v.router.service -}}
{{- if and (eq .type "ClusterIP") (or .externalTrafficPolicy .loadBalancerClass .loadBalancerSourceRanges) -}}
{{- fail "router.service.type is ClusterIP: externalTrafficPolicy, loadBalancerClass and loadBalancerSourceRanges are of NodePort and LoadBalancer" -}}
{{- end -}}
{{- if and (eq .type "NodePort") (or .loadBalancerClass .loadBalancerSourceRanges) -}}
{{- fail "router.service.type is NodePort: loadBalancerClass and loadBalancerSourceRanges are of LoadBalancer" -}}
{{- end -}}
{{- end -}}
{{- if eq (int $v.router.service.httpPort) (int $v.router.service.grpcPort) -}}
{{- fail (printf "router.service: httpPort and grpcPort are both %d" (int $v.router.service.httpPort)) -}}
{{- end -}}
{{- range $name := list "router" "prefill" "decode" "cacheManager" -}}
{{- $set := list "POD_NAME" "POD_IP" "UCX_TCP_PORT_RANGE" -}}
{{- range (mergeOverwrite (deepCopy $v.pod) (deepCopy (get $v $name).pod)).extraEnv -}}
{{- if has .name $set -}}
{{- fail (printf "pod.extraEnv: %s is set twice for %s; POD_NAME, POD_IP and UCX_TCP_PORT_RANGE are the chart's" .name $name) -}}
{{- end -}}
{{- $set = append $set .name -}}
{{- end -}}
{{- end -}}
{{- range $name := list "router" "prefill" "decode" -}}
{{- $scaling := (get $v $name).autoscaling -}}
{{- if and $scaling.enabled (gt (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
{{- fail (printf "%s.autoscaling: minReplicas %d is over maxReplicas %d" $name (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
{{- end -}}
{{- $update := (get $v $name).rollingUpdate -}}
{{- if and (has (toString $update.maxSurge) (list "0" "0%")) (has (toString $update.maxUnavailable) (list "0" "0%")) -}}
{{- fail (printf "%s.rollingUpdate: maxSurge and maxUnavailable are both 0: no pod could ever be replaced" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

"""Security, network flows, probes and the end of a pod, checked on every rendered workload."""
import os
import re
import unittest

import chart
from chart import by_component, cases, configs, of_kind, pods, render

# The list of the restricted profile of the Pod Security Standards. It does not name volumes from images.
RESTRICTED_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def violations(spec):
    """Rules of the restricted profile that a pod breaks."""
    broken = {f"host{what}" for what in ("Network", "PID", "IPC") if spec.get("host" + what)}
    broken |= {"volume " + kind for volume in spec.get("volumes", ()) for kind in volume if kind != "name"
               and kind not in RESTRICTED_VOLUMES}
    pod = spec.get("securityContext", {})
    broken |= {"sysctls"} if pod.get("sysctls") else set()
    for container in spec["containers"] + spec.get("initContainers", []):
        own = container.get("securityContext", {})
        setting = {**pod, **own}
        broken |= {"host port"} if any("hostPort" in port for port in container.get("ports", ())) else set()
        broken |= {"privileged"} if own.get("privileged") else set()
        broken |= {"escalation"} if own.get("allowPrivilegeEscalation") is not False else set()
        broken |= {"not non-root"} if setting.get("runAsNonRoot") is not True else set()
        broken |= {"user 0"} if setting.get("runAsUser") == 0 else set()
        broken |= {"seccomp"} if setting.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost") else set()
        capabilities = own.get("capabilities", {})
        broken |= {"keeps capabilities"} if capabilities.get("drop") != ["ALL"] else set()
        broken |= {"adds " + name for name in capabilities.get("add", ()) if name != "NET_BIND_SERVICE"}
    return broken


def each_pod():
    return [(case, name, pod["spec"]) for case in cases() for name, pod in pods(render(case)).items()]


class Flows:
    """The network policies of a release, evaluated as Kubernetes does."""

    def __init__(self, documents):
        self.policies = [policy["spec"] for policy in of_kind(documents, "NetworkPolicy")]

    @staticmethod
    def selects(selector, labels):
        for rule in selector.get("matchExpressions", ()):
            assert rule["operator"] == "In", rule
            if labels.get(rule["key"]) not in rule["values"]:
                return False
        return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())

    def peer_is(self, peer, labels, namespace):
        if "ipBlock" in peer:
            return False  # no pod of these tests
        if "namespaceSelector" in peer:
            return self.selects(peer["namespaceSelector"], namespace) and self.selects(peer.get("podSelector", {}), labels)
        return namespace == OWN_NAMESPACE and self.selects(peer["podSelector"], labels)

    @staticmethod
    def port_is(ports, port, protocol):
        return any(p["port"] <= port <= p.get("endPort", p["port"]) and p.get("protocol", "TCP") == protocol for p in ports)

    def allowed(self, direction, subject, peer, namespace, port, protocol):
        key, side = ("ingress", "from") if direction == "Ingress" else ("egress", "to")
        chosen = [p for p in self.policies if direction in p["policyTypes"] and self.selects(p["podSelector"], subject)]
        return not chosen or any(
            self.port_is(rule["ports"], port, protocol) and any(self.peer_is(p, peer, namespace) for p in rule[side])
            for policy in chosen for rule in policy.get(key, ()))

    def connects(self, source, target, port, source_namespace=None, protocol="TCP"):
        namespace = OWN_NAMESPACE if source_namespace is None else source_namespace
        return (namespace != OWN_NAMESPACE or self.allowed("Egress", source, target, OWN_NAMESPACE, port, protocol)) and \
            self.allowed("Ingress", target, source, namespace, port, protocol)


OWN_NAMESPACE = {"kubernetes.io/metadata.name": "default"}
STRANGER = {"app": "stranger"}
HTTP, GRPC, METRICS, ADMIN, PAGES = 8080, 8081, 8082, 8083, 8090
PORTS = (HTTP, GRPC, METRICS, ADMIN, PAGES, 8098, 22)


class PolicyTest(unittest.TestCase):
    def test_pods_keep_the_restricted_profile(self):
        for case, name, spec in each_pod():
            expected = set()
            if case == "rdma" and name.endswith(("prefill", "decode")):
                expected = {"not non-root", "user 0", "adds IPC_LOCK"}
            for example, kind in (("model-host-path", "hostPath"), ("model-image", "image")):
                if case == example and name.endswith(("router", "prefill", "decode")):
                    expected = {"volume " + kind}
            self.assertEqual(violations(spec), expected, f"{case}: {name}")
            self.assertIs(spec["automountServiceAccountToken"], False)
            for container in spec["containers"]:
                self.assertIs(container["securityContext"]["readOnlyRootFilesystem"], True)
                self.assertTrue(all(mount.get("readOnly") for mount in container["volumeMounts"]))

    def test_the_user_may_be_left_to_the_platform(self):
        for case, user in (("default", "1000"), ("default", "null"), ("rdma", "null")):
            for name, pod in pods(render(case, "--set", f"runAsUser={user}")).items():
                setting = pod["spec"]["securityContext"]
                root = case == "rdma" and name.endswith(("prefill", "decode"))
                found = {key: setting[key] for key in ("runAsUser", "runAsGroup", "fsGroup") if key in setting}
                expected = {} if user == "null" else dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), int(user))
                self.assertEqual(found, {"runAsUser": 0} if root else expected, name)
                self.assertIs(setting["runAsNonRoot"], not root)

    def test_the_check_of_the_profile_finds_what_breaks_it(self):
        spec = {"containers": [{"name": "a", "securityContext": {"privileged": True, "capabilities": {"add": ["SYS_ADMIN"]}},
                                "ports": [{"hostPort": 1}]}],
                "hostNetwork": True, "volumes": [{"name": "a", "hostPath": {"path": "/"}}], "securityContext": {"runAsUser": 0}}
        self.assertEqual(violations(spec), {"hostNetwork", "volume hostPath", "host port", "privileged", "escalation", "not non-root",
                                            "user 0", "seccomp", "keeps capabilities", "adds SYS_ADMIN"})

    def test_images_are_pinned_and_resources_set(self):
        for _, _, spec in each_pod():
            for container in spec["containers"]:
                self.assertRegex(container["image"], r"(:[^:/]+|@sha256:[0-9a-f]{64})$")
                self.assertNotRegex(container["image"], r":latest$")
                self.assertLessEqual({"cpu", "memory"}, set(container["resources"]["requests"]))
                self.assertEqual(container["resources"]["requests"]["memory"], container["resources"]["limits"]["memory"])

    def test_probes_ask_one_concern_each(self):
        for case in cases():
            for container in chart.containers(render(case)).values():
                # What is not alive would use up the whole drain budget while its streams wait.
                self.assertLessEqual(container["livenessProbe"]["terminationGracePeriodSeconds"], 15)
                if case == "mtls" and container["name"] != "router":
                    probes = {kind: container[kind + "Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")}
                    self.assertEqual(probes, {"startup": {"port": METRICS, "path": "/live"}, "readiness": {"port": METRICS, "path": "/ready"},
                                              "liveness": {"port": METRICS, "path": "/live"}})
                    continue
                probes = {kind: container[kind + "Probe"]["grpc"] for kind in ("startup", "readiness", "liveness")}
                self.assertEqual(probes, {kind: {"port": GRPC, "service": kind} for kind in probes})
                self.assertIn({"name": "grpc", "containerPort": GRPC}, container["ports"])

    def test_one_drain_budget(self):
        for drain_s in (0, 60, 600):
            documents = render("default", "--set", f"drainSeconds={drain_s}")
            for name, text in configs(documents).items():
                self.assertEqual(chart.yaml.safe_load(text)["service"]["drain_s"], drain_s)
                spec = chart.pod_specs(documents)[name]
                pause_s = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
                self.assertGreater(pause_s, 0)
                self.assertGreaterEqual(spec["terminationGracePeriodSeconds"], pause_s + drain_s + 5)

    def test_the_start_budget_reaches_probe_and_rollout(self):
        for start_s in (11, 600):
            for deployment in of_kind(render("default", "--set", f"startSeconds={start_s}"), "Deployment"):
                spec = deployment["spec"]["template"]["spec"]
                probe = spec["containers"][0]["startupProbe"]
                self.assertGreaterEqual(probe["periodSeconds"] * probe["failureThreshold"], start_s)
                self.assertGreater(deployment["spec"]["progressDeadlineSeconds"], spec["terminationGracePeriodSeconds"] + start_s)

    def test_a_new_configuration_makes_new_pods(self):
        def digests(*more):
            return {name: d["spec"]["template"]["metadata"]["annotations"]["sluice/config-sha256"]
                    for name, d in by_component(render("default", *more), "Deployment").items()}
        before, after = digests(), digests("--set", "prefill.config.credits_max=3")
        self.assertEqual({name for name in before if before[name] != after[name]}, {"prefill"})

    def test_a_new_version_of_the_chart_alone_makes_none(self):
        for case in cases():
            for deployment in of_kind(render(case), "Deployment"):
                labels = deployment["spec"]["template"]["metadata"]["labels"]
                self.assertFalse({"helm.sh/chart", "app.kubernetes.io/version"} & set(labels))
                self.assertEqual(labels["app.kubernetes.io/part-of"], "sluice")  # what prometheus-kubernetes.yml selects

    def test_a_component_may_have_no_pods(self):
        for name in ("router", "prefill", "decode"):
            self.assertEqual(by_component(render("default", "--set", f"{name}.replicas=0"), "Deployment")[name]["spec"]["replicas"], 0)

    def test_all_pods_go_where_the_values_say(self):
        for name, pod in pods(render("many")).items():
            spec = pod["spec"]
            self.assertEqual(spec["tolerations"], [{"key": "llm", "operator": "Exists", "effect": "NoSchedule"}], name)
            self.assertEqual(spec["nodeSelector"]["kubernetes.io/arch"], "amd64", name)
            self.assertEqual(spec["imagePullSecrets"], [{"name": "registry"}], name)
            self.assertEqual((pod["metadata"]["labels"]["team"], pod["metadata"]["annotations"]["example.org/cost"]), ("llm", "shared"))

    def test_selectors_fit_one_component_and_every_service_has_its_pods(self):
        for case in cases():
            documents = render(case)
            labels = {chart.component(d): d["spec"]["template"]["metadata"]["labels"] for d in of_kind(documents, "Deployment")}
            for kind in ("Deployment", "PodDisruptionBudget"):
                for name, document in by_component(documents, kind).items():
                    selector = document["spec"]["selector"]
                    self.assertEqual([n for n in labels if Flows.selects(selector, labels[n])], [name])
            for service in of_kind(documents, "Service"):
                chosen = [n for n in labels if all(labels[n].get(k) == v for k, v in service["spec"]["selector"].items())]
                self.assertEqual(chosen, list(labels) if chart.component(service) == "metrics" else [chart.component(service)])
                ports = {p["name"] for name, container in chart.containers(documents).items() if name in chosen
                         for p in container["ports"]}
                self.assertLessEqual({p["targetPort"] for p in service["spec"]["ports"]}, ports)
            disrupted = by_component(documents, "PodDisruptionBudget")
            self.assertEqual(set(disrupted), set() if case == "minimal" else set(labels))

    def test_autoscalers_own_the_replicas_of_what_they_scale(self):
        for case, *more in [*((case,) for case in cases()), ("many", "--set", "drainSeconds=3600")]:
            documents = render(case, *more)
            deployments, scalers = by_component(documents, "Deployment"), by_component(documents, "HorizontalPodAutoscaler")
            self.assertEqual(set(scalers), {name for name in deployments if "replicas" not in deployments[name]["spec"]})
            for name, scaler in scalers.items():
                self.assertEqual(scaler["spec"]["scaleTargetRef"]["name"], deployments[name]["metadata"]["name"])
                grace_s = deployments[name]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
                # Kubernetes refuses more than 1800.
                self.assertEqual(scaler["spec"]["behavior"]["scaleDown"]["policies"][0]["periodSeconds"], min(grace_s, 1800))
        self.assertEqual(set(by_component(render("many"), "HorizontalPodAutoscaler")), {"router", "prefill"})
        known = (chart.ROOT / "common/telemetry/metric_names.h").read_text()
        with open(chart.CHART / "values.yaml") as file:
            values = chart.yaml.safe_load(file)
        for name in ("prefill", "decode"):
            self.assertIn(f'"{values[name]["autoscaling"]["metric"]}"', known)

    def test_the_cache_manager_is_found_where_it_is(self):
        for case in cases():
            documents = render(case)
            service = by_component(documents, "Service")["cache-manager"]
            expected = f"{service['metadata']['name']}.default.svc:{service['spec']['ports'][0]['port']}"
            for name in ("router", "prefill", "decode"):
                self.assertEqual(chart.yaml.safe_load(configs(documents)[name])["cache_manager"], expected)

    def test_only_the_needed_flows(self):
        for case in cases():
            if case == "minimal":
                continue
            documents = render(case)
            flows = Flows(documents)
            labels = {chart.component(d): d["spec"]["template"]["metadata"]["labels"] for d in of_kind(documents, "Deployment")}
            labels["test"] = of_kind(documents, "Pod")[0]["metadata"]["labels"]
            expected = {("router", "prefill", GRPC), ("router", "decode", GRPC), ("router", "cache-manager", GRPC),
                        ("prefill", "cache-manager", GRPC), ("decode", "cache-manager", GRPC), ("test", "router", GRPC)}
            if case != "rdma":
                expected |= {(a, b, PAGES) for a in ("prefill", "decode") for b in ("prefill", "decode")}
            found = {(a, b, port) for a in labels for b in labels for port in PORTS if flows.connects(labels[a], labels[b], port)}
            with self.subTest(case=case):
                self.assertEqual(found, expected)
                self.assertTrue(all(flows.allowed("Egress", labels[n], {"k8s-app": "kube-dns"},
                                                  {"kubernetes.io/metadata.name": "kube-system"}, 53, "UDP")
                                    for n in ("router", "prefill", "decode", "test")))

    def test_without_peers_for_names_no_names(self):
        rules = [rule for policy in of_kind(render("default", "--set-json", "networkPolicy.dns=[]"), "NetworkPolicy")
                 for rule in policy["spec"].get("egress", ())]
        self.assertTrue(rules)
        self.assertFalse([rule for rule in rules if not rule["to"] or {"port": 53, "protocol": "UDP"} in rule["ports"]])

    def test_strangers_reach_what_was_opened_to_them(self):
        documents = render("default")
        labels = {chart.component(d): d["spec"]["template"]["metadata"]["labels"] for d in of_kind(documents, "Deployment")}
        reach = {(name, port) for name in labels for port in PORTS if Flows(documents).connects(STRANGER, labels[name], port)}
        self.assertEqual(reach, {("router", HTTP), ("router", GRPC)})
        elsewhere = {"kubernetes.io/metadata.name": "elsewhere"}
        for case, namespace, pod, expected in (
                ("default", elsewhere, STRANGER, set()),
                ("tls", {"kubernetes.io/metadata.name": "ingress-nginx"}, STRANGER, {("router", HTTP), ("router", GRPC)}),
                ("tls", OWN_NAMESPACE, STRANGER, set()),
                ("monitoring", {"kubernetes.io/metadata.name": "monitoring"}, {"app.kubernetes.io/name": "prometheus"},
                 {(name, METRICS) for name in labels}),
                ("monitoring", {"kubernetes.io/metadata.name": "monitoring"}, STRANGER, set())):
            with self.subTest(case=case, namespace=namespace):
                flows = Flows(render(case))
                self.assertEqual({(name, port) for name in labels for port in PORTS
                                  if flows.connects(pod, labels[name], port, namespace)}, expected)

    def test_ports_of_the_policies_are_those_of_the_configurations(self):
        for name, text in configs(render("default")).items():
            config = chart.yaml.safe_load(text)
            self.assertEqual(config["service"]["listen"], f"0.0.0.0:{GRPC}")
            self.assertEqual(config["service"]["metrics_listen"], f"0.0.0.0:{METRICS}")
            self.assertEqual(config["service"]["admin_listen"], f"127.0.0.1:{ADMIN}")
            self.assertEqual(config.get("http_listen"), f"0.0.0.0:{HTTP}" if name == "router" else None)
        for name in ("prefill", "decode"):
            container = chart.containers(render("default"))[name]
            first, last = re.fullmatch(r"(\d+)-(\d+)", next(e["value"] for e in container["env"]
                                                            if e["name"] == "UCX_TCP_PORT_RANGE")).groups()
            self.assertIn({"port": int(first), "endPort": int(last)},
                          [p for d in of_kind(render("default"), "NetworkPolicy") for r in d["spec"].get("ingress", ()) for p in r["ports"]])

    def test_secrets_are_only_named(self):
        for case in cases():
            documents = render(case)
            self.assertEqual(of_kind(documents, "Secret"), [])
            with_secret = {name: [v["secret"] for v in pod["spec"]["volumes"] if "secret" in v]
                           for name, pod in pods(documents).items()}
            with_secret = {name: secrets for name, secrets in with_secret.items() if secrets}
            if case == "mtls":
                self.assertEqual(len(with_secret), 5)
                continue
            # Workers see no keys of tenants, only what routers prove themselves with; the cache-manager their hashes and shares.
            ends = {name.rpartition("-")[2]: secrets for name, secrets in with_secret.items()}
            self.assertEqual(set(ends), {"router", "test", "prefill", "decode", "manager"})
            tenants = os.path.basename(chart.yaml.safe_load(chart.configs(documents)["router"])["tenants_file"])
            for name, entry in (("test", "test-key"), ("prefill", "claim-key"), ("decode", "claim-key"),
                                ("manager", tenants)):
                self.assertEqual([secret["items"] for secret in ends[name]], [[{"key": entry, "path": entry}]])


if __name__ == "__main__":
    chart.main()

"""The chart renders, in the form that Kubernetes takes, and refuses what is wrong by name."""
import json
import pathlib
import re
import tempfile
import unittest

import chart
import jsonschema
import kubernetes_validate
from chart import cases, of_kind, render

# The oldest version that the chart allows, and the newest that the validator knows.
OLDEST = "1.30"
NEEDS = {"model-image": "1.33"}

TEXT = {"type": "string", "minLength": 1}


def closed(properties, **more):
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": list(properties), **more}


# Kinds of other projects: what the chart uses of them, after their published definitions.
FOREIGN = {
    "Certificate": ("cert-manager.io/v1", closed({
        "secretName": TEXT, "dnsNames": {"type": "array", "items": TEXT, "minItems": 1},
        "uris": {"type": "array", "items": TEXT, "minItems": 1},
        "usages": {"type": "array", "items": {"enum": ["server auth", "client auth"]}},
        "privateKey": closed({"rotationPolicy": {"enum": ["Always", "Never"]}}),
        "issuerRef": closed({"group": TEXT, "kind": {"enum": ["Issuer", "ClusterIssuer"]}, "name": TEXT})},
        required=["secretName", "issuerRef"], anyOf=[{"required": ["dnsNames"]}, {"required": ["uris", "usages"]}])),
    "ServiceMonitor": ("monitoring.coreos.com/v1", closed({
        "selector": closed({"matchLabels": {"type": "object", "additionalProperties": TEXT}}),
        "endpoints": {"type": "array", "items": closed({
            "port": TEXT, "interval": TEXT, "relabelings": {"type": "array", "items": closed(
                {"sourceLabels": {"type": "array", "items": TEXT}, "separator": TEXT, "regex": TEXT, "replacement": TEXT, "targetLabel": TEXT},
                required=["sourceLabels", "targetLabel"])}})}})),
    "PrometheusRule": ("monitoring.coreos.com/v1", closed({
        "groups": {"type": "array", "minItems": 1, "items": closed(
            {"name": TEXT, "rules": {"type": "array", "minItems": 1}, "interval": TEXT}, required=["name", "rules"])}})),
}


class ChartTest(unittest.TestCase):
    def refusal(self, case, *arguments):
        result = chart.helm("template", "sluice", str(chart.CHART), *chart.flags(case), *arguments)
        self.assertNotEqual(result.returncode, 0, arguments)
        return result.stderr

    def test_lint(self):
        for case in [None, *cases()]:
            with self.subTest(case=case):
                result = chart.helm("lint", "--strict", str(chart.CHART), *(chart.flags(case) if case else ()))
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_manifests_are_what_kubernetes_takes(self):
        for case in cases():
            oldest = NEEDS.get(case, OLDEST)
            for document in render(case):
                with self.subTest(case=case, kind=document["kind"], name=document["metadata"]["name"]):
                    if document["kind"] in FOREIGN:
                        version, schema = FOREIGN[document["kind"]]
                        self.assertEqual(document["apiVersion"], version)
                        jsonschema.validate(document["spec"], schema)
                    else:
                        for version in (oldest, kubernetes_validate.latest_version()):
                            kubernetes_validate.validate(document, version, strict=True)

    def test_names_are_used_once(self):
        for case in cases():
            names = [(document["kind"], document["metadata"]["name"]) for document in render(case)]
            self.assertEqual(len(names), len(set(names)), case)

    def test_unknown_names_are_refused_by_name(self):
        for path, where, name in (
                ("replica", "", "replica"), ("router.replica", "/router", "replica"),
                ("decode.config.engine.kv_formatt", "/decode/config/engine", "kv_formatt"),
                ("router.config.service.listen", "/router/config", "service"),
                ("model.volume.claim", "/model/volume", "claim"), ("networkPolicy.client", "/networkPolicy", "client"),
                ("monitoring.rules.enable", "/monitoring/rules", "enable"),
                ("prefill.pod.nodeselector", "/prefill/pod", "nodeselector"),
                ("prefill.resources.limit.cpu", "/prefill/resources", "limit"),
                ("router.resources.requests.memroy", "/router/resources/requests", "memroy"),
                ("pod.extraEnv[0].valueFrom.secretRef", "/pod/extraEnv/0/valueFrom", "secretRef"),
                ("networkPolicy.clients[0].podSelector.matchExpressions[0].operater",
                 "/networkPolicy/clients/0/podSelector/matchExpressions/0", "operater")):
            with self.subTest(path=path):
                message = self.refusal("default", "--set", f"{path}=1")
                self.assertIn(f"at '{where}': additional properties '{name}' not allowed", message)

    def test_wrong_types_and_values_are_refused_by_name(self):
        for assignment, path in (("decode.replicas=many", "/decode/replicas"), ("insecurePlaintext=si", "/insecurePlaintext"),
                                 ("split=sometimes", "/split"), ("prefill.cpus=0", "/prefill/cpus"),
                                 ("prefill.config.engine.page_tokens=17", "/prefill/config/engine/page_tokens"),
                                 ("router.config.queue_max=0", "/router/config/queue_max"),
                                 ("drainSeconds=4000", "/drainSeconds"), ("model.path=model.gguf", "/model/path"),
                                 ("transport.backends={ucx-shm}", "/transport/backends/0"), ("auth.key=a/b", "/auth/key"),
                                 ("fullnameOverride=a.b", "/fullnameOverride"), ("runAsUser=0", "/runAsUser"), ("nameOverride=1a", "/nameOverride"),
                                 ("router.resources.requests.cpu=half", "/router/resources/requests/cpu")):
            with self.subTest(assignment=assignment):
                self.assertIn(f"at '{path}'", self.refusal("default", "--set", assignment))

    def test_values_that_do_not_fit_together_are_refused(self):
        refusals = (
            ("default", ["insecurePlaintext=false"], "insecurePlaintext is false"),
            ("mtls", ["insecurePlaintext=true"], "set one of them"),
            ("default", ["transport.backends={tls}"], "set tls.secretPrefix"),
            ("default", ["auth.existingSecret="], "auth.existingSecret is missing"),
            ("default", ["model.path=/models/a"], "exactly one of model.volume"),
            ("model-image", ["model.volume.hostPath=/a"], "exactly one of model.volume"),
            ("model-image", ["model.path=toy"], "model.volume is set"),
            ("rdma", ["rdma.resourceName="], "set rdma.resourceName"),
            ("default", ["rdma.resourceName=rdma/hca"], "does not name ucx-rdma"),
            ("default", ["monitoring.serviceMonitor.enabled=true"], "networkPolicy.monitoring lets nobody"),
            ("cert-manager", ["ingress.tls.secretName="], "set ingress.tls.secretName"),
            ("default", ["image.tag=latest"], 'image.tag is "latest"'),
            ("default", ["tls.issuer.name=ca"], "set tls.secretPrefix too"),
            ("default", ["router.service.externalTrafficPolicy=Local"], "router.service.type is ClusterIP"),
            ("many", ["router.service.type=NodePort"], "router.service.type is NodePort"),
            ("tls", ["ingress.host="], "set ingress.host"),
            ("many", ["decode.config.engine.page_tokens=32"], 'engine.page_tokens is "64" for prefill and "32" for decode'),
            ("default", ["prefill.config.engine.kv_format=bf16"], 'engine.kv_format is "bf16" for prefill and "" for decode'),
            ("many", ["prefill.autoscaling.minReplicas=50"], "prefill.autoscaling: minReplicas 50 is over maxReplicas 40"),
            ("default", ["decode.rollingUpdate.maxUnavailable=0%"], "decode.rollingUpdate: maxSurge and maxUnavailable are both 0"))
        for case, assignments, message in refusals:
            with self.subTest(assignments=assignments):
                self.assertIn(message, self.refusal(case, *(a for s in assignments for a in ("--set", s))))
        self.assertIn("needs Kubernetes 1.33", self.refusal("model-image", "--kube-version", "1.32"))
        self.assertIn("incompatible", self.refusal("default", "--kube-version", "1.29"))

    def test_the_schema_is_closed_and_knows_every_value(self):
        with open(chart.CHART / "values.schema.json") as file:
            schema = json.load(file)

        # Handed to Kubernetes as they are, which checks them.
        passed_on = {f"pod/properties/affinity/properties/{kind}" for kind in ("nodeAffinity", "podAffinity", "podAntiAffinity")}
        # Helm adds it where the chart is a part of another one.
        passed_on |= {"/properties/global"}

        def check(node, path):
            if node.get("type") == "object" and path.removeprefix("/definitions/") not in passed_on:
                self.assertIn("additionalProperties", node, path)
                self.assertIsNot(node["additionalProperties"], True, path)
            for key, value in node.items():
                if isinstance(value, dict):
                    check(value, f"{path}/{key}")
        check(schema, "")
        with open(chart.CHART / "values.yaml") as file:
            self.assertEqual(set(chart.yaml.safe_load(file)) | {"global"}, set(schema["properties"]))

    def test_amounts_may_be_fractions(self):
        router = chart.containers(render("default", "--set-json", "router.resources.requests.cpu=0.5"))["router"]
        self.assertEqual(router["resources"]["requests"]["cpu"], 0.5)

    def test_a_part_of_another_chart(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "Chart.yaml").write_text("{apiVersion: v2, name: platform, version: 0.1.0}")
            (folder / "charts").mkdir()
            (folder / "charts/sluice").symlink_to(chart.CHART)
            result = chart.helm("template", "platform", str(folder), "--set", "sluice.insecurePlaintext=true",
                                "--set", "sluice.auth.existingSecret=keys")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_the_notes_warn_when_callers_are_shut_out(self):
        def warns(case, *more):
            result = chart.helm("install", "sluice", str(chart.CHART), *chart.flags(case), "--dry-run=client", *more)
            self.assertEqual(result.returncode, 0, result.stderr)
            return "networkPolicy.clients lets in pods of this namespace only" in result.stdout
        ingress = ("--set", "ingress.enabled=true", "--set", "ingress.host=llm.example.org")
        self.assertTrue(warns("default", *ingress))
        self.assertTrue(warns("default", "--set", "router.service.type=LoadBalancer"))
        self.assertFalse(warns("minimal", *ingress))
        for case in ("cert-manager", "many"):
            self.assertFalse(warns(case), case)

    def test_versions_are_those_of_the_build(self):
        with open(chart.CHART / "Chart.yaml") as file:
            metadata = chart.yaml.safe_load(file)
        project = re.search(r"project\(sluice VERSION ([0-9.]+)", (chart.ROOT / "CMakeLists.txt").read_text())
        self.assertEqual(metadata["appVersion"], project.group(1))

    def test_rules_and_dashboards_are_the_files_of_deploy(self):
        documents = render("monitoring")
        rules = {rule["metadata"]["name"]: rule["spec"] for rule in of_kind(documents, "PrometheusRule")}
        self.assertEqual(rules, {f"sluice-{path.stem.replace('_', '-')}": chart.yaml.safe_load(path.read_text())
                                 for path in (chart.ROOT / "deploy/prometheus/rules").glob("*.yaml")})
        self.assertTrue(rules)
        dashboards = {name: text for document in of_kind(documents, "ConfigMap") for name, text in document["data"].items()
                      if document["metadata"]["labels"].get("grafana_dashboard") == "1"}
        self.assertEqual({name: json.loads(text) for name, text in dashboards.items()},
                         {path.name: json.loads(path.read_text())
                          for path in (chart.ROOT / "deploy/grafana").glob("*.json")})
        self.assertTrue(dashboards)

    def test_runbooks_get_the_address_that_they_are_published_at(self):
        for given in ("https://wiki.example.org/sluice", "https://wiki.example.org/sluice/"):
            rules = of_kind(render("monitoring", "--set", f"monitoring.rules.runbookUrl={given}"), "PrometheusRule")
            addresses = {rule["alert"]: rule["annotations"]["runbook_url"] for document in rules
                         for group in document["spec"]["groups"] for rule in group["rules"] if "alert" in rule}
            self.assertIn("RouterDown", addresses)
            for alert, address in addresses.items():
                self.assertEqual(address, f"https://wiki.example.org/sluice/{alert}.md")
        self.assertIn("at '/monitoring/rules/runbookUrl'", self.refusal("monitoring", "--set", "monitoring.rules.runbookUrl=wiki"))

    def test_cert_manager_is_asked_for_what_the_services_read(self):
        documents = render("mtls", "--set", "tls.issuer.name=ca", "--set", "tls.issuer.kind=ClusterIssuer")
        certificates = {chart.component(document): document["spec"] for document in of_kind(documents, "Certificate")}
        specs = chart.pod_specs(documents)
        self.assertEqual(set(certificates), set(chart.COMPONENTS))
        for name, certificate in certificates.items():
            jsonschema.validate(certificate, FOREIGN["Certificate"][1])
            self.assertEqual(certificate["uris"], [f"sluice://{name}/sluice"])
            self.assertEqual(certificate["usages"], ["server auth", "client auth"])
            self.assertEqual(certificate["issuerRef"]["kind"], "ClusterIssuer")
            self.assertIn(certificate["secretName"], [v["secret"]["secretName"] for v in specs[name]["volumes"] if "secret" in v])

    def test_the_readme_travels_with_the_chart(self):
        shown = chart.helm("show", "readme", str(chart.CHART)).stdout
        self.assertEqual(shown.strip(), (chart.CHART / "README.md").read_text().strip())

    def test_the_values_of_the_readme_give_a_cluster(self):
        text = re.search(r"```yaml\n(.*?)```", (chart.CHART / "README.md").read_text(), re.S).group(1)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(text)
            file.flush()
            result = chart.helm("template", "sluice", str(chart.CHART), "--values", file.name)
        self.assertEqual(result.returncode, 0, result.stderr)
        kinds = {document["kind"] for document in chart.load(result.stdout)}
        self.assertLessEqual({"Certificate", "Ingress", "ServiceMonitor", "PrometheusRule", "NetworkPolicy"}, kinds)

    def test_the_notes_say_who_speaks_tls(self):
        def notes(case, *more):
            result = chart.helm("install", "sluice", str(chart.CHART), *chart.flags(case), "--dry-run=client", *more)
            self.assertEqual(result.returncode, 0, result.stderr)
            return result.stdout.partition("NOTES:")[2]
        ingress = ("--set", "ingress.enabled=true", "--set", "ingress.host=llm.example.org")
        text = notes("mtls")
        self.assertIn("WARNING: clients reach the routers in plaintext", text)
        self.assertNotIn("insecurePlaintext", text)
        text = notes("mtls", *ingress, "--set", "ingress.tls.secretName=llm")
        self.assertIn("From outside: https://llm.example.org/v1", text)
        self.assertIn("clients TLS to the ingress", text)
        self.assertNotIn("clients reach the routers in plaintext", text)
        self.assertIn("From outside: http://llm.example.org/v1", notes("mtls", *ingress))
        self.assertIn("12 to 40 prefill and 24 decode workers serve", notes("many"))

    def test_what_a_change_restarts_is_what_the_readme_says(self):
        everything, workers = set(chart.COMPONENTS), {"prefill", "decode"}

        def templates(*more):
            documents = render("mtls", "--set", "model.path=/models/a", "--set", "model.volume.existingClaim=a", *more)
            deployments = chart.by_component(documents, "Deployment")
            return {name: deployment["spec"]["template"] for name, deployment in deployments.items()}
        before = templates()
        for change, expected in (
                ("decode.replicas=5", set()), ("decode.config.engine.batch_max=5", {"decode"}),
                ("router.config.queue_max=5", {"router"}), ("cacheManager.blocksMax=5000", {"cache-manager"}), ("prefill.pod.labels.a=b", {"prefill"}),
                ("model.volume.existingClaim=b", workers | {"router"}), ("model.path=/models/b", workers),
                ("workers.config.handoff.lease_ms=5000", workers), ("transport.backends={ucx-tcp}", workers),
                ("split=never", {"router", "decode"}), ("image.tag=v2", everything), ("tls.secretPrefix=b", everything),
                ("logging.level=debug", everything), ("drainSeconds=5", everything), ("startSeconds=50", everything),
                ("pod.priorityClassName=a", everything), ("networkPolicy.enabled=false", set()),
                ("monitoring.rules.enabled=true", set()), ("router.service.httpPort=80", set())):
            after = templates("--set", change)
            self.assertEqual({name for name in everything if before[name] != after[name]}, expected, change)

    def test_scraping_gives_the_labels_that_the_rules_stand_on(self):
        """The ServiceMonitor sets what deploy/prometheus sets where there is no Prometheus operator."""
        with open(chart.ROOT / "deploy/prometheus/prometheus-kubernetes.yml") as file:
            relabelings = chart.yaml.safe_load(file)["scrape_configs"][0]["relabel_configs"]
        spelled = {"source_labels": "sourceLabels", "target_label": "targetLabel"}
        labels = [{spelled.get(key, key): value for key, value in r.items()} for r in relabelings if "target_label" in r]
        monitor = of_kind(render("monitoring"), "ServiceMonitor")[0]
        self.assertEqual(monitor["spec"]["endpoints"][0]["relabelings"], labels)


if __name__ == "__main__":
    chart.main()

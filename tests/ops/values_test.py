"""Values that nobody expects: taken away, hostile, at random. Each is refused by name or gives what was meant."""
import json
import os
import random
import re
import subprocess
import tempfile
import unittest

import chart
import kubernetes_validate
import random_values
from chart import by_component, pods
from policy_test import violations

OPTIONAL = {"runAsUser", "maxSurge", "maxUnavailable"}  # null has a meaning: the platform's, Kubernetes' default
FREE = {"labels", "resources"}  # any keys
SERVICE_NAME = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
LABEL_VALUE = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"


def load(name):
    with open(chart.CHART / name) as file:
        return chart.yaml.safe_load(file)


def strings(node):
    """All values of labels, annotations, selectors of a document, which Kubernetes takes as strings only."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("labels", "annotations", "matchLabels", "nodeSelector"):
                yield from ((key, name, text) for name, text in (value or {}).items())
            yield from strings(value)
    elif isinstance(node, list):
        for item in node:
            yield from strings(item)


class ValuesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.schema = load("values.schema.json")

    def render(self, values, release="sluice"):
        """(documents, "") of a release with these values, or (None, the refusal)."""
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            json.dump(values, file, ensure_ascii=False)
            file.flush()
            result = chart.helm("template", release, str(chart.CHART), "--values", file.name)
        if result.returncode == 0:
            return chart.load(result.stdout), ""
        return None, "\n".join(line for line in result.stderr.splitlines() if not line.startswith("level="))

    def resolved(self, node):
        """What is required and which properties there are, through references and allOf."""
        if "$ref" in node:
            node = self.schema["definitions"][node["$ref"].rpartition("/")[2]]
        properties, required = dict(node.get("properties", {})), set(node.get("required", ()))
        for part in map(self.resolved, node.get("allOf", ())):
            for name, child in part[0].items():
                properties[name] = {"allOf": [properties[name], child]} if name in properties else child
            required |= part[1]
        return properties, required

    def test_no_default_can_be_taken_away(self):
        """`pod:` with nothing below it is null, which takes the default out of the values that the templates see."""
        def check(values, node, path):
            properties, required = self.resolved(node)
            self.assertEqual(set(values) - required - OPTIONAL, set(), path)
            for name, value in values.items():
                if isinstance(value, dict) and value and name not in FREE:
                    check(value, properties[name], f"{path}/{name}")
        check(load("values.yaml"), self.schema, "")
        for path, name in (("", "pod"), ("/router", "pod"), ("/pod", "topologySpread"), ("/networkPolicy", "enabled")):
            values = {"insecurePlaintext": True, "auth": {"existingSecret": "sluice-keys"}}
            values |= {path.lstrip("/"): {name: None}} if path else {name: None}
            self.assertIn(f"at '{path}': missing property '{name}'", self.render(values)[1])

    def test_names_that_yaml_takes_for_something_else(self):
        values = {"insecurePlaintext": True, "auth": {"existingSecret": "123", "key": "true"},
                  "cacheSecret": {"existingSecret": "1e3", "key": "1"}, "serviceAccount": {"name": "on"}, "nameOverride": "null", "fullnameOverride": "yes", "runAsUser": 1000650000,
                  "ingress": {"enabled": True, "className": "1", "host": "1.5", "tls": {"secretName": "1", "issuer": {"name": "2"}}},
                  "model": {"path": "/models/a", "volume": {"hostPath": "/srv, type: File}"}},
                  "monitoring": {"serviceMonitor": {"enabled": True}}, "networkPolicy": {"enabled": False}}
        documents, refusal = self.render(values, "true")
        self.assertEqual(refusal, "")
        self.check_documents(documents)
        router = by_component(documents, "Deployment")["router"]
        self.assertEqual(router["spec"]["selector"]["matchLabels"],
                         {"app.kubernetes.io/name": "null", "app.kubernetes.io/instance": "true", "app.kubernetes.io/component": "router"})
        spec = router["spec"]["template"]["spec"]
        volumes = {volume.pop("name"): volume for volume in spec["volumes"]}
        self.assertEqual(volumes["auth"]["secret"], {"secretName": "123", "defaultMode": 0o440})
        config = chart.yaml.safe_load(chart.configs(documents)["router"])
        self.assertEqual(config["tenants_file"], "/etc/sluice/auth/true")
        self.assertEqual(volumes["model"], {"hostPath": {"path": "/srv, type: File}", "type": "Directory"}})
        self.assertEqual((spec["serviceAccountName"], spec["securityContext"]["runAsUser"]), ("on", 1000650000))

    def test_names_of_releases(self):
        values = {"insecurePlaintext": True, "auth": {"existingSecret": "sluice-keys"}}
        for release in ("1a", "a.b"):
            self.assertIn(f'the release is called "{release}"', self.render(values, release)[1])
            self.assertEqual(self.render({**values, "fullnameOverride": "a"}, release)[1], "")
        names = [{(d["kind"], d["metadata"]["name"]) for d in self.render(values, "x" * 52 + last)[0]} for last in "ab"]
        self.assertFalse(names[0] & names[1], "two releases of a namespace that begin alike")

    def test_what_the_chart_writes_itself_is_not_written_twice(self):
        for assignment, message in (
                (r"pod.labels.app\.kubernetes\.io/component=x", "invalid propertyName 'app.kubernetes.io/component'"),
                (r"decode.pod.labels.llm-d\.ai/role=x", "invalid propertyName 'llm-d.ai/role'"),
                (r"pod.annotations.sluice/config-sha256=x", "invalid propertyName 'sluice/config-sha256'"),
                ("pod.extraEnv[0].name=POD_NAME", "POD_NAME is set twice"),
                ("cacheManager.pod.extraEnv[0].name=A,cacheManager.pod.extraEnv[1].name=A", "A is set twice for cacheManager"),
                ("router.service.grpcPort=8080", "httpPort and grpcPort are both 8080"),
                ("pod.topologySpread.keys={a,a}", "items at 0 and 1 are equal"),
                ("networkPolicy.clients[0].ipBlock.cidr=10.0.0.0/8,networkPolicy.clients[0].podSelector.matchLabels.a=b",
                 "at '/networkPolicy/clients/0': maxProperties")):
            with self.subTest(assignment=assignment):
                result = chart.helm("template", "sluice", str(chart.CHART), *chart.flags("default"), "--set", assignment)
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(message, result.stderr)

    def check_documents(self, documents):
        """Kubernetes would take them, and no value got out of its place."""
        names = [(document["kind"], document["metadata"]["name"]) for document in documents]
        self.assertEqual(len(names), len(set(names)))
        for document in documents:
            self.assertIsInstance(document["metadata"]["name"], str)
            if document["kind"] == "Service":
                self.assertRegex(document["metadata"]["name"], f"^{SERVICE_NAME}$")
            for kind, name, text in strings(document):
                self.assertIsInstance(text, str, f"{kind} {name}")
                self.assertTrue(kind == "annotations" or re.fullmatch(LABEL_VALUE, text), f"{kind} {name}={text}")
            if document["apiVersion"].split("/")[0] not in ("cert-manager.io", "monitoring.coreos.com"):
                kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
        allowed = {"volume hostPath", "volume image"}
        for name, pod in pods(documents).items():
            as_root = {"not non-root", "user 0", "adds IPC_LOCK"} if name.endswith(("prefill", "decode")) else set()
            self.assertLessEqual(violations(pod["spec"]), allowed | as_root, name)

    def check_configurations(self, documents):
        for name, text in chart.configs(documents).items():
            with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                file.write(text)
                file.flush()
                result = subprocess.run([os.path.join(chart.ARGS.bin, f"sluice-{name}"), f"--config={file.name}", "--check-config"],
                                        capture_output=True, text=True, timeout=60)
            self.assertEqual(result.returncode, 0, f"{name}: {result.stderr}\n{text}")

    def test_values_at_random(self):
        taken = 0
        for seed in range(chart.ARGS.renders):
            values = random_values.values(self.schema, random.Random(seed))
            with self.subTest(seed=seed, values=values):
                documents, refusal = self.render(values)
                if refusal:
                    # By the schema or by _validate.tpl, never by a template that fell over.
                    self.assertRegex(refusal, "don't meet the specifications of the schema|^Error: execution error at ")
                    continue
                taken += 1
                self.check_documents(documents)
                self.check_configurations(documents)
        self.assertGreater(taken, chart.ARGS.renders / 3)


if __name__ == "__main__":
    chart.main()

"""What deploy/ says about monitoring, without a cluster: syntax, alerts in both states, runbooks, the dashboard's form."""
import json
import pathlib
import re
import subprocess
import tempfile
import unittest

import promql
import yaml

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
PROMETHEUS, RUNBOOKS = DEPLOY / "prometheus", DEPLOY / "runbooks"
DASHBOARD = json.loads((DEPLOY / "grafana/sluice.json").read_text())


def load(path):
    return yaml.safe_load(path.read_text())


def rules(kind):
    """All rules that are alerts, or records."""
    return [rule for path in sorted((PROMETHEUS / "rules").glob("*.yaml")) for group in load(path)["groups"]
            for rule in group["rules"] if kind in rule]


def panels():
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def runbook_queries(path):
    """The lines of its promql blocks."""
    blocks = re.findall(r"```promql\n(.*?)```", path.read_text(), re.S)
    return [line for block in blocks for line in block.splitlines() if line]


def promtool(*arguments, cwd=PROMETHEUS):
    result = subprocess.run(["promtool", *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=300)
    if result.returncode != 0:
        raise AssertionError(f"promtool {' '.join(map(str, arguments))}:\n{result.stdout}{result.stderr}")
    return result.stdout


class RulesTest(unittest.TestCase):
    def test_promtool_accepts_rules_and_configuration(self):
        promtool("check", "rules", *sorted(PROMETHEUS.glob("rules/*.yaml")))
        promtool("check", "config", "--syntax-only", "prometheus.yml")

    def test_alerts_fire_when_they_should_and_only_then(self):
        tests = sorted(PROMETHEUS.glob("tests/*.yaml"))
        promtool("test", "rules", *tests)
        seen = {}
        for path in tests:
            for test in load(path)["tests"]:
                for check in test.get("alert_rule_test", []):
                    for alert in check["exp_alerts"] or [None]:
                        labels = alert["exp_labels"] if alert else {}
                        state = (labels.get("severity"), labels.get("lacks")) if alert else "quiet"
                        seen.setdefault(check["alertname"], set()).add(state)
        for rule in rules("alert"):
            labels = rule["labels"]
            self.assertIn((labels["severity"], labels.get("lacks")), seen[rule["alert"]], f"{rule['alert']} is never shown firing")
            self.assertIn("quiet", seen[rule["alert"]], f"{rule['alert']} is never shown quiet")

    def test_alerts_say_what_to_do(self):
        named = set()
        for rule in rules("alert"):
            self.assertIn(rule["labels"]["severity"], ("page", "ticket"))
            self.assertEqual(set(rule["annotations"]), {"summary", "description", "runbook_url"})
            self.assertEqual(rule["annotations"]["runbook_url"], f"deploy/runbooks/{rule['alert']}.md")
            named.add(rule["alert"] + ".md")
        self.assertEqual(named | {"README.md"}, {path.name for path in RUNBOOKS.iterdir()})

    def test_runbooks_have_all_parts(self):
        for path in sorted(RUNBOOKS.glob("[A-Z]*.md")):
            if path.name == "README.md":
                continue
            text = path.read_text()
            parts = re.findall(r"^(?:# (.*)|\*\*(.*?)\.\*\*)", text, re.M)
            self.assertEqual([a or b for a, b in parts], [path.stem, "Symptom", "Meaning", "First look", "Do", "Do not"], path.name)
            self.assertTrue(runbook_queries(path), path.name)
            for linked in re.findall(r"(\w+\.md)", text):
                self.assertTrue((RUNBOOKS / linked).exists(), f"{path.name} names {linked}")

    def test_runbooks_name_what_exists(self):
        """Settings, states, reasons, metrics and lines of the log are found in what is shipped, word for word."""
        patterns = ("proto/**/*.proto", "common/**/*.h", "common/**/*.cc", "services/**/*.h", "services/**/*.cc",
                    "deploy/prometheus/rules/alerts.yaml", "helm/sluice/values.yaml")
        shipped = "".join(path.read_text() for pattern in patterns for path in sorted(DEPLOY.parent.glob(pattern))
                          if not path.stem.endswith("_test"))
        words = set(re.findall(r"\w+", shipped))
        for path in sorted(RUNBOOKS.glob("[A-Z]*.md")):
            if path.name == "README.md":
                continue
            text = path.read_text()
            searched = [part for pattern in re.findall(r"grep '([^']+)'|grep -E '([^']+)'", text) for part in "".join(pattern).split("|")]
            named = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S))
            for piece in searched + [piece for piece in named if not piece.startswith(("kubectl ", "/"))]:
                with self.subTest(path.name, piece=piece):
                    plain = re.fullmatch(r"(?:[\w.]+\.)?(\w+)", piece)
                    self.assertTrue(plain.group(1) in words if plain else all(part in shipped for part in piece.split(": ")))

    def test_pods_get_the_labels_that_rules_stand_on(self):
        """Debian's Prometheus is built without Kubernetes, so its discovery is played by a file of the labels it would give."""
        config = load(PROMETHEUS / "prometheus-kubernetes.yml")
        job = config["scrape_configs"][0]
        del job["kubernetes_sd_configs"]
        job["file_sd_configs"] = [{"files": ["pods.json"]}]
        meta = {"__meta_kubernetes_pod_label_app_kubernetes_io_component": "decode", "__meta_kubernetes_namespace": "llm",
                "__meta_kubernetes_pod_label_app_kubernetes_io_name": "sluice",
                "__meta_kubernetes_pod_label_app_kubernetes_io_instance": "blue", "__meta_kubernetes_pod_name": "blue-decode-x7",
                "__meta_kubernetes_pod_phase": "Running", "__meta_kubernetes_pod_container_port_name": "metrics"}
        pods = [{"targets": ["10.0.0.1:8082"], "labels": meta},
                {"targets": ["10.0.0.1:8081"], "labels": {**meta, "__meta_kubernetes_pod_container_port_name": "grpc"}},
                {"targets": ["10.0.0.2:8082"], "labels": {**meta, "__meta_kubernetes_pod_phase": "Succeeded"}},
                # The same chart twice in one release, under another name.
                {"targets": ["10.0.0.3:8082"], "labels": {**meta, "__meta_kubernetes_pod_label_app_kubernetes_io_name": "second"}}]
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "pods.json").write_text(json.dumps(pods))
            (pathlib.Path(folder) / "prometheus.yml").write_text(yaml.safe_dump({**config, "rule_files": []}))
            promtool("check", "config", "prometheus.yml", cwd=folder)
            found = json.loads(promtool("check", "service-discovery", "prometheus.yml", "sluice", "--timeout=2s", cwd=folder))
        kept = sorted((target["labels"] for target in found if target.get("labels")), key=lambda labels: labels["__address__"])
        self.assertEqual([labels["sluice_cluster"] for labels in kept], ["llm/blue", "llm/blue/second"])
        self.assertEqual({name: kept[0][name] for name in ("sluice_cluster", "role", "instance", "job", "__address__")},
                         {"sluice_cluster": "llm/blue", "role": "decode", "instance": "blue-decode-x7", "job": "sluice",
                          "__address__": "10.0.0.1:8082"})


class DashboardTest(unittest.TestCase):
    def test_every_panel_explains_itself(self):
        for panel in panels():
            with self.subTest(panel["title"]):
                self.assertGreater(len(panel["description"]), 10)
                self.assertIn("unit", panel["fieldConfig"]["defaults"])
                self.assertEqual(panel["datasource"]["uid"], "${datasource}")
                self.assertTrue(all(target["legendFormat"] and target["expr"] for target in panel["targets"]))
                for runbook in re.findall(r"[Rr]unbooks?:? ([A-Z][^.]+)\.", panel["description"]):
                    for name in runbook.split(", "):
                        self.assertTrue((RUNBOOKS / f"{name}.md").exists(), name)

    def test_panels_have_their_own_place_and_number(self):
        ids = [panel["id"] for panel in DASHBOARD["panels"]]
        self.assertEqual(len(ids), len(set(ids)))
        taken = set()
        for panel in DASHBOARD["panels"]:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            self.assertTrue(at["x"] + at["w"] <= 24 and not cells & taken, panel["title"])
            taken |= cells

    def test_processes_of_two_clusters_are_told_apart(self):
        """Names of processes are unique in their cluster only. What pages somebody names the cluster."""
        queries = [target["expr"] for panel in panels() for target in panel["targets"]] + [rule["expr"] for rule in rules("record")]
        for query in queries:
            for labels, _ in promql.parse(query)[1]:
                self.assertTrue("instance" not in labels or "sluice_cluster" in labels, query)
        for query in (rule["expr"] for rule in rules("alert")):
            self.assertTrue(all("sluice_cluster" in labels for labels, _ in promql.parse(query)[1]), query)

    def test_variables_are_defined_and_used(self):
        defined = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
        used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"]))) - {"__rate_interval"}
        self.assertEqual(defined, used)
        for panel in panels():
            for target in panel["targets"]:
                for selector in promql.parse(target["expr"])[0]:
                    objective = selector.metric.endswith(":objective")
                    self.assertEqual("sluice_cluster" in selector.labels, not objective, f"{panel['title']}: {selector.text}")


if __name__ == "__main__":
    unittest.main(verbosity=2)

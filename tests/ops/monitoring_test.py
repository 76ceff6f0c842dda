"""A real cluster under load, scraped by Prometheus: every query that operators are given finds what it asks for."""
import math
import pathlib
import re
import subprocess
import tempfile
import unittest

import promql
import rules_test
from scenario import KEYS, RATE_INTERVAL, ROOT, Scenario, draw, harness

SECONDS = 30
METRICS_README = ROOT / "common/telemetry/README.md"


def documented():
    """{(role, metric): (type, labels, help)} of the table in common/telemetry/README.md."""
    rows = re.findall(r"^\| `(sluice_\w+)` \| (\w+) \| (.*?) \| (.*?) \| (.*) \|$", METRICS_README.read_text(), re.M)
    roles = {"all": ("router", "prefill", "decode", "cache_manager"), "workers": ("prefill", "decode"), "router": ("router",),
             "manager": ("cache_manager",)}
    table = {}
    for name, kind, labels, where, text in rows:
        for role in (role for part in where.split(", ") for role in roles[part]):
            table[role, name] = (kind, frozenset(re.findall(r"`(\w+)`", labels)), text)
    return table


def exported(texts):
    """The same of what processes serve: {role: text of /metrics}."""
    table = {}
    for role, text in texts.items():
        for name, meaning, kind in re.findall(r"^# HELP (\w+) (.*)\n# TYPE \1 (\w+)", text, re.M):
            lines = re.findall(rf"^{name}(?:_bucket|_sum|_count)?(?:{{(.*)}})? [-+0-9.eInfNa]+$", text, re.M)
            labels = {label for line in lines for label in re.findall(r'(\w+)="', line)} - {"le"}
            if lines:
                table[role, name] = (kind, frozenset(labels), meaning)
    return table


class LiveTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scenario = cls.enterClassContext(Scenario())
        cls.scenario.run(SECONDS)
        cls.prometheus = cls.scenario.prometheus

    def instant(self, query):
        return self.prometheus.get("query", query=query, time=self.scenario.ended)["result"]

    def over_the_run(self, query):
        """Series of the whole run with at least one number."""
        return draw.query_range(self.prometheus.url, query, self.scenario.started, self.scenario.ended, 1)

    def check_query(self, query, filtered):
        """A number came out of the query, unless it `filtered` all away as alerts do; and each of its labels is real."""
        selectors, groupings = promql.parse(query)
        if not filtered:
            self.assertTrue(self.over_the_run(query), f"no data: {query}")
        for selector in selectors:
            self.assertTrue(self.over_the_run(selector.text), f"no data: {selector.text}")
            series = [set(labels) for labels, _ in self.over_the_run(selector.metric)]
            for label in selector.labels:
                self.assertTrue(any(label in labels for labels in series), f"{selector.metric} has no label {label}: {query}")
        for labels, covered in groupings:
            for selector in covered:
                series = [set(found) for found, _ in self.over_the_run(selector.text)]
                for label in labels:
                    self.assertTrue(any(label in found for found in series), f"{selector.text} has no label {label}: {query}")

    def test_the_load_was_served(self):
        report = self.scenario.report
        self.assertEqual(report["failed"], 0, report.get("errors"))
        self.assertEqual(len(report["tenants"]), len(KEYS))

    def test_every_dashboard_query_has_data(self):
        for panel in rules_test.panels():
            for target in panel["targets"]:
                with self.subTest(panel["title"], target=target["refId"]):
                    self.check_query(draw.expand(target["expr"], draw.variables_of(RATE_INTERVAL)), filtered=False)

    def test_dashboard_variables_and_annotations_have_data(self):
        for variable in rules_test.DASHBOARD["templating"]["list"]:
            for query in re.findall(r"label_values\((.*), (\w+)\)", variable.get("definition", "")):
                selector = draw.expand(query[0], draw.variables_of(RATE_INTERVAL))
                self.assertTrue(all(query[1] in labels for labels, _ in self.over_the_run(selector)), variable["name"])
        for annotation in rules_test.DASHBOARD["annotations"]["list"]:
            self.check_query(draw.expand(annotation["expr"], draw.variables_of(RATE_INTERVAL)), filtered=True)

    def test_every_recording_rule_has_data(self):
        for rule in rules_test.rules("record"):
            with self.subTest(rule["record"]):
                self.check_query(rule["expr"], filtered=False)
                self.assertTrue(self.over_the_run(rule["record"]))

    def test_every_selector_of_every_alert_has_data(self):
        for rule in rules_test.rules("alert"):
            with self.subTest(rule["alert"], **rule["labels"]):
                self.check_query(rule["expr"], filtered=True)

    def test_every_runbook_query_has_data(self):
        for path in sorted(rules_test.RUNBOOKS.glob("[A-Z]*.md")):
            for query in rules_test.runbook_queries(path):
                with self.subTest(path.name, query=query):
                    self.check_query(query, filtered=False)

    def test_rules_evaluate_without_errors(self):
        rules = [rule for group in self.prometheus.get("rules")["groups"] for rule in group["rules"]]
        self.assertEqual(len(rules), len(rules_test.rules("alert")) + len(rules_test.rules("record")))
        self.assertEqual([(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"], [])

    def test_a_dead_worker_shows(self):
        self.assertEqual(len(self.instant('up{role="decode"} == 0')), 1)
        moved = self.instant("sum(sluice_migrations_total) + sum(sluice_retries_total)")
        self.assertGreater(float(moved[0]["value"][1]), 0)
        usable = self.instant('sluice_router_workers{worker_role="decode",state="usable"}')
        self.assertEqual(usable[0]["value"][1], "1")

    def test_the_phases_add_up_to_the_time_to_first_token(self):
        whole = float(self.instant("sum(sluice_ttft_seconds_sum)")[0]["value"][1])
        phases = float(self.instant("sum(sluice_ttft_phase_seconds_sum)")[0]["value"][1])
        self.assertTrue(math.isclose(whole, phases, rel_tol=1e-6), f"{whole} s, phases {phases} s")

    def test_the_page_of_every_service_is_well_formed(self):
        for role, text in self.scenario.metrics().items():
            result = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
            self.assertEqual((result.returncode, result.stdout + result.stderr), (0, ""), role)

    def test_the_list_of_metrics_is_what_is_exported(self):
        listed, found = documented(), exported(self.scenario.metrics())
        self.assertEqual({key: found[key] for key in found.keys() - listed.keys()}, {}, "exported and not in the list")
        self.assertEqual({key: listed[key] for key in listed.keys() - found.keys()}, {}, "in the list and not exported")
        self.assertEqual({key: (listed[key], found[key]) for key in listed if listed[key] != found[key]}, {}, "listed otherwise")

    def test_series_are_there_before_the_first_event(self):
        """Only workers and the cache-manager do not know their tenants yet."""
        late = set(exported(self.scenario.metrics())) - set(exported(self.scenario.metrics_at_start))
        self.assertEqual({name for role, name in late if role != "prefill"} | {name for _, name in late},
                         {"sluice_kv_evictions_total", "sluice_tenant_kv_bytes", "sluice_tenant_kv_own_bytes",
                          "sluice_tenant_kv_limit_bytes", "sluice_ledger_kv_bytes"})
        self.assertNotIn("router", {role for role, _ in late})

    def test_the_dashboard_can_be_drawn(self):
        with tempfile.TemporaryDirectory() as folder:
            picture = pathlib.Path(folder) / "sluice.png"
            self.scenario.draw(picture)
            data = picture.read_bytes()
        self.assertTrue(data.startswith(b"\x89PNG"))
        self.assertLess(len(data), 300_000)


if __name__ == "__main__":
    harness.main()

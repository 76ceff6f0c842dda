"""What the chart gives the binaries is what they read: their own --check-config, and the schema against config.proto."""
import json
import os
import re
import subprocess
import tempfile
import unittest

import chart
from chart import cases, configs, render

# Where an operator's part of each configuration message stands in values.schema.json, and the settings that the chart writes itself.
MESSAGES = {
    "EngineConfig": ("engineConfig", {"threads", "kv_pool_mib"}),
    "HandoffConfig": ("handoffConfig", set()),
    "WorkerConfig": ("workerConfig", {"service", "model", "transport", "role", "cache_manager", "claim_key_file"}),
    "RouterConfig": ("routerConfig", {"service", "http_listen", "cache_manager", "workers", "tokenizer", "split",
                                      "cache_secret_file", "no_auth", "tenants_file", "claim_key_file", "client_tls",
                                      "insecure_clients_anywhere"}),
    "CacheManagerConfig": ("cacheManagerConfig", {"service", "blocks_max", "tenants_file"}),
}
# Values of the chart's own names for settings, whose ranges must be the same.
OWN = {"drainSeconds": ("ServiceConfig", "drain_s"), "logging/level": ("ServiceConfig", "log_level"),
       "split": ("RouterConfig", "split"), "cacheManager/blocksMax": ("CacheManagerConfig", "blocks_max")}
OWN_OF_WORKERS = {"cpus": ("EngineConfig", "threads"), "kvPoolMib": ("EngineConfig", "kv_pool_mib")}


def rules():
    """{(message, field): (min, max, choices)} of the table in common/config."""
    # A long string may be cut between two lines, as C++ allows.
    text = re.sub(r'"\s*\n\s*"', "", (chart.ROOT / "common/config/config.cc").read_text())
    text = re.sub(r"\s*\n\s*", " ", text)
    found = {}
    for message, field, rest in re.findall(r'\{"(\w+)", "(\w+)"((?:, (?:"[^"]*"|\d+))*)\}', text):
        values = re.findall(r'"[^"]*"|\d+', rest)
        _, low, high, choices = values + ['""', "0", "0", '""'][len(values):]
        found[message, field] = (int(low), int(high), [c for c in choices.strip('"').split("|") if c])
    return found


def fields():
    """{message: names of its fields} of config.proto."""
    text = (chart.ROOT / "proto/sluice/v1/config.proto").read_text()
    return {name: set(re.findall(r"^  [^/\n]*\b(\w+) = \d+;", body, re.M))
            for name, body in re.findall(r"^message (\w+) \{\n(.*?)^\}", text, re.M | re.S)}


class ConfigTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(chart.CHART / "values.schema.json") as file:
            cls.schema = json.load(file)

    def check_rule(self, node, rule, where):
        low, high, choices = rule
        if choices:
            self.assertEqual(node.get("enum"), choices, where)
        elif high:
            self.assertEqual((node.get("minimum"), node.get("maximum")), (low, high), where)

    def test_the_schema_knows_every_setting_with_its_range(self):
        table, messages = rules(), fields()
        for message, (definition, own) in MESSAGES.items():
            properties = self.schema["definitions"][definition]["properties"]
            self.assertEqual(set(properties), messages[message] - own,
                             f"{message}: a setting belongs into definitions/{definition} of helm/sluice/values.schema.json, or, if "
                             "the chart writes it itself, into MESSAGES of this test")
            self.assertLessEqual(own, messages[message])
            for field, node in properties.items():
                if "$ref" not in node:
                    self.check_rule(node, table[message, field], f"{message}.{field}")
        for name, rule in OWN.items():
            node = self.schema
            for key in name.split("/"):
                node = node["properties"][key]
            self.check_rule(node, table[rule], name)
        for name, rule in OWN_OF_WORKERS.items():
            self.check_rule(self.schema["definitions"]["worker"]["properties"][name], table[rule], name)

    def test_certificates_are_mounted_where_the_binaries_read_them(self):
        documents = render("mtls")
        for name, text in configs(documents).items():
            files = chart.yaml.safe_load(text)["service"]["tls"]
            self.assertEqual(set(files), fields()["TlsConfig"])
            spec = chart.pod_specs(documents)[name]
            folder = next(m["mountPath"] for m in spec["containers"][0]["volumeMounts"] if m["name"] == "tls")
            secret = next(v["secret"] for v in spec["volumes"] if v["name"] == "tls")
            self.assertEqual(secret["secretName"], f"sluice-tls-{name}")
            self.assertEqual({f"{folder}/{item['path']}" for item in secret["items"]}, set(files.values()))
        for case in cases():
            for name, text in configs(render(case)).items():
                config = chart.yaml.safe_load(text)
                plaintext = {key for part in (config, config["service"]) for key in part if key.startswith("insecure")}
                allowed = {"insecure_metrics_anywhere"} | ({"insecure_clients_anywhere"} if name == "router" else set())
                self.assertEqual(plaintext, allowed if case == "mtls" else {"insecure_listen_anywhere"}, f"{case}: {name}")

    def test_the_binaries_accept_every_configuration(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "config.yaml")
            for case in cases():
                documents = render(case)
                containers = chart.containers(documents)
                for name, text in configs(documents).items():
                    with self.subTest(case=case, component=name), open(path, "w") as file:
                        file.write(text)
                        file.flush()
                        container = containers[name]
                        self.assertEqual(container["command"], [f"sluice-{name}"])
                        arguments = [a.replace("/etc/sluice/config/config.yaml", path).replace("$(POD_NAME)", "sluice-x-5d")
                                     .replace("$(POD_IP)", "10.1.2.3") for a in container["args"]]
                        result = subprocess.run([os.path.join(chart.ARGS.bin, f"sluice-{name}"), *arguments, "--check-config"],
                                                capture_output=True, text=True, timeout=60)
                        self.assertEqual(result.returncode, 0, result.stderr)

    def test_the_binaries_would_refuse_a_wrong_configuration(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(configs(render("default"))["decode"].replace("kv_pool_mib", "kv_pool_mb"))
            file.flush()
            result = subprocess.run([os.path.join(chart.ARGS.bin, "sluice-decode"), f"--config={file.name}", "--check-config"],
                                    capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 2)
        self.assertIn("kv_pool_mib", result.stderr)

    def test_one_value_gives_configuration_and_resources(self):
        for case in cases():
            documents = render(case)
            for name in ("prefill", "decode"):
                with self.subTest(case=case, component=name):
                    engine = chart.yaml.safe_load(configs(documents)[name])["engine"]
                    container = chart.containers(documents)[name]
                    for amounts in container["resources"].values():
                        self.assertEqual(amounts["cpu"], str(engine["threads"]))
                        self.assertGreater(int(amounts["memory"].removesuffix("Mi")), engine["kv_pool_mib"])

            config = chart.yaml.safe_load(configs(documents)["cache-manager"])
            container = chart.containers(documents)["cache-manager"]
            self.assertGreater(int(container["resources"]["limits"]["memory"].removesuffix("Mi")) << 20, 160 * config["blocks_max"])

    def test_roles_follow_the_split(self):
        for case, role in (("default", "both"), ("many", "decode"), ("model-image", "both")):
            self.assertEqual(chart.yaml.safe_load(configs(render(case))["decode"])["role"], role)

    def test_settings_of_one_role_win_over_those_of_both(self):
        more = ("--set", "workers.config.engine.batch_max=8", "--set", "decode.config.engine.batch_max=16")
        texts = configs(render("default", *more))
        batches = {name: chart.yaml.safe_load(texts[name])["engine"]["batch_max"] for name in ("prefill", "decode")}
        self.assertEqual(batches, {"prefill": 8, "decode": 16})


if __name__ == "__main__":
    chart.main()

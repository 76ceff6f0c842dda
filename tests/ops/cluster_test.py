"""A cluster on loopback from what the chart renders, called as README.md and NOTES.txt say."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

import chart
from host import Host
from offline import Offline

sys.path.append(str(chart.ROOT / "tests" / "e2e"))
from harness import read_metrics, wait_until  # noqa: E402
from services import PEPPER, tenants_file  # noqa: E402


def commands(text, heading):
    """The first fenced block after a heading of a README."""
    return re.search(rf"^## {heading}$.*?^```\n(.*?)^```", text, re.M | re.S).group(1)


class RunningCluster(unittest.TestCase):
    """One pod of each workload, as processes; every class has a cluster of its own."""

    @classmethod
    def start(cls, documents, secret):
        cls.host = Host(cls.folder.name, documents, secret)
        cls.addClassCleanup(cls.stop)
        for name in ("cache-manager", "prefill", "decode", "router"):
            cls.host.start(name)
        for name, process in cls.host.running.items():
            wait_until(lambda: process.is_ready() or process.popen.poll() is not None, f"{name} is ready", 60)
            if process.popen.poll() is not None:
                raise AssertionError(f"{name} ended:\n{cls.host.log(name)}")

    @classmethod
    def stop(cls):
        codes = cls.host.stop()
        if any(codes.values()):
            raise AssertionError(f"exit codes after SIGTERM: {codes}")

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)

    def ask(self, key, content, **fields):
        url = f"http://127.0.0.1:{self.host.ports['router']['http']}/v1/chat/completions"
        body = json.dumps({"messages": [{"role": "user", "content": content}], **fields}).encode()
        request = urllib.request.Request(url, body, {"authorization": f"Bearer {key}", "content-type": "application/json"})
        return json.loads(urllib.request.urlopen(request, timeout=60).read())


def keys(key):
    """Entries of the secret with the tenants file, for one tenant with this key."""
    return {name: text.encode() for name, text in {"tenants.yaml": tenants_file({key: "team"}), "pepper": PEPPER,
                                                   "claim-key": "c" * 32, "test-key": key}.items()}


class SplitTest(RunningCluster):
    """Every prompt is computed by the prefill worker."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.start(chart.render("minimal", "--set", "split=always"), lambda name: keys("secret-key"))

    def test_pages_travel_over_the_ports_that_the_policies_name(self):
        metrics = f"http://127.0.0.1:{self.host.ports['decode']['metrics']}"
        received = 'sluice_kv_transfer_bytes_total{side="receive",transport="ucx-tcp"}'
        before = read_metrics(metrics).get(received, 0)
        self.ask("secret-key", "hello " * 20, max_tokens=4, ignore_eos=True)
        wait_until(lambda: read_metrics(metrics).get(received, 0) > before, "the transfer is counted")
        for name in ("prefill", "decode"):
            ports = self.host.running[name].listens_on() - set(self.host.ports[name].values())
            self.assertTrue(ports and ports <= set(range(8090, 8098)), f"{name} listens on {ports}")


class CertifiedTest(RunningCluster):
    """mTLS between the services, with the certificates of `sluice certs` as secrets."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        certificates = pathlib.Path(cls.folder.name) / "certificates"
        subprocess.run([f"{chart.ARGS.bin}/sluice", "certs", "--out", certificates], check=True, capture_output=True)

        def secret(name):
            if name == "sluice-keys":
                return keys("secret-key")
            return {file.name: file.read_bytes() for file in (certificates / name.removeprefix("sluice-tls-")).iterdir()}
        cls.start(chart.render("mtls"), secret)

    def test_pages_travel_over_tls(self):
        self.ask("secret-key", "hello " * 20, max_tokens=4, ignore_eos=True)
        metrics = read_metrics(f"http://127.0.0.1:{self.host.ports['decode']['metrics']}")
        self.assertGreater(metrics['sluice_kv_transfer_bytes_total{side="receive",transport="tls"}'], 0)
        for name in ("prefill", "decode"):
            self.assertEqual(self.host.running[name].listens_on(),
                             {self.host.ports[name][port] for port in ("grpc", "metrics", "admin", "pages")})

    def test_a_caller_without_a_certificate_is_refused(self):
        for name in ("prefill", "decode", "cache-manager"):
            self.assertFalse(self.host.running[name].grpc_health("readiness"), name)


class InstalledTest(RunningCluster):
    """What the README's commands install."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.offline = Offline(cls.folder.name, chart.tools())
        cls.readme = (chart.CHART / "README.md").read_text()
        cls.shell(commands(cls.readme, "Install"))
        cls.documents, cls.notes = cls.offline.release()
        cls.start(cls.documents, cls.offline.secret)

    @classmethod
    def shell(cls, text):
        """Output of commands as an operator types them, in the repository's root."""
        environment = {"PATH": f"{cls.offline.path}:{chart.ARGS.bin}:/usr/bin:/bin", "HOME": cls.folder.name}
        result = subprocess.run(["bash", "-euc", text], capture_output=True, text=True, cwd=chart.ROOT, env=environment, timeout=120)
        if result.returncode != 0:
            raise AssertionError(f"{text}\nexited with {result.returncode}: {result.stdout}{result.stderr}")
        return result.stdout

    def api_key(self):
        return self.offline.secret("sluice-keys")["test-key"].decode().strip()

    def test_every_probe_succeeds(self):
        for name, process in self.host.running.items():
            container = self.host.pods[name]["containers"][0]
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                service = container[probe]["grpc"]["service"]
                wait_until(lambda: process.grpc_health(service), f"{name}: {service}")
            self.assertFalse(process.grpc_health("no-such-concern"))

    def test_the_call_of_the_notes_is_answered(self):
        lines = re.search(r"^  kubectl .*?(?=\n\n)", self.notes, re.M | re.S).group(0)
        self.assertIn("127.0.0.1:8080/", lines)
        answer = json.loads(self.shell(lines.replace("127.0.0.1:8080/", f"127.0.0.1:{self.host.ports['router']['http']}/")))
        self.assertIn(answer["choices"][0]["finish_reason"], ("stop", "length"))
        self.assertIn(answer["usage"]["completion_tokens"], range(1, 17))

    def test_the_notes_warn_of_what_is_unsafe(self):
        self.assertIn("plaintext", self.notes)
        self.assertIn("toy model", self.notes)
        self.assertNotIn("cacheSecret", self.notes)

    def test_the_commands_after_the_installation(self):
        self.shell(commands(self.readme, "Check and call"))
        self.assertTrue((self.offline.state / "test-asked").exists())

    def test_the_pod_of_helm_test(self):
        result = self.host.run_test_pod()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr.decode(), r"completion_tokens=[1-8] ")

    def test_the_pod_of_helm_test_can_fail(self):
        secret = self.host.secret
        self.host.secret = lambda name: keys("wrong-key")
        try:
            spec = chart.of_kind(self.documents, "Pod")[0]["spec"]
            self.host.mount("stranger", spec)
            arguments, environment = self.host.command("stranger", spec)
            result = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=60)
        finally:
            self.host.secret = secret
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("credentials", result.stderr)

    def test_only_the_keys_of_the_secret_are_let_in(self):
        self.assertEqual(self.ask(self.api_key(), "hello", max_tokens=2, ignore_eos=True)["usage"]["completion_tokens"], 2)
        with self.assertRaises(urllib.error.HTTPError) as error:
            self.ask("another", "hello", max_tokens=2)
        self.assertEqual(error.exception.code, 401)
        error.exception.close()


if __name__ == "__main__":
    chart.main()

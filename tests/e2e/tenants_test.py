"""Who may call and how much, end to end: keys, limits, namespaces, changes of the tenants file, claims between the services."""
import json
import os
import stat
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import grpc
import harness
import openai
from harness import Cluster, run_sluice
from services import Services

LIMITS = "limits: {{requests_per_min: 6, request_burst: {burst}, tokens_per_min: 100000, concurrency: 4}}"


class TenantsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.file = os.path.join(cls.folder, "tenants.yaml")
        cls.keys = {tenant: cls.sluice("add", tenant) for tenant in ("acme", "zeta", "eta")}
        cls.cluster = cls.enterClassContext(Cluster("--tenants", cls.file, "--decode", "1"))
        cls.url = cls.cluster.endpoints["http"]

    @classmethod
    def sluice(cls, what, *arguments):
        return run_sluice("tenants", what, "--file", cls.file, *arguments).stdout.strip()

    def client(self, tenant=None, key=None, **options):
        return openai.OpenAI(base_url=self.url + "/v1", api_key=key or self.keys[tenant], max_retries=0, timeout=60, **options)

    def ask(self, tenant, prompt="x" * 128, **more):
        options = {"model": "toy", "prompt": prompt, "max_tokens": 4, "temperature": 0, **more}
        return self.client(tenant).completions.with_raw_response.create(**options)

    def cached(self, tenant, prompt, **more):
        return self.ask(tenant, prompt, **more).parse().usage.prompt_tokens_details.cached_tokens

    def metadata(self, key):
        return (("authorization", f"Bearer {key}"),)

    def grpc_status(self, **options):
        try:
            self.cluster.client.call("ListModels", self.cluster.client.message("ListModelsRequest"), **options)
            return grpc.StatusCode.OK
        except grpc.RpcError as error:
            return error.code()

    def edit(self, change):
        with open(self.file) as file:
            text = change(file.read())
        with open(self.file + ".new", "w") as file:
            file.write(text)
        os.rename(self.file + ".new", self.file)

    def router(self, metric, *parts):
        return self.cluster.metric_sum("router", metric, *parts)

    def test_every_way_in_asks_for_a_key(self):
        for path in ("/v1/models", "/v1/models/toy", "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
            for headers in ({}, {"authorization": "Bearer wrong"}, {"x-sluice-tenant": "acme"}):
                body = None if "models" in path else b"{}"
                with self.assertRaises(urllib.error.HTTPError) as caught:
                    urllib.request.urlopen(urllib.request.Request(self.url + path, body, {"content-type": "application/json",
                                                                                         **headers}), timeout=10)
                self.assertEqual(caught.exception.code, 401, path)
                self.assertEqual(json.load(caught.exception)["error"]["code"], "invalid_api_key")
        self.assertEqual(urllib.request.urlopen(self.url + "/health", timeout=10).status, 200)
        for method in self.cluster.client.service.methods:
            kind = self.cluster.client.channel.unary_unary(f"/sluice.v1.Inference/{method.name}")
            for metadata in ((), self.metadata("wrong"), (("x-sluice-tenant", "acme"),)):
                with self.assertRaises(grpc.RpcError) as caught:
                    kind(b"", timeout=10, metadata=metadata)
                self.assertEqual(caught.exception.code(), grpc.StatusCode.UNAUTHENTICATED, method.name)
        with self.assertRaises(openai.AuthenticationError):
            self.client(key="sk-wrong").models.list()
        self.assertGreater(self.router("sluice_auth_failures_total", 'reason="key"'), 0)
        self.assertGreater(self.router("sluice_auth_failures_total", 'reason="missing"'), 0)

    def test_known_keys_are_served_by_both_apis(self):
        self.assertEqual(self.client("acme").models.list().data[0].id, "toy")
        self.assertEqual(self.grpc_status(metadata=self.metadata(self.keys["acme"])), grpc.StatusCode.OK)
        before = self.router("sluice_requests_total", 'tenant="acme"', 'outcome="ok"')
        self.ask("acme")
        self.assertEqual(self.router("sluice_requests_total", 'tenant="acme"', 'outcome="ok"'), before + 1)

    def test_no_tenant_finds_what_another_has_cached(self):
        prompt = "a prompt of acme's " * 20
        self.assertEqual(self.cached("acme", prompt), 0)
        self.assertGreater(self.cached("acme", prompt), 256)
        self.assertEqual(self.cached("zeta", prompt), 0)
        self.assertEqual(self.cached("acme", prompt, extra_body={"cache_salt": "mine"}), 0)

    def test_a_group_shares_and_a_rate_limits_as_soon_as_the_file_says_so(self):
        prompt = "a prompt of a group " * 20
        self.assertEqual(self.cached("zeta", prompt), 0)
        self.edit(lambda text: text.replace("id: eta", "id: eta\n    sharing_group: both\n    " + LIMITS.format(burst=3))
                  .replace("id: zeta", "id: zeta\n    sharing_group: both"))
        harness.wait_until(lambda: "x-ratelimit-limit-requests" in self.ask("eta", "short").headers, "the file is in force")
        self.assertEqual(self.cached("zeta", prompt), 0)
        head = self.ask("eta", prompt)
        self.assertGreater(head.parse().usage.prompt_tokens_details.cached_tokens, 256)
        self.assertEqual(head.headers["x-ratelimit-limit-requests"], "3")
        self.assertEqual(head.headers["x-ratelimit-limit-tokens"], "100000")
        self.assertLess(int(head.headers["x-ratelimit-remaining-tokens"]), 100000)
        with self.assertRaises(openai.RateLimitError) as caught:
            for _ in range(4):
                self.ask("eta", "short")
        headers = caught.exception.response.headers
        self.assertEqual(caught.exception.code, "rate_limit_exceeded")
        self.assertEqual(headers["x-ratelimit-remaining-requests"], "0")
        self.assertEqual(headers["x-should-retry"], "true")
        self.assertIn(int(headers["retry-after"]), range(1, 11))
        self.check_rate_limit_of_grpc()
        # The other tenant of the group has its own rate.
        self.ask("zeta", "short")

    def check_rate_limit_of_grpc(self):
        client = self.cluster.client
        request = client.message("GenerateRequest", text="short", max_tokens=2)
        with self.assertRaises(grpc.RpcError) as caught:
            for _ in range(4):
                list(client.call("Generate", request, metadata=self.metadata(self.keys["eta"])))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        details = dict(caught.exception.trailing_metadata())["grpc-status-details-bin"]
        for part in (b"RATE_LIMITED", b"google.rpc.RetryInfo"):
            self.assertIn(part, details)

    def test_a_revoked_key_is_refused_and_a_bad_file_changes_nothing(self):
        key = self.sluice("add-key", "acme")
        new = self.metadata(key)
        harness.wait_until(lambda: self.grpc_status(metadata=new) == grpc.StatusCode.OK, "the new key is known")
        failures = self.router("sluice_tenants_reload_failures_total")
        good = []
        self.edit(lambda text: good.append(text) or text.replace("id: zeta", "id: Zeta"))
        harness.wait_until(lambda: self.router("sluice_tenants_reload_failures_total") > failures, "the bad file was seen")
        self.assertEqual(self.router("sluice_degraded", 'dependency="tenants_file"'), 1)
        self.assertEqual(self.grpc_status(metadata=new), grpc.StatusCode.OK)
        self.assertEqual(self.client("zeta").models.list().data[0].id, "toy")
        first = next(tenant["keys"][0] for tenant in json.loads(self.list_of(good[0]))["tenants"] if tenant["id"] == "acme")
        self.edit(lambda _: "".join(line for line in self.split_keys(good[0]) if not line.strip(" ,-[").startswith(first)))
        harness.wait_until(lambda: self.grpc_status(metadata=new) == grpc.StatusCode.UNAUTHENTICATED, "the key is revoked")
        self.assertEqual(self.router("sluice_degraded", 'dependency="tenants_file"'), 0)
        self.assertEqual(self.grpc_status(metadata=self.metadata(self.keys["acme"])), grpc.StatusCode.OK)

    def list_of(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(text)
            file.flush()
            return run_sluice("tenants", "list", "--json", "--file", file.name).stdout

    def split_keys(self, text):
        """Every hash on a line of its own."""
        return text.replace(", ", ",\n      ").replace("key_hashes: [", "key_hashes: [\n      ").splitlines(keepends=True)

    def test_what_is_written_down_is_no_key(self):
        with open(self.file) as file:
            text = file.read()
        for key in self.keys.values():
            self.assertNotIn(key, text)
        self.assertEqual(stat.S_IMODE(os.stat(os.path.join(self.folder, "pepper")).st_mode), 0o600)
        logs = self.cluster.endpoints["folder"]
        for name in os.listdir(logs):
            with open(os.path.join(logs, name), errors="replace") as file:
                log = file.read()
            for key in self.keys.values():
                self.assertNotIn(key, log, name)

    def test_usage_is_recorded_once_for_each_request(self):
        def recorded():
            records = os.path.join(self.cluster.endpoints["folder"], "router-0.usage")
            tenants = json.loads(run_sluice("tenants", "usage", "--json", records).stdout)["tenants"]
            return next((tenant for tenant in tenants if tenant["id"] == "zeta"), dict.fromkeys(before, 0))
        before = {"requests": 0, "prompt_tokens": 0, "cached_tokens": 0, "output_tokens": 0}
        before = {key: recorded()[key] for key in before}
        told = [self.ask("zeta", "usage " * 50, n=n).parse().usage for n in (1, 2)]
        expected = {"requests": 2, "prompt_tokens": sum(usage.prompt_tokens for usage in told),
                    "cached_tokens": sum(usage.prompt_tokens_details.cached_tokens for usage in told),
                    "output_tokens": sum(usage.completion_tokens for usage in told)}
        harness.wait_until(lambda: {key: recorded()[key] - before[key] for key in before} == expected, "both are recorded")

    def test_workers_believe_only_routers(self):
        address = self.worker_address()
        call = grpc.insecure_channel(address).unary_unary("/sluice.v1.Prefill/Admit")
        # AdmitRequest{request_id "r", attempt 1, prompt_tokens 8, tenant "acme"}, without a claim
        message = b"\x0a\x01r\x10\x01\x18\x08\x22\x04acme"
        with self.assertRaises(grpc.RpcError) as caught:
            call(message, timeout=10)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.PERMISSION_DENIED)
        self.assertIn("no claim of a router", caught.exception.details())
        self.assertGreater(self.cluster.metric_sum("prefill", "sluice_rpc_refusals_total", 'reason="claim"'), 0)

    def worker_address(self):
        with open(os.path.join(self.cluster.endpoints["folder"], "prefill-0.ready.json")) as file:
            return json.load(file)["grpc"]


class TwoRoutersTest(unittest.TestCase):
    """A limit is one for all ways in: routers, keys, choices and prompts of a batch."""

    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.file = os.path.join(cls.folder, "tenants.yaml")
        limits = {"rate": "requests_per_min: 60, request_burst: 6", "tokens": "tokens_per_min: 600, token_burst: 400",
                  "places": "concurrency: 3"}
        cls.keys = {}
        for tenant, limit in limits.items():
            cls.keys[tenant] = [run_sluice("tenants", what, "--file", cls.file, tenant).stdout.strip() for what in ("add", "add-key")]
            with open(cls.file) as file:
                text = file.read()
            with open(cls.file, "w") as file:
                file.write(text.replace(f"id: {tenant}\n", f"id: {tenant}\n    limits: {{{limit}}}\n"))
        cls.cluster = cls.enterClassContext(Cluster("--tenants", cls.file, "--decode", "1", "--routers", "2"))
        cls.urls = [router["http"] for router in cls.cluster.endpoints["routers"]]

    def ask(self, tenant, way, prompt="x", **more):
        """By one of the four pairs of router and key."""
        client = openai.OpenAI(base_url=self.urls[way % 2] + "/v1", api_key=self.keys[tenant][way // 2 % 2], max_retries=0, timeout=60)
        return client.completions.create(model="toy", prompt=prompt, **{"max_tokens": 1, "temperature": 0, **more})

    def admitted(self, tenant, way, **more):
        try:
            self.ask(tenant, way, **more)
            return True
        except openai.RateLimitError as error:
            self.assertEqual(error.code, "rate_limit_exceeded")
            self.assertGreater(int(error.response.headers["retry-after"]), 0)
            return False

    def test_two_routers_and_two_keys_have_one_rate(self):
        started = time.monotonic()
        for way in range(6):
            self.assertTrue(self.admitted("rate", way), "the burst is there at whichever router")
        count = 6
        while time.monotonic() < started + 4:
            count += sum(self.admitted("rate", way) for way in range(4))
        passed = time.monotonic() - started
        self.assertLessEqual(count, 6 + passed)
        self.assertGreaterEqual(count, 6 + passed - 2)

    def test_choices_prompts_and_cancelled_answers_cost_what_they_are(self):
        # Who leaves after the first token has had the prompt computed.
        stream = self.ask("tokens", 0, prompt=list(range(1, 101)), max_tokens=5, stream=True)
        next(iter(stream))
        stream.close()
        self.assertIn(self.remaining("tokens"), range(290, 340))
        # 40 tokens of prompt, 4 choices of 20: 120 tokens; 3 prompts with an answer of 10: 150.
        self.assertTrue(self.admitted("tokens", 0, prompt=list(range(1, 41)), n=4, max_tokens=20, extra_body={"ignore_eos": True}))
        self.assertTrue(self.admitted("tokens", 1, prompt=[[i] * 40 for i in range(1, 4)], max_tokens=10, extra_body={"ignore_eos": True}))
        self.assertFalse(self.admitted("tokens", 2, prompt=list(range(1, 201)), max_tokens=60))

    def remaining(self, tenant):
        """Tokens left, as told with the smallest request there is."""
        for way in (0, 1):
            client = openai.OpenAI(base_url=self.urls[way] + "/v1", api_key=self.keys[tenant][0], max_retries=0, timeout=60)
            try:
                reply = client.completions.with_raw_response.create(model="toy", prompt=[1], max_tokens=1)
                return int(reply.headers["x-ratelimit-remaining-tokens"])
            except openai.RateLimitError:
                pass
        return 0

    def test_places_are_counted_over_both_routers(self):
        streams = [self.ask("places", way, max_tokens=4000, stream=True, extra_body={"ignore_eos": True}) for way in range(3)]
        for stream in streams:
            next(iter(stream))
        self.assertFalse(self.admitted("places", 0))
        self.assertFalse(self.admitted("places", 3))
        for stream in streams:
            stream.close()
        harness.wait_until(lambda: self.admitted("places", 1), "places come back")


class ClientCertificatesTest(unittest.TestCase):
    def test_a_certificate_makes_a_client_of_grpc_its_tenant(self):
        with Services() as services:
            folder = services.folder.name
            certs = os.path.join(folder, "certs")
            run_sluice("certs", "--out", certs)
            with open(os.path.join(folder, "tenants.yaml"), "w") as file:
                file.write("tenants: [{id: acme, mtls_names: ['sluice://operator/trial']}]\n")
            with open(os.path.join(folder, "claim-key"), "w") as file:
                file.write("c" * 32)
            router = services.start("sluice-router", "workers=[127.0.0.1:1]", "http_listen=127.0.0.1:0",
                                    f"tenants_file={folder}/tenants.yaml", f"claim_key_file={folder}/claim-key",
                                    f"client_tls.cert_file={certs}/router/tls.crt", f"client_tls.key_file={certs}/router/tls.key",
                                    f"client_tls.ca_file={certs}/router/ca.crt")
            self.assertEqual(self.status(router["grpc"], certs, "operator"), grpc.StatusCode.OK)
            self.assertEqual(self.status(router["grpc"], certs, "prefill"), grpc.StatusCode.UNAUTHENTICATED)
            self.assertEqual(self.status(router["grpc"], certs, None), grpc.StatusCode.UNAUTHENTICATED)

    def status(self, address, certs, role):
        def read(name):
            with open(os.path.join(certs, name), "rb") as file:
                return file.read()
        own = (read(f"{role}/tls.key"), read(f"{role}/tls.crt")) if role else ()
        with grpc.secure_channel(address, grpc.ssl_channel_credentials(read("ca.crt"), *own)) as channel:
            try:
                channel.unary_unary("/sluice.v1.Inference/ListModels")(b"", timeout=10)
                return grpc.StatusCode.OK
            except grpc.RpcError as error:
                return error.code()


if __name__ == "__main__":
    harness.main()

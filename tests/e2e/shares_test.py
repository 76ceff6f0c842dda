"""Tenants' shares of the cache, end to end: a flood against a quiet tenant, with shares and without; the manager's ledger."""
import os
import subprocess
import unittest

import harness
from services import PEPPER, ClientOf, Services, tenants_file, wait_for_model, write_private

QUIET_TOKENS = 1600
FLOOD_TOKENS = 4000
FLOORS = {"quiet": "{kv: {device: {floor: 25%}}}", "flood": "{kv: {device: {floor: 25%, cap: 80%}}}"}


class SharesTest(unittest.TestCase):
    def start(self, shares=True):
        self.services = self.enterContext(Services())
        self.file = os.path.join(self.services.folder.name, "tenants.yaml")
        write_private(os.path.join(self.services.folder.name, "pepper"), PEPPER)
        claims = os.path.join(self.services.folder.name, "claims")
        write_private(claims, "c" * 32)
        write_private(self.file, self.tenants(FLOORS))
        self.manager_settings = [f"tenants_file={self.file}"] if shares else []
        self.manager = self.services.start("sluice-cache-manager", *self.manager_settings)
        common = (f"cache_manager={self.manager['grpc']}", "model.path=toy", "engine.kv_pool_mib=4", "engine.threads=1",
                  f"claim_key_file={claims}")
        self.workers = [self.services.start(f"sluice-{role}", *common) for role in ("prefill", "decode")]
        router = self.services.start("sluice-router", f"cache_manager={self.manager['grpc']}", "split=always",
                                     "http_listen=127.0.0.1:0", f"tenants_file={self.file}", f"claim_key_file={claims}")
        self.client = harness.Client(router["grpc"])
        self.addCleanup(self.client.close)
        wait_for_model(ClientOf(self.client, "quiet"))
        self.prompts = 0

    @staticmethod
    def tenants(limits):
        return tenants_file({f"key-of-{tenant}": tenant for tenant in limits}, limits)

    def ask(self, tenant, tokens):
        """Cached tokens, as the usage says."""
        metadata = (("authorization", f"Bearer key-of-{tenant}"),)
        return self.client.complete(tokens=tokens, max_tokens=2, metadata=metadata).usage.cached_tokens

    def ask_anew(self, tenant, tokens):
        self.prompts += 1
        return self.ask(tenant, [self.prompts % 250, self.prompts // 250] + [7] * (tokens - 2))

    def metric(self, processes, prefix, *parts):
        return sum(v for p in processes for k, v in harness.read_metrics(p["metrics"]).items()
                   if k.startswith(prefix) and all(part in k for part in parts))

    def held(self, tenant):
        return self.metric(self.workers, "sluice_tenant_kv_bytes", f'tenant="{tenant}"')

    def flood(self):
        """Three times what a pool holds."""
        room = harness.read_metrics(self.workers[0]["metrics"])["sluice_kv_capacity_tokens"]
        for _ in range(int(3 * room / FLOOD_TOKENS) + 1):
            self.ask_anew("flood", FLOOD_TOKENS)

    def wait_for_budgets(self):
        for worker in self.workers:
            harness.wait_until(lambda w=worker: self.metric([w], "sluice_tenant_kv_own_bytes", 'tenant="quiet"') > 0,
                               "the workers have budgets")

    def test_a_flood_leaves_a_quiet_tenants_cache_alone(self):
        self.start()
        quiet = list(range(100)) * (QUIET_TOKENS // 100)
        self.ask("quiet", quiet)
        self.wait_for_budgets()
        cached = self.ask("quiet", quiet)
        self.assertGreater(cached, QUIET_TOKENS - 64)
        self.flood()
        self.assertEqual(self.ask("quiet", quiet), cached)
        for tenant in FLOORS:
            self.assertEqual(self.metric(self.workers, "sluice_kv_evictions_total", 'cause="foreign"', f'tenant="{tenant}"'), 0)
        self.assertGreater(self.metric(self.workers, "sluice_kv_evictions_total", 'cause="own"', 'tenant="flood"'), 0)
        self.check_ledger()

        # Nobody's request fails while there is no manager, and the budgets hold on.
        killed = self.services.running[0]
        killed.kill()
        self.services.take_dead()
        self.flood()
        self.assertEqual(self.ask("quiet", quiet), cached)
        # Its successor begins with nothing and knows it all again.
        self.manager = self.services.start("sluice-cache-manager", *self.manager_settings, listen=self.manager["grpc"])
        self.check_ledger()
        self.assertEqual(self.ask("quiet", quiet), cached)
        self.assertEqual(self.metric(self.workers, "sluice_kv_evictions_total", 'cause="foreign"'), 0)

    def check_ledger(self):
        for tenant in FLOORS:
            harness.wait_until(lambda t=tenant: self.metric([self.manager], "sluice_ledger_kv_bytes", f'tenant="{t}"') ==
                               self.held(t) > 0, f"the manager knows what {tenant} holds", seconds=10)

    def test_without_shares_the_flood_evicts_everybody(self):
        self.start(shares=False)
        quiet = list(range(100)) * (QUIET_TOKENS // 100)
        self.ask("quiet", quiet)
        self.assertGreater(self.ask("quiet", quiet), QUIET_TOKENS - 64)
        self.flood()
        self.assertEqual(self.ask("quiet", quiet), 0)
        self.assertGreater(self.metric(self.workers, "sluice_kv_evictions_total", 'cause="foreign"', 'tenant="quiet"'), 0)

    def test_a_bad_file_is_refused_by_name_and_the_old_one_stays(self):
        self.start()
        bad = self.tenants({t: "{kv: {device: {floor: 60%}}}" for t in FLOORS})
        write_private(self.file, bad)
        harness.wait_until(lambda: self.metric([self.manager], "sluice_tenants_reload_failures_total") > 0, "it was read")
        quiet = list(range(100)) * (QUIET_TOKENS // 100)
        self.ask("quiet", quiet)
        self.wait_for_budgets()
        refused = subprocess.run([os.path.join(harness.ARGS.bin, "sluice-cache-manager"), "--set", f"tenants_file={self.file}",
                                  "--set", "service.listen=127.0.0.1:0", "--set", "service.metrics_listen=127.0.0.1:0",
                                  "--set", "service.admin_listen=127.0.0.1:0"], capture_output=True, text=True, timeout=30)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("tenants[1].limits.kv.device.floor", refused.stderr)


if __name__ == "__main__":
    harness.main()

"""What a flooding tenant does to a quiet one: the quiet tenant alone, beside the flood, and beside it with tenancy off.

    build/release/venv/bin/python tests/bench/tenant_flood.py --bin build/release/bin --model FILE.gguf

Two prefill and two decode workers, a router and a cache-manager, each with the same share of the cores in every run (control
groups: needs the right to make them). The quiet tenant holds sessions of a few turns; the flood asks for one token of long prompts,
as many at a time as are let in. Prints one JSON object a run; a measurement, not a test.
"""
import argparse
import contextlib
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import harness
from services import PEPPER, ClientOf, Services, tenants_file, wait_for_model

# Of one core; the rest is for the clients.
CPU_SHARES = {"sluice-prefill": 0.45, "sluice-decode": 0.2, "sluice-router": 0.2}
PERIOD_US = 10_000
LIMITS = "limits: {kv: {device: {floor: 25%}}}"
GROUPS = "/sys/fs/cgroup"


class Quotas:
    """Control groups that give each process its share of a core."""

    def __init__(self):
        old = os.path.join(GROUPS, "cpu")
        self.is_v1 = os.path.isdir(old)
        self.parent = old if self.is_v1 else GROUPS
        self.folders = []

    def __enter__(self):
        return self

    def limit(self, pid, cores):
        folder = os.path.join(self.parent, f"sluice-flood-{os.getpid()}-{pid}")
        os.mkdir(folder)
        self.folders.append(folder)
        quota_us = int(cores * PERIOD_US)
        settings = ({"cpu.cfs_period_us": PERIOD_US, "cpu.cfs_quota_us": quota_us} if self.is_v1 else
                    {"cpu.max": f"{quota_us} {PERIOD_US}"})
        for name, value in {**settings, "cgroup.procs": pid}.items():
            with open(os.path.join(folder, name), "w") as file:
                file.write(str(value))

    def __exit__(self, *_):
        for folder in self.folders:
            harness.wait_until(lambda f=folder: self._remove(f), f"{folder} is empty")

    @staticmethod
    def _remove(folder):
        try:
            os.rmdir(folder)
            return True
        except OSError:
            return False


class Run:
    """A cluster of its own, so that nothing is cached from another run."""

    def __init__(self, stack, tenancy):
        quotas = stack.enter_context(Quotas())
        self.services = stack.enter_context(Services())
        folder = self.services.folder.name
        who = ["no_auth=true"]
        claims = shares = []
        if tenancy:
            file = os.path.join(folder, "tenants.yaml")
            text = tenants_file({"key-of-quiet": "quiet", "key-of-flood": "flood"})
            for tenant in ("quiet", "flood"):
                text = text.replace(f"{{id: {tenant},", f"{{id: {tenant}, {LIMITS},")
            self.write(os.path.join(folder, "pepper"), PEPPER)
            self.write(os.path.join(folder, "claims"), "c" * 32)
            self.write(file, text)
            shares = [f"tenants_file={file}"]
            claims = [f"claim_key_file={os.path.join(folder, 'claims')}"]
            who = shares + claims

        def start(binary, *settings):
            ready = self.services.start(binary, *settings)
            if binary in CPU_SHARES:
                quotas.limit(ready["pid"], CPU_SHARES[binary])
            return ready

        manager = start("sluice-cache-manager", *shares)
        common = (f"cache_manager={manager['grpc']}", f"model.path={harness.ARGS.model}", "engine.threads=1",
                  f"engine.kv_pool_mib={ARGS.kv_pool_mib}", *claims)
        self.workers = [start(f"sluice-{role}", *common) for role in ("prefill", "prefill", "decode", "decode")]
        self.router = start("sluice-router", f"cache_manager={manager['grpc']}", "split=always", "http_listen=127.0.0.1:0", *who)

    @staticmethod
    def write(path, text):
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, 0o600)

    def load(self, tenant, *flags):
        return subprocess.Popen([os.path.join(harness.ARGS.bin, "sluice"), "bench", "serve", "--json", "--url", "grpc://" + self.router["grpc"],
                                 "--api-key", f"key-of-{tenant}", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def metric(self, prefix, *parts):
        return sum(v for worker in self.workers for k, v in harness.read_metrics(worker["metrics"]).items()
                   if k.startswith(prefix) and all(part in k for part in parts))

    def evictions(self):
        return self.metric("sluice_kv_evictions_total", 'cause="foreign"')


def measure(tenancy, flood):
    with contextlib.ExitStack() as stack:
        run = Run(stack, tenancy)
        client = harness.Client(run.router["grpc"])
        wait_for_model(ClientOf(client, "quiet"))
        client.close()
        rival = None
        if flood:
            rival = run.load("flood", "--num-requests", "1000000", "--input-len", str(ARGS.flood_tokens), "--output-len", "1",
                             "--max-concurrency", "48", "--seed", "7")
            harness.wait_until(lambda: run.metric("sluice_engine_waiting") > 0, "the flood has filled the workers", seconds=60)
        quiet = run.load("quiet", "--dataset", "agent", "--turns", "4", "--input-len", "96", "--prefix-len", "256", "--output-len",
                         "16", "--request-rate", str(ARGS.rate), "--num-requests", str(ARGS.requests), "--seed", "3")
        out, errors = quiet.communicate(timeout=900)
        if rival is not None:
            rival.kill()
            rival.communicate()
        if quiet.returncode != 0:
            raise SystemExit(errors.decode())
        report = json.loads(out)
        return {**report, "foreign_evictions": run.evictions()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--rate", type=float, default=2)
    parser.add_argument("--flood-tokens", type=int, default=2000)
    parser.add_argument("--kv-pool-mib", type=int, default=96)
    ARGS = harness.ARGS = parser.parse_args()
    for name, tenancy, flood in (("alone", True, False), ("flood", True, True), ("flood, tenancy off", False, True)):
        print(json.dumps({"run": name, **measure(tenancy, flood)}), flush=True)

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
from control_group import ControlGroup
from services import PEPPER, ClientOf, Services, tenants_file, wait_for_model, write_private

# Of one core; the rest is for the clients.
CPU_SHARES = {"sluice-prefill": 0.45, "sluice-decode": 0.2, "sluice-router": 0.2}
LIMITS = "{kv: {device: {floor: 25%}}}"


class Run:
    """A cluster of its own, so that nothing is cached from another run."""

    def __init__(self, stack, tenancy):
        groups = stack.enter_context(contextlib.ExitStack())  # ends after the services in them
        self.services = stack.enter_context(Services())
        folder = self.services.folder.name
        who = ["no_auth=true"]
        claims = shares = []
        if tenancy:
            file = os.path.join(folder, "tenants.yaml")
            tenants = ("quiet", "flood")
            write_private(os.path.join(folder, "pepper"), PEPPER)
            write_private(os.path.join(folder, "claims"), "c" * 32)
            write_private(file, tenants_file({f"key-of-{t}": t for t in tenants}, dict.fromkeys(tenants, LIMITS)))
            shares = [f"tenants_file={file}"]
            claims = [f"claim_key_file={os.path.join(folder, 'claims')}"]
            who = shares + claims

        def start(binary, *settings):
            ready = self.services.start(binary, *settings)
            if binary in CPU_SHARES:
                group = groups.enter_context(ControlGroup(f"sluice-flood-{ready['pid']}", "cpu"))
                group.limit_cores(CPU_SHARES[binary])
                group.take_in(ready["pid"])
            return ready

        manager = start("sluice-cache-manager", *shares)
        common = (f"cache_manager={manager['grpc']}", f"model.path={harness.ARGS.model}", "engine.threads=1",
                  f"engine.kv_pool_mib={ARGS.kv_pool_mib}", *claims)
        self.workers = [start(f"sluice-{role}", *common) for role in ("prefill", "prefill", "decode", "decode")]
        self.router = start("sluice-router", f"cache_manager={manager['grpc']}", "split=always", "http_listen=127.0.0.1:0", *who)

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

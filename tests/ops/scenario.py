#!/usr/bin/env python3
"""A small cluster with a day's worth of trouble in a minute, watched by Prometheus: what the tests of this folder look at, and
what the picture in deploy/README.md shows.

    scenario.py --bin FOLDER --model FILE --rate 2 --pool-mib 128 --seconds 240 --out deploy/grafana/sluice.png
"""
import argparse
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "deploy/grafana")]

import draw  # noqa: E402
import harness  # noqa: E402
from services import PEPPER, Admin, Services, tenants_file  # noqa: E402

RATE_INTERVAL = "15s"
KEYS = {"key-of-acme": "acme", "key-of-globex": "globex"}


class Prometheus:
    """deploy/local/monitor on a free port, scraping and evaluating once a second."""

    def __init__(self, endpoints):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            listen = f"127.0.0.1:{probe.getsockname()[1]}"
        self.url = f"http://{listen}"
        self.process = subprocess.Popen([ROOT / "deploy/local/monitor", "--endpoints", endpoints, "--listen", listen,
                                         "--interval", "1s"], stderr=subprocess.DEVNULL)
        harness.wait_until(self.ready, "Prometheus answers")

    def ready(self):
        if self.process.poll() is not None:
            raise AssertionError(f"deploy/local/monitor exited with {self.process.returncode}")
        try:
            return urllib.request.urlopen(f"{self.url}/-/ready", timeout=5).status == 200
        except OSError:
            return False

    def get(self, path, **parameters):
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


class Scenario:
    """Router, cache-manager, a prefill and two decode workers, and Prometheus. The pools are so small that blocks are evicted."""

    def __init__(self, model="toy", rate=12, pool_mib=1):
        self.model, self.rate, self.pool_mib = model, rate, pool_mib
        self.story_tokens = 3000 if model == "toy" else 200  # still running when the client leaves

    def __enter__(self):
        self.services = Services().__enter__()
        self.started = time.time()
        folder = pathlib.Path(self.services.folder.name)
        (folder / "tenants.yaml").write_text(tenants_file(KEYS))
        (folder / "pepper").write_text(PEPPER)
        (folder / "claim-key").write_text("c" * 32)
        self.manager = self.services.start("sluice-cache-manager")
        worker = [f"model.path={self.model}", f"cache_manager={self.manager['grpc']}", "engine.threads=1", "engine.batch_max=16",
                  f"claim_key_file={folder}/claim-key",
                  f"engine.kv_pool_mib={self.pool_mib}"]
        self.prefill = self.services.start("sluice-prefill", "service.name=prefill-0", *worker)
        self.decode = [self.services.start("sluice-decode", f"service.name=decode-{i}", *worker) for i in range(2)]
        self.router = self.services.start("sluice-router", "split=always", f"tenants_file={folder}/tenants.yaml",
                                          f"claim_key_file={folder}/claim-key", f"cache_manager={self.manager['grpc']}", "http_listen=127.0.0.1:0")
        self.endpoints = {"metrics": {"router": [self.router["metrics"]], "cache_manager": self.manager["metrics"],
                                      "prefill": [self.prefill["metrics"]], "decode": [d["metrics"] for d in self.decode]}}
        (folder / "endpoints.json").write_text(json.dumps(self.endpoints))
        self.client = harness.Client(self.router["grpc"])
        self.metadata = (("authorization", f"Bearer {next(iter(KEYS))}"),)
        harness.wait_until(lambda: self.client.call("ListModels", self.client.message("ListModelsRequest"),
                                                    metadata=self.metadata).models, "a model is served")
        self.metrics_at_start = self.metrics()
        self.prometheus = Prometheus(folder / "endpoints.json")
        return self

    def __exit__(self, *exception):
        self.prometheus.stop()
        self.client.close()
        return self.services.__exit__(*exception)

    def metrics(self):
        """The text of /metrics of one living process of each role."""
        living = {"router": self.router, "cache_manager": self.manager, "prefill": self.prefill, "decode": self.decode[0]}
        return {role: urllib.request.urlopen(ready["metrics"] + "/metrics", timeout=10).read().decode()
                for role, ready in living.items()}

    def run(self, seconds):
        """Two tenants' load; in the middle a decode worker dies. Then waits until Prometheus has seen the end."""
        total = int(self.rate * seconds)
        load = subprocess.Popen(
            [os.path.join(harness.ARGS.bin, "sluice"), "bench", "serve", "--json", "--url", f"grpc://{self.router['grpc']}",
             "--api-key", ",".join(KEYS), "--dataset", "agent", "--turns", "6", "--input-len", "48", "--output-len", "48",
             "--prefix-len", "96", "--request-rate", str(self.rate), "--num-requests", str(total)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            for share, event in ((0.25, self.make_mistakes), (0.5, self.kill_a_decode_worker), (0.75, self.make_mistakes)):
                harness.wait_until(lambda: self.requests_ended() >= share * total, f"{share:.0%} of the requests ended", 2 * seconds)
                event()
            self.report = json.loads(load.communicate(timeout=2 * seconds)[0])
        finally:
            load.kill()
            load.wait()
        ended = self.requests_ended()
        harness.wait_until(lambda: [float(series["value"][1]) for series in self.prometheus.get(
            "query", query='sum(sluice_requests_total)')["result"]] == [ended], "Prometheus has scraped the end")
        self.ended = time.time()

    def requests_ended(self):
        return sum(value for name, value in harness.read_metrics(self.router["metrics"]).items()
                   if name.startswith("sluice_requests_total"))

    def make_mistakes(self):
        """A wrong field, an unknown key, a client that leaves, and a request of high priority."""
        for metadata, fields in ((self.metadata, {"choices": 99}), ((("authorization", "Bearer nobody"),), {})):
            request = self.client.message("GenerateRequest", text="x", **fields)
            try:
                list(self.client.call("Generate", request, metadata=metadata))
                raise AssertionError(f"{fields} with {metadata} was accepted")
            except harness.grpc.RpcError:
                pass
        leaving = self.client.message("GenerateRequest", text="a long story", max_tokens=self.story_tokens, ignore_eos=True)
        stream = self.client.call("Generate", leaving, metadata=self.metadata)
        next(iter(stream))
        stream.cancel()
        urgent = self.client.message("GenerateRequest", text="now", max_tokens=8, priority=5)
        list(self.client.call("Generate", urgent, metadata=self.metadata))

    def kill_a_decode_worker(self):
        """In the middle of a token, so that streams have to move."""
        victim = self.decode.pop(0)
        admin = Admin(victim["admin"])
        hits = admin.arm("worker.token", "PAUSE")
        harness.wait_until(lambda: admin.arm("worker.token", "KIND_UNSPECIFIED") > hits, "a stream is stopped at a token")
        # What these wait for here, the stopped stream has had as well: its first token is with the router.
        request = self.client.message("GenerateRequest", text="a long story", max_tokens=self.story_tokens, ignore_eos=True)
        streams = [self.client.call("Generate", request, timeout=300, metadata=self.metadata) for _ in range(4)]
        for stream in streams:
            next(iter(stream))
        process = next(p for p in self.services.running if p.pid == victim["pid"])
        self.services.running.remove(process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for stream in streams:
            list(stream)

    def draw(self, out):
        draw.draw(self.prometheus.url, self.started, self.ended, RATE_INTERVAL, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--model", default="toy")
    parser.add_argument("--rate", type=float, default=12)
    parser.add_argument("--pool-mib", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=240)
    parser.add_argument("--out", required=True)
    arguments = harness.ARGS = parser.parse_args()
    with Scenario(arguments.model, arguments.rate, arguments.pool_mib) as scenario:
        scenario.run(arguments.seconds)
        scenario.draw(arguments.out)


if __name__ == "__main__":
    main()

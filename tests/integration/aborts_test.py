"""Clients that leave in the middle of a hand-off, and workers that stand still, between real processes over real transports.

Streams that nobody disturbs on purpose must not change by a token, and when it is over no page is missing, pinned or quarantined.

    aborts_test.py --bin FOLDER                                  the short form: some dozen aborts over each transport
    aborts_test.py --bin FOLDER --aborts 10000 --pauses 200      the long one; prints its figures
"""
import argparse
import json
import math
import os
import random
import signal
import sys
import tempfile
import threading
import time
import unittest

import grpc
import harness
from services import Services, wait_for_model

LEASE_MS = 3000
STREAMS = 16  # kinds of undisturbed streams
LIVE = 3  # of them at a time
LEAVERS = 4
OPTIONS = argparse.Namespace(aborts=40, pauses=2, pause_s_max=0.5)


class Storm:
    """Live streams, clients that leave and workers that stand still, for as long as the with block lasts."""

    def __init__(self, cluster, seed):
        self.cluster = cluster
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.left = self.finished = self.pauses = self.paused_s = 0
        self.wrong, self.ended_early = [], {}
        self.first_token_s = 0.05  # how long that takes just now: what a leaver can wait

    def __enter__(self):
        self.kinds = [self.kind(i) for i in range(STREAMS)]
        self.expected = [self.cluster.client.complete(**kind).tokens[0] for kind in self.kinds]
        self.threads = [threading.Thread(target=self.live, args=(self.random.random(),)) for _ in range(LIVE)]
        self.threads += [threading.Thread(target=self.leave, args=(self.random.random(),)) for _ in range(LEAVERS)]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join()

    def prompt(self, rng, least, most):
        return [rng.randrange(256) for _ in range(rng.randint(least, most))]

    def kind(self, i):
        return dict(tokens=self.prompt(self.random, 40, 700), max_tokens=48, ignore_eos=True, temperature=float(i % 2), seed=i)

    def live(self, seed):
        rng = random.Random(seed)
        while not self.stopping.is_set():
            i = rng.randrange(STREAMS)
            tokens, error = [], None
            try:
                for message in self.cluster.client.generate(**self.kinds[i], timeout=120):
                    for delta in message.deltas:
                        tokens += delta.token_ids
            except grpc.RpcError as failure:
                error = f"{failure.code().name}: {failure.details()}"
            with self.lock:
                self.finished += 1
                if tokens != self.expected[i][:len(tokens)]:
                    self.wrong.append((i, tokens))
                if error or len(tokens) != len(self.expected[i]):
                    error = error or "ended without an error"
                    self.ended_early[error[:120]] = self.ended_early.get(error[:120], 0) + 1

    def leave(self, seed):
        """Prompts that nobody has cached, given up at random moments of their computation and transfer, which overlap."""
        rng = random.Random(seed)
        for i in range(1 << 62):
            if self.stopping.is_set():
                return
            began = time.monotonic()
            stream = self.cluster.client.generate(tokens=self.prompt(rng, 1000, 3000), max_tokens=4, ignore_eos=True, timeout=60)
            stays = i % 8 == 0
            alarm = threading.Timer(rng.uniform(0.1, 1.0) * self.first_token_s, stream.cancel)
            if not stays:
                alarm.start()
            try:
                for message in stream:
                    if message.deltas:
                        break
                took = min(time.monotonic() - began, 1.0)
                with self.lock:
                    self.first_token_s += (took - self.first_token_s) * (0.2 if stays else 0.05)
                stream.cancel()
            except grpc.RpcError:
                pass
            alarm.cancel()
            with self.lock:
                self.left += 1

    def pause(self, most_s):
        """Stops a worker for 0.1 s to `most_s`, as often short as long."""
        worker = self.random.choice(self.cluster.workers)
        seconds = math.exp(self.random.uniform(math.log(0.1), math.log(most_s)))
        os.kill(worker["pid"], signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(worker["pid"], signal.SIGCONT)
        self.pauses += 1
        self.paused_s += seconds
        time.sleep(self.random.uniform(0, 0.5))


class Workers:
    """Two workers of each role, a router and a manager, with pages travelling over one transport."""

    def __init__(self, services, transport, folder):
        def start(binary, *settings):
            if transport == "tls" and binary != "sluice-router":
                role = os.path.join(folder, binary.removeprefix("sluice-"))
                settings += tuple(f"service.tls.{key}={role}/{name}" for key, name in
                                  (("cert_file", "tls.crt"), ("key_file", "tls.key"), ("ca_file", "ca.crt")))
            return services.start(binary, *settings)
        if transport == "tls":
            harness.run_sluice("certs", "--out", folder)
        manager = start("sluice-cache-manager", "service.name=manager")["grpc"]
        common = (f"cache_manager={manager}", "model.path=toy", "engine.kv_pool_mib=16", "engine.threads=1",
                  "engine.step_tokens_max=64", f"handoff.lease_ms={LEASE_MS}", f"transport.backends=[{transport}]")
        self.roles = {role: [start(f"sluice-{role}", *common, f"service.name={role}-{i}") for i in range(2)]
                      for role in ("prefill", "decode")}
        self.workers = [worker for workers in self.roles.values() for worker in workers]
        router_tls = tuple(f"service.tls.{key}={folder}/router/{name}" for key, name in
                           (("cert_file", "tls.crt"), ("key_file", "tls.key"), ("ca_file", "ca.crt"))) if transport == "tls" else ()
        router = services.start("sluice-router", f"cache_manager={manager}", "split=always", "no_auth=true",
                                "http_listen=127.0.0.1:0", *router_tls)
        self.client = harness.Client(router["grpc"])
        wait_for_model(self.client)
        self.total = {worker["pid"]: self.pages(worker) for worker in self.workers}

    def read(self, worker):
        return harness.read_metrics(worker["metrics"])

    def sum(self, role, prefix):
        return sum(value for worker in self.roles[role] for name, value in self.read(worker).items() if name.startswith(prefix))

    def pages(self, worker, *states):
        states = states or ("free", "active", "cached", "quarantined")
        metrics = self.read(worker)
        return sum(metrics[f'sluice_kv_pages{{state="{state}"}}'] for state in states)

    def held(self):
        """What is pinned, quarantined or in use, in words; empty when nothing is."""
        found = []
        for worker in self.workers:
            metrics = self.read(worker)
            found += [f"{worker['pid']} {name} {value}" for name, value in metrics.items() if value and
                      (name in ('sluice_kv_pages{state="active"}', 'sluice_kv_pages{state="quarantined"}',
                                "sluice_kv_quarantine_age_seconds", "sluice_kv_pin_age_seconds"))]
        return found


class AbortsTest(unittest.TestCase):
    def storm_over(self, transport):
        with Services() as services, tempfile.TemporaryDirectory() as folder:
            workers = Workers(services, transport, folder)
            seed = random.SystemRandom().randrange(1 << 32)
            print(f"{transport}: seed {seed}", file=sys.stderr)
            began = time.monotonic()
            with Storm(workers, seed) as storm:
                for _ in range(OPTIONS.pauses):
                    storm.pause(OPTIONS.pause_s_max)
                failed = 0
                while failed < OPTIONS.aborts:
                    time.sleep(0.2)
                    failed = workers.sum("decode", 'sluice_kv_transfers_total{outcome="failed"}')
            took = time.monotonic() - began
            ended = time.monotonic()
            harness.wait_until(lambda: not workers.held(), f"nothing is held {workers.held()}", 5)
            clean = time.monotonic() - ended
            figures = {
                "transport": transport, "seconds": round(took), "clients_that_left": storm.left,
                "transfers_aborted": int(failed), "transfers_completed":
                    int(workers.sum("decode", 'sluice_kv_transfers_total{outcome="completed"}')),
                "pauses": storm.pauses, "paused_seconds": round(storm.paused_s), "live_streams": storm.finished,
                "wrong": len(storm.wrong), "ended_early": storm.ended_early, "seconds_until_nothing_is_held": round(clean, 2),
                "stale_messages": int(sum(workers.sum(role, "sluice_kv_stale_messages_total") for role in workers.roles)),
                "lease_expiries": int(sum(workers.sum(role, "sluice_kv_lease_expiries_total") for role in workers.roles)),
                "digest_failures": int(workers.sum("decode", "sluice_kv_digest_failures_total"))}
            print(json.dumps(figures), file=sys.stderr)
            self.assertEqual(storm.wrong, [])
            self.assertNotIn("ended without an error", storm.ended_early)
            self.assertEqual(figures["digest_failures"], 0)
            self.assertGreater(storm.finished, 0)
            if OPTIONS.pauses == 0:
                self.assertEqual(storm.ended_early, {})
            for worker in workers.workers:
                self.assertEqual(workers.pages(worker), workers.total[worker["pid"]])
            for kind, expected in zip(storm.kinds, storm.expected):
                self.assertEqual(workers.client.complete(**kind).tokens[0], expected)
            workers.client.close()

    def test_over_shared_memory(self):
        self.storm_over("ucx-shm")

    def test_over_tls(self):
        self.storm_over("tls")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--aborts", type=int, default=OPTIONS.aborts)
    parser.add_argument("--pauses", type=int, default=OPTIONS.pauses)
    parser.add_argument("--pause-s-max", type=float, default=OPTIONS.pause_s_max)
    found, sys.argv[1:] = parser.parse_known_args(namespace=OPTIONS)
    harness.main()

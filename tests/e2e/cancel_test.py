"""A client leaves in every phase of a request, or its time is up: compute stops, pages come back, no other stream changes.

The services are built with fault points; the admin service stops a worker exactly there, the client goes, the worker goes on.
"""
import unittest

import grpc
import harness
from services import Admin, Services, wait_for_model

# Long enough to reach a fault point on a busy machine.
DEADLINE_S = 2

# Phase, role of the worker that is stopped, fault point.
PHASES = [
    ("RESERVED", "decode", "handoff.grant"),
    ("PREFILLING", "prefill", "worker.prefill_started"),
    ("PREFILLING", "prefill", "engine.before_forward"),
    ("TRANSFERRING", "prefill", "handoff.offer_sent"),
    ("TRANSFERRING", "decode", "handoff.offer_received"),
    ("TRANSFERRING", "decode", "handoff.fetch_started"),
    ("TRANSFERRING", "prefill", "handoff.commit_sent"),
    ("VERIFIED", "decode", "handoff.landed"),
    ("DECODING", "decode", "worker.decode_started"),
    ("STREAMING", "decode", "worker.token"),
]


class CancelTest(unittest.TestCase):
    def setUp(self):
        self.services = self.enterContext(Services())
        manager = self.services.start("sluice-cache-manager")["grpc"]
        common = (f"cache_manager={manager}", "model.path=toy", "engine.kv_pool_mib=16", "engine.threads=1")
        self.workers = {role: self.services.start(f"sluice-{role}", *common) for role in ("prefill", "decode")}
        self.admins = {role: Admin(worker["admin"]) for role, worker in self.workers.items()}
        router = self.services.start("sluice-router", f"cache_manager={manager}", "split=always", "no_auth=true",
                                     "http_listen=127.0.0.1:0")
        self.client = harness.Client(router["grpc"])
        wait_for_model(self.client)

    def pages_in_use(self):
        total = 0
        for worker in self.workers.values():
            for name, value in harness.read_metrics(worker["metrics"]).items():
                if name.startswith("sluice_kv_pages") and ('state="active"' in name or 'state="quarantined"' in name):
                    total += value
        return total

    def leave_in(self, phase, role, point, timeout, leave):
        """Stops the worker at the point, lets the client leave, and lets the worker go on."""
        neighbour = self.client.generate(text="the other stream", max_tokens=200, ignore_eos=True)
        other = [t for d in next(neighbour).deltas for t in d.token_ids]
        hits = self.admins[role].arm(point, "PAUSE")
        stream = self.client.generate(text="a prompt of several pages " * 10, max_tokens=100, ignore_eos=True, timeout=timeout)
        try:
            harness.wait_until(lambda: self.admins[role].arm(point, "KIND_UNSPECIFIED") > hits, f"{point} is reached")
            leave(stream)
        finally:
            self.admins[role].arm(point, "DISARM")
        for message in neighbour:
            other += [t for d in message.deltas for t in d.token_ids]
        self.assertEqual(other, self.reference)
        harness.wait_until(lambda: self.pages_in_use() == 0, f"all pages are back after {phase}")

    def wait_for_the_deadline(self, stream):
        with self.assertRaises(grpc.RpcError) as error:
            for _ in stream:
                pass
        self.assertEqual(error.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)

    def test_every_phase(self):
        self.reference = self.client.complete(text="the other stream", max_tokens=200, ignore_eos=True).tokens[0]
        for phase, role, point in PHASES:
            with self.subTest(phase=phase, point=point):
                self.leave_in(phase, role, point, 60, lambda stream: stream.cancel())
        # With the commit sent, a stream may well finish in time: the first point of each phase serves.
        for phase, (role, point) in {phase: where for phase, *where in reversed(PHASES)}.items():
            with self.subTest(phase=phase, point=point, deadline=DEADLINE_S):
                self.leave_in(phase, role, point, DEADLINE_S, self.wait_for_the_deadline)

    def test_waiting_for_a_worker(self):
        """ADMITTED and PLACED: nobody can take the request yet."""
        with Services() as services:
            manager = services.start("sluice-cache-manager")["grpc"]
            prefill = services.start("sluice-prefill", f"cache_manager={manager}", "model.path=toy", "engine.kv_pool_mib=16")
            router = services.start("sluice-router", f"cache_manager={manager}", "split=always", "no_auth=true",
                                    "http_listen=127.0.0.1:0")
            client = harness.Client(router["grpc"])
            wait_for_model(client)
            stream = client.generate(text="nobody decodes", max_tokens=5)
            harness.wait_until(lambda: harness.read_metrics(router["metrics"]).get("sluice_requests_in_flight") == 1, "it waits")
            stream.cancel()
            harness.wait_until(lambda: harness.read_metrics(router["metrics"]).get("sluice_requests_in_flight") == 0, "it is gone")
            self.wait_for_the_deadline(client.generate(text="nobody decodes", max_tokens=5, timeout=0.3))
            harness.wait_until(lambda: harness.read_metrics(router["metrics"]).get("sluice_requests_in_flight") == 0, "it is gone")
            self.assertTrue(prefill)
            client.close()


if __name__ == "__main__":
    harness.main()

"""SIGTERM, service by service: not ready at once, no new work, streams finish or go on elsewhere, exit code 0."""
import http.client
import json
import time

import grpc
import harness
from services import ServicesTest, Stream, why_not_ready


class DrainTest(ServicesTest):
    def terminate(self, service):
        """Sends SIGTERM; returns the process."""
        process = next(p for p in self.services.running if p.pid == service["pid"])
        process.terminate()
        return process

    def expect_not_ready(self, service):
        def refused():
            try:
                return "draining" in why_not_ready(service)
            except OSError:  # it has ended
                return True
        harness.wait_until(refused, "not ready", seconds=10)

    def streams(self, count, tokens):
        """Running streams, and what they must be in the end."""
        prompts = [f"stream {i}" for i in range(count)]
        expected = [list(self.client.complete(text=p, max_tokens=tokens, ignore_eos=True).tokens[0]) for p in prompts]
        running = [Stream(self.client, text=p, max_tokens=tokens, ignore_eos=True) for p in prompts]
        for stream in running:
            stream.first.wait(60)
        return running, expected

    def expect_whole(self, running, expected):
        for stream, tokens in zip(running, expected):
            stream.join(60)
            self.assertIsNone(stream.error)
            self.assertEqual(stream.tokens, tokens)

    def test_streams_finish_on_a_worker_that_drains(self):
        self.start(prefills=2, decodes=2)
        running, expected = self.streams(4, 2000)
        for worker in (self.decodes[0], self.prefills[0]):
            process = self.terminate(worker)
            self.expect_not_ready(worker)
            self.assertEqual(len(self.client.complete(text="new", max_tokens=4, ignore_eos=True).tokens[0]), 4)
            self.assertEqual(process.wait(60), 0)
        self.expect_whole(running, expected)

    def test_streams_go_on_elsewhere_when_the_time_to_drain_is_over(self):
        self.start(decodes=2, worker=("service.drain_s=1",))
        running, expected = self.streams(6, 8000)
        began = time.monotonic()
        process = self.terminate(self.decodes[0])
        self.assertEqual(process.wait(60), 0)
        self.assertLess(time.monotonic() - began, 15)  # default: 30 s
        self.expect_whole(running, expected)

    def refusal(self):
        """How a new call ends. One that crosses the router's GOAWAY on its way is cancelled by gRPC's server."""
        with self.assertRaises(grpc.RpcError) as refused:
            self.client.complete(text="new", max_tokens=4)
        self.assertIn(refused.exception.code(), (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED))
        return refused.exception.code()

    def test_a_router_that_drains_sends_its_clients_elsewhere_and_finishes_its_streams(self):
        self.start()
        running, expected = self.streams(2, 8000)
        host = self.router["http"].removeprefix("http://")
        idle = http.client.HTTPConnection(host)
        idle.request("GET", "/v1/models")
        idle.getresponse().read()
        web = http.client.HTTPConnection(host)
        web.request("POST", "/v1/completions", json.dumps({"prompt": "stream 0", "max_tokens": 8000, "stream": True,
                                                           "ignore_eos": True, "temperature": 0}),
                    {"content-type": "application/json"})
        answer = web.getresponse()
        process = self.terminate(self.router)
        self.expect_not_ready(self.router)
        harness.wait_until(lambda: self.refusal() == grpc.StatusCode.UNAVAILABLE, "the client knows that the router drains")
        with self.assertRaises((ConnectionError, http.client.HTTPException)):
            idle.request("GET", "/v1/models")
            idle.getresponse()
        self.assertTrue(answer.read().endswith(b"data: [DONE]\n\n"))
        self.expect_whole(running, expected)
        self.assertEqual(process.wait(10), 0)

    def test_nobody_misses_a_manager_that_drains(self):
        self.start(decodes=2)
        running, expected = self.streams(4, 4000)
        manager = self.terminate({"pid": self.services.running[0].pid})
        self.assertEqual(manager.wait(10), 0)
        for _ in range(20):
            self.assertEqual(len(self.client.complete(text="new", max_tokens=4, ignore_eos=True).tokens[0]), 4)
        self.expect_whole(running, expected)
        self.services.start("sluice-cache-manager", listen=self.manager)
        for _ in range(20):
            self.assertEqual(len(self.client.complete(text="new", max_tokens=4, ignore_eos=True).tokens[0]), 4)
        harness.wait_until(lambda: self.metric(self.router, 'sluice_degraded{dependency="cache_manager"}') == 0, "connected again")
        for _ in range(20):
            self.assertEqual(len(self.client.complete(text="new", max_tokens=4, ignore_eos=True).tokens[0]), 4)

    def test_a_second_signal_ends_at_once(self):
        self.start()
        running, _ = self.streams(1, 8000)
        process = self.terminate(self.router)
        self.expect_not_ready(self.router)
        process.terminate()
        self.assertEqual(process.wait(5), 130)
        self.services.running.remove(process)
        running[0].join(60)
        self.assertIsNotNone(running[0].error)

    def test_idle_services_stop_at_once(self):
        self.start()
        self.client.complete(text="something was done", max_tokens=4)
        for service in (self.router, self.decodes[0], self.prefills[0], {"pid": self.services.running[0].pid}):
            began = time.monotonic()
            self.assertEqual(self.terminate(service).wait(10), 0)
            self.assertLess(time.monotonic() - began, 10)


if __name__ == "__main__":
    harness.main()

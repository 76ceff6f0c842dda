"""Clients that read slowly or not at all: what waits for them is bounded, their place is free for others, they are told."""
import http.client
import json
import socket

import grpc
import harness
from services import NARROW, ServicesTest, reason_of

# About 700 bytes for each token.
ASK = {"max_tokens": 3000, "ignore_eos": True, "logprobs": 20}


class ReaderTest(ServicesTest):
    def slow_client(self):
        client = harness.Client(self.router["grpc"], NARROW)
        self.addCleanup(client.close)
        return client

    def test_a_stream_nobody_reads_is_paused_and_goes_on_byte_for_byte(self):
        self.start(router=("slow_reader_s=60",))
        expected = self.client.complete(text="slowly", **ASK)
        streams = [self.slow_client().generate(text="slowly", **ASK) for _ in range(4)]
        first = [next(stream) for stream in streams]
        harness.wait_until(lambda: self.pages_in_use() == 0, "nobody holds pages")
        # The others do not notice.
        self.assertEqual(self.client.complete(text="slowly", **ASK).tokens, expected.tokens)
        self.assertEqual(self.pages_in_use(), 0)
        for message, stream in zip(first, streams):
            done = harness.Completion([message, *stream])
            self.assertEqual(done.tokens, expected.tokens)
            self.assertEqual(done.text, expected.text)

    def check_that_it_counts_as_slow(self):
        """Neither as a client that left nor as a failure of ours."""
        for outcome, requests in (("slow", 1), ("cancelled", 0), ("failed", 0)):
            self.assertEqual(sum(v for k, v in harness.read_metrics(self.router["metrics"]).items()
                                 if k.startswith("sluice_requests_total") and f'outcome="{outcome}"' in k), requests)
        self.assertEqual(self.metric(self.router, "sluice_failures_total"), 0)
        self.assertGreater(self.metric(self.router, "sluice_stream_pauses_total"), 0)

    def test_who_never_reads_is_told_and_forgotten(self):
        self.start(router=("slow_reader_s=1",))
        stream = self.slow_client().generate(text="never", **ASK)
        next(stream)
        harness.wait_until(lambda: self.metric(self.router, 'sluice_requests_in_flight') == 0, "the request has ended")
        with self.assertRaises(grpc.RpcError) as raised:
            for _ in stream:
                pass
        self.assertEqual(raised.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertIn("SLOW_CONSUMER", reason_of(raised.exception))
        self.check_that_it_counts_as_slow()

    def http_stream(self):
        """A connection whose kernel buffers are small, the answer's head read."""
        host, port = self.router["http"].removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port))
        connection.sock = socket.socket()
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sock.connect((host, int(port)))
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "slowly", "max_tokens": 8000, "ignore_eos": True,
                                                                  "logprobs": 5, "stream": True, "temperature": 0}),
                           {"content-type": "application/json"})
        return connection, connection.getresponse()

    def test_over_http_too(self):
        self.start(router=("slow_reader_s=1",))
        _, answer = self.http_stream()
        harness.wait_until(lambda: self.metric(self.router, 'sluice_requests_in_flight') == 0, "the request has ended")
        self.assertEqual(self.pages_in_use(), 0)
        text = answer.read().decode()
        self.assertNotIn("[DONE]", text)
        self.assertIn('"code":"slow_consumer"', text[-1000:])
        self.check_that_it_counts_as_slow()


if __name__ == "__main__":
    harness.main()

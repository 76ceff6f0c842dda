"""Requests and workers that die: what is lost, what goes on, what clients hear."""
import json
import os
import signal
import subprocess
import sys
import time
import unittest.mock
import urllib.error
import urllib.request

import grpc
import harness
from services import NARROW, Admin, ServicesTest, Stream, reason_of, why_not_ready

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy/examples"))
import chat  # noqa: E402


def read_everything(client, stop, disturb=None):
    """Of a request with all that a sampler and a router can be asked for: {choice: [(token, log-probabilities, text, finish)]} of
    every delta, and the usage. `disturb`: what is done after so many deltas."""
    made = client.message("GenerateRequest", text="a stream with everything", max_tokens=1500, choices=3, logprobs=2,
                          ignore_eos=True, stop=stop)
    made.sampling.MergeFrom(client.message("SamplingOptions", temperature=0.9, top_p=0.95, seed=5, frequency_penalty=0.4,
                                           presence_penalty=0.2, repetition_penalty=1.1))
    seen, usage = {}, None
    for count, item in enumerate(client.generate(made)):
        if hasattr(item, "prompt_tokens"):
            usage = item
            continue
        logprobs = [(p.token, p.logprob, [(t.token, t.logprob) for t in p.top]) for p in item.logprobs]
        seen.setdefault(item.index, []).append((list(item.token_ids), logprobs, item.text, item.finish_reason))
        if disturb and count in disturb:
            disturb[count]()
    return seen, usage


class RecoveryTest(ServicesTest):
    def test_a_request_that_kills_its_worker_loses_two_and_innocents_survive(self):
        self.start(decodes=5)
        prompts = [f"innocent {i}" for i in range(4)]
        expected = [self.client.complete(text=p, max_tokens=2000, ignore_eos=True).tokens[0] for p in prompts]
        # Over gRPC and over HTTP.
        for killer in ("killer-1", "killer-2"):
            for worker in self.decodes:
                Admin(worker["admin"]).arm("decode.token", "CRASH", killer)
            innocents = [Stream(self.client, text=p, max_tokens=2000, ignore_eos=True) for p in prompts]
            for stream in innocents:
                stream.first.wait(60)
            if killer == "killer-1":
                with self.assertRaises(grpc.RpcError) as raised:
                    self.client.complete(text="I kill", max_tokens=100, ignore_eos=True, request_id=killer)
                self.assertEqual(raised.exception.code(), grpc.StatusCode.INTERNAL)
                self.assertIn("REQUEST_POISONED", reason_of(raised.exception))
                text = raised.exception.details()
            else:
                request = urllib.request.Request(self.router["http"] + "/v1/completions",
                                                 json.dumps({"prompt": "I kill", "max_tokens": 100}).encode(),
                                                 {"x-request-id": killer, "content-type": "application/json"})
                with self.assertRaises(urllib.error.HTTPError) as raised:
                    urllib.request.urlopen(request, timeout=60)
                self.assertEqual(raised.exception.code, 500)
                self.assertEqual(raised.exception.headers["x-should-retry"], "false")
                error = json.load(raised.exception)["error"]
                self.assertEqual(error["code"], "request_poisoned")
                text = error["message"]
            dead = self.services.take_dead(2)
            self.assertEqual(len(dead), 2, "the workers that died")
            self.decodes = [w for w in self.decodes if w["pid"] not in dead]
            self.assertEqual(text.count("decode-"), 2, text)
            for stream, tokens in zip(innocents, expected):
                stream.join(60)
                self.assertIsNone(stream.error)
                self.assertEqual(stream.tokens, list(tokens))

    def test_without_a_spare_worker_a_stream_ends_with_a_typed_error_within_a_second(self):
        self.start()
        stream = Stream(self.client, text="nobody goes on", max_tokens=8000, ignore_eos=True)
        stream.first.wait(60)
        os.kill(self.decodes[0]["pid"], signal.SIGKILL)
        killed = time.monotonic()
        stream.join(60)
        self.assertLess(time.monotonic() - killed, 10)  # below 1 s on a machine with time to spare
        self.assertEqual(stream.error.code(), grpc.StatusCode.UNAVAILABLE)
        self.assertIn("NO_READY_WORKERS", reason_of(stream.error))
        self.assertIn("no decode worker is ready", stream.error.details())
        for ask in (lambda: self.client.complete(text="and now?", max_tokens=2),
                    lambda: self.client.complete(text="longer " * 200, max_tokens=2)):
            began = time.monotonic()
            with self.assertRaises(grpc.RpcError) as raised:
                ask()
            self.assertLess(time.monotonic() - began, 10)
            self.assertIn("no decode worker is ready", raised.exception.details())
        self.assertIn("no decode worker is ready", why_not_ready(self.router))
        self.services.take_dead()
        self.decodes = [self.services.start("sluice-decode", *self.common, "service.name=decode-0")]
        harness.wait_until(lambda: why_not_ready(self.router) == "", "the router is ready again")
        self.assertEqual(len(self.client.complete(text="and now?", max_tokens=2, ignore_eos=True).tokens[0]), 2)

    def test_a_router_without_one_role_is_not_ready_and_says_which(self):
        self.start(prefills=0, wait=False)
        harness.wait_until(lambda: "no prefill worker is ready" in why_not_ready(self.router), "the missing role is named")

    def test_what_can_never_fit_is_refused_at_once_with_figures(self):
        self.start(worker=("engine.kv_pool_mib=1", "engine.kv_format=f32"))
        pages = self.metric(self.decodes[0], "sluice_kv_pages")
        room = int(pages) * 32 - 1  # the first token takes two slots in some formats
        self.assertLess(room, 8000)  # else the context would be the limit
        for request in ({"text": "x" * (room + 1), "max_tokens": 1}, {"text": "x", "max_tokens": room + 1}):
            began = time.monotonic()
            with self.assertRaises(grpc.RpcError) as raised:
                self.client.complete(**request)
            self.assertLess(time.monotonic() - began, 10)
            self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
            self.assertIn(str(room), raised.exception.details())
        done = self.client.complete(text="x" * (room - 100), ignore_eos=True)
        self.assertEqual(done.finish[0], "length")
        self.assertLessEqual(len(done.tokens[0]), 100)

    def expected_of_everything(self, client):
        """Of an undisturbed run: a stop string that ends choice 1 in the middle, the deltas, the usage."""
        free, _ = read_everything(client, [])
        stop = ["".join(delta[2] for delta in free[1])[700:708]]
        expected, usage = read_everything(client, stop)
        self.assertLess(len(expected[1]), len(free[1]))
        return stop, expected, usage

    def test_a_stream_with_everything_outlives_its_decode_workers_byte_for_byte(self):
        self.start(decodes=2)
        self.enterContext(unittest.mock.patch.object(chat, "OPTIONS", chat.OPTIONS + NARROW))
        client = chat.Client([self.router["grpc"]])
        stop, expected, usage = self.expected_of_everything(client)

        def kill_busiest():
            victim = max(self.decodes, key=lambda worker: self.metric(worker, 'sluice_kv_pages{state="active"}'))
            os.kill(victim["pid"], signal.SIGKILL)
            self.services.take_dead()
            self.decodes.remove(victim)
            self.decodes.append(self.services.start("sluice-decode", *self.common, f"service.name=decode-{len(self.killed) + 2}"))
            self.killed.append(victim)
        self.killed = []
        # Choices go on at different places, are struck again, and some end before.
        got, usage_after = read_everything(client, stop, {200: kill_busiest, 1500: kill_busiest})
        client.close()
        self.assertEqual(len(self.killed), 2)
        self.assertEqual(got, expected)
        self.assertEqual(client.resumes, 0)
        self.assertEqual(usage_after.completion_tokens, usage.completion_tokens)
        self.assertGreater(usage_after.recomputed_tokens, 0)

    def test_the_example_client_goes_on_at_another_router_byte_for_byte(self):
        self.start()
        urls = self.start_second_router()
        undisturbed = chat.Client(urls[1:])
        stop, expected, usage = self.expected_of_everything(undisturbed)
        undisturbed.close()
        # So that little of the stream is on its way when the router dies.
        self.enterContext(unittest.mock.patch.object(chat, "OPTIONS", chat.OPTIONS + NARROW))
        client = chat.Client(urls)
        got, usage_after = read_everything(client, stop, {300: lambda: os.kill(self.router["pid"], signal.SIGKILL)})
        self.assertEqual(client.resumes, 1)
        self.assertEqual(got, expected)
        self.assertEqual(usage_after.completion_tokens, usage.completion_tokens)
        self.services.take_dead()
        client.close()

    def test_sluice_chat_goes_on_at_another_router_byte_for_byte(self):
        self.start()
        urls = self.start_second_router()
        arguments = ["--max-tokens", "4000", "--temperature", "0.8", "--seed", "3", "tell me"]
        expected = harness.run_sluice("chat", "--url", "grpc://" + urls[1], *arguments).stdout
        self.assertGreater(len(expected), 30)
        decode = Admin(self.decodes[0]["admin"])
        decode.arm("decode.token", "PAUSE")
        with subprocess.Popen([os.path.join(harness.ARGS.bin, "sluice"), "chat", "--show-usage", "--url",
                               ",".join("grpc://" + url for url in urls), *arguments],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            beginning = process.stdout.read(1)
            os.kill(self.router["pid"], signal.SIGKILL)
            decode.arm("decode.token", "DISARM")
            rest, notes = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, notes)
        self.assertIn("resumes=1", notes)
        self.assertEqual(beginning + rest, expected)
        self.services.take_dead()

    def test_what_a_dead_router_left_is_cancelled(self):
        self.start()
        streams = [Stream(self.client, text=f"abandoned {i}", max_tokens=8000, ignore_eos=True) for i in range(8)]
        for stream in streams:
            stream.first.wait(60)
        os.kill(self.router["pid"], signal.SIGKILL)
        # At once as a rule; a reservation that no router claimed waits 3 s for one.
        harness.wait_until(lambda: self.pages_in_use() == 0, "the pages are free", seconds=5)
        for stream in streams:
            stream.join(60)
            self.assertEqual(stream.error.code(), grpc.StatusCode.UNAVAILABLE)
            self.assertLess(len(stream.tokens), 8000)
        self.services.take_dead()


if __name__ == "__main__":
    harness.main()

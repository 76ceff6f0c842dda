"""The public gRPC API through a second implementation (grpcio), by reflection."""
import unittest

import grpc
import harness
from harness import Cluster


class GrpcTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster())
        cls.client = cls.cluster.client

    def test_lists_services_and_models(self):
        self.assertEqual({m.name for m in self.client.service.methods}, {"Generate", "ListModels", "Tokenize", "Detokenize"})
        models = self.client.call("ListModels", self.client.message("ListModelsRequest")).models
        self.assertEqual([m.id for m in models], ["toy"])
        self.assertGreater(models[0].context_tokens, 1000)

    def test_health_is_found_by_reflection(self):
        health = self.client.pool.FindServiceByName("grpc.health.v1.Health")
        method = health.FindMethodByName("Check")
        ask, reply = map(harness.message_factory.GetMessageClass, (method.input_type, method.output_type))
        check = self.client.channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=ask.SerializeToString,
                                                response_deserializer=reply.FromString)
        for name in ("", "startup", "liveness", "readiness", "sluice.v1.Inference"):
            self.assertEqual(check(ask(service=name), timeout=10).status, reply.SERVING, name)
        with self.assertRaises(grpc.RpcError) as raised:
            check(ask(service="nobody"), timeout=10)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_streams_one_token_after_the_other(self):
        done = self.client.complete(text="hello world", max_tokens=12, ignore_eos=True)
        self.assertEqual(len(done.tokens[0]), 12)
        self.assertEqual(done.finish[0], "length")
        self.assertEqual(done.usage.prompt_tokens, 11)
        self.assertEqual(done.usage.completion_tokens, 12)
        self.assertEqual(done.usage.recomputed_tokens, 0)
        self.assertEqual(len(done.text[0]), 12)

    def test_the_same_request_gives_the_same_text(self):
        for temperature in (0.0, 1.0):
            first, second = (self.client.complete(text="once upon a time", temperature=temperature, seed=7, max_tokens=40,
                                                  ignore_eos=True) for _ in range(2))
            self.assertEqual(first.tokens, second.tokens)
        other = self.client.complete(text="once upon a time", temperature=1.0, seed=8, max_tokens=40, ignore_eos=True)
        self.assertNotEqual(other.tokens, first.tokens)

    def test_choices_share_the_prompt(self):
        done = self.client.complete(text="x" * 100, choices=3, temperature=1.0, seed=3, max_tokens=8, ignore_eos=True)
        self.assertEqual(sorted(done.tokens), [0, 1, 2])
        self.assertEqual(done.usage.prompt_tokens, 100)
        self.assertEqual(done.usage.completion_tokens, 24)
        self.assertEqual(len({tuple(t) for t in done.tokens.values()}), 3)

    def test_hashes_of_logits_come_when_asked_for(self):
        self.assertEqual(self.client.complete(text="hash me", max_tokens=3, ignore_eos=True).hashes, {0: []})
        done = self.client.complete(text="hash me", max_tokens=3, choices=2, ignore_eos=True, logits_hash=True)
        self.assertEqual([len(set(hashes)) for hashes in done.hashes.values()], [3, 3])
        self.assertEqual(done.hashes[0], done.hashes[1])  # greedy: equal choices

    def test_stop_strings_end_the_text_and_are_left_out(self):
        whole = self.client.complete(text="stop test", max_tokens=60, ignore_eos=True).text[0]
        stop = whole[20:23]
        done = self.client.complete(text="stop test", max_tokens=60, ignore_eos=True, stop=[stop])
        self.assertEqual(done.text[0], whole[:whole.index(stop)])
        self.assertEqual(done.finish[0], "stop")

    def test_resume_continues_where_the_client_stopped(self):
        whole = self.client.complete(text="resume me", temperature=1.0, seed=11, max_tokens=30, ignore_eos=True)
        resume = self.client.message("ResumePoint", seed=whole.start.seed, numerics_ids=whole.start.numerics_ids, positions=[12])
        stream = self.client.generate(text="resume me", temperature=1.0, max_tokens=30, ignore_eos=True, resume=resume,
                                      request_id=whole.start.request_id)
        tokens, first = [], None
        for message in stream:
            for delta in message.deltas:
                first = delta.position if first is None else first
                tokens += delta.token_ids
        self.assertEqual(first, 12)
        self.assertEqual(tokens, whole.tokens[0][12:])

    def computed_tokens(self):
        """Prompt tokens computed by the prefill workers so far; they count when a call has ended."""
        harness.wait_until(lambda: self.cluster.metric_sum("prefill", "sluice_requests_in_flight") == 0, "prefill is idle")
        return self.cluster.metric_sum("prefill", "sluice_worker_prompt_tokens_total", 'source="computed"')

    def test_the_second_turn_finds_the_first_one_cached(self):
        prompt = "turn one of a chat that is long enough for several pages. " * 4
        first = self.client.complete(text=prompt, max_tokens=4, ignore_eos=True)
        self.assertEqual(first.usage.cached_tokens, 0)
        before = self.computed_tokens()
        second = self.client.complete(text=prompt + "turn two", max_tokens=4, ignore_eos=True)
        self.assertGreater(second.usage.cached_tokens, len(prompt) - 64)
        self.assertEqual(self.computed_tokens() - before, second.usage.prompt_tokens - second.usage.cached_tokens)

    def test_cancelling_frees_everything(self):
        stream = self.client.generate(text="cancel me", max_tokens=4000, ignore_eos=True)
        next(stream)
        stream.cancel()
        harness.wait_until(lambda: self.cluster.pages_in_use() == 0, "all pages are free or cached")

    def test_tokenize_and_back(self):
        ids = self.client.call("Tokenize", self.client.message("TokenizeRequest", text="héllo")).ids
        self.assertEqual(list(ids), list("héllo".encode()))
        self.assertEqual(self.client.call("Detokenize", self.client.message("DetokenizeRequest", ids=ids)).text, "héllo")


class BadInputTest(unittest.TestCase):
    """Each bad request gets its typed error, and the next good one is served."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster())
        cls.client = cls.cluster.client

    def refused(self, code, words, **request):
        with self.assertRaises(grpc.RpcError) as error:
            self.client.complete(**request)
        self.assertEqual(error.exception.code(), code, error.exception.details())
        for word in words:
            self.assertIn(word, error.exception.details())
        self.assertIn("grpc-status-details-bin", [key for key, _ in error.exception.trailing_metadata()])

    def test_every_bad_request(self):
        bad = grpc.StatusCode.INVALID_ARGUMENT
        self.refused(grpc.StatusCode.NOT_FOUND, ["no model 'x'", "toy"], text="a", model="x")
        self.refused(bad, ["context"], tokens=[97] * 9000)
        self.refused(bad, ["max_tokens"], text="a", max_tokens=100000)
        self.refused(bad, ["max_tokens"], text="a", max_tokens=0)
        self.refused(bad, ["empty"], text="")
        self.refused(bad, ["empty"], tokens=[])
        self.refused(bad, ["no input"])
        self.refused(bad, ["token", "300"], tokens=[97, 300])
        self.refused(bad, ["temperature"], text="a", temperature=float("nan"))
        self.refused(bad, ["temperature"], text="a", temperature=-1.0)
        self.refused(bad, ["choices"], text="a", choices=9)
        self.refused(bad, ["logprobs"], text="a", logprobs=21)
        self.refused(bad, ["stop"], text="a", stop=["a"] * 5)
        self.refused(bad, ["stop"], text="a", stop=["x" * 200])
        self.refused(bad, ["request_id"], text="a", request_id="r" * 129)
        self.assertEqual(len(self.client.complete(text="good", max_tokens=3, ignore_eos=True).tokens[0]), 3)
        harness.wait_until(lambda: self.cluster.pages_in_use() == 0, "all pages are free or cached")


if __name__ == "__main__":
    harness.main()

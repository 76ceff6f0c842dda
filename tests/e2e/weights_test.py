"""Roles of one cluster run different weight formats of one model: FP8 computes prompts, INT4 goes on from their pages."""
import os
import pathlib
import signal
import tempfile
import unittest

import harness
from harness import Cluster

INT4_MODEL = pathlib.Path(__file__).parents[2] / "deploy/models/k2-kjv"
PROMPT = [7 * i % 2000 for i in range(1, 200)]


def steps(done):
    return list(zip(done.tokens[0], done.hashes[0], strict=True))


class WeightsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.fp8 = os.path.join(cls.folder.name, "fp8")
        harness.run_sluice("quantize", "--model", str(INT4_MODEL), "--to", "fp8", "--out", cls.fp8)

    def answer(self, client, tokens, **fields):
        return client.complete(tokens=tokens, ignore_eos=True, logits_hash=True, **fields)

    def alone(self, model):
        """What one weight format gives for PROMPT when it does everything."""
        with Cluster("--split", "never", model=str(model)) as cluster:
            return self.answer(cluster.client, PROMPT, max_tokens=20)

    def test_each_role_computes_with_its_own_weights(self):
        fp8, int4 = self.alone(self.fp8), self.alone(INT4_MODEL)
        self.assertNotEqual(steps(fp8)[0], steps(int4)[0])
        with Cluster("--prefill-model", self.fp8, model=str(INT4_MODEL)) as cluster:
            models = cluster.client.call("ListModels", cluster.client.message("ListModelsRequest")).models
            self.assertEqual([m.id for m in models], ["k2-kjv"])
            mixed = [self.answer(cluster.client, PROMPT, max_tokens=20) for _ in range(2)]  # the second from the prefix cache
        self.assertEqual(steps(mixed[0])[0], steps(fp8)[0])
        self.assertEqual(len(set(mixed[0].start.numerics_ids)), 2)
        self.assertEqual(mixed[0].start.numerics_ids[0], fp8.start.numerics_ids[0])
        self.assertEqual(mixed[0].start.numerics_ids[1], int4.start.numerics_ids[1])
        self.assertNotEqual(steps(mixed[0])[1:], steps(fp8)[1:])
        self.assertEqual(steps(mixed[0]), steps(mixed[1]))
        self.assertGreater(mixed[1].usage.cached_tokens, 0)

    def test_a_stream_moves_between_decode_workers_unchanged(self):
        prompts = [PROMPT[i:] for i in range(4)]
        with Cluster("--decode", "2", "--prefill-model", self.fp8, model=str(INT4_MODEL)) as cluster:
            expected = [steps(self.answer(cluster.client, tokens, max_tokens=700)) for tokens in prompts]
            streams = [cluster.client.generate(tokens=tokens, max_tokens=700, ignore_eos=True, logits_hash=True) for tokens in prompts]
            first = [next(stream) for stream in streams]
            self.assertTrue(all(first))
            urls = cluster.endpoints["metrics"]["decode"]

            def busy():
                return [i for i, url in enumerate(urls) if harness.read_metrics(url)['sluice_kv_pages{state="active"}'] > 0]

            harness.wait_until(busy, "a decode worker has a stream")
            os.kill(cluster.endpoints["pids"]["decode"].pop(busy()[0]), signal.SIGKILL)
            for message, stream, wanted in zip(first, streams, expected, strict=True):
                self.assertEqual(steps(harness.Completion([message, *stream])), wanted)
            moved = sum(v for k, v in harness.read_metrics(cluster.endpoints["metrics"]["router"][0]).items()
                        if k.startswith("sluice_migrations_total"))
            self.assertGreater(moved, 0)


if __name__ == "__main__":
    harness.main()

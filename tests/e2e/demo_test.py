"""A real model answers a question through the whole cluster, as deploy/local/demo shows it."""
import os
import tempfile
import unittest

import harness
from harness import Cluster


class DemoTest(unittest.TestCase):
    def test_the_capital_of_france(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        model = os.path.join(folder, os.path.basename(harness.ARGS.model))
        os.symlink(harness.ARGS.model, model)
        harness.run_sluice("calibrate", "--model", model)  # the centre lies beside the link
        with Cluster(model=model) as cluster:
            done = cluster.client.complete(chat="What is the capital of France?", max_tokens=32)
            self.assertEqual(done.text[0], "The capital of France is Paris.")
            self.assertEqual(done.finish[0], "stop")
            self.assertGreater(cluster.metric_sum("decode", "sluice_kv_transfer_bytes_total", 'side="receive"'), 0)
            chat = harness.run_sluice("chat", "--url", cluster.endpoints["grpc"], "--temperature", "0",
                                      "What is the capital of France?")
            self.assertIn("Paris", chat.stdout)


if __name__ == "__main__":
    harness.main()

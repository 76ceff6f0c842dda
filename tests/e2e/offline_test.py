"""The model of the checkout, by its name: an answer through the whole cluster, and the demo without a network."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import harness
from harness import Cluster

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMPT = "And it came to pass"
TOKENS = 24


class OfflineTest(unittest.TestCase):
    def test_the_cluster_answers_as_the_engine_alone_does(self):
        alone = json.loads(harness.run_sluice("generate", "--model", "k2-kjv", "--text", PROMPT, "--max-tokens", str(TOKENS), "--json",
                                   "--logits-hashes", "--threads", "1").stdout)
        with Cluster("--kv", "mla_fp8", model="k2-kjv") as cluster:
            done = cluster.client.complete(text=PROMPT, max_tokens=TOKENS, logits_hash=True)
            self.assertEqual(done.tokens[0], alone["token_ids"])
            self.assertEqual([f"{value:016x}" for value in done.hashes[0]], alone["logits_hashes"])
            self.assertEqual(done.text[0], alone["text"])
            self.assertGreater(cluster.metric_sum("decode", "sluice_kv_transfer_bytes_total", 'side="receive"'), 0)

    def test_the_demo_falls_back_to_it(self):
        with tempfile.TemporaryDirectory() as cache:
            # Nothing listens on the discard port.
            environment = os.environ | {"XDG_CACHE_HOME": cache, "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0",
                                        "PIP_CONFIG_FILE": os.devnull, "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": ""}
            chosen = subprocess.run([ROOT / "deploy/local/demo-model"], env=environment, capture_output=True, text=True, timeout=60)
        self.assertEqual((chosen.returncode, chosen.stdout), (0, "deploy/models/k2-kjv\n"), chosen.stderr)
        self.assertIn("falling back to deploy/models/k2-kjv", chosen.stderr)
        self.assertTrue((ROOT / chosen.stdout.strip() / "config.json").is_file())


if __name__ == "__main__":
    harness.main()

"""What surrounds a request changes neither its tokens nor the logits behind any of them: many at once, split or local, in chunks
or whole, cached or cold, preempted or not, over either transport. The engine alone: common/engine/transformer/transformer_engine_test.cc."""
import concurrent.futures
import json
import pathlib
import random
import unittest

import harness
from harness import Cluster
from services import Services, wait_for_model

CHUNKS = [1, 7, 32, 33, 200]
LATENT_MODEL = pathlib.Path(__file__).parents[1] / "golden/models/tiny-glm-moe-dsa-shared"


def requests_of(client, count, output_tokens=(1, 2, 9, 24)):
    """`count` requests of mixed lengths, greedy and seeded; about a third share prefixes. Prompts reach past two KV tiles."""
    rng = random.Random(20)
    vocabulary = client.call("ListModels", client.message("ListModelsRequest")).models[0].vocabulary
    shared = [rng.randrange(300, vocabulary) if vocabulary > 1000 else rng.randrange(97, 123) for _ in range(600)]
    made = []
    for i in range(count):
        length = rng.choice([1, 7, 31, 32, 33, 64, 200, 330, 580])
        tokens = shared[:length] if i % 3 == 0 else [rng.choice(shared) for _ in range(length)]
        made.append(dict(tokens=tokens, temperature=rng.choice([0.0, 1.0]), seed=i, max_tokens=rng.choice(output_tokens),
                         ignore_eos=True, logits_hash=True))
    return made


def run_all(client, requests, at_once):
    """Tokens of every request, each with the hash of its logits."""
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return [list(zip(done.tokens[0], done.hashes[0], strict=True))
                for done in pool.map(lambda r: client.complete(timeout=250, **r), requests)]


class ExactnessTest(unittest.TestCase):
    def models(self):
        """The toy model, and a real one if there is one, with how many requests each of them gets."""
        return {"toy": 64, harness.ARGS.model: 16 if harness.ARGS.model != "toy" else 64}.items()

    def expected(self, model, count, **kind):
        """Requests and what they give one after the other, computed where they are decoded."""
        with Cluster("--split", "never", model=model) as local:
            requests = requests_of(local.client, count, **kind)
            return requests, run_all(local.client, requests, 1)

    def check_split(self, model, count):
        requests, expected = self.expected(model, count)
        self.assertTrue(all(digest for tokens in expected for _, digest in tokens))
        for flags in (["--transport", "ucx-shm"], ["--transport", "ucx-tcp"], ["--prefill", "2", "--decode", "2"]):
            with self.subTest(model=model, flags=flags), Cluster(*flags, model=model) as cluster:
                self.assertEqual(run_all(cluster.client, requests, count), expected)
                self.assertEqual(run_all(cluster.client, requests, 8), expected)  # now from the prefix cache
                harness.wait_until(lambda: cluster.pages_in_use() == 0, "all pages are free or cached")
                self.assertGreater(cluster.metric_sum("prefill", "sluice_worker_prompt_tokens_total", 'source="cached"'), 0)

    def test_split_local_and_many_at_once(self):
        for model, count in self.models():
            self.check_split(model, count)

    def test_split_with_latent_attention(self):
        """Pages of another kind: latents, and index keys in every other layer."""
        self.check_split(str(LATENT_MODEL), 16)

    def test_chunks_of_any_size(self):
        """A prefill worker for every size; in front of them decode workers whose pools are too small for what they are asked."""
        for model, count in self.models():
            toy = model == "toy"
            requests, expected = self.expected(model, count, output_tokens=(500, 900) if toy else (1, 9, 40))
            with self.subTest(model=model), Services() as services:
                manager = services.start("sluice-cache-manager")["grpc"]
                common = (f"cache_manager={manager}", f"model.path={model}", "engine.threads=1")
                prefill = [services.start("sluice-prefill", *common, f"service.name=prefill-{chunk}", "engine.kv_pool_mib=64",
                                          f"engine.step_tokens_max={chunk}") for chunk in CHUNKS]
                decode = services.start("sluice-decode", *common, f"engine.kv_pool_mib={1 if toy else 24}")
                router = services.start("sluice-router", f"cache_manager={manager}", "split=always", "no_auth=true",
                                        "queue_wait_s=250", "http_listen=127.0.0.1:0")
                client = harness.Client(router["grpc"])
                self.addCleanup(client.close)
                wait_for_model(client)
                self.assertEqual(run_all(client, requests, count), expected)
                for worker in prefill:
                    harness.wait_until(lambda url=worker["metrics"]: harness.read_metrics(url)[
                        'sluice_worker_prompt_tokens_total{source="computed"}'] > 0, "every worker had a part")
                if toy:  # the engine's own test sees to it for the real model
                    self.assertGreater(harness.read_metrics(decode["metrics"])["sluice_preemptions_total"], 0)

    def test_one_process_without_a_cluster(self):
        for model, _ in self.models():
            with self.subTest(model=model), Cluster(model=model) as cluster:
                tokens = [100 + i % 20 for i in range(550)]
                done = cluster.client.complete(tokens=tokens, max_tokens=8, ignore_eos=True, logits_hash=True)
                alone = json.loads(harness.run_sluice("generate", "--model", model, "--tokens", ",".join(map(str, tokens)),
                                                      "--max-tokens", "8", "--ignore-eos", "--json", "--logits-hashes").stdout)
                self.assertEqual(alone["token_ids"], done.tokens[0])
                self.assertEqual(alone["logits_hashes"], [f"{digest:016x}" for digest in done.hashes[0]])


if __name__ == "__main__":
    harness.main()

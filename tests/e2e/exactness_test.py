"""What surrounds a request never changes its tokens: many at once, split or local, cached or not, over either transport."""
import concurrent.futures
import random
import unittest

import harness
from harness import Cluster


def requests_of(client, count):
    """`count` requests of mixed lengths, greedy and seeded; about a third share prefixes. Prompts reach past two KV tiles."""
    rng = random.Random(20)
    vocabulary = client.call("ListModels", client.message("ListModelsRequest")).models[0].vocabulary
    shared = [rng.randrange(300, vocabulary) if vocabulary > 1000 else rng.randrange(97, 123) for _ in range(600)]
    made = []
    for i in range(count):
        length = rng.choice([1, 7, 31, 32, 33, 64, 200, 330, 580])
        tokens = shared[:length] if i % 3 == 0 else [rng.choice(shared) for _ in range(length)]
        made.append(dict(tokens=tokens, temperature=rng.choice([0.0, 1.0]), seed=i, max_tokens=rng.choice([1, 2, 9, 24]),
                         ignore_eos=True))
    return made


def run_all(client, requests, at_once):
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return [done.tokens[0] for done in pool.map(lambda r: client.complete(timeout=250, **r), requests)]


class ExactnessTest(unittest.TestCase):
    def check(self, model, count):
        with Cluster("--split", "never", model=model) as local:
            requests = requests_of(local.client, count)
            expected = run_all(local.client, requests, 1)
        for flags in (["--transport", "ucx-shm"], ["--transport", "ucx-tcp"], ["--prefill", "2", "--decode", "2"]):
            with self.subTest(flags=flags), Cluster(*flags, model=model) as cluster:
                self.assertEqual(run_all(cluster.client, requests, count), expected)
                self.assertEqual(run_all(cluster.client, requests, 8), expected)  # now from the prefix cache
                self.assertEqual(cluster.pages_in_use(), 0)

    def test_64_toy_requests_at_once(self):
        self.check("toy", 64)

    def test_requests_to_a_real_model(self):
        if harness.ARGS.model != "toy":
            self.check(harness.ARGS.model, 16)


if __name__ == "__main__":
    harness.main()

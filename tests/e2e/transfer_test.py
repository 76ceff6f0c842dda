"""The hand-off carries what it says, over shared memory and over TCP, and where a prompt is computed changes no token."""
import unittest

import harness
from harness import Cluster

PROMPTS = ["a", "one page and a bit " * 3, "several pages of text " * 40]


class TransferTest(unittest.TestCase):
    def run_over(self, *flags):
        with Cluster(*flags) as cluster:
            results = []
            for prompt in PROMPTS:
                for temperature in (0.0, 1.0):
                    done = cluster.client.complete(text=prompt, temperature=temperature, seed=5, max_tokens=24, ignore_eos=True)
                    self.assertEqual(done.usage.recomputed_tokens, 0)
                    results.append(done.tokens[0])
            harness.wait_until(lambda: all(cluster.metric_sum(role, "sluice_requests_in_flight") == 0
                                           for role in ("prefill", "decode")), "the workers are idle")
            sent = cluster.metric_sum("prefill", "sluice_kv_transfer_bytes_total", 'side="send"')
            received = cluster.metric_sum("decode", "sluice_kv_transfer_bytes_total", 'side="receive"')
            sent_pieces = cluster.metric_sum("prefill", "sluice_kv_transfer_pieces_total", 'side="send"')
            received_pieces = cluster.metric_sum("decode", "sluice_kv_transfer_pieces_total", 'side="receive"')
            self.assertEqual(cluster.metric_sum("decode", "sluice_recomputed_tokens_total"), 0)
            harness.wait_until(lambda: cluster.pages_in_use() == 0, "all pages are free or cached")
            return results, (sent, received, sent_pieces, received_pieces)

    def test_split_over_shm_and_tcp_and_local_agree(self):
        shm, shm_counts = self.run_over("--transport", "ucx-shm")
        tcp, tcp_counts = self.run_over("--transport", "ucx-tcp")
        local, local_counts = self.run_over("--split", "never")
        self.assertEqual(shm, tcp)
        self.assertEqual(shm, local)
        for sent, received, sent_pieces, received_pieces in (shm_counts, tcp_counts):
            self.assertGreater(sent, 0)
            self.assertEqual(sent, received)
            self.assertEqual(sent_pieces, received_pieces)
        self.assertEqual(shm_counts, tcp_counts)
        self.assertEqual(local_counts, (0, 0, 0, 0))


if __name__ == "__main__":
    harness.main()

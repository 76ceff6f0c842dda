"""Bytes that change while they rest in the pool of a running worker: never attended, counted, and the client sees nothing of it."""
import glob
import os
import signal
import struct
import unittest

import harness
from services import ServicesTest, Stream

POOL_MIB = 16
HEADER_BYTES = 64  # of a page; it begins with the generation, which is 0 while the page is free
PROMPT = list(range(200))
SAMPLING = dict(tokens=PROMPT, ignore_eos=True, seed=7, temperature=1.0)


class Pool:
    """The pages of a worker, read and written from outside."""

    def __init__(self, worker):
        self.worker = worker
        self.page_bytes = int(harness.read_metrics(worker["metrics"])["sluice_kv_page_bytes"])
        # The pools of others may be mapped too; the folder of its own is what it holds open.
        own = [os.readlink(path) for path in glob.glob(f"/proc/{worker['pid']}/fd/*") if os.path.isdir(path)]
        with open(f"/proc/{worker['pid']}/maps") as maps:
            spans = [[int(end, 16) for end in line.split()[0].split("-")] for line in maps
                     if any(folder + "/ucx_shm_posix_" in line for folder in own)]
        self.start, = (begin for begin, end in spans if end - begin == POOL_MIB << 20)
        self.pages = (POOL_MIB << 20) // self.page_bytes

    def read(self):
        """The bytes of every page, in order."""
        with open(f"/proc/{self.worker['pid']}/mem", "rb") as memory:
            memory.seek(self.start)
            pool = memory.read(self.pages * self.page_bytes)
        return [pool[i * self.page_bytes:(i + 1) * self.page_bytes] for i in range(self.pages)]

    def held(self):
        return [i for i, page in enumerate(self.read()) if struct.unpack_from("<Q", page)[0] != 0]

    def flip(self, page, at):
        with open(f"/proc/{self.worker['pid']}/mem", "r+b", buffering=0) as memory:
            memory.seek(self.start + page * self.page_bytes + at)
            old, = memory.read(1)
            memory.seek(-1, os.SEEK_CUR)
            memory.write(bytes([old ^ 0x10]))


class RestTest(ServicesTest):
    def start_workers(self, decodes, *worker):
        self.start(decodes=decodes, worker=(f"engine.kv_pool_mib={POOL_MIB}", *worker))

    def test_a_damaged_cached_block_is_computed_again(self):
        self.start_workers(1, "engine.prefix_digests=full")
        expected = self.client.complete(**SAMPLING, max_tokens=16)
        for kind, at in (("digest", HEADER_BYTES + 9), ("tag", 0)):
            workers = self.prefills + self.decodes
            for worker in workers:
                pool = Pool(worker)
                self.assertTrue(pool.held())
                for page in pool.held():
                    pool.flip(page, at)
            again = self.client.complete(**SAMPLING, max_tokens=16)
            self.assertEqual(again.tokens, expected.tokens)
            self.assertEqual(again.usage.cached_tokens, 0)
            for worker in workers:
                self.assertGreater(self.metric(worker, f'sluice_prefix_damage_total{{kind="{kind}"}}'), 0)
            healed = self.client.complete(**SAMPLING, max_tokens=16)
            self.assertEqual(healed.tokens, expected.tokens)
            self.assertGreater(healed.usage.cached_tokens, 0)

    def test_a_page_that_changes_hands_under_a_running_stream_moves_that_stream(self):
        self.start_workers(2)
        expected = self.client.complete(**SAMPLING, max_tokens=4000)
        stream = Stream(self.client, **SAMPLING, max_tokens=4000)

        def decoding():
            return [w for w in self.decodes if self.metric(w, 'sluice_kv_pages{state="active"}') > 0]
        harness.wait_until(decoding, "a worker decodes")
        busy, = decoding()
        pool = Pool(busy)
        os.kill(busy["pid"], signal.SIGSTOP)
        for page in pool.held():
            pool.flip(page, 0)
        os.kill(busy["pid"], signal.SIGCONT)
        stream.join(60)
        self.assertIsNone(stream.error)
        self.assertEqual(stream.tokens, expected.tokens[0])
        self.assertEqual(self.metric(busy, "sluice_kv_tag_failures_total"), 1)
        harness.wait_until(lambda: self.pages_in_use() == 0, "no page is in use")

    def test_freed_pages_keep_nothing_where_that_is_wanted(self):
        for when in ("tenant_change", "always"):
            self.start_workers(1, f"engine.kv_zero_on_free={when}")
            self.client.complete(**SAMPLING, max_tokens=16)
            harness.wait_until(lambda: self.pages_in_use() == 0, "no page is in use")
            free = [page for page in Pool(self.decodes[0]).read() if struct.unpack_from("<Q", page)[0] == 0]
            self.assertTrue(free)
            self.assertEqual(any(any(page) for page in free), when == "tenant_change")


if __name__ == "__main__":
    harness.main()

"""Shared memory of a worker that is killed while it makes its pool: it does not stay on the host."""
import glob
import os
import signal
import subprocess
import time
import unittest

import harness
from services import Services

SEGMENTS = "/dev/shm/sluice-ucx.*/ucx_shm_posix_*"
POOL_MIB = 1024  # takes long enough to make that it can be caught


class ShmTest(unittest.TestCase):
    def caught_allocating(self):
        """A worker in the middle of the allocation of its pool, and the segment it is making."""
        before = set(glob.glob(SEGMENTS))
        process = subprocess.Popen([os.path.join(harness.ARGS.bin, "sluice-decode"), "--model", "toy", "--threads", "1", "--set",
                                    f"engine.kv_pool_mib={POOL_MIB}"], stderr=subprocess.DEVNULL)
        self.addCleanup(process.kill)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            # That of the pool: those of queues are small.
            new = [path for path in set(glob.glob(SEGMENTS)) - before if self.size(path) > 1 << 22]
            if new:
                return process, new[0]
        self.fail("no segment was seen")

    @staticmethod
    def size(path):
        try:
            return os.stat(path).st_blocks * 512
        except FileNotFoundError:
            return 0

    def test_what_a_killed_worker_left_is_removed_by_the_next(self):
        for _ in range(5):
            process, segment = self.caught_allocating()
            process.send_signal(signal.SIGKILL)
            self.assertEqual(process.wait(), -signal.SIGKILL)
            if os.path.exists(segment):  # else it was just done
                break
        self.assertTrue(os.path.exists(segment), "never caught in the middle")
        with Services() as services:
            services.start("sluice-decode", "model.path=toy", "engine.kv_pool_mib=8", "engine.threads=1")
            self.assertFalse(os.path.exists(segment))
            self.assertFalse(os.path.exists(os.path.dirname(segment)))


if __name__ == "__main__":
    harness.main()

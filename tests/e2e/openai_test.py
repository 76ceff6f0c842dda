"""Runs openai_sdk_test.py, the checks through OpenAI's own client, against a cluster of its own."""
import os
import subprocess
import sys
import unittest

import harness
from harness import Cluster


class OpenAiTest(unittest.TestCase):
    def test_the_sdk_checks_pass(self):
        with Cluster() as cluster:
            script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "openai_sdk_test.py")
            result = subprocess.run([sys.executable, script, "--url", cluster.endpoints["http"], "--model", "toy"],
                                    capture_output=True, text=True, timeout=200)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertIn("OK", result.stderr)


if __name__ == "__main__":
    harness.main()

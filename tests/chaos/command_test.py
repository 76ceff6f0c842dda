"""sluice chaos: kills a process of a cluster of its own or of a given one, and says truly what became of the answer."""
import json
import os
import tempfile
import unittest

import load  # noqa: F401  finds the harness
import harness


def chaos(*flags, check=True):
    return harness.run_sluice("chaos", "--threads", "1", "--max-tokens", "1500", *flags, check=check)


class ChaosCommandTest(unittest.TestCase):
    def test_the_answer_goes_on_whatever_is_killed(self):
        for role in ("decode", "prefill", "router", "cache-manager"):
            with self.subTest(role=role):
                report = json.loads(chaos("--kill", role, "--at", "20", "--json").stdout)
                self.assertTrue(report["equal"], report)
                self.assertEqual(report["tokens"], 1500)
                self.assertTrue(report["killed"]["name"].startswith(role), report["killed"])
                self.assertGreaterEqual(report["killed_at_token"], 20)
                self.assertEqual(report["recomputed_tokens"] > 0, role == "decode", report)
                self.assertEqual(report["resumes"], role == "router")

    def test_people_get_the_text_and_what_happened(self):
        result = chaos("--at", "20")
        self.assertGreater(len(result.stdout), 1000)
        self.assertIn("kill -9", result.stderr)
        self.assertIn("byte for byte", result.stderr)

    def test_a_kill_that_never_came_and_a_wrong_file_are_failures(self):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "endpoints.json")
            harness.run_sluice("up", "--demo", "--detach", "--endpoints", file, "--threads", "1", "--kv-pool-mib", "64")
            try:
                missing = harness.run_sluice("chaos", "--endpoints", file, "--max-tokens", "20", "--at", "30", check=False)
                self.assertEqual(missing.returncode, 1)
                self.assertIn("nothing was killed", missing.stderr)
                wrong = harness.run_sluice("chaos", "--endpoints", os.path.join(harness.ARGS.bin, "sluice"), check=False)
                self.assertEqual(wrong.returncode, 2)
                self.assertIn("not an endpoints file", wrong.stderr)
            finally:
                harness.run_sluice("down", "--endpoints", file)


if __name__ == "__main__":
    harness.main()

#!/usr/bin/env python3
"""The checker finds every breach of the contract: each is made by hand and must be named."""
import unittest

import checker

SPEC = "k"
FINISHED = {"event": "end", "t": 1.0, "kind": "finished", "finish": {"0": "length"}, "usage": {"prompt_tokens": 3}}


def sent(name, t=0.0):
    return {"event": "sent", "t": t, "request": name, "key": SPEC, "timeout": 10}


def tokens(name, position, ids, text, t=0.5):
    return {"event": "tokens", "t": t, "request": name, "choice": 0, "position": position, "ids": ids, "text": text}


def end(name, **changes):
    return {**FINISHED, "request": name, **changes}


REFERENCE = [sent("reference-0"), tokens("reference-0", 0, [1, 2, 3, 4], "abcd"), end("reference-0")]


def judge(*events, untyped=()):
    return checker.check([*REFERENCE, *events], untyped)


class CheckerTest(unittest.TestCase):
    def check_found(self, word, *events):
        violations = judge(sent("r"), *events).violations
        self.assertTrue(any(word in v for v in violations), violations)

    def test_a_whole_stream_and_a_typed_error_are_right(self):
        report = judge(sent("a"), tokens("a", 0, [1, 2], "ab"), tokens("a", 2, [3, 4], "cd"), end("a"), sent("b"),
                       tokens("b", 0, [1], "a"), end("b", kind="error", finish={}, code="UNAVAILABLE", reason="WORKER_FAILED"))
        self.assertEqual(report.violations, [])
        self.assertEqual(report.ends, {"finished": 1, "error": 1})
        self.assertEqual(report.finished_share(), 0.5)

    def test_breaches_are_found(self):
        whole = tokens("r", 0, [1, 2, 3, 4], "abcd")
        self.check_found("another than undisturbed", tokens("r", 0, [1, 9, 3, 4], "abcd"), end("r"))
        self.check_found("text of choice 0", tokens("r", 0, [1, 2, 3, 4], "abXd"), end("r"))
        self.check_found("less text", tokens("r", 0, [1, 2, 3, 4], "abc"), end("r"))
        self.check_found("looks finished with 3 of 4", tokens("r", 0, [1, 2, 3], "abc"), end("r"))
        self.check_found("looks finished with 0 of 4", end("r"))
        self.check_found("position 1 after 2", tokens("r", 0, [1, 2], "ab"), tokens("r", 1, [2, 3, 4], "bcd"), end("r"))
        self.check_found("position 3 after 2", tokens("r", 0, [1, 2], "ab"), tokens("r", 3, [4], "d"), end("r"))
        self.check_found("another than undisturbed", tokens("r", 0, [1, 2, 3, 4, 5], "abcd"), end("r"))
        self.check_found("ended 0 times", whole)
        self.check_found("ended 2 times", whole, end("r"), end("r"))
        self.check_found("ended after 13.0 s", whole, end("r", t=13.0))
        self.check_found("without a type", whole, end("r", kind="error", finish={}, code="INTERNAL", reason=None, details="x"))
        self.check_found("a finish reason and an error", whole,
                         end("r", kind="error", code="INTERNAL", reason="INTERNAL", details="x"))
        self.check_found("finish reasons {'0': 'abort'}", whole, end("r", finish={"0": "abort"}))
        self.check_found("finish reasons {}", whole, end("r", finish={}))
        self.check_found("without usage", whole, end("r", usage=None))

    def test_untyped_ends_are_right_only_where_a_scenario_says_so(self):
        broken = end("r", kind="error", finish={}, code="UNAVAILABLE", reason=None, details="x")
        self.assertTrue(judge(sent("r"), broken).violations)
        self.assertEqual(judge(sent("r"), broken, untyped=("UNAVAILABLE",)).violations, [])

    def test_gaps_are_those_around_the_fault(self):
        report = judge(sent("a"), *(tokens("a", i, [i + 1], "abcd"[i], t) for i, t in enumerate((0.1, 0.2, 0.9, 1.0))), end("a"))
        self.assertEqual([round(g, 3) for g in checker.gaps_after(report, 0.3, 1.3)], [0.7])
        self.assertEqual(checker.gaps_after(report, 1.5, 2.5), [])


if __name__ == "__main__":
    unittest.main()

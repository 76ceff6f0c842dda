#!/usr/bin/env python3
"""Judges a recorded history: the contract, whatever the faults were.   checker.py HISTORY...

Each request ends exactly once, in time; what it got is a prefix of its undisturbed run, byte for byte, without gap or repetition; a
stream that looks finished is whole; an error says why in a type. References are the requests named reference-*; those named warm-*
ran before any fault and count for no share.
"""
import sys

import history as histories

FINISHED_REASONS = ("stop", "length", "tool_calls")
SLACK_S = 2


class Report:
    """Of one history: `violations` in words, counts of ends, and of each disturbed stream the times of its tokens."""

    def __init__(self):
        self.violations, self.ends, self.streams = [], {}, {}

    def finished_share(self):
        done = self.ends.get("finished", 0)
        total = sum(n for kind, n in self.ends.items() if kind != "cancelled")
        return done / total if total else 1.0


class _Request:
    def __init__(self, sent):
        self.sent, self.ids, self.text, self.times, self.ends = sent, {}, {}, [], []


def _collect(events, report):
    requests = {}
    for event in events:
        name = event.get("request")
        if event["event"] == "sent":
            if name in requests:
                report.violations.append(f"{name}: sent twice; the harness is wrong")
            requests[name] = _Request(event)
        elif event["event"] == "tokens":
            request = requests[name]
            ids = request.ids.setdefault(event["choice"], [])
            if event["position"] != len(ids):
                report.violations.append(f"{name}: position {event['position']} after {len(ids)} tokens")
            ids += event["ids"]
            request.text[event["choice"]] = request.text.get(event["choice"], "") + event["text"]
            if event["ids"]:
                request.times.append((event["t"], len(ids)))
        elif event["event"] == "end":
            requests[name].ends.append(event)
    return requests


def _check_end(name, request, untyped_codes, violations):
    if len(request.ends) != 1:
        violations.append(f"{name}: ended {len(request.ends)} times")
        return
    end = request.ends[0]
    took = end["t"] - request.sent["t"]
    if took > request.sent["timeout"] + SLACK_S:
        violations.append(f"{name}: ended after {took:.1f} s, {request.sent['timeout']} s were given")
    if end["kind"] == "finished":
        if not end["finish"] or any(reason not in FINISHED_REASONS for reason in end["finish"].values()):
            violations.append(f"{name}: ended without error and with finish reasons {end['finish']}")
        elif end["usage"] is None:
            violations.append(f"{name}: ended without error and without usage")
    elif end["kind"] == "error":
        if end["finish"]:
            violations.append(f"{name}: has a finish reason and an error, {end['code']}")
        # A deadline may pass at the client first, which then has nobody's reason.
        if not end["reason"] and end["code"] not in ("DEADLINE_EXCEEDED", *untyped_codes):
            violations.append(f"{name}: {end['code']} without a type: {end['details']}")


def _check_content(name, request, reference, violations):
    finished = request.ends and request.ends[0]["kind"] == "finished"
    for choice in set(request.ids) | (set(reference.ids) if finished else set()):
        ids, right = request.ids.get(choice, []), reference.ids.get(choice, [])
        if ids != right[:len(ids)]:
            at = next(i for i, pair in enumerate(zip(ids + [None], right + [None])) if pair[0] != pair[1])
            violations.append(f"{name}: token {at} of choice {choice} is another than undisturbed")
        elif finished and len(ids) != len(right):
            violations.append(f"{name}: looks finished with {len(ids)} of {len(right)} tokens")
        elif not reference.text.get(choice, "").startswith(request.text.get(choice, "")):
            violations.append(f"{name}: text of choice {choice} is another than undisturbed")
        elif finished and request.text.get(choice) != reference.text.get(choice):
            violations.append(f"{name}: looks finished with less text than undisturbed")


def check(events, untyped_codes=()):
    """`untyped_codes`: how calls may end without a typed reason, because the scenario kills or cuts off routers."""
    report = Report()
    requests = _collect(events, report)
    references = {r.sent["key"]: r for name, r in requests.items() if name.startswith("reference-")}
    for name, request in requests.items():
        _check_end(name, request, untyped_codes, report.violations)
        if name.startswith("reference-"):
            if not request.ends or request.ends[0]["kind"] != "finished":
                report.violations.append(f"{name}: the undisturbed run did not finish: {request.ends}")
            continue
        if not name.startswith("warm-"):  # before any fault
            for end in request.ends:
                report.ends[end["kind"]] = report.ends.get(end["kind"], 0) + 1
            report.streams[name] = request
        if request.sent["key"] in references:
            _check_content(name, request, references[request.sent["key"]], report.violations)
        else:
            report.violations.append(f"{name}: has no reference; the harness is wrong")
    return report


def gaps_after(report, t, until):
    """Seconds without a token, of each stream that had some and not all at time t: from its last before to its first after t, or
    the longest such pause that began before `until`."""
    found = []
    for request in report.streams.values():
        times = [time for time, _ in request.times]
        if not times or times[0] > t or times[-1] <= t:
            continue
        found.append(max(b - a for a, b in zip(times, times[1:]) if b > t and a < until))
    return found


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def main():
    bad = 0
    for path in sys.argv[1:]:
        report = check(histories.read(path), untyped_codes=("UNAVAILABLE",))
        bad += len(report.violations)
        print(f"{path}: {report.ends}, {len(report.violations)} violations")
        for violation in report.violations:
            print("  " + violation)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

"""Fault points are in builds that have them switched on, and in no other.

    fault_builds_test.py --source FOLDER --having FILE... --lacking FILE...     probes (*.o) and programs of workers

A probe is common/base/fault_probe.cc, compiled with or without fault points.
"""
import argparse
import glob
import os
import re
import sys

CHANGE = b"_to_\0"  # joins two states in the name of a change (base/state_machine.h)
PROBE = b"probe.step\0"


def points_of_workers(source):
    """The named steps that every worker's program passes."""
    names = set()
    for path in glob.glob(os.path.join(source, "common", "*", "*.cc")):
        with open(path) as file:
            names |= set(re.findall(r'SLUICE_FAULT\([^";]*"([a-z._]+)"\)', file.read()))
    names = {name.encode() + b"\0" for name in names} - {PROBE}
    assert len(names) >= 15, names
    return names


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", required=True)
    parser.add_argument("--having", nargs="*", default=[])
    parser.add_argument("--lacking", nargs="*", default=[])
    args = parser.parse_args()
    points = points_of_workers(args.source)
    failures = []
    for path in args.having + args.lacking:
        with open(path, "rb") as file:
            content = file.read()
        for point in {CHANGE} | ({PROBE} if path.endswith(".o") else points):
            if (point in content) != (path in args.having):
                failures.append(f"{path}: {point[:-1].decode()} is " + ("there" if point in content else "missing"))
    print("\n".join(sorted(failures)), file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

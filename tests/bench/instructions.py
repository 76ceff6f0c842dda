#!/usr/bin/env python3
"""How many instructions the AVX2 matrix kernels take, counted by callgrind (valgrind knows no AVX-512), against the
counts in instructions.json: unlike times they are the same on every machine and under any load.

  instructions.py SLUICE            fails when a kernel takes more than 3 % over its count
  instructions.py SLUICE --update   writes the counts of now
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

EXPECTED = pathlib.Path(__file__).with_name("instructions.json")
TOLERANCE = 0.03
COMMAND = ["bench", "kernels", "--kernels", "avx2", "--threads", "1", "--memory-mib", "1", "--repetitions", "1",
           "--rows", "1,8", "--json"]
FORMATS = {"0": "F32", "2": "BF16", "3": "Q8_0", "4": "Q4_0", "5": "Q4_1", "10": "Q6_K", "13": "INT4"}


def kernel_of(function):
    """The key of a function in instructions.json; None of one that is no tile of a matrix kernel."""
    if "kernels::avx2::" not in function or "::Tile<" not in function:
        return None
    if "Fp8Reader" in function:
        return "FP8"
    format_number = re.search(r"WeightFormat\)(\d+)", function).group(1)
    dot = "_int8" if "Int8Dot" in function else "_int16" if "Int16Dot" in function else ""
    return FORMATS[format_number] + dot


def count(profile):
    """Instructions of each kernel, of its tiles alone: what they call is counted apart."""
    names, counts, kernel, of_callee = {}, {}, None, False
    for line in profile.splitlines():
        if line.startswith("fn="):
            number, name = re.match(r"fn=\((\d+)\)(?: (.*))?", line).groups()
            if name:
                names[number] = name
            kernel = kernel_of(names[number])
        elif line.startswith("cfn="):
            number, name = re.match(r"cfn=\((\d+)\)(?: (.*))?", line).groups()
            if name:
                names[number] = name
        elif line.startswith("calls="):
            of_callee = True
        elif re.match(r"[+\-*\d]", line):
            if not of_callee and kernel:
                counts[kernel] = counts.get(kernel, 0) + int(line.split()[1])
            of_callee = False
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sluice")
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        profile = pathlib.Path(folder) / "profile"
        subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={profile}", arguments.sluice, *COMMAND],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        counts = count(profile.read_text())
    if arguments.update:
        EXPECTED.write_text(json.dumps(counts, indent=2, sort_keys=True) + "\n")
        return 0
    expected = json.loads(EXPECTED.read_text())
    failed = sorted(expected.keys() ^ counts.keys())
    for kernel in sorted(expected.keys() & counts.keys()):
        ratio = counts[kernel] / expected[kernel]
        print(f"{kernel:12} {counts[kernel]:12} {100 * (ratio - 1):+6.1f} %")
        if ratio > 1 + TOLERANCE:
            failed.append(kernel)
    if failed:
        print(f"more instructions than in {EXPECTED.name}, or no count: {', '.join(failed)}; if that is meant, --update")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

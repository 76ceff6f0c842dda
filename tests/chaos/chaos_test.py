#!/usr/bin/env python3
"""The real services under faults, each on a host of its own.   chaos_test.py --bin FOLDER [--model FILE] [--quick] [SCENARIO...]

Without names all scenarios run, with --quick the short ones. Histories stay in --out, if given, for checker.py.
"""
import argparse
import importlib
import json
import os
import sys
import tempfile
import time
import traceback

import network

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help="folder of the built services")
    parser.add_argument("--model", default="toy", help="a GGUF file; toy: the built-in model")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--kills", type=int, help="how often R1, R2 and R24 kill, each time with all checks at the end; to take a "
                        "row in pieces, each with a seed of its own")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--out", help="folder for histories, logs and results.jsonl")
    parser.add_argument("--list", action="store_true", help="names the scenarios and ends")
    parser.add_argument("scenarios", nargs="*")
    args = parser.parse_args()
    network.enter()
    network.set_up_client_host()

    import harness
    harness.ARGS = args
    import scenario
    for scenarios in ("crashes", "stops", "link_faults", "resources", "limits", "lifecycles", "soak"):
        importlib.import_module(scenarios)
    if args.list:
        for found in scenario.TABLE:
            print(f"{found.name}: {found.what}")
        return 0
    chosen = [s for s in scenario.TABLE if s.name in args.scenarios] if args.scenarios else \
        [s for s in scenario.TABLE if s.quick or not args.quick]
    unknown = set(args.scenarios) - {s.name for s in scenario.TABLE}
    if unknown:
        parser.error(f"no scenario {', '.join(sorted(unknown))}; --list names them")
    failed = [found.name for found in chosen if not run_one(args, found)]
    if failed:
        print(f"failed: {', '.join(failed)}; the seed was {args.seed}", file=sys.stderr)
    return 1 if failed else 0


def run_one(args, found):
    import scenario
    with tempfile.TemporaryDirectory(prefix="sluice-chaos-") as temporary:
        folder = os.path.join(args.out, found.name.replace(" ", "-")) if args.out else temporary
        os.makedirs(folder, exist_ok=True)
        begin = time.monotonic()
        run = scenario.Run(args, found, folder)
        try:
            found.function(run)
            error = ""
        except Exception as caught:  # every scenario is run, whatever became of the one before
            error = str(caught) or type(caught).__name__
            traceback.print_exc()
        result = {"scenario": found.name, "ok": not error, "seconds": round(time.monotonic() - begin, 1), **run.figures}
        if error:
            result["error"] = error[:2000]
        print(json.dumps(result), flush=True)
        if args.out:
            with open(os.path.join(args.out, "results.jsonl"), "a") as file:
                file.write(json.dumps(result) + "\n")
        return not error


if __name__ == "__main__":
    sys.exit(main())

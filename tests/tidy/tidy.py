#!/usr/bin/env python3
"""Checks of the source tree that no compiler makes. Run as a ctest; prints every violation and exits 1 if there is one.

    tidy.py ROOT        checks the tree
    tidy.py --self-test checks that every rule can fail
"""
import pathlib
import re
import subprocess
import sys
import tempfile

CODE = {".h", ".cc", ".cu", ".cuh", ".inc"}
FILE_LINES_MAX = 800
KERNEL_FILE_LINES_MAX = 1200
FUNCTION_LINES_MAX = 70
README_FOLDERS = ("proto", "services", "common", "kernels", "deploy", "helm", "tests")

# Pattern, files where it is allowed, what to do instead.
BANNED = [
    (r"\bgetenv\s*\(", (), "settings come from config.proto, never from the environment"),
    (r"\bsetenv\s*\(", ("common/transport/ucx/",), "only transport/ucx may, for options that UCX takes from nowhere else"),
    (r"\bsystem_clock::now\b|\bsteady_clock::now\b", ("common/base/", "kernels/", "common/device/", "tests/"),
     "time comes from the injected Clock"),
    (r"\babsl::Now\(\)", ("common/base/clock.cc",), "time comes from the injected Clock"),
    (r"\bsleep_for\b|\busleep\s*\(|\bnanosleep\s*\(|\babsl::SleepFor\b", (), "wait for an event with a deadline"),
    (r"\bstd::cout\b", ("services/cli/",), "results go to stdout only from the command line tool, logs through base/log.h"),
    (r"\babsl::Mutex\b|\babsl::Notification\b|\babsl::BlockingCounter\b", (), "use base/mutex.h: TSan cannot see absl's"),
    (r"\bTODO\b|\bFIXME\b|\bXXX\b", (), "finish it, or say in the folder's README what is left out"),
    (r"\bGTEST_SKIP\b|\bDISABLED_", (), "a test that does not run proves nothing"),
    (r"(?<![\w>.])delete\s+\w|(?<![\w>.])delete\[\]", (), "owners are unique_ptr or values"),
]
# Include prefix, folders that may use it.
INCLUDES = [
    (r"grpc(pp|\+\+|/)", ("common/rpc/", "services/", "tests/")),
    (r"prometheus/", ("common/telemetry/", "tests/")),
    (r"ucp/|ucs/|uct/", ("common/transport/ucx/", "tests/")),
    (r"cuda|nccl", ("common/device/", "kernels/", "common/collective/")),
    (r"spdlog/", ("common/base/",)),
    (r"yaml-cpp/", ("common/config/",)),
]
# In any tracked text file.
EVERYWHERE = [
    (r"(?<![\w.])/(work|farm)/", "a path of one machine"),
    (r"(?<![\w.])/tmp/bash[_]jobs", "a path of one machine"),
]
BACKEND_IF = re.compile(r"^\s*#\s*if.*(UCX|CUDA|NCCL|GRPC|PROMETHEUS)")


def tracked(root):
    out = subprocess.run(["git", "-C", str(root), "ls-files"], capture_output=True, text=True, check=True).stdout
    return [root / line for line in out.splitlines() if (root / line).is_file()]


def strip_comments_and_strings(text):
    """Blanks comments and literals, keeping line numbers."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0))
    pattern = r'R"([^(]*)\((?:.|\n)*?\)\1"|//[^\n]*|/\*(?:.|\n)*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\''
    return re.sub(pattern, blank, text)


def long_functions(code):
    """Yields (line, length) of brace blocks at namespace or class level that look like function bodies and are too long."""
    lines = code.split("\n")
    stack = []  # (is_function, line)
    in_function = 0
    text = ""
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("#"):
            continue
        for char in line:
            if char == "{":
                head = text.strip()
                is_function = in_function == 0 and bool(re.search(r"\)\s*(const|noexcept|override|final|\s)*(->[^{;]*)?$", head)
                                                        or re.search(r"\)\s*:\s*.*$", head, re.S))
                stack.append((is_function, number))
                in_function += is_function
                text = ""
            elif char == "}":
                if stack:
                    is_function, start = stack.pop()
                    in_function -= is_function
                    if is_function and number - start + 1 > FUNCTION_LINES_MAX:
                        yield start, number - start + 1
                text = ""
            elif char == ";":
                text = ""
            else:
                text += char
        text += " "


def check_code(relative, text):
    code = strip_comments_and_strings(text)
    lines_max = KERNEL_FILE_LINES_MAX if relative.startswith("kernels/") else FILE_LINES_MAX
    count = text.count("\n")
    if count > lines_max:
        yield 1, f"{count} lines, at most {lines_max}: split it by responsibility"
    for number, line in enumerate(code.split("\n"), 1):
        for pattern, allowed, advice in BANNED:
            if re.search(pattern, line) and not relative.startswith(allowed or ("\0",)):
                yield number, f"'{re.search(pattern, line).group(0).strip()}': {advice}"
        if BACKEND_IF.search(line):
            yield number, "#if on a backend: an absent backend drops a folder"
    for number, line in enumerate(text.split("\n"), 1):
        match = re.match(r'\s*#\s*include\s*[<"]([^">]+)', line)
        for prefix, allowed in INCLUDES if match else ():
            if re.match(prefix, match.group(1)) and not relative.startswith(allowed):
                yield number, f"includes {match.group(1)}, which only {', '.join(allowed)} may"
        if re.search(r"\b(TODO|FIXME)\b", line):
            yield number, "finish it, or say in the folder's README what is left out"
    for number, length in long_functions(code):
        yield number, f"function of {length} lines, at most {FUNCTION_LINES_MAX}"
    if relative.endswith(".h") and "#pragma once" not in text:
        yield 1, "header without #pragma once"


def check_own_header_first(texts):
    """A source file that includes its own header first proves that the header needs nothing before it."""
    for relative, text in texts.items():
        header = relative.removesuffix(".cc") + ".h"
        if not relative.endswith(".cc") or header not in texts:
            continue
        first = re.search(r'^\s*#\s*include\s*[<"]([^">]+)', text, re.M)
        if not first or first.group(1) not in (header, header.removeprefix("common/")):
            yield f"{relative}:1: includes {header} not first"


def check_tree(root):
    files = tracked(root)
    texts = {f.relative_to(root).as_posix(): f.read_text(errors="replace") for f in files if f.suffix in CODE}
    yield from check_own_header_first(texts)
    for relative, text in sorted(texts.items()):
        for number, message in check_code(relative, text):
            yield f"{relative}:{number}: {message}"
    for file in files:
        relative = file.relative_to(root).as_posix()
        if relative == "tests/tidy/tidy.py" or file.stat().st_size > 1 << 20:
            continue
        for number, line in enumerate(file.read_text(errors="replace").split("\n"), 1):
            for pattern, advice in EVERYWHERE:
                if re.search(pattern, line):
                    yield f"{relative}:{number}: {advice}"
    everything = "\n".join(texts.values())
    for relative in sorted(texts):
        if relative.endswith((".h", ".inc")):
            name = relative.removeprefix("common/")
            if f'"{name}"' not in everything and f'"{relative}"' not in everything:
                yield f"{relative}:1: header that nothing includes"
    folders = {f.relative_to(root).parent for f in files if f.name == "CMakeLists.txt"} - {pathlib.Path(".")}
    folders |= {pathlib.Path(name) for name in README_FOLDERS if (root / name).is_dir()}
    for folder in sorted(folders):
        # A folder inside a library, such as one kernel, may be described by its parent's README.
        if not any((root / f / "README.md").is_file() for f in (folder, folder.parent) if f != pathlib.Path(".")):
            yield f"{folder}: no README.md here or in the folder above"


def self_test():
    bad = {
        "common/x/a.cc": 'int f() { return getenv("X") != 0; }\n',
        "common/x/b.cc": "// TODO later\n",
        "common/x/c.cc": "#include <grpcpp/grpcpp.h>\n",
        "common/x/d.cc": "void f() {\n" + "  g();\n" * 80 + "}\n",
        "common/x/e.cc": "\n" * 900,
        "common/x/f.h": "int f();\n",
        "common/x/g.cc": "#if SLUICE_HAVE_UCX\n#endif\n",
        "common/x/h.cc": "void f() { std::this_thread::sleep_for(x); }\n",
    }
    failed = [name for name, text in bad.items() if not list(check_code(name, text))]
    good = "#pragma once\n// getenv( in a comment, sleep_for too\ninline int f() { return 1; }\n"
    failed += [f"false alarm: {m}" for m in check_code("common/x/good.h", good)]
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "common/y").mkdir(parents=True)
        (root / "common/y/CMakeLists.txt").write_text("")
        (root / "common/y/unused.h").write_text("#pragma once\n")
        (root / "common/y/late.h").write_text("#pragma once\n")
        (root / "common/y/late.cc").write_text('#include <string>\n#include "y/late.h"\n')
        subprocess.run(["git", "-C", folder, "init", "-q"], check=True)
        subprocess.run(["git", "-C", folder, "add", "-A"], check=True)
        found = "\n".join(check_tree(root))
        failed += [rule for rule in ("nothing includes", "no README.md", "late.h not first") if rule not in found]
    return failed


def main():
    if sys.argv[1:] == ["--self-test"]:
        failed = self_test()
        print("\n".join(f"rule did not hold: {name}" for name in failed) or "every rule can fail")
        return 1 if failed else 0
    violations = list(check_tree(pathlib.Path(sys.argv[1]).resolve()))
    print("\n".join(violations) or "tidy")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())

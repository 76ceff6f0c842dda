#!/usr/bin/env python3
"""Carries out a container file where there is no container engine: its own RUN and COPY steps, in folders, with chroot.

    run_steps.py [--file F] [--target STAGE] [--instead STAGE:PATH=FOLDER] [--root FOLDER] [-- ARGUMENTS]

Every stage becomes a folder tree. Then each program that was copied from another stage is checked: all its shared libraries are
there, and the packages of those that it links to are exactly those that the last apt-get step of its stage names. With ARGUMENTS
the target's entry point runs in its tree as an engine would run it: read-only root, the USER of the file, no capabilities.

--instead takes a folder for what a stage would have made, and does not run that stage. --root keeps the target's tree.

What it is not: an image. Nothing is pushed or signed; the base is Debian's minbase by debootstrap, not the image that FROM names;
seccomp and resource limits are the engine's. Needs root, debootstrap, binutils. Trees of base and leading RUN steps are kept in
$XDG_CACHE_HOME/sluice/container or ~/.cache/sluice/container.
"""
import argparse
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CONTAINERFILE = ROOT / "deploy/container/Containerfile"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SUITES = {"debian:12": "bookworm", "debian:12-slim": "bookworm"}
KNOWN = ("ARG", "FROM", "RUN", "COPY", "WORKDIR", "USER", "ENTRYPOINT")


class Failure(Exception):
    pass


class Stage:
    def __init__(self, name, base):
        self.name, self.base, self.steps = name, base, []  # steps: (instruction, text)


def parse(text):
    """{name: Stage} in order. Refuses instructions that nobody here could carry out."""
    arguments, stages = {}, {}
    for line in re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.M)).splitlines():
        if not line.strip():
            continue
        instruction, rest = line.split(None, 1)
        rest = " ".join(rest.split())
        if instruction not in KNOWN:
            raise Failure(f"{instruction} is not known here: {rest}")
        if instruction == "ARG":
            name, _, value = rest.partition("=")
            arguments[name] = value
        elif instruction == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\S+)", re.sub(r"\$\{(\w+)\}", lambda m: arguments[m.group(1)], rest)).groups()
            stages[name] = Stage(name, base)
        else:
            stages[list(stages)[-1]].steps.append((instruction, rest))
    return stages


def run(*command, **options):
    if shutil.which(command[0]) is None:
        raise Failure(f"{command[0]} is missing; deploy/local/install-packages installs it")
    result = subprocess.run(command, **options)
    if result.returncode != 0:
        raise Failure(f"exit code {result.returncode}: {shlex.join(map(str, command))}")
    return result


def in_tree(tree, script, mounts=""):
    """Command line of `script` with `tree` as its root, with /proc, /sys and /dev, in mount and process namespaces of its own."""
    setup = f"""
        tree={shlex.quote(str(tree))}
        {mounts}
        mount --bind /dev "$tree/dev"; mount --bind /sys "$tree/sys"; mount -o remount,bind,ro "$tree/sys"
        mount -t proc proc "$tree/proc"
        exec chroot {script}"""
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", setup]


def run_in(tree, text, folder):
    """A RUN step. It sees the host's network and its resolver."""
    mounts = 'touch "$tree/etc/resolv.conf"; mount --bind /etc/resolv.conf "$tree/etc/resolv.conf"'
    script = f'"$tree" /usr/bin/env -i PATH={PATH} HOME=/root sh -euc {shlex.quote(f"cd {folder}; {text}")}'
    run(*in_tree(tree, script, mounts), stdout=sys.stderr)


class Builder:
    def __init__(self, stages, scratch, instead=()):
        self.stages, self.scratch, self.instead = stages, pathlib.Path(scratch), dict(instead)
        self.trees, self.copied = {}, {}  # by stage; copied: programs that came from other stages
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        self.cache = pathlib.Path(cache, "sluice/container")

    def kept(self, key, make):
        """The cached folder for `key`; `make(folder)` fills a new one."""
        found = self.cache / hashlib.sha256(key.encode()).hexdigest()[:16]
        if not found.is_dir():
            self.cache.mkdir(parents=True, exist_ok=True)
            partial = pathlib.Path(tempfile.mkdtemp(dir=self.cache, prefix="partial-"))
            try:
                make(partial)
                partial.chmod(0o755)
                if not found.is_dir():  # another run may have been faster
                    partial.rename(found)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        return found

    def base(self, name):
        image = name.partition("@")[0]
        if image not in SUITES:
            raise Failure(f"FROM {name}: known are {', '.join(SUITES)} and earlier stages")
        return self.kept(f"debootstrap {SUITES[image]}", lambda folder: run(
            "debootstrap", "--variant=minbase", SUITES[image], folder, stdout=sys.stderr))

    def start_of(self, stage):
        """(folder to copy, steps that are left): base and leading RUN steps are kept from one time to the next."""
        if stage.base in self.stages:
            return self.tree(stage.base), stage.steps
        folder, key, steps = self.base(stage.base), stage.base, list(stage.steps)
        while steps and steps[0][0] == "RUN":
            text, before = steps.pop(0)[1], folder
            key += "\n" + text

            def make(partial, text=text, before=before):
                run("cp", "--archive", f"{before}/.", partial)
                run_in(partial, text, "/")
            folder = self.kept(key, make)
        return folder, steps

    def tree(self, name):
        if name in self.trees:
            return self.trees[name]
        stage = self.stages[name]
        folder, steps = self.start_of(stage)
        changes = any(instruction in ("RUN", "COPY") for instruction, _ in steps)
        if stage.base in self.stages and not changes:
            self.trees[name] = folder
            return folder
        tree = self.scratch / name
        run("cp", "--archive", f"{folder}/.", f"{tree}/") if tree.is_dir() else run("cp", "--archive", folder, tree)
        self.trees[name] = tree
        where = "/"
        for instruction, text in steps:
            print(f"{name}: {instruction} {text[:100]}", file=sys.stderr)
            if instruction == "WORKDIR":
                where = os.path.join(where, text)
                (tree / where.lstrip("/")).mkdir(parents=True, exist_ok=True)
            elif instruction == "RUN":
                run_in(tree, text, where)
            elif instruction == "COPY":
                self.copy(name, tree, where, text)
        return tree

    def copy(self, name, tree, where, text):
        *options, source, target = text.split()
        target = tree / os.path.join(where, target).lstrip("/")
        target.mkdir(parents=True, exist_ok=True)  # every target here is a folder
        if not options:
            self.copy_context(source, target)
            return
        other = options[0].removeprefix("--from=")
        folder = self.instead.get(f"{other}:{source.rstrip('/')}") or self.tree(other) / source.strip("/")
        run("cp", "--archive", "--no-preserve=ownership", f"{folder}/.", target)
        self.copied.setdefault(name, []).extend(target / entry.name for entry in pathlib.Path(folder).iterdir())

    @staticmethod
    def copy_context(source, target):
        ignored = (ROOT / ".dockerignore").read_text().split()
        if any(re.search(r"[*?!\[]", entry) for entry in ignored):
            raise Failure(".dockerignore: only plain names are known here")
        if source != ".":
            run("cp", "--archive", "--no-preserve=ownership", ROOT / source, target)
            return
        entries = [entry for entry in ROOT.iterdir() if entry.name not in ignored]
        run("cp", "--archive", "--no-preserve=ownership", *entries, target)

    def setting(self, name, instruction, fallback):
        """The last value of USER, WORKDIR or ENTRYPOINT, inherited from earlier stages."""
        while name in self.stages:
            for found, text in reversed(self.stages[name].steps):
                if found == instruction:
                    return text
            name = self.stages[name].base
        return fallback

    def command(self, name, arguments, mounts=()):
        """Command line that runs the entry point of a stage, its tree read-only. `mounts`: (host folder, path), read-only too."""
        user, _, group = self.setting(name, "USER", "0:0").partition(":")
        entry = json.loads(self.setting(name, "ENTRYPOINT", "[]"))
        binds = 'mount --bind "$tree" "$tree"\n'
        for source, path in mounts:
            (self.tree(name) / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
            binds += f'mount --bind {shlex.quote(str(source))} "$tree{path}"; mount -o remount,bind,ro "$tree{path}"\n'
        binds += 'mount -o remount,bind,ro "$tree"'
        limits = f"setpriv --reuid {user} --regid {group or user} --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all"
        script = f'"$tree" /usr/bin/env -i PATH={PATH} {limits} {shlex.join([*entry, *arguments])}'
        return in_tree(self.tree(name), script, binds)


def named_packages(stage):
    """What the stage's apt-get install step names."""
    for instruction, text in reversed(stage.steps):
        words = re.search(r"apt-get install ([^&]*)", text) if instruction == "RUN" else None
        if words:
            return {word for word in words.group(1).split() if not word.startswith("-")}
    return set()


def linked_libraries(program):
    """Names of the libraries that a program links to itself."""
    text = run("readelf", "--dynamic", program, capture_output=True, text=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))


def library_problems(builder, name):
    """What is wrong with the libraries of the programs that were copied into a stage."""
    tree, problems, needed = builder.tree(name), [], set()
    for program in builder.copied.get(name, ()):
        path = "/" + str(program.relative_to(tree))
        text = run("chroot", tree, "ldd", path, capture_output=True, text=True).stdout
        problems += [f"{path}: {line.strip()}" for line in text.splitlines() if "not found" in line]
        found = dict(re.findall(r"^\s*(\S+) => (/\S+)", text, re.M))
        needed |= {found[library] for library in linked_libraries(program) & set(found)}
    packages = set()
    for library in sorted(needed):
        # dpkg knows one of the two names of a folder that is a link.
        names = {library, library.removeprefix("/usr"), os.path.join("/usr", library.lstrip("/"))}
        listed = subprocess.run(["chroot", tree, "dpkg-query", "--search", *names], capture_output=True, text=True).stdout
        packages |= set(re.findall(r"^([^:\s]+)(?::\w+)?: ", listed, re.M))
    named = named_packages(builder.stages[name]) | {"libc6"}  # which every other one depends on
    problems += [f"{name}: {package} is linked to and not named" for package in sorted(packages - named)]
    problems += [f"{name}: {package} is named and not linked to" for package in sorted(named - packages)]
    return problems


def substitutes(entries, stages):
    """[(STAGE:PATH, folder)] of what --instead says. A misspelt stage would be compiled after all."""
    found = [re.fullmatch(r"((\w[\w-]*):/[^=]*)=(.+)", entry) for entry in entries]
    for entry, match in zip(entries, found):
        if not match or match[2] not in stages or not pathlib.Path(match[3]).is_dir():
            raise Failure(f"--instead {entry}: it must be STAGE:PATH=FOLDER, with a stage of {', '.join(stages)} and a folder that exists")
    return [(match[1], match[3]) for match in found]


def main():
    own, arguments = sys.argv[1:], []
    if "--" in own:
        own, arguments = own[:own.index("--")], own[own.index("--") + 1:]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", default=CONTAINERFILE, type=pathlib.Path)
    parser.add_argument("--target")
    parser.add_argument("--instead", action="append", default=[], metavar="STAGE:PATH=FOLDER")
    parser.add_argument("--root", type=pathlib.Path)
    flags = parser.parse_args(own)
    if os.geteuid() != 0:
        raise Failure("root is needed, for chroot")
    os.umask(0o022)  # that of an engine's steps
    stages = parse(flags.file.read_text())
    target = flags.target or list(stages)[-1]
    if target not in stages:
        raise Failure(f"--target {target}: known are {', '.join(stages)}")
    if flags.root and flags.root.exists():
        raise Failure(f"--root {flags.root}: it exists already")
    with tempfile.TemporaryDirectory() as scratch:
        builder = Builder(stages, scratch, substitutes(flags.instead, stages))
        tree = builder.tree(target)
        problems = [problem for name in builder.copied for problem in library_problems(builder, name)]
        for problem in problems:
            print(problem, file=sys.stderr)
        if arguments and not problems:
            problems = subprocess.run(builder.command(target, arguments)).returncode != 0
        if flags.root:
            run("cp", "--archive", tree, flags.root)
    return 1 if problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failure, OSError) as failure:
        sys.exit(f"run_steps: {failure}")

"""The container file: its steps run, its programs find their libraries, and its services need neither root nor a writable disk."""
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import chart
from host import Process, free_port

sys.path.append(str(chart.ROOT / "tests" / "e2e"))
from harness import wait_until  # noqa: E402
from services import PEPPER, tenants_file  # noqa: E402

FOLDER = chart.ROOT / "deploy" / "container"
PROGRAMS = ("sluice", "sluice-router", "sluice-prefill", "sluice-decode", "sluice-cache-manager")
spec = importlib.util.spec_from_file_location("run_steps", FOLDER / "run_steps.py")
run_steps = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run_steps)

# podman, as far as the README uses it.
PODMAN = """#!/bin/sh
set -eu
verb=$1; shift
case $verb in
  build) [ "$1" = --file ] && [ -f "$2" ] && [ "$3" = --tag ] && [ "$5" = . ] ;;
  run) shift 2; exec {script} --instead build:/out={programs} -- "$@" ;;
esac
"""


class ContainerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.scratch = pathlib.Path(scratch.name)
        cls.scratch.chmod(0o755)
        cls.programs = cls.scratch / "programs"
        cls.programs.mkdir()
        for name in PROGRAMS:
            shutil.copy(pathlib.Path(chart.ARGS.bin, name), cls.programs)
        cls.stages = run_steps.parse((FOLDER / "Containerfile").read_text())
        cls.builder = run_steps.Builder(cls.stages, cls.scratch, {"build:/out": cls.programs})
        cls.tree = cls.builder.tree("runtime")

    def start(self, target, *settings):
        """A service of the image, as its entry point; ports like a pod's, on loopback."""
        ports = {name: free_port() for name in ("grpc", "metrics", "admin")}
        for setting, port in (("service.listen", "grpc"), ("service.metrics_listen", "metrics"), ("service.admin_listen", "admin")):
            settings += (f"{setting}=127.0.0.1:{ports[port]}",)
        command = self.builder.command(target, [a for s in settings for a in ("--set", s)], [(self.scratch / "etc", "/srv")])
        log = open(self.scratch / f"{target}.log", "w")
        self.addCleanup(log.close)
        process = Process(subprocess.Popen(command, stderr=log), ports)
        self.addCleanup(process.popen.kill)  # its namespace goes with it
        wait_until(lambda: process.grpc_health("liveness") or process.popen.poll() is not None, f"{target} is up")
        self.assertIsNone(process.popen.poll(), (self.scratch / f"{target}.log").read_text())
        return process

    def service_pid(self, process):
        """The first process of the namespace: the service itself."""
        return int(pathlib.Path(f"/proc/{process.popen.pid}/task/{process.popen.pid}/children").read_text().split()[0])

    def test_every_role_has_its_entry_point(self):
        targets = {name: json.loads(self.builder.setting(name, "ENTRYPOINT", "null")) for name in self.stages}
        self.assertEqual(targets, {"build": None, "runtime": None, "router": ["sluice-router"], "prefill": ["sluice-prefill"],
                                   "decode": ["sluice-decode"], "cache-manager": ["sluice-cache-manager"], "cli": ["sluice"]})
        for name in targets:
            if targets[name]:
                self.assertEqual(self.builder.setting(name, "USER", ""), "65532:65532")
        pod = chart.pods(chart.render("default"))["sluice-router"]["spec"]["securityContext"]
        self.assertEqual((pod["runAsUser"], pod["runAsGroup"]), (65532, 65532))

    def test_libraries_come_from_the_packages_that_are_named(self):
        self.assertEqual(run_steps.library_problems(self.builder, "runtime"), [])

    def test_a_package_too_few_or_too_many_is_named(self):
        stage = self.stages["runtime"]
        steps = stage.steps
        try:
            stage.steps = [(i, t.replace("libucx0", "libzmq5")) for i, t in steps]
            self.assertEqual(run_steps.library_problems(self.builder, "runtime"),
                             ["runtime: libucx0 is linked to and not named", "runtime: libzmq5 is named and not linked to"])
        finally:
            stage.steps = steps

    def test_a_missing_library_is_named(self):
        library = next(self.tree.glob("usr/lib/*/libyaml-cpp.so.0.7"))
        library.rename(library.with_suffix(".away"))
        try:
            problems = run_steps.library_problems(self.builder, "runtime")
        finally:
            library.with_suffix(".away").rename(library)
        self.assertTrue([p for p in problems if "libyaml-cpp.so.0.7" in p and "not found" in p], problems)

    def test_the_build_stage_makes_what_the_runtime_copies(self):
        steps = dict((i, t) for i, t in self.stages["build"].steps if i == "RUN")
        self.assertEqual(set(re.findall(r"build/release/bin/([\w-]+)", steps["RUN"])), set(PROGRAMS))
        targets = next(t for i, t in self.stages["build"].steps if "--target sluice" in t)
        self.assertEqual(set(targets.partition("--target ")[2].split()), set(PROGRAMS))
        self.assertEqual({p.name for p in self.builder.copied["runtime"]}, set(PROGRAMS))

    def test_unknown_instructions_are_refused(self):
        with self.assertRaisesRegex(run_steps.Failure, "ADD is not known"):
            run_steps.parse("FROM debian:12 AS a\nADD x y\n")

    def test_wrong_arguments_are_refused_by_name(self):
        for arguments, message in ((["--target", "nope"], "--target nope: known are build, runtime, router"),
                                   (["--instead", "build"], "--instead build: it must be STAGE:PATH=FOLDER"),
                                   (["--instead", "biuld:/out=/tmp"], "with a stage of build, runtime"),
                                   (["--instead", "build:/out=/nonexistent"], "a folder that exists"),
                                   (["--root", "/tmp"], "--root /tmp: it exists already"), (["--file", "/none"], "'/none'")):
            with self.subTest(arguments=arguments):
                result = subprocess.run([FOLDER / "run_steps.py", *arguments], capture_output=True, text=True, timeout=60)
                self.assertEqual(result.returncode, 1)
                self.assertRegex(result.stderr, "^run_steps: .*")
                self.assertIn(message, result.stderr)

    def test_two_runs_keep_one_tree(self):
        builder = run_steps.Builder({}, self.scratch)
        builder.cache = self.scratch / "kept"

        def slower(folder):
            (folder / "mine").touch()
            builder.kept("key", lambda other: (other / "theirs").touch())
        self.assertEqual([path.name for path in builder.kept("key", slower).iterdir()], ["theirs"])
        self.assertEqual(len(list(builder.cache.iterdir())), 1)

    def test_a_cluster_runs_without_root_and_without_a_writable_disk(self):
        (self.scratch / "etc").mkdir()
        (self.scratch / "etc/tenants.yaml").write_text(tenants_file({"the-key": "team"}))
        (self.scratch / "etc/pepper").write_text(PEPPER)
        (self.scratch / "etc/claim-key").write_text("c" * 32)
        manager = self.start("cache-manager")
        common = (f"cache_manager=127.0.0.1:{manager.ports['grpc']}", "model.path=toy", "engine.kv_pool_mib=16", "engine.threads=1",
                  "transport.backends=[ucx-tcp]", "transport.trusted_network=true", "claim_key_file=/srv/claim-key")
        processes = [manager, self.start("prefill", *common), self.start("decode", *common)]
        processes.append(self.start("router", common[0], "split=always", "tenants_file=/srv/tenants.yaml",
                                    "claim_key_file=/srv/claim-key", f"http_listen=127.0.0.1:{free_port()}"))
        wait_until(lambda: processes[-1].grpc_health("readiness"), "the router is ready")
        client = self.builder.command("cli", ["chat", "--url", f"grpc://127.0.0.1:{processes[-1].ports['grpc']}",
                                              "--api-key", "the-key", "--max-tokens", "8", "--show-usage", "Hello"])
        answer = subprocess.run(client, capture_output=True, timeout=60)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertRegex(answer.stderr.decode(), r"completion_tokens=[1-8] ")
        for process in processes:
            pid = self.service_pid(process)
            status = dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
            self.assertEqual(set(status["Uid"].split() + status["Gid"].split()), {"65532"})
            self.assertEqual({int(status[c], 16) for c in ("CapEff", "CapPrm", "CapBnd")}, {0})
            self.assertEqual(status["NoNewPrivs"], "1")
            root = next(line.split() for line in pathlib.Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
                        if line.split()[4] == "/")
            self.assertIn("ro", root[5].split(","))
        for process in reversed(processes):
            os.kill(self.service_pid(process), signal.SIGTERM)
            self.assertEqual(process.popen.wait(60), 0)

    def test_commands_of_the_readme(self):
        shim = self.scratch / "podman"
        shim.write_text(PODMAN.format(script=FOLDER / "run_steps.py", programs=self.programs))
        shim.chmod(0o755)
        blocks = re.findall(r"^```\n(.*?)^```", (FOLDER / "README.md").read_text(), re.M | re.S)
        self.assertEqual(len(blocks), 2)
        environment = {**os.environ, "PATH": f"{self.scratch}:/usr/bin:/bin:/usr/sbin:/sbin"}
        for block in blocks:
            text = block.replace("build/release/bin", str(self.programs))
            result = subprocess.run(["bash", "-euc", text], cwd=chart.ROOT, env=environment, capture_output=True, text=True, timeout=300)
            self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    if os.geteuid() != 0:
        os.execvp("sudo", ["sudo", sys.executable, *sys.argv])
    chart.main()

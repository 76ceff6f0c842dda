"""deploy/local where things go wrong: downloads that end early, odd ways to call, terminals that close."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

LOCAL = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "local"
# python3 whose pip does what the test says; as pip does, it makes an ordinary failure of Ctrl-C.
PIP = """#!/usr/bin/env bash
[ "$2" = pip ] || exec {python} "$@"
trap 'echo cancelled >&2; exit 1' INT
while [ "$1" != --dest ]; do shift; done
{action}
"""


class LocalTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="a b ")))
        self.cache = self.folder / "cache" / "sluice"
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(self.cache.parent), "TMPDIR": str(self.folder),
                            "PATH": f"{self.folder}:{os.environ['PATH']}"}

    def pip(self, action):
        shim = self.folder / "python3"
        shim.write_text(PIP.format(python=shutil.which("python3"), action=action))
        shim.chmod(0o755)

    def run_local(self, name, *arguments, **more):
        return subprocess.run([LOCAL / name, *arguments], env={**self.environment, **more}, capture_output=True, text=True, timeout=60)

    def start(self, *command):
        """A command in a process group of its own, as of a terminal."""
        process = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   start_new_session=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def test_a_download_that_fails_leaves_nothing_and_says_why(self):
        self.cache.mkdir(parents=True)
        (self.cache / "SmolLM2-135M-Instruct.Q4_1.gguf").write_text("half of it")
        for action, message in (("echo no network >&2; exit 1", "no network"), ('echo x >"$2/a.whl"', "fetch-model: File is not a zip file"),
                                ('cd "$2"; echo x >a.gguf; {} -m zipfile -c a.whl a.gguf'.format(shutil.which("python3")),
                                 "fetch-model: the file is damaged; run again")):
            with self.subTest(message):
                self.pip(action)
                result = self.run_local("fetch-model")
                self.assertEqual((result.returncode, result.stdout), (1, ""))
                self.assertEqual(result.stderr.splitlines()[1:], [message])
                self.assertEqual([path.name for path in self.cache.iterdir()], ["SmolLM2-135M-Instruct.Q4_1.gguf"])

    def test_an_interrupted_download_is_no_reason_to_take_another_model(self):
        self.pip(f'mkfifo "{self.folder}/asked"; read line <"{self.folder}/asked"')
        process = self.start(LOCAL / "demo-model")
        while not (self.folder / "asked").exists():
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        self.assertEqual((process.returncode, output), (130, ""), errors)
        self.assertEqual(list(self.cache.iterdir()), [])

    def test_scripts_find_their_checkout(self):
        self.pip("exit 1")
        for name in ("demo", "demo-model"):
            (self.folder / name).symlink_to(LOCAL / name)
        model = subprocess.run(["./demo-model"], cwd=self.folder, env={**self.environment, "CDPATH": "/"}, capture_output=True, text=True)
        self.assertEqual(model.stdout, "deploy/models/k2-kjv\n", model.stderr)
        model = subprocess.run(["local/demo-model"], cwd=LOCAL.parent, env={**self.environment, "CDPATH": "/usr:/"}, capture_output=True,
                               text=True)
        self.assertEqual(model.stdout, "deploy/models/k2-kjv\n", model.stderr)
        usage = subprocess.run([self.folder / "demo", "--help"], capture_output=True, text=True)
        self.assertIn("--keep", usage.stdout)
        wrong = self.run_local("demo", "--kepp")
        self.assertEqual((wrong.returncode, wrong.stderr), (2, "demo: --kepp is not known; see deploy/local/demo --help\n"))

    def test_the_cache_is_found_without_a_home(self):
        del self.environment["XDG_CACHE_HOME"]
        self.environment.pop("HOME", None)
        self.pip("exit 1")
        result = self.run_local("fetch-model")
        self.assertNotIn("unbound", result.stderr)

    def test_the_monitor_ends_with_its_terminal(self):
        endpoints = self.folder / "endpoints.json"
        endpoints.write_text(json.dumps({"metrics": {"router": ["http://127.0.0.1:9"]}}))
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            with self.subTest(number):
                process = self.start(LOCAL / "monitor", "--endpoints", endpoints, "--listen", "127.0.0.1:0")
                process.stderr.readline()  # where it listens, said once Prometheus runs
                os.killpg(process.pid, number)
                process.communicate(timeout=60)  # until Prometheus too has closed its output
                self.assertEqual(list(self.folder.glob("sluice-monitor-*")), [])

    def test_the_monitor_refuses_other_files(self):
        file = self.folder / "other.json"
        for text in ("", "[]", "{}", '{"metrics": 3}', '{"metrics": {"router": 3}}', '{"metrics": {"router": [3]}}'):
            with self.subTest(text):
                file.write_text(text)
                result = self.run_local("monitor", "--endpoints", file)
                self.assertEqual(result.returncode, 1)
                self.assertRegex(result.stderr, r"^monitor: .*it must be what sluice up --endpoints FILE wrote\n$")


if __name__ == "__main__":
    unittest.main(verbosity=2)

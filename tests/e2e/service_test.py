"""Processes as an operator meets them: start, drain, exit codes, what goes wrong at start."""
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import unittest

import grpc
import harness
from harness import Cluster
from services import Services, wait_for_model


def start(binary, *settings):
    """Runs a service until it exits; returns (exit code, stderr)."""
    arguments = [os.path.join(harness.ARGS.bin, binary)]
    for setting in settings:
        arguments += ["--set", setting]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    return result.returncode, result.stderr


def command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read()
    except OSError:  # it has just ended
        return ""


class ServiceTest(unittest.TestCase):
    def test_a_port_in_use_names_its_holder(self):
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            holder.listen()
            code, text = start("sluice-cache-manager", f"service.listen=127.0.0.1:{holder.getsockname()[1]}")
        self.assertEqual(code, 2)
        self.assertIn(str(os.getpid()), text)

    def test_a_missing_model_is_named(self):
        code, text = start("sluice-decode", "model.path=/nonexistent/model.gguf")
        self.assertEqual(code, 2)
        self.assertIn("/nonexistent/model.gguf", text)

    def test_a_damaged_model_is_refused(self):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            file.write(b"GGUF" + bytes(100))
            file.flush()
            code, text = start("sluice-prefill", f"model.path={file.name}")
        self.assertNotEqual(code, 0)
        self.assertIn(file.name, text)

    def test_wrong_settings_are_named_with_the_nearest_right_one(self):
        code, text = start("sluice-decode", "engine.kv_formatt=bf16")
        self.assertEqual(code, 2)
        self.assertIn("kv_format", text)
        code, text = start("sluice-decode", "engine.page_tokens=7")
        self.assertEqual(code, 2)
        self.assertIn("page_tokens", text)

    def test_other_addresses_than_loopback_need_a_flag(self):
        code, text = start("sluice-cache-manager", "service.listen=0.0.0.0:0")
        self.assertEqual(code, 2)
        self.assertIn("insecure", text)

    def test_a_ready_file_replaces_no_device(self):
        with tempfile.TemporaryDirectory() as folder:
            pipe = os.path.join(folder, "pipe")
            os.mkfifo(pipe)
            code, text = start("sluice-cache-manager", f"service.ready_file={pipe}")
            self.assertEqual(code, 2)
            self.assertIn(pipe, text)
            self.assertEqual(os.listdir(folder), ["pipe"])

    def test_usage_errors_exit_with_2_and_results_are_json(self):
        self.assertEqual(harness.run_sluice("generate", check=False).returncode, 2)
        self.assertEqual(harness.run_sluice("tokenize", "--model", "/nonexistent", "--text", "a", check=False).returncode, 1)
        result = json.loads(harness.run_sluice("generate", "--model", "toy", "--text", "hi", "--max-tokens", "4",
                                               "--ignore-eos", "--json").stdout)
        self.assertEqual(result["prompt_tokens"], 2)
        self.assertEqual(len(result["token_ids"]), 4)

    def test_output_that_cannot_be_written_is_a_failure(self):
        with open(os.devnull, "rb") as read_only:
            for command in (["sluice", "tokenize", "--model", "toy", "--text", "a"], ["sluice", "--help"],
                            ["sluice-cache-manager", "--print-config"]):
                binary = os.path.join(harness.ARGS.bin, command[0])
                result = subprocess.run([binary, *command[1:]], stdout=read_only, stderr=subprocess.PIPE, text=True, timeout=60)
                self.assertEqual(result.returncode, 1, command)
                self.assertIn("standard output could not be written", result.stderr)

    def test_calibrate_writes_what_centred_formats_load(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "tiny-llama")
            shutil.copytree(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/models/tiny-llama"), model)
            tokens = ",".join(str(i * 37 % 320) for i in range(64))

            def logits(*flags):
                out = os.path.join(folder, "logits.safetensors")
                harness.run_sluice("logits", "--model", model, "--tokens", tokens, "--kv", "gqa_fp8c", "--out", out, *flags)
                with open(out, "rb") as file:
                    return file.read()

            before = logits()
            written = json.loads(harness.run_sluice("calibrate", "--model", model, "--tokens", tokens).stdout)
            self.assertEqual(written["file"], os.path.join(model, "kv_centre.safetensors"))
            self.assertEqual(written["tokens"], 64)
            self.assertNotEqual(logits(), before)
            self.assertEqual(logits("--kv-centre", written["file"]), logits())
            self.assertEqual(logits("--kv-centre", "none"), before)
            again = harness.run_sluice("calibrate", "--model", model, "--tokens", tokens, "--out", os.path.join(folder, "c"))
            self.assertEqual(json.loads(again.stdout)["digest"], written["digest"])
            missing = harness.run_sluice("generate", "--model", model, "--tokens", "1", "--kv", "gqa_fp8c", "--kv-centre",
                                         os.path.join(folder, "none.safetensors"), check=False)
            self.assertEqual(missing.returncode, 1)
            self.assertIn("none.safetensors", missing.stderr)

    def test_doctor_looks_where_models_are_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            # Port 0 is always free. Other checks may fail on this machine.
            found = subprocess.run([os.path.join(harness.ARGS.bin, "sluice"), "doctor", "--json", "--ports", "0"],
                                   stdout=subprocess.PIPE, env={**os.environ, "XDG_CACHE_HOME": folder}, timeout=120)
            disk = next(c for c in json.loads(found.stdout)["checks"] if c["name"] == "disk")
            self.assertIn(f"{folder}/sluice", disk["value"])

    def test_workers_with_different_pages_are_not_paired(self):
        with Services() as services:
            manager = services.start("sluice-cache-manager")["grpc"]
            common = (f"cache_manager={manager}", "model.path=toy", "engine.kv_pool_mib=16")
            services.start("sluice-prefill", *common, "engine.kv_format=bf16")
            services.start("sluice-decode", *common, "engine.kv_format=gqa_fp8")
            router = services.start("sluice-router", f"cache_manager={manager}", "split=always", "no_auth=true", "queue_wait_s=1",
                                    "http_listen=127.0.0.1:0")
            client = harness.Client(router["grpc"])
            wait_for_model(client)
            with self.assertRaises(grpc.RpcError) as error:
                client.complete(text="hello", max_tokens=2)
            client.close()
        self.assertEqual(error.exception.code(), grpc.StatusCode.UNAVAILABLE)
        self.assertIn("format bf16", error.exception.details())
        self.assertIn("format gqa_fp8", error.exception.details())

    def test_sigterm_lets_streams_finish(self):
        with Cluster() as cluster:
            stream = cluster.client.generate(text="finish me", max_tokens=300, ignore_eos=True)
            next(stream)
            tokens = [1]
            reader = threading.Thread(target=lambda: tokens.extend(t for m in stream for d in m.deltas for t in d.token_ids))
            reader.start()
            router = cluster.endpoints["pids"]["router"][0]
            os.kill(router, signal.SIGTERM)
            reader.join(60)
            self.assertEqual(len(tokens), 300)

    def test_an_interrupted_start_leaves_nothing_behind(self):
        for flags in ([], ["--detach"]):
            with self.subTest(flags=flags), tempfile.TemporaryDirectory() as folder:
                up = subprocess.Popen([os.path.join(harness.ARGS.bin, "sluice"), "up", "--demo", "--kv-pool-mib", "16", *flags],
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                      env={**os.environ, "TMPDIR": folder})
                harness.wait_until(lambda: os.listdir(folder), "the start has begun")
                up.send_signal(signal.SIGINT)
                _, text = up.communicate(timeout=60)
                self.assertEqual(up.returncode, 1, text)
                self.assertEqual(os.listdir(folder), [])
                self.assertFalse([p for p in os.listdir("/proc") if p.isdigit() and folder in command_line(p)])

    def test_up_tells_of_a_dead_worker_and_a_second_interrupt_stops_at_once(self):
        with tempfile.TemporaryDirectory() as folder:
            with subprocess.Popen([os.path.join(harness.ARGS.bin, "sluice"), "up", "--demo", "--kv-pool-mib", "64"], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": folder}) as up:
                endpoints = json.loads(up.stdout.readline())
                client = harness.Client(endpoints["grpc"])
                stream = client.generate(text="never read to its end", max_tokens=8000, ignore_eos=True)
                next(stream)
                os.kill(endpoints["pids"]["decode"][0], signal.SIGSTOP)  # so that it cannot finish in time
                os.kill(endpoints["pids"]["prefill"][0], signal.SIGKILL)
                text = ""
                while "prefill-0" not in text:
                    text = up.stderr.readline()
                self.assertIn("was ended by signal 9", text)
                up.send_signal(signal.SIGINT)
                while text != "stopping\n":
                    text = up.stderr.readline()
                up.send_signal(signal.SIGINT)
                self.assertEqual(up.wait(20), 0)  # without it the stream has 40 s to finish
                client.close()
            self.assertEqual(os.listdir(folder), [])

    def test_the_next_start_removes_what_a_killed_one_left(self):
        with tempfile.TemporaryDirectory() as folder:
            sluice = os.path.join(harness.ARGS.bin, "sluice")
            arguments = ["up", "--demo", "--kv-pool-mib", "16"]
            environment = {**os.environ, "TMPDIR": folder}
            with subprocess.Popen([sluice, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as up:
                self.assertIn(b"pids", up.stdout.readline())
                up.kill()
            killed = os.listdir(folder)
            self.assertEqual(len(killed), 1)
            harness.wait_until(lambda: not any(folder in command_line(p) for p in os.listdir("/proc") if p.isdigit()),
                               "the services of the killed cluster have left")
            files = []
            for expected in (1, 2):  # the second start spares the first, which still runs
                files.append(os.path.join(folder, f"endpoints-{expected}.json"))
                subprocess.run([sluice, *arguments, "--detach", "--endpoints", files[-1]], env=environment, check=True,
                               capture_output=True, timeout=120)
                left = [name for name in os.listdir(folder) if name.startswith("sluice-up-")]
                self.assertEqual(len(left), expected)
                self.assertNotIn(killed[0], left)
            for file in files:
                harness.run_sluice("down", "--endpoints", file)

    def test_down_removes_its_folder_and_spares_strangers(self):
        with tempfile.TemporaryDirectory() as folder, subprocess.Popen(["sleep", "60"]) as stranger:
            old = os.path.join(folder, "old.json")
            made = os.path.join(folder, "sluice-up-abc")
            os.mkdir(made)
            with open(old, "w") as file:
                json.dump({"folder": made, "pids": {"router": [stranger.pid], "decode": [-1, 1, 2**40]}}, file)
            for _ in range(2):
                harness.run_sluice("down", "--endpoints", old)
            self.assertIsNone(stranger.poll())
            self.assertFalse(os.path.exists(made))
            with open(old, "w") as file:
                json.dump({"folder": folder, "pids": {}}, file)
            harness.run_sluice("down", "--endpoints", old)
            self.assertTrue(os.path.exists(folder))
            stranger.kill()


if __name__ == "__main__":
    harness.main()

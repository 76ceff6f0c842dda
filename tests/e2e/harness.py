"""A real cluster of the built binaries for tests, and clients to it. Needs grpcio and grpcio-reflection.

Every test program takes --bin FOLDER (the built binaries) and --model FILE (a GGUF file; "toy" for the built-in model).
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

ARGS = None


class Cluster:
    """`sluice up --demo` with more flags; stopped at the end of the with block."""

    def __init__(self, *flags, model="toy"):
        self.flags = ["--model", model, *flags]

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.file = os.path.join(self.folder.name, "endpoints.json")
        run_sluice("up", "--demo", "--detach", "--endpoints", self.file, "--threads", "1", "--kv-pool-mib", "64", *self.flags)
        with open(self.file) as f:
            self.endpoints = json.load(f)
        self.client = Client(self.endpoints["grpc"])
        return self

    def __exit__(self, *_):
        self.client.close()
        run_sluice("down", "--endpoints", self.file)
        self.folder.cleanup()

    def metrics(self, role):
        """{name{labels}: value} summed over all processes of a role."""
        urls = self.endpoints["metrics"][role]
        total = {}
        for url in [urls] if isinstance(urls, str) else urls:
            for name, value in read_metrics(url).items():
                total[name] = total.get(name, 0.0) + value
        return total

    def metric_sum(self, role, prefix, *parts):
        return sum(v for k, v in self.metrics(role).items() if k.startswith(prefix) and all(p in k for p in parts))

    def pages_in_use(self):
        """Pages that a request holds, over all workers."""
        return sum(self.metric_sum(role, "sluice_kv_pages", f'state="{state}"')
                   for role in ("prefill", "decode") for state in ("active", "quarantined"))

    def pids(self):
        flat = []
        for value in self.endpoints["pids"].values():
            flat += value if isinstance(value, list) else [value]
        return flat


class Client:
    """The public gRPC API, found by server reflection alone: a second implementation of gRPC, without our .proto files."""

    def __init__(self, url, options=()):
        self.channel = grpc.insecure_channel(url.removeprefix("grpc://"), options=options)
        self.pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(self.channel))
        self.service = self.pool.FindServiceByName("sluice.v1.Inference")

    def close(self):
        self.channel.close()

    def message(self, name, **fields):
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName("sluice.v1." + name))(**fields)

    def call(self, method, request, timeout=60, **options):
        found = self.service.FindMethodByName(method)
        reply = message_factory.GetMessageClass(found.output_type)
        kind = self.channel.unary_stream if method == "Generate" else self.channel.unary_unary
        return kind(f"/sluice.v1.Inference/{method}", request_serializer=lambda m: m.SerializeToString(),
                    response_deserializer=reply.FromString)(request, timeout=timeout, **options)

    def generate(self, text=None, tokens=None, chat=None, temperature=0.0, seed=None, timeout=60, metadata=None,
                 **fields):
        """The running stream."""
        sampling = self.message("SamplingOptions", temperature=temperature)
        if seed is not None:
            sampling.seed = seed
        request = self.message("GenerateRequest", sampling=sampling, **fields)
        if text is not None:
            request.text = text
        if tokens is not None:
            request.token_ids.ids.extend(tokens)
        if chat is not None:
            request.messages.messages.add(role="user", content=chat)
        return self.call("Generate", request, timeout, metadata=metadata)

    def complete(self, *args, **kwargs):
        return Completion(self.generate(*args, **kwargs))


class Completion:
    """A finished stream: tokens, text, finish reason and hashes of the logits of each choice; usage."""

    def __init__(self, stream):
        self.tokens, self.hashes, self.text, self.finish, self.usage, self.start = {}, {}, {}, {}, None, None
        for message in stream:
            if message.HasField("start"):
                self.start = message.start
            for delta in message.deltas:
                tokens = self.tokens.setdefault(delta.index, [])
                assert delta.position == len(tokens), (delta.position, len(tokens))
                tokens += delta.token_ids
                self.hashes.setdefault(delta.index, []).extend(delta.logits_hashes)
                self.text[delta.index] = self.text.get(delta.index, "") + delta.text
                self.finish[delta.index] = delta.finish_reason or self.finish.get(delta.index)
            if message.HasField("usage"):
                self.usage = message.usage


def read_metrics(url):
    """{name{labels}: value} of one process."""
    lines = urllib.request.urlopen(url + "/metrics", timeout=10).read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def run_sluice(*arguments, check=True, timeout=180):
    result = subprocess.run([os.path.join(ARGS.bin, "sluice"), *arguments], capture_output=True, text=True, timeout=timeout)
    if check and result.returncode != 0:
        raise AssertionError(f"sluice {' '.join(arguments)} exited with {result.returncode}:\n{result.stderr}")
    return result


def wait_until(condition, what, seconds=30):
    """Polls a condition that becomes true by itself; fails with `what` otherwise."""
    import time
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not reached in {seconds} s: {what}")
        time.sleep(0.02)


def main():
    global ARGS
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--model", default="toy")
    ARGS, rest = parser.parse_known_args()
    # One test program, one module: the instance that unittest imports must see the same arguments.
    sys.modules["harness"].ARGS = ARGS
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    unittest.main(module="__main__", argv=[sys.argv[0], *rest], verbosity=2)

"""Clients: streams whose right answer is known, from many threads, every message recorded."""
import json
import os
import random
import sys
import threading
import time

import grpc

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))
import harness  # noqa: E402

STREAMS_PER_CHANNEL = 100
SLACK_S = 2  # of the contract: a request has ended this long after its deadline


class Clients:
    """Connections to one router, as many as the streams need."""

    def __init__(self, address, key="", channels=1):
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        self.pool = [harness.Client(address, options) for _ in range(channels)]
        self.metadata = [("authorization", f"Bearer {key}")] if key else []
        self.next = 0

    def generate(self, spec, request_id, timeout):
        """The running stream of what `spec` asks: fields of GenerateRequest as JSON values, "ids" for the prompt."""
        self.next += 1
        client = self.pool[self.next % len(self.pool)]
        fields = {k: v for k, v in spec.items() if k not in ("ids", "sampling")}
        request = client.message("GenerateRequest", request_id=request_id, **fields)
        request.token_ids.ids.extend(spec["ids"])
        request.sampling.CopyFrom(client.message("SamplingOptions", **spec.get("sampling", {"temperature": 0.0})))
        return client.call("Generate", request, timeout, metadata=self.metadata)

    def close(self):
        for client in self.pool:
            client.close()


def why(client, error):
    """(name of the sluice.v1.ErrorReason that a failed call carries, after how many seconds to ask again); None for what it does
    not carry."""
    reason = retry_after_s = None
    for key, value in error.trailing_metadata() or ():
        if key != "grpc-status-details-bin":
            continue
        for detail in type(client.message("RpcStatus")).FromString(value).details:
            if detail.type_url.endswith("/google.rpc.ErrorInfo"):
                reason = type(client.message("RpcErrorInfo")).FromString(detail.value).reason
            elif detail.type_url.endswith("/google.rpc.RetryInfo"):
                delay = type(client.message("RpcRetryInfo")).FromString(detail.value).retry_delay
                retry_after_s = delay.seconds + delay.nanos / 1e9
    return reason, retry_after_s


class Stream:
    """One request on a thread of its own, from sent to its end."""

    def __init__(self, history, clients, name, spec, timeout, salt="", cancel_after=None, read_delay=None):
        self.history, self.clients, self.name, self.timeout = history, clients, name, timeout
        self.spec, self.salt, self.cancel_after, self.read_delay = spec, salt, cancel_after, read_delay
        self.first, self.finished, self.tokens = threading.Event(), threading.Event(), 0
        self.call, self.succeeded, self.ended_at = None, False, None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        self.history.add("sent", request=self.name, key=key_of(self.spec), salt=self.salt, timeout=self.timeout)
        finish = {}
        usage = None
        try:
            spec = {**self.spec, "cache_salt": self.salt} if self.salt else self.spec
            self.call = self.clients.generate(spec, self.name, self.timeout)
            for message in self.call:
                if message.HasField("usage"):
                    usage = {f.name: v for f, v in message.usage.ListFields()}
                for delta in message.deltas:
                    self.history.add("tokens", request=self.name, choice=delta.index, position=delta.position,
                                     ids=list(delta.token_ids), text=delta.text)
                    if delta.finish_reason:
                        finish[str(delta.index)] = delta.finish_reason
                    self.tokens += len(delta.token_ids)
                    if self.tokens:
                        self.first.set()
                if self.cancel_after is not None and self.tokens >= self.cancel_after:
                    self.call.cancel()
                if self.read_delay:
                    self.read_delay()
            self.history.add("end", request=self.name, kind="finished", finish=finish, usage=usage)
            self.succeeded = True
        except grpc.RpcError as error:
            kind = "cancelled" if error.code() == grpc.StatusCode.CANCELLED and self._cancelled() else "error"
            reason, retry_after_s = why(self.clients.pool[0], error)
            self.history.add("end", request=self.name, kind=kind, finish=finish, code=error.code().name, reason=reason,
                             retry_after_s=retry_after_s, details=error.details())
        finally:
            self.ended_at = time.monotonic()
            self.first.set()
            self.finished.set()

    def _cancelled(self):
        return self.cancel_after is not None or self.call.cancelled()

    def cancel(self):
        if self.call is not None:
            self.call.cancel()

    def wait(self):
        """To its end; the contract gives it its deadline and a little more."""
        if not self.finished.wait(self.timeout + SLACK_S + 30):
            self.history.add("stuck", request=self.name)


def key_of(spec):
    return json.dumps(spec, sort_keys=True)


def prompts(seed, count, length, vocabulary, max_tokens, sampled=0.25):
    """Specs with prompts of their own; that share of them is sampled with a seed, the others are greedy."""
    source = random.Random(seed)
    specs = []
    for i in range(count):
        spec = {"ids": [source.randrange(vocabulary) for _ in range(length)], "max_tokens": max_tokens, "ignore_eos": True}
        if source.random() < sampled:
            spec["sampling"] = {"temperature": 0.8, "top_k": 50, "seed": source.randrange(1 << 40)}
        specs.append(spec)
    return specs


def record_reference(history, clients, specs):
    """Every spec once, undisturbed: what all later streams of it must equal."""
    for i, spec in enumerate(specs):
        stream = Stream(history, clients, f"reference-{i}", spec, 300)
        stream.wait()


def start_wave(history, clients, specs, name, timeout, salt=""):
    return [Stream(history, clients, f"{name}-{i}", spec, timeout, salt) for i, spec in enumerate(specs)]

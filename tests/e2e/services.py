"""Services started one by one, for tests that need settings of their own."""
import hmac
import json
import os
import struct
import subprocess
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

import grpc
import harness
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

# A flow-control window that does not grow, so that few bytes are on their way.
NARROW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65535), ("grpc.use_local_subchannel_pool", 1)]


PEPPER = "p" * 32


def tenants_file(keys, limits=None):
    """A tenants file for {key: tenant}, with hashes as common/identity/api_key makes them, and {tenant: text of its limits}."""
    def hash_of(key):
        return hmac.digest(PEPPER.encode(), b"sluice api key" + struct.pack("<I", len(key)) + key.encode(), "sha256").hex()

    def limits_of(tenant):
        return f", limits: {limits[tenant]}" if limits else ""
    return "key_pepper_file: pepper\ntenants:\n" + "".join(
        f"  - {{id: {tenant}, key_hashes: [{hash_of(key)}]{limits_of(tenant)}}}\n" for key, tenant in keys.items())


def write_private(path, text):
    """Readers, who must be ours, see the old file or the new one."""
    with open(path + ".new", "w") as file:
        file.write(text)
    os.chmod(path + ".new", 0o600)
    os.rename(path + ".new", path)


class Services:
    """On any free ports; ended by SIGTERM, which must give exit code 0."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.running = []
        self.started = 0
        return self

    def __exit__(self, *_):
        codes = []
        for process in reversed(self.running):
            process.terminate()
            codes.append(process.wait(60))
        self.folder.cleanup()
        if any(codes):
            raise AssertionError(f"exit codes after SIGTERM: {codes}")

    def start(self, binary, *settings, listen="127.0.0.1:0"):
        """Returns what the ready file says: grpc, metrics, admin, pid; the process itself is the last of `running`."""
        ready = os.path.join(self.folder.name, f"ready-{self.started}.json")
        self.started += 1
        settings = [*settings, f"service.ready_file={ready}", f"service.listen={listen}",
                    *(f"service.{x}=127.0.0.1:0" for x in ("metrics_listen", "admin_listen"))]
        arguments = [os.path.join(harness.ARGS.bin, binary)]
        for setting in settings:
            arguments += ["--set", setting]
        process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
        self.running.append(process)
        harness.wait_until(lambda: os.path.exists(ready) or process.poll() is not None, f"{binary} is up")
        with open(ready) as file:
            return json.load(file)

    def take_dead(self, count=1):
        """Waits for services that were killed by a signal since the last call; returns their pids. They count no more."""
        def killed():
            return {p.pid for p in self.running if p.poll() is not None and p.returncode < 0}
        harness.wait_until(lambda: len(killed()) >= count, f"{count} services have died")
        dead = killed()
        self.running = [p for p in self.running if p.pid not in dead]
        return dead


class Admin:
    """The fault points of a service that is built with them."""

    def __init__(self, address):
        self.channel = grpc.insecure_channel(address)
        pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(self.channel))
        self.request, reply = (message_factory.GetMessageClass(pool.FindMessageTypeByName("sluice.v1." + name))
                               for name in ("ArmFaultRequest", "ArmFaultReply"))
        self.call = self.channel.unary_unary("/sluice.v1.Admin/ArmFault", request_serializer=lambda m: m.SerializeToString(),
                                             response_deserializer=reply.FromString)

    def arm(self, point, kind, request_id=""):
        """Returns how often the point was hit so far."""
        return self.call(self.request(point=point, kind=self.request.Kind.Value(kind), request_id=request_id), timeout=10).hits


class ClientOf:
    """The calls of one tenant."""

    def __init__(self, client, tenant):
        self.client, self.metadata = client, (("authorization", f"Bearer key-of-{tenant}"),)

    def message(self, *args, **kwargs):
        return self.client.message(*args, **kwargs)

    def call(self, *args, **kwargs):
        return self.client.call(*args, metadata=self.metadata, **kwargs)


def wait_for_model(client):
    harness.wait_until(lambda: client.call("ListModels", client.message("ListModelsRequest")).models, "a model is served")


class Stream(threading.Thread):
    """Reads a stream to its end in the background."""

    def __init__(self, client, **request):
        super().__init__()
        self.stream = client.generate(**request)
        self.tokens, self.error, self.first = [], None, threading.Event()
        self.start()

    def run(self):
        try:
            for message in self.stream:
                self.tokens += [t for d in message.deltas for t in d.token_ids]
                self.first.set()
        except grpc.RpcError as error:
            self.error = error
        self.first.set()


def reason_of(error):
    """The reason in the google.rpc.Status of an error, as its name appears in the bytes."""
    details = dict(error.trailing_metadata()).get("grpc-status-details-bin", b"")
    return details.decode("latin-1")


def why_not_ready(service):
    """What /ready says; empty when it is."""
    try:
        urllib.request.urlopen(service["metrics"] + "/ready", timeout=10)
        return ""
    except urllib.error.HTTPError as error:
        return error.read().decode()


class ServicesTest(unittest.TestCase):
    """A cluster of toy models, each service with a name of its own."""

    def start(self, prefills=1, decodes=1, router=(), worker=(), wait=True):
        self.services = self.enterContext(Services())
        self.manager = self.services.start("sluice-cache-manager")["grpc"]
        self.common = (f"cache_manager={self.manager}", "model.path=toy", "engine.kv_pool_mib=16", "engine.threads=1", *worker)
        self.prefills = [self.services.start("sluice-prefill", *self.common, f"service.name=prefill-{i}") for i in range(prefills)]
        self.decodes = [self.services.start("sluice-decode", *self.common, f"service.name=decode-{i}") for i in range(decodes)]
        self.router = self.services.start("sluice-router", f"cache_manager={self.manager}", "split=always", "no_auth=true",
                                          "http_listen=127.0.0.1:0", *router)
        if wait:
            self.client = harness.Client(self.router["grpc"])
            self.addCleanup(self.client.close)
            wait_for_model(self.client)
            harness.wait_until(lambda: why_not_ready(self.router) == "", "the router is ready")

    def start_second_router(self):
        self.second = self.services.start("sluice-router", f"cache_manager={self.manager}", "split=always", "no_auth=true",
                                          "http_listen=127.0.0.1:0")
        wait_for_model(harness.Client(self.second["grpc"]))
        return [self.router["grpc"], self.second["grpc"]]

    def pages_in_use(self):
        return sum(v for w in self.prefills + self.decodes for k, v in harness.read_metrics(w["metrics"]).items()
                   if k.startswith("sluice_kv_pages") and ('state="active"' in k or 'state="quarantined"' in k))

    def metric(self, worker, prefix):
        return sum(v for k, v in harness.read_metrics(worker["metrics"]).items() if k.startswith(prefix))

"""Services started one by one, for tests that need settings of their own."""
import json
import os
import subprocess
import tempfile

import grpc
import harness
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase


class Services:
    """On any free ports; ended by SIGTERM, which must give exit code 0."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.running = []
        return self

    def __exit__(self, *_):
        codes = []
        for process in reversed(self.running):
            process.terminate()
            codes.append(process.wait(60))
        self.folder.cleanup()
        if any(codes):
            raise AssertionError(f"exit codes after SIGTERM: {codes}")

    def start(self, binary, *settings):
        """Returns what the ready file says: grpc, metrics, admin, pid."""
        ready = os.path.join(self.folder.name, f"ready-{len(self.running)}.json")
        settings = [*settings, f"service.ready_file={ready}", *(f"service.{x}=127.0.0.1:0" for x in
                                                                ("listen", "metrics_listen", "admin_listen"))]
        arguments = [os.path.join(harness.ARGS.bin, binary)]
        for setting in settings:
            arguments += ["--set", setting]
        process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
        self.running.append(process)
        harness.wait_until(lambda: os.path.exists(ready) or process.poll() is not None, f"{binary} is up")
        with open(ready) as file:
            return json.load(file)


class Admin:
    """The fault points of a service that is built with them."""

    def __init__(self, address):
        self.channel = grpc.insecure_channel(address)
        pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(self.channel))
        self.request, reply = (message_factory.GetMessageClass(pool.FindMessageTypeByName("sluice.v1." + name))
                               for name in ("ArmFaultRequest", "ArmFaultReply"))
        self.call = self.channel.unary_unary("/sluice.v1.Admin/ArmFault", request_serializer=lambda m: m.SerializeToString(),
                                             response_deserializer=reply.FromString)

    def arm(self, point, kind):
        """Returns how often the point was hit so far."""
        return self.call(self.request(point=point, kind=self.request.Kind.Value(kind)), timeout=10).hits


def wait_for_model(client):
    harness.wait_until(lambda: client.call("ListModels", client.message("ListModelsRequest")).models, "a model is served")

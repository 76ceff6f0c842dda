"""A caller that knows the protocol of workers and lies: its grants are refused and counted, honest requests go on."""
import os
import unittest

import grpc
import harness
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from services import ServicesTest

PROMPT = list(range(100))
MESSAGE_BYTES_MAX = 64 << 20  # of a port that no client faces


class Caller:
    """Of a service that routers call, found by reflection."""

    def __init__(self, address, service):
        self.channel = grpc.insecure_channel(address)
        self.pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(self.channel))
        self.service = self.pool.FindServiceByName("sluice.v1." + service)

    def request(self, method, **fields):
        return message_factory.GetMessageClass(self.service.FindMethodByName(method).input_type)(**fields)

    def send(self, method, request, stream=False):
        """The reply, or the running stream."""
        reply = message_factory.GetMessageClass(self.service.FindMethodByName(method).output_type)
        kind = self.channel.unary_stream if stream else self.channel.unary_unary
        return kind(f"/{self.service.full_name}/{method}", request_serializer=lambda m: m.SerializeToString(),
                    response_deserializer=reply.FromString)(request, timeout=30)

    def call(self, method, stream=False, **fields):
        return self.send(method, self.request(method, **fields), stream)


class GrantTest(ServicesTest):
    def test_false_grants_are_refused_and_counted(self):
        self.start()
        expected = self.complete()
        holder = self.worker_info("prefill-0")
        prefill, decode = Caller(self.prefills[0]["grpc"], "Prefill"), Caller(self.decodes[0]["grpc"], "Decode")

        def reserve():
            return decode.call("Reserve", request_id="rogue", attempt=1, tenant="", prompt=PROMPT, max_tokens=4, deadline_ms=20000,
                               holder_incarnation=holder.incarnation, holder_layout_hash=holder.layout_hash,
                               holder_numerics_id=holder.numerics_id).grant

        def run(grant):
            credit = prefill.call("Admit", request_id="rogue", attempt=1, prompt_tokens=len(PROMPT)).credit_id
            request = prefill.request("Run", request_id="rogue", attempt=1, prompt=PROMPT, deadline_ms=20000, credit_id=credit,
                                      sampling=dict(top_p=1, repetition_penalty=1, max_tokens=4, logprobs=-1,
                                                    ignore_eos=True))
            request.grant.ParseFromString(grant.SerializeToString())
            return list(prefill.send("Run", request, stream=True))

        def refused(grant, code):
            before = self.metric(self.prefills[0], "sluice_kv_grants_refused_total")
            with self.assertRaises(grpc.RpcError) as raised:
                run(grant)
            self.assertEqual(raised.exception.code(), code, raised.exception.details())
            self.assertEqual(self.metric(self.prefills[0], "sluice_kv_grants_refused_total"), before + 1)

        code = grpc.StatusCode
        honest = reserve()
        self.assertEqual(run(honest)[-1].WhichOneof("event"), "done")
        refused(honest, code.ALREADY_EXISTS)  # replayed
        for field, value, expected_code in (("holder_incarnation", holder.incarnation + 1, code.FAILED_PRECONDITION),
                                            ("layout_hash", os.urandom(len(holder.layout_hash)), code.FAILED_PRECONDITION),
                                            ("lease_id", b"short", code.INVALID_ARGUMENT),
                                            ("lease_ms", 2**32 - 1, code.INVALID_ARGUMENT),
                                            ("tokens_max", 1, code.FAILED_PRECONDITION)):
            false = reserve()
            setattr(false, field, value)
            with self.subTest(field):
                refused(false, expected_code)
        # Invented, in the name of a taker that made none: it does not know the lease, says so, and reads nothing.
        invented = reserve()
        invented.lease_id = os.urandom(16)
        stale = self.metric(self.decodes[0], "sluice_kv_stale_messages_total")
        with self.assertRaises(grpc.RpcError):
            run(invented)
        self.assertGreater(self.metric(self.decodes[0], "sluice_kv_stale_messages_total"), stale)
        with self.assertRaises(grpc.RpcError) as raised:
            prefill.call("Admit", request_id="r" * MESSAGE_BYTES_MAX)
        self.assertEqual(raised.exception.code(), code.RESOURCE_EXHAUSTED)
        # Toy tokens depend on every byte of every page, those cached before included.
        self.assertEqual(self.complete(), expected)
        harness.wait_until(lambda: self.pages_in_use() == 0, "what was reserved has come back")

    def complete(self):
        return self.client.complete(tokens=PROMPT, max_tokens=8, ignore_eos=True).tokens

    def worker_info(self, name):
        view = next(Caller(self.manager, "CacheManager").call("WatchWorkers", stream=True))
        return next(worker.info for worker in view.workers if worker.info.worker_id == name)


if __name__ == "__main__":
    harness.main()

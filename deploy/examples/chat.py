#!/usr/bin/env python3
"""A Sluice client in Python whose streams survive the loss of a router.   pip install grpcio grpcio-reflection

    chat.py --url grpc://127.0.0.1:8081,grpc://127.0.0.1:9081 "Tell me a story"

Needs no generated code: the messages are found by server reflection. What makes a stream resumable is four things that the client
keeps: its own request id, the seed and the numerics ids of the first message, and how many tokens it has of each choice. Any router
of the cluster computes the same tokens again from them and sends those that are missing, byte for byte.
"""
import argparse
import sys
import uuid

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

# Another router may go on with a stream that ended like this.
BROKEN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
# Without these a router whose host vanished, or whose process hangs, would never be noticed.
OPTIONS = [("grpc.keepalive_time_ms", 10000), ("grpc.keepalive_timeout_ms", 5000), ("grpc.keepalive_permit_without_calls", 1)]


class Router:
    """One router of the cluster."""

    def __init__(self, url):
        self.url = url
        self.channel = grpc.insecure_channel(url.removeprefix("grpc://"), options=OPTIONS)
        self.messages = None

    def message(self, name, **fields):
        if self.messages is None:
            self.messages = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(self.channel))
        try:
            found = self.messages.FindMessageTypeByName("sluice.v1." + name)
        except Exception:  # the router went away meanwhile: ask again next time
            self.messages = None
            raise
        return message_factory.GetMessageClass(found)(**fields)

    def generate(self, serialized, metadata):
        reply = type(self.message("GenerateResponse"))
        call = self.channel.unary_stream("/sluice.v1.Inference/Generate", request_serializer=lambda m: m,
                                         response_deserializer=reply.FromString)
        return call(serialized, metadata=metadata)


class Client:
    """Generates through whichever router answers. One stream at a time."""

    def __init__(self, urls, api_key=None):
        self.routers = [Router(url) for url in urls]
        self.metadata = [("authorization", "Bearer " + api_key)] if api_key else []
        self.resumes = 0  # how often a stream went on elsewhere

    def close(self):
        for router in self.routers:
            router.channel.close()

    def message(self, name, **fields):
        """A message of sluice.v1, described by any router that answers."""
        return self._on_some_router(lambda router: router.message(name, **fields))

    def _on_some_router(self, ask):
        error = None
        for _ in self.routers:
            try:
                return ask(self.routers[0])
            except (grpc.RpcError, KeyError) as failure:  # reflection turns a lost connection into either
                error = failure
                self.routers.append(self.routers.pop(0))
        raise error

    def generate(self, request):
        """Yields the deltas of a GenerateRequest, every token once and in order within its choice, and at last the usage.

        Raises grpc.RpcError when the request itself was refused, or when no router brings the stream any further.
        """
        request.request_id = request.request_id or uuid.uuid4().hex
        tokens = [0] * max(request.choices, 1)  # of each choice, those that were yielded
        finished = set()
        start = None
        failures = 0  # routers that were of no use since the last token
        while True:
            if start is not None:
                request.resume.Clear()
                request.resume.seed = start.seed
                request.resume.numerics_ids.extend(start.numerics_ids)
                request.resume.positions.extend(tokens)
            try:
                for response in self.routers[0].generate(request.SerializeToString(), self.metadata):
                    if response.HasField("start"):
                        start = start or response.start
                    for delta in response.deltas:
                        if delta.position + len(delta.token_ids) > tokens[delta.index]:
                            tokens[delta.index] += len(delta.token_ids)
                            failures = 0
                        elif delta.index in finished:
                            continue  # a finished choice ends again in every resumed stream
                        if delta.finish_reason:
                            finished.add(delta.index)
                        yield delta
                    if response.HasField("usage"):
                        yield response.usage
                return
            except (grpc.RpcError, KeyError) as error:
                if isinstance(error, grpc.RpcError) and error.code() not in BROKEN:
                    raise
                failures += 1
                if failures > len(self.routers):
                    raise
                self.resumes += 1
                self.routers.append(self.routers.pop(0))


def main():
    parser = argparse.ArgumentParser(description="Asks a Sluice cluster; goes on at another router when one dies.")
    parser.add_argument("text")
    parser.add_argument("--url", default="grpc://127.0.0.1:8081", help="grpc://host:port of the routers, comma-separated")
    parser.add_argument("--api-key")
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--temperature", type=float)
    arguments = parser.parse_args()
    client = Client(arguments.url.split(","), arguments.api_key)
    request = client.message("GenerateRequest")
    request.messages.messages.add(role="user", content=arguments.text)
    if arguments.max_tokens is not None:
        request.max_tokens = arguments.max_tokens
    if arguments.temperature is not None:
        request.sampling.temperature = arguments.temperature
    try:
        for item in client.generate(request):
            print(getattr(item, "text", ""), end="", flush=True)
        print()
    except grpc.RpcError as error:
        sys.exit(f"\n{error.code().name}: {error.details()}")
    if client.resumes:
        print(f"(went on at another router {client.resumes} times)", file=sys.stderr)


if __name__ == "__main__":
    main()

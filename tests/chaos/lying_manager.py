#!/usr/bin/env python3
"""A cache-manager gone mad: has its certificate, accepts every call, answers with noise.   lying_manager.py ADDRESS CERTIFICATES SEED

Some answers are no messages, some are messages full of nonsense, some are large; some calls are never answered.
Prints how many calls there were at SIGTERM.
"""
import os
import random
import signal
import sys
import threading
from concurrent import futures

import grpc


def read(folder, name):
    with open(os.path.join(folder, name), "rb") as file:
        return file.read()


class Noise(grpc.GenericRpcHandler):
    def __init__(self, seed):
        self.random, self.stopped, self.calls = random.Random(seed), threading.Event(), 0

    def service(self, details):
        return grpc.stream_stream_rpc_method_handler(self.answer)

    def answer(self, requests, context):
        self.calls += 1
        kind = self.random.randrange(4)
        if kind == 0:
            return
        if kind == 1:
            self.stopped.wait(2)
            context.abort(grpc.StatusCode.INTERNAL, "noise")
        for _ in range(50):
            if not context.is_active() or self.stopped.wait(0.05):
                return
            if kind == 2:
                yield self.random.randbytes(self.random.choice((1, 17, 1000, 1 << 20)))
            else:
                yield self.plausible()

    def plausible(self):
        """Well-formed on the wire: a few fields of low numbers with random contents, nested once."""
        def fields(depth):
            out = b""
            for _ in range(self.random.randrange(1, 6)):
                number = self.random.randrange(1, 12)
                if self.random.random() < 0.5:
                    out += bytes([number << 3]) + self.varint(self.random.getrandbits(self.random.choice((1, 7, 31, 63))))
                else:
                    inner = fields(depth - 1) if depth and self.random.random() < 0.7 else \
                        self.random.randbytes(self.random.randrange(20))
                    out += bytes([number << 3 | 2]) + self.varint(len(inner)) + inner
            return out
        return fields(3)

    def varint(self, value):
        out = b""
        while value > 127:
            out += bytes([value & 127 | 128])
            value >>= 7
        return out + bytes([value])


def main():
    address, certificates, seed = sys.argv[1:]
    noise = Noise(seed)
    server = grpc.server(futures.ThreadPoolExecutor(64), handlers=[noise])
    credentials = grpc.ssl_server_credentials([(read(certificates, "tls.key"), read(certificates, "tls.crt"))],
                                              read(certificates, "ca.crt"), require_client_auth=True)
    server.add_secure_port(address, credentials)
    server.start()

    def end(*_):
        print(noise.calls, flush=True)
        os._exit(0)  # calls that are never answered would be waited for
    signal.signal(signal.SIGTERM, end)
    print("ready", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()

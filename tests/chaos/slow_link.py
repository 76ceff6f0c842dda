#!/usr/bin/env python3
"""A bad cable: carries Ethernet frames between two devices and delays, reorders, repeats or damages them.

slow_link.py DEVICE DEVICE --delay-ms MEAN --jitter-ms J     each frame waits MEAN +- J by itself, so that frames overtake each other
             --repeat SHARE   frames sent twice
             --damage SHARE --port N   TCP segments from or to the port that get one bit of their payload flipped and a checksum
                              that says they are right, as a broken switch does
Prints "ready" when it carries, and its counts as JSON at SIGTERM.

slow_link.py --offloads-off DEVICE     and nothing else: for the far ends, which must leave no checksum to hardware either
"""
import argparse
import ctypes
import fcntl
import heapq
import json
import random
import select
import signal
import socket
import struct
import sys
import time

FRAME_MAX = 65600
SIOCETHTOOL = 0x8946
# Checksums and segmentation that the kernel leaves to hardware, of which there is none here: off.
OFFLOADS = (0x17, 0x1F, 0x25, 0x19)  # ETHTOOL_STXCSUM, STSO, SGSO, SSG
IPV4, TCP = 0x0800, 6


def switch_offloads_off(device):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sP", device.encode(), ctypes.addressof(value)) + bytes(16)
            try:
                fcntl.ioctl(control, SIOCETHTOOL, request)
            except OSError:
                pass  # a device that cannot do it need not be told not to


def raw_socket(device):
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    raw.bind((device, 0))
    raw.setblocking(False)
    return raw


def ones_complement_sum(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def damaged(frame, port, source):
    """The frame with one bit of its payload flipped and the TCP checksum made right again; None if it is not to the point."""
    if len(frame) < 54 or struct.unpack_from("!H", frame, 12)[0] != IPV4 or frame[23] != TCP:
        return None
    ip_header = (frame[14] & 15) * 4
    end = 14 + struct.unpack_from("!H", frame, 16)[0]
    tcp = 14 + ip_header
    payload = tcp + (frame[tcp + 12] >> 4) * 4
    if payload >= end or port not in struct.unpack_from("!HH", frame, tcp):
        return None
    out = bytearray(frame[:end])
    out[source.randrange(payload, end)] ^= 1 << source.randrange(8)
    out[tcp + 16:tcp + 18] = b"\0\0"
    pseudo = bytes(out[26:34]) + struct.pack("!BBH", 0, TCP, end - tcp)
    struct.pack_into("!H", out, tcp + 16, 0xFFFF ^ ones_complement_sum(pseudo + bytes(out[tcp:])))
    return bytes(out)


class Cable:
    def __init__(self, args):
        self.args, self.random, self.queue, self.number = args, random.Random(args.seed), [], 0
        self.counts = {"carried": 0, "repeated": 0, "damaged": 0, "lost": 0}

    def take(self, frame, target):
        if self.args.damage and self.random.random() < self.args.damage:
            changed = damaged(frame, self.args.port, self.random)
            if changed:
                frame = changed
                self.counts["damaged"] += 1
        copies = 1
        if self.args.repeat and self.random.random() < self.args.repeat:
            copies = 2
            self.counts["repeated"] += 1
        for _ in range(copies):
            wait = max(0.0, self.args.delay_ms + self.random.uniform(-1, 1) * self.args.jitter_ms) / 1000
            self.number += 1
            heapq.heappush(self.queue, (time.monotonic() + wait, self.number, frame, target))

    def send_due(self):
        while self.queue and self.queue[0][0] <= time.monotonic():
            _, _, frame, target = heapq.heappop(self.queue)
            try:
                target.send(frame)
                self.counts["carried"] += 1
            except OSError:
                self.counts["lost"] += 1

    def run(self):
        sockets = [raw_socket(device) for device in self.args.devices]
        other = {sockets[0]: sockets[1], sockets[1]: sockets[0]}
        print("ready", flush=True)
        while True:
            wait = max(0.0, self.queue[0][0] - time.monotonic()) if self.queue else None
            for ready in select.select(sockets, [], [], wait)[0]:
                try:
                    while True:
                        frame, address = ready.recvfrom(FRAME_MAX)
                        if address[2] != socket.PACKET_OUTGOING:
                            self.take(frame, other[ready])
                except BlockingIOError:
                    pass
            self.send_due()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("devices", nargs="*")
    parser.add_argument("--offloads-off")
    parser.add_argument("--delay-ms", type=float, default=0)
    parser.add_argument("--jitter-ms", type=float, default=0)
    parser.add_argument("--repeat", type=float, default=0)
    parser.add_argument("--damage", type=float, default=0)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", default="0")
    args = parser.parse_args()
    if args.offloads_off:
        switch_offloads_off(args.offloads_off)
        return
    for device in args.devices:
        switch_offloads_off(device)
    cable = Cable(args)

    def end(*_):
        print(json.dumps(cable.counts), flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, end)
    cable.run()


if __name__ == "__main__":
    main()

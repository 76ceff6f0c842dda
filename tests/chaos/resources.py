"""Clients that read slowly, leave, or come in crowds; descriptors and disks that run out: R9, R10, R14, R15."""
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time

import checker
import cluster as clusters
import load
from crashes import milliseconds, wait_for_tokens
from harness import wait_until
from network import run as run_program
from scenario import failures, scenario, wait_all

IN_FLIGHT = "sluice_requests_in_flight"


def http_stream(service, spec, receive_bytes):
    """A socket with the beginning of an HTTP answer, that the kernel buffers little of."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(30)
    client.connect((service.host.ip, service.ports["http"]))
    body = json.dumps({"prompt": spec["ids"], "max_tokens": spec["max_tokens"], "stream": True, "temperature": 0,
                       "ignore_eos": True}).encode()
    client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: chaos\r\nContent-Type: application/json\r\nAuthorization: Bearer " +
                   clusters.KEY.encode() + f"\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    return client


@scenario("R9", "HTTP clients that read 10 bytes a second of long streams, beside streams that are read",
          "each gives up its place <= 30 s and is ended later, the router's memory grows <= 256 KiB each; the others unaffected")
def slow_readers(run):
    with run.cluster(decode=2, kv_pool_mib=256) as cluster:
        router = cluster.routers[0]
        clients, specs = run.clients(router), run.specs(4, 100, 1000)
        run.reference(clients, specs)
        kept_mib = []
        # The first crowd leaves a block here and there in the pages of its buffers; the next one must not add to that, and both
        # together must not add more to the warm cluster than the contract allows.
        warm, cluster.usual = cluster.usual, {}
        for i in range(run.times(1, 2)):
            if i > 0:
                cluster.remember_resources()
            kept_mib.append(resident_mib(router))
            found, others = crowd_of_slow_readers(run, cluster, clients, specs, f"others-{i}")
            wait_all(others)
            cluster.wait_healed()
            run.figures.update(found)
        run.figures["router_mib_before_each_and_after"] = [*kept_mib, resident_mib(router)]
        cluster.usual = warm
        cluster.wait_healed()
        clients.close()
    run.judge(finished_share=1.0)
    assert 0 < run.figures["all_ended_s"], "slow streams have not ended"
    assert 0 < run.figures["all_parked_s"] <= 30, run.figures
    # Before it stalls, a stream fills what kernels buffer.
    assert run.figures["memory_kib_each"] <= 256 + run.times(1000, 256), run.figures


def resident_mib(service):
    return round(clusters.resources_of(service.metrics())[0] / 2**20, 1)


def crowd_of_slow_readers(run, cluster, clients, specs, name):
    """Figures of one crowd that came and went, and the streams beside it."""
    router, count = cluster.routers[0], run.times(20, 200)
    before = router.metrics()["sluice_process_resident_bytes"]
    slow = [http_stream(router, {**specs[0], "max_tokens": 8000}, 2048) for _ in range(count)]
    begin = time.monotonic()
    for client in slow:
        head = client.recv(15)
        assert head == b"HTTP/1.1 200 OK", head
    peak = ended = parked = 0
    others = run.wave(clients, specs, name)
    while time.monotonic() < begin + run.times(60, 90):
        for client in slow:
            try:
                client.recv(10, socket.MSG_DONTWAIT)
            except OSError:
                pass
        if not parked and not sum(worker.sum("sluice_engine_running") for worker in cluster.decodes):
            parked = time.monotonic() - begin
        metrics = router.metrics()
        peak = max(peak, metrics["sluice_process_resident_bytes"])
        if metrics[IN_FLIGHT] == 0:
            ended = time.monotonic() - begin
            break
        wait_until(lambda until=time.monotonic() + 1: time.monotonic() > until, "a second")
    for client in slow:
        client.close()
    return {"slow": count, "all_parked_s": round(parked, 1), "all_ended_s": round(ended, 1),
            "memory_kib_each": round((peak - before) / count / 1024)}, others


@scenario("R10", "1,000 streams at once of which 90 % are cancelled at random tokens, and connections opened and reset",
          "pages exact; the others byte-equal; compute stops at once", quick=True)
def cancellation_storm(run):
    count, resets = run.times(100, 1000), run.times(200, 10000)
    with run.cluster(decode=2, extra=[("router", "queue_wait_s=300"), ("router", "queue_max=2000")]) as cluster:
        router = cluster.routers[0]
        clients = run.clients(router, channels=count // load.STREAMS_PER_CHANNEL + 1)
        specs = run.specs(8, 100, 200)
        run.reference(clients, specs)

        def storm(name):
            opener = threading.Thread(target=open_and_reset, args=(router, resets))
            opener.start()
            streams = []
            for i in range(count):
                leaves = run.random.random() < 0.9
                streams.append(load.Stream(run.history, clients, f"{name}-{i}", run.random.choice(specs), 400,
                                           salt=f"{name}{i % 50}",
                                           cancel_after=run.random.randrange(0, 150) if leaves else None))
            wait_all(streams)
            opener.join()
        if not run.quick:
            # In pages of buffers that are freed one by one, a block here and there lives on: the next storm must not add to that,
            # and both together must not add more to the warm cluster than the contract allows.
            warm, cluster.usual = cluster.usual, {}
            storm("warm")
            cluster.wait_healed()
            cluster.remember_resources()
        storm("storm")
        over = run.history.now()
        cluster.wait_healed()
        run.figures.update(requests=count, resets=resets, pages_back_ms=milliseconds(run.history.now() - over))
        if not run.quick:
            cluster.usual = warm
            cluster.wait_healed()
        clients.close()
    run.judge(finished_share=1.0)


def open_and_reset(service, times):
    """Connections that say nothing, or half a word, and end with a reset."""
    linger = b"\1\0\0\0\0\0\0\0"
    for i in range(times):
        try:
            with socket.create_connection((service.host.ip, service.ports["http" if i % 2 else "grpc"]), 5) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                if i % 3:
                    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if i % 3 == 1 else b"POST /v1/comp")
        except OSError:
            pass


@scenario("R14", "a router, then each worker with 8 descriptors to spare while 200 connections come; then they go",
          "nothing crashes; served again when descriptors are free", quick=True)
def descriptors(run):
    with run.cluster(decode=1) as cluster:
        router = cluster.routers[0]
        clients, specs = run.clients(router), run.specs(4, 100, 500)
        run.reference(clients, specs)
        for i, service in enumerate([router, *cluster.workers, cluster.manager]):
            streams = run.wave(clients, specs, f"{service.name}-before", salt=f"a{i}")
            wait_for_tokens(streams, 5)
            limit = int(service.metrics()["sluice_process_open_fds"]) + 8
            resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (limit, 20000))
            run.fault("descriptors", service=service.name)
            held = []
            for n in range(200):
                for port in ("grpc", "http") if service.role == "router" else ("grpc",):
                    client = socket.socket()
                    client.setblocking(False)
                    client.connect_ex((service.host.ip, service.ports[port]))
                    held.append(client)
            wait_all(streams)  # what had its descriptors goes on
            resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (20000, 20000))
            for client in held:
                client.close()
            assert service.running(), f"{service.name} died"
            cluster.wait_healed()
            wait_all(run.wave(clients, specs, f"{service.name}-after", salt=f"b{i}"))
        run.figures["services"] = len(cluster.services)
        clients.close()
    run.judge(finished_share=1.0)


@scenario("R15", "the disk that all services log to is full, under load", "serving goes on", quick=True)
def full_disk(run):
    disk = os.path.join(run.folder, "disk")
    os.makedirs(disk, exist_ok=True)
    run_program("mount", "-t", "tmpfs", "-o", "size=8m", "none", disk)
    try:
        with run.cluster(folder=disk, decode=2) as cluster:
            clients, specs = run.clients(cluster.routers[0]), run.streams()
            run.reference(clients, specs)
            ballast = os.open(os.path.join(disk, "ballast"), os.O_CREAT | os.O_WRONLY)
            try:
                while True:
                    os.write(ballast, bytes(4096))
            except OSError:
                os.close(ballast)  # full
            run.fault("full")
            streams = run.wave(clients, specs, "full")
            wait_for_tokens(streams, 5)
            cluster.decodes[0].kill()  # gives the others something to log about
            wait_all(streams)
            free = os.statvfs(disk).f_bavail
            os.truncate(os.path.join(disk, "ballast"), 0)
            cluster.restart_dead()
            cluster.wait_healed()
            run.figures["free_blocks_while_full"] = free
            clients.close()
    finally:
        run_program("umount", "-l", disk)
    run.judge(finished_share=1.0)

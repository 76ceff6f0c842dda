"""Memory, threads and clocks that run out or go wrong: R13, R14 threads, R16."""
import os
import resource
import shutil
import struct
import subprocess
import sys

import harness
from control_group import ControlGroup
from crashes import wait_for_tokens
from resources import http_stream
from scenario import scenario, wait_all

HOUR_S, YEAR_S = 3600, 365 * 24 * 3600


class Group(ControlGroup):
    """A control group for one service, which is started inside it."""

    def __init__(self, service, controller):
        super().__init__(f"sluice-chaos-{os.getpid()}-{service.name}", controller)
        self.service = service
        service.outside = self.entrance()

    def __exit__(self, kind, *rest):
        if kind is not None and self.service.running():
            self.service.kill()
        super().__exit__(kind, *rest)


@scenario("R13", "a decode and a prefill worker in a control group with 110 % of the memory it uses; then a neighbour in it takes the rest",
          "no kill by the load alone; once killed, all streams finish as in R1 and R2")
def memory_limit(run):
    with run.cluster(prefill=2, decode=2) as cluster:
        clients, specs = run.clients(cluster.routers[0]), run.streams()
        run.reference(clients, specs)
        run.figures["limit_mib"] = []
        for victim in (cluster.decodes[0], cluster.prefills[0]):
            with Group(victim, "memory") as group:
                victim.kill()
                victim.start()
                cluster.wait_in_rotation()
                wait_all(run.wave(clients, specs, f"{victim.name}-usual", salt=f"{victim.name}0"))
                limit = group.memory_bytes() * 11 // 10
                group.limit_memory(limit)
                run.fault("memory", service=victim.name, limit_bytes=limit)
                run.figures["limit_mib"].append(limit >> 20)
                for i in range(run.times(1, 10)):
                    wait_all(run.wave(clients, specs, f"{victim.name}-110-{i}", salt=f"{victim.name}1{i}"))
                    assert victim.running(), f"{victim.name} was killed with 10 % of memory to spare"
                streams = run.wave(clients, specs, f"{victim.name}-killed", salt=f"{victim.name}2")
                wait_for_tokens(streams, 5)
                fill_memory_until_killed(group, victim)
                wait_all(streams)
                victim.outside = []
            cluster.restart_dead()
            cluster.wait_healed()
        clients.close()
    run.judge(finished_share=1.0)


def fill_memory_until_killed(group, victim):
    """The kernel ends the largest process of the group, which is the service."""
    neighbour = subprocess.Popen([*group.entrance(), sys.executable, "-c",
                                  "held = []\nwhile True: held.append(bytearray(b'x') * (1 << 20))"], stderr=subprocess.DEVNULL)
    try:
        harness.wait_until(lambda: not victim.running(), f"{victim.name} is killed for memory")
    finally:
        neighbour.kill()
        neighbour.wait()


@scenario("R13 address space", "address space of a decode worker limited to 102 % of what it uses, under load; restarted if it dies",
          "all streams finish, by the worker that has memory if need be")
def address_space_limit(run):
    with run.cluster(decode=2) as cluster:
        clients, specs = run.clients(cluster.routers[0]), run.streams()
        run.reference(clients, specs)
        died = 0
        for i in range(run.times(1, 10)):
            victim = cluster.decodes[i % 2]
            used = virtual_bytes(victim)
            resource.prlimit(victim.process.pid, resource.RLIMIT_AS, (int(used * 1.02), resource.RLIM_INFINITY))
            run.fault("memory", service=victim.name)
            wait_all(run.wave(clients, specs, f"round-{i}", salt=f"salt-{i}"))
            died += not victim.running()
            if victim.running():
                resource.prlimit(victim.process.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            cluster.restart_dead()
            cluster.wait_healed()
        run.figures.update(limited=run.times(1, 10), died=died)
        clients.close()
    run.judge(finished_share=1.0)


def virtual_bytes(service):
    with open(f"/proc/{service.process.pid}/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")


@scenario("R14 threads", "each service in turn may start no thread more than it has, while streams run and HTTP clients come and go",
          "nothing crashes; served meanwhile and afterwards")
def threads(run):
    with run.cluster(prefill=2, decode=2) as cluster:
        router = cluster.routers[0]
        clients, specs = run.clients(router), run.specs(4, 100, 500)
        run.reference(clients, specs)
        for victim in (cluster.decodes[0], cluster.prefills[0], cluster.manager, router):
            with Group(victim, "pids") as group:
                victim.kill()
                victim.start()
                cluster.wait_in_rotation()
                wait_all(run.wave(clients, specs, f"{victim.name}-usual", salt=f"{victim.name}0"))
                group.limit_threads(group.threads())
                run.fault("threads", service=victim.name, limit=group.threads())
                for i in range(run.times(2, 20)):
                    streams = run.wave(clients, specs, f"{victim.name}-limited-{i}", salt=f"{victim.name}1{i}")
                    others = [http_stream(router, specs[0], 65536) for _ in range(20)]
                    heads = {client.recv(15) for client in others}
                    assert heads == {b"HTTP/1.1 200 OK"}, heads
                    for client in others:
                        client.close()
                    wait_all(streams)
                assert victim.running(), f"{victim.name} died"
                cluster.wait_healed()
                victim.outside = []
                victim.kill()
            cluster.restart_dead()
            cluster.wait_healed()
        run.figures["services"] = 4
        clients.close()
    run.judge(finished_share=1.0)


@scenario("R16", "the wall clock of each service in turn, then of all, set an hour and ten years forth and back while streams run",
          "nothing expires: all streams finish; every figure of a histogram stays >= 0", quick=True)
def clock_jumps(run):
    library = os.path.abspath(os.path.join(harness.ARGS.bin, "../tests/libshifted_clock.so"))
    assert os.path.exists(library), f"{library} is not built"
    with run.cluster(prefill=2, decode=2, before_start=lambda service: preload(service, library)) as cluster:
        clients, specs = run.clients(cluster.routers[0]), run.long_streams()
        run.reference(clients, specs)
        jumps = 0
        all_victims = [[s] for s in cluster.services] + [cluster.services]
        jumps_s = (HOUR_S, -HOUR_S) if run.quick else (HOUR_S, -HOUR_S, 10 * YEAR_S, -10 * YEAR_S)
        for victims in all_victims[-2:] if run.quick else all_victims:
            for jump_s in jumps_s:
                name = f"{victims[0].name}-{len(victims)}-{jump_s}"
                streams = run.wave(clients, specs, name, salt=name)
                wait_for_tokens(streams, run.random_position())
                run.fault("clock", services=[s.name for s in victims], seconds=jump_s)
                jumps += 1
                for service in victims:
                    shift(service, jump_s)
                wait_all(streams + run.wave(clients, specs, f"{name}-later", salt=f"{name} later"))
                for service in victims:
                    shift(service, 0)
                cluster.wait_healed()
        negative = {f"{s.name} {k}": v for s in cluster.services for k, v in s.metrics().items()
                    if v < 0 and ("_sum" in k or "_bucket" in k or "_count" in k or "_seconds" in k)}
        assert not negative, negative
        run.figures["jumps"] = jumps
        clients.close()
    run.judge(finished_share=1.0)


def clock_of(service):
    """The copy of the library that is preloaded into a service; its clock is off by what the file beside it says."""
    return os.path.join(service.cluster.folder, f"{service.name}.clock.so")


def preload(service, library):
    shutil.copyfile(library, clock_of(service))
    shift(service, 0)
    service.environment["LD_PRELOAD"] = clock_of(service)


def shift(service, seconds):
    """Sets the wall clock of a service so far off."""
    file = os.open(clock_of(service) + ".offset", os.O_CREAT | os.O_WRONLY, 0o600)
    os.pwrite(file, struct.pack("q", seconds * 10**9), 0)
    os.close(file)

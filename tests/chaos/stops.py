"""Processes that stop for a while, or answer nonsense: R4, R5."""
import os
import subprocess
import sys
import time

import checker
import cluster as clusters
from crashes import milliseconds, wait_for_tokens
from harness import wait_until
from scenario import scenario, wait_all

STREAM_S = 180
# A worker is out once the manager has not heard it for 3 heartbeats of 500 ms.
EJECTED_S = 1.5


def manager_fault(run, inflict, heal, times, seconds=0):
    """Waves of streams before, during (at least `seconds`) and after a fault of the cache-manager; nobody may notice."""
    with run.cluster(decode=2) as cluster:
        clients, specs = run.clients(cluster.routers[0]), run.streams()
        run.reference(clients, specs)
        back = []
        for i in range(times):
            before = run.wave(clients, specs, f"before-{i}", salt=f"a{i}")
            wait_for_tokens(before, 3)
            run.fault("manager", number=i)
            undo = inflict(cluster)
            begin, n = time.monotonic(), 0
            while n == 0 or time.monotonic() < begin + seconds:
                wait_all(run.wave(clients, specs, f"during-{i}-{n}", salt=f"b{i} {n}"))
                n += 1
            wait_all(before)
            heal(cluster, undo)
            healed = run.history.now()
            after = run.wave(clients, specs, f"after-{i}", salt=f"c{i}")
            wait_until(lambda: cluster.manager.sum("sluice_workers", 'state="ready"') == len(cluster.workers),
                       "all workers registered again")
            back.append(run.history.now() - healed)
            wait_all(after)
        cluster.wait_healed()
        clients.close()
    run.judge(finished_share=1.0)
    run.figures.update(faults=times, registered_again_ms_max=milliseconds(max(back)))
    assert max(back) <= 10, run.figures


@scenario("R4 kill", "kill -9 of the cache-manager under load; started again after the streams",
          "0 failed requests; workers registered again <= 10 s", quick=True)
def manager_killed(run):
    manager_fault(run, lambda c: c.manager.kill(), lambda c, _: c.restart_dead(), run.times(1, 20))


@scenario("R4 stop", "SIGSTOP of the cache-manager under load, SIGCONT after the streams",
          "0 failed requests; workers registered again <= 10 s")
def manager_stopped(run):
    manager_fault(run, lambda c: clusters.stop(c.manager), lambda c, _: clusters.resume(c.manager), run.times(1, 20))


@scenario("R4 garbage", "the cache-manager replaced by one with its certificate that answers noise, under load",
          "0 failed requests; workers registered again <= 10 s")
def manager_lies(run):
    answers = []

    def inflict(cluster):
        cluster.manager.kill()
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lying_manager.py")
        liar = subprocess.Popen(cluster.manager.host.command(
            sys.executable, program, cluster.manager.at("grpc"), os.path.join(cluster.folder, "certificates/cache-manager"),
            str(run.random.random())), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert liar.stdout.readline() == "ready\n"
        return liar

    def heal(cluster, liar):
        liar.terminate()
        answers.append(int(liar.stdout.readline()))
        liar.wait()
        cluster.restart_dead()
    manager_fault(run, inflict, heal, run.times(1, 20), seconds=10)
    run.figures["calls_answered_with_noise"] = sum(answers)
    assert min(answers) > 0, "nobody listened to the noise"


@scenario("R5", "SIGSTOP of each service for 1, 10 and 60 s while streams run, then SIGCONT",
          "streams of a worker stopped for 10 s or more are moved; nothing stale is used, no token comes twice")
def stopped(run):
    with run.cluster(prefill=2, decode=2) as cluster:
        clients, specs = run.clients(cluster.routers[0]), run.long_streams()
        run.reference(clients, specs)
        victims = [cluster.decodes[0], cluster.prefills[0], cluster.manager, cluster.routers[0]]
        for seconds in (10,) if run.quick else (1, 10, 60):
            for victim in victims[:1] if run.quick else victims:
                name = f"{victim.name}-{seconds}"
                streams = run.wave(clients, specs, name, STREAM_S, salt=name)
                wait_for_tokens(streams, run.random_position())
                run.fault("stop", service=victim.name, seconds=seconds)
                clusters.stop(victim)
                end = time.monotonic() + seconds
                wait_until(lambda end=end: time.monotonic() > end, "the end of the pause", seconds + 30)
                clusters.resume(victim)
                run.fault("continue", service=victim.name)
                wait_all(streams)
                cluster.wait_healed()
        clients.close()
    report, events = run.judge(finished_share=1.0)
    pauses = {}
    for event in events:
        if event["event"] == "fault" and event["what"] == "stop":
            gaps = checker.gaps_after(report, event["t"], event["t"] + 1)
            pauses[f"{event['service']}_{event['seconds']}_s"] = round(max(gaps, default=0), 2)
            # A stopped router streams nothing; of the others, streams get away as soon as they are missed.
            if not event["service"].startswith("router"):
                assert max(gaps, default=0) <= run.times(30, min(event["seconds"], EJECTED_S) + 3), (event, pauses)
    run.figures["longest_pause_s"] = pauses

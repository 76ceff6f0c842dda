"""Faults at random for half an hour, and what they do to memory and descriptors: R25."""
import time

import cluster as clusters
from crashes import wait_for_tokens
from harness import wait_until
from network import partition
from resources import open_and_reset
from scenario import scenario, wait_all

STREAM_S = 120
MIB = 1 << 20
# Of the minutes: until what a process keeps for its work has been allocated.
WARM_UP = 0.2
SLOPE_MIB_PER_MIN = 1.0


def pause(seconds):
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end, "the end of a pause", seconds + 30)


class Faults:
    """Each undoes itself. decode-1, prefill-1, the router and the cache-manager are never ended, so that what they hold can be
    followed from the beginning to the end; everything else happens to them too."""

    def __init__(self, run, running):
        self.run, self.cluster, self.random = run, running, run.random
        self.all = [self.kill, self.drain, self.stop, self.cut, self.reset, self.lose, self.slow, self.cancel, self.crowd]

    def victim(self):
        return self.random.choice([*self.cluster.workers, self.cluster.manager])

    def kill(self):
        self.random.choice([self.cluster.decodes[0], self.cluster.prefills[0]]).kill()

    def drain(self):
        self.random.choice([self.cluster.decodes[0], self.cluster.prefills[0]]).terminate()

    def stop(self):
        victim = self.random.choice(self.cluster.services)
        clusters.stop(victim)
        pause(self.random.uniform(0.1, 4))
        clusters.resume(victim)

    def cut(self):
        victim = self.victim()
        others = [h for h in self.cluster.hosts.values() if h is not victim.host]
        self.random.choice([lambda: partition([victim.host], others), lambda: victim.host.drop_from(others)])()
        pause(self.random.uniform(1, 8))

    def reset(self):
        victim = self.victim()
        victim.host.reset_from([h for h in self.cluster.hosts.values() if h is not victim.host])
        pause(1)

    def lose(self):
        for host in self.cluster.hosts.values():
            host.lose(self.random.uniform(1, 10))
        pause(self.random.uniform(1, 5))

    def slow(self):
        self.random.choice(self.cluster.workers).host.limit_rate(self.random.choice([1, 10, 100]))
        pause(self.random.uniform(1, 5))

    def cancel(self):
        self.random.choice(self.streams).cancel()

    def crowd(self):
        open_and_reset(self.random.choice(self.cluster.routers), 50)

    def inflict(self, streams):
        self.streams = streams
        fault = self.random.choice(self.all)
        self.run.fault(fault.__name__)
        fault()
        for host in self.cluster.hosts.values():
            host.heal()
        return fault.__name__


def slope(points):
    """Of the straight line through (x, y) points, by least squares."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


@scenario("R25", "random faults, one after the other, for 30 minutes: crashes, drains, stops, cuts, resets, loss, slow links, cancels",
          "memory grows < 1 MiB a minute after warm-up, descriptors flat; everything of the contract after each fault")
def soak(run):
    minutes = run.times(1, 30)
    with run.cluster(prefill=2, decode=2) as cluster:
        clients, specs = run.clients(cluster.routers[0]), run.streams()
        run.reference(clients, specs)
        cluster.usual = {}  # judged by the slopes instead
        faults, done, samples = Faults(run, cluster), {}, []
        begin = time.monotonic()
        while time.monotonic() < begin + 60 * minutes:
            n = len(samples)
            streams = run.wave(clients, specs, f"round-{n}", STREAM_S, salt=f"salt-{n}" if n % 3 else "")
            wait_for_tokens(streams, run.random_position())
            name = faults.inflict(streams)
            done[name] = done.get(name, 0) + 1
            cluster.restart_dead()
            wait_all(streams)
            cluster.wait_healed()
            samples.append(((time.monotonic() - begin) / 60,
                            {s.process.pid: (s.name, *clusters.resources_of(s.metrics())) for s in cluster.services}))
        clients.close()
    run.figures.update(minutes=minutes, faults=done, **drift(samples, minutes * WARM_UP))
    run.judge(finished_share=0.999)
    worst = max(run.figures["mib_per_min"].values())
    assert run.quick or worst < SLOPE_MIB_PER_MIN, run.figures
    assert max(run.figures["descriptors_more"].values()) <= clusters.DESCRIPTORS_MORE, run.figures


def drift(samples, from_minute):
    """Of the processes that were there all the time: growth of memory a minute, and how many descriptors more than at first were
    open at the end, the fewest of the last tenth of the samples."""
    samples = [sample for sample in samples if sample[0] >= from_minute]
    figures = {"mib_per_min": {}, "descriptors_more": {}, "resident_mib": {}}
    for pid, (name, memory, descriptors) in samples[0][1].items():
        if any(pid not in services for _, services in samples):
            continue
        points = [(minute, services[pid][1] / MIB) for minute, services in samples]
        last = min(services[pid][2] for _, services in samples[-max(1, len(samples) // 10):])
        figures["mib_per_min"][name] = round(slope(points), 3)
        figures["resident_mib"][name] = [round(memory / MIB, 1), round(points[-1][1], 1)]
        figures["descriptors_more"][name] = int(last - descriptors)
    return figures

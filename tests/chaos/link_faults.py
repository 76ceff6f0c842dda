"""Links that are cut, lossy, slow or lie, and links that nobody uses for long: R6-R8, R21, R22."""
import threading
import time

import checker
import cluster as clusters
import load
from crashes import milliseconds, wait_for_tokens
from harness import wait_until
from network import BadCable, partition
from scenario import scenario, wait_all

STREAM_S = 120
DETECTED_S = 15  # keepalive 10 s, and 5 s for its answer


def longest_gap(report):
    return max(max((b - a for (a, _), (b, _) in zip(r.times, r.times[1:])), default=0.0) for r in report.streams.values())


def cut(cluster, left, right, ways):
    left_hosts, right_hosts = ([s.host for s in services] for services in (left, right))
    if ways == "both":
        partition(left_hosts, right_hosts)
    for host in right_hosts if ways == "to" else left_hosts if ways == "from" else []:
        host.drop_from(left_hosts if ways == "to" else right_hosts)
    return left_hosts + right_hosts


def pairs_of(cluster):
    """Of each kind of service one: there is always another way."""
    kinds = {"router": cluster.routers[:1], "manager": [cluster.manager], "prefill": cluster.prefills[:1],
             "decode": cluster.decodes[:1]}
    names = list(kinds)
    return [(a, b, kinds[a], kinds[b]) for i, a in enumerate(names) for b in names[i + 1:]]


@scenario("R6", "each pair of services cut off from each other, both ways and one way, while streams run; healed in random order",
          "all streams finish; the longest pause <= 15 s + one retry; healed <= 30 s")
def partitions(run):
    with run.cluster(prefill=2, decode=2) as cluster:
        clients, specs = run.clients(cluster.routers[0]), run.long_streams()
        run.reference(clients, specs)
        cases = [(*pair, ways) for pair in pairs_of(cluster) for ways in ("both", "to", "from")]
        for a, b, left, right, ways in cases[:1] if run.quick else cases:
            before = run.wave(clients, specs, f"{a}-{b}-{ways}-before", STREAM_S, salt=f"{a}{b}{ways}1")
            wait_for_tokens(before, run.random_position())
            run.fault("cut", link=f"{a}-{b}", ways=ways)
            hosts = cut(cluster, left, right, ways)
            during = run.wave(clients, specs, f"{a}-{b}-{ways}-during", STREAM_S, salt=f"{a}{b}{ways}2")
            wait_all(before + during)
            run.random.shuffle(hosts)
            for host in hosts:
                host.heal()
            healed = run.fault("heal")
            cluster.wait_healed()
            run.figures["healed_s_max"] = max(run.figures.get("healed_s_max", 0), round(run.history.now() - healed, 1))
        run.figures["cuts"] = 1 if run.quick else len(cases)
        clients.close()
    report, _ = run.judge(finished_share=1.0)
    run.figures["pause_s_max"] = round(longest_gap(report), 1)
    assert run.figures["pause_s_max"] <= DETECTED_S + 5, run.figures


@scenario("R7", "a worker's host drops every packet, then the worker is killed: no FIN, no RST; decode and prefill in turn",
          "as R6; threads and descriptors of the others back to where they were")
def half_open(run):
    with run.cluster(prefill=2, decode=2) as cluster:
        clients, specs = run.clients(cluster.routers[0]), run.long_streams()
        run.reference(clients, specs)
        for i, victim in enumerate((cluster.decodes[0], cluster.prefills[0]) * run.times(1, 3)):
            streams = run.wave(clients, specs, f"round-{i}", salt=f"salt-{i}")
            wait_for_tokens(streams, run.random_position())
            others = [h for h in cluster.hosts.values() if h is not victim.host]
            partition([victim.host], others)
            run.fault("half-open", service=victim.name)
            victim.kill()
            wait_all(streams)
            for host in cluster.hosts.values():
                host.heal()
            cluster.restart_dead()
            cluster.wait_healed()
        wait_all(run.wave(clients, specs, "after", salt="after"))
        cluster.wait_healed(90)  # connections to the dead host end at their keepalive
        clients.close()
    report, _ = run.judge(finished_share=1.0)
    run.figures["pause_s_max"] = round(longest_gap(report), 1)
    assert run.figures["pause_s_max"] <= DETECTED_S + 5, run.figures


def timed_waves(run, clients, specs, name, waves):
    """Seconds that a number of waves take; every prompt is computed and moved."""
    begin = time.monotonic()
    for i in range(waves):
        wait_all(run.wave(clients, specs, f"{name}-{i}", salt=f"{name}{i}"))
    return time.monotonic() - begin


def sustained_rate(run, clients, specs, name, seconds):
    """Tokens a second that all clients together get, each asking again as soon as it is answered; every prompt is computed and
    moved."""
    end = time.monotonic() + seconds
    streams = []

    def ask(number, spec):
        n = 0
        while time.monotonic() < end:
            streams.append(load.Stream(run.history, clients, f"{name}-{number}-{n}", spec, STREAM_S, f"{name}{n}"))
            streams[-1].wait()
            n += 1
    threads = [threading.Thread(target=ask, args=pair) for pair in enumerate(specs)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    wait_until(lambda: time.monotonic() >= end, "the end of the measurement", seconds + 30)
    rate = sum(stream.tokens for stream in list(streams)) / (time.monotonic() - begin)
    for thread in threads:
        thread.join()
    return rate


@scenario("R8 loss", "1, 10 and 30 % of all packets between hosts lost at random", "right text always; at 1 % >= 70 % of the rate")
def loss(run):
    with run.cluster() as cluster:
        clients, specs = run.clients(cluster.routers[0]), run.streams()
        run.reference(clients, specs)
        seconds = run.times(3, 20)

        def sound(name):
            return sustained_rate(run, clients, specs, name, seconds)
        before = sound("sound-0")
        for percent in (1, 10, 30):
            run.fault("loss", percent=percent)
            for host in cluster.hosts.values():
                host.lose(percent)
            rate = sustained_rate(run, clients, specs, f"loss-{percent}", seconds)
            for host in cluster.hosts.values():
                host.heal()
            # Against the rates before and after it: the machine does not work at one speed.
            after = sound(f"sound-{percent}")
            base, before = (before + after) / 2, after
            run.figures[f"rate_at_{percent}_percent_loss"] = round(rate / base, 2)
            run.figures[f"tokens_per_s_beside_{percent}"] = round(base)
        cluster.wait_healed()
        clients.close()
    run.judge(finished_share=1.0)
    assert run.quick or run.figures["rate_at_1_percent_loss"] >= 0.7, run.figures


@scenario("R8 rate", "what prefill sends limited to 10, then to 1 Mbit/s", "right text always")
def slow_rate(run):
    with run.cluster() as cluster:
        clients, specs = run.clients(cluster.routers[0]), run.streams()
        run.reference(clients, specs)
        base = timed_waves(run, clients, specs, "base", 1)
        for megabit in (10, 1):
            cluster.prefills[0].host.limit_rate(megabit)
            took = timed_waves(run, clients, specs, f"rate-{megabit}", 1)
            cluster.prefills[0].host.heal()
            run.figures[f"rate_at_{megabit}_mbit"] = round(base / took, 2)
        cluster.wait_healed()
        clients.close()
    run.judge(finished_share=1.0)


@scenario("R8 slow link", "what prefill sends limited to 10 Mbit/s, with a decode worker that can compute prompts itself and is busy",
          "once the link is known, prompts are computed where they are decoded, about as fast as over the sound link")
def slow_link_is_avoided(run):
    # The toy's pages in their largest format: moves of a MiB and more are what links are known by.
    large = [(role, "engine.kv_format=f32") for role in ("prefill", "decode") if run.toy]
    with run.cluster(decode=1, kv_pool_mib=256, extra=[("router", "split=auto"), ("decode", "role=both"), *large]) as cluster:
        router, clients = cluster.routers[0], run.clients(cluster.routers[0])
        prompts, busy = run.specs(1, 7000 if run.toy else 1500, 8), run.specs(4, 50, 8000 if run.toy else 2000)
        run.reference(clients, prompts + busy)
        background = run.wave(clients, busy, "busy")
        for stream in background:
            stream.first.wait(STREAM_S)

        def ask(name):
            """How many were split of one request, and its seconds."""
            before, begin = router.sum("sluice_route_decisions_total", 'kind="split"'), time.monotonic()
            wait_all(run.wave(clients, prompts, name, salt=name))
            return router.sum("sluice_route_decisions_total", 'kind="split"') - before, time.monotonic() - begin
        sound = [ask(f"sound-{i}") for i in range(3)]
        cluster.prefills[0].host.limit_rate(10)
        run.fault("slow link")
        slow = [ask(f"slow-{i}") for i in range(4)]
        cluster.prefills[0].host.heal()
        still_busy = not any(stream.finished.is_set() for stream in background)
        for stream in background:
            stream.cancel()
        wait_all(background)
        cluster.wait_healed()
        clients.close()
    run.judge(finished_share=1.0)
    run.figures.update({f"{name}_{what}": [round(row[i], 2) for row in rows] for name, rows in (("sound", sound), ("slow", slow))
                        for i, what in ((0, "split"), (1, "seconds"))})
    assert still_busy, "nothing to be spared by computing prompts elsewhere; the streams must be longer"
    # The first slow move shows what the link is like.
    assert not any(split for split, _ in slow[1:]), run.figures
    assert max(seconds for _, seconds in slow[1:]) <= 3 * max(seconds for _, seconds in sound), run.figures


@scenario("R8 reorder", "frames to and from prefill each delayed 50 +- 50 ms, so that they overtake each other, 1 % sent twice",
          "right text always")
def reorder(run):
    with run.cluster() as cluster:
        clients, specs = run.clients(cluster.routers[0]), run.streams()
        run.reference(clients, specs)
        base = timed_waves(run, clients, specs, "base", 1)
        cable = BadCable(cluster.prefills[0].host, "--delay-ms", "50", "--jitter-ms", "50", "--repeat", "0.01",
                         "--seed", str(run.args.seed))
        with cable:
            took = timed_waves(run, clients, specs, "delayed", run.times(1, 3)) / run.times(1, 3)
            # Its connections are to be used over a sound cable again, not to break with this one.
        cluster.wait_healed()
        wait_all(run.wave(clients, specs, "after", salt="after"))
        clients.close()
    run.judge(finished_share=1.0)
    run.figures.update(rate=round(base / took, 2), **cable.counts)


@scenario("R21", "bits flipped in segments of the page channel, behind right TCP checksums; frames repeated and reordered",
          "every one caught: all streams finish byte-equal")
def damage(run):
    with run.cluster() as cluster:
        clients, specs = run.clients(cluster.routers[0]), run.streams()
        run.reference(clients, specs)
        damaged = 0
        for i in range(run.times(2, 20)):
            cable = BadCable(cluster.prefills[0].host, "--damage", "0.02", "--port", str(clusters.PAGES), "--repeat", "0.01",
                             "--delay-ms", "1", "--jitter-ms", "1", "--seed", f"{run.args.seed} {i}")
            with cable:
                wait_all(run.wave(clients, specs, f"damaged-{i}", salt=f"damaged-{i}"))
            damaged += cable.counts["damaged"]
            cluster.wait_healed()
        clients.close()
        run.figures["damaged_segments"] = damaged
    report, _ = run.judge(finished_share=run.times(0, 0.5))
    assert damaged > 0, "nothing was damaged"
    run.figures["finished_share"] = round(report.finished_share(), 4)


@scenario("R22", "nothing asked for 5.5 minutes, beyond every idle timeout, then a burst", "the first requests succeed")
def idle(run):
    with run.cluster(prefill=2, decode=2) as cluster:
        clients, specs = run.clients(cluster.routers[0]), run.streams()
        run.reference(clients, specs)
        end = time.monotonic() + run.times(5, 330)
        wait_until(lambda: time.monotonic() > end, "the idle time", 400)
        wait_all(run.wave(clients, specs, "burst", salt="burst"))
        cluster.wait_healed()
        clients.close()
    report, _ = run.judge(finished_share=1.0)
    first = [r.times[0][0] - r.sent["t"] for r in report.streams.values()]
    run.figures["first_token_ms_max"] = milliseconds(checker.percentile(first, 1.0))

"""Processes that die: R1-R3, R24."""
import time

import checker
import cluster as clusters
from harness import wait_until
from scenario import resume_gaps, scenario, wait_all

STREAM_S = 120


def milliseconds(seconds):
    return round(seconds * 1000)


def gap_figures(run, report, events, what="kill"):
    gaps = resume_gaps(report, events, what)
    run.figures["moved"] = len(gaps)
    for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
        run.figures[f"gap_{name}_ms"] = milliseconds(checker.percentile(gaps, share))
    return gaps


def pages_in_use(worker):
    return sum(worker.sum("sluice_kv_pages", f'state="{state}"') for state in clusters.BUSY_PAGES)


def wait_for_tokens(streams, count):
    """Until one of the streams has so many tokens, or all have ended."""
    wait_until(lambda: any(s.tokens >= count for s in streams) or all(s.finished.is_set() for s in streams),
               f"{count} tokens of a stream", STREAM_S)


def kill_again_and_again(run, cluster, victims, times, moment, uncached_every=1):
    """In each of `times` rounds a wave of streams is sent, a victim is killed at the moment that `moment(streams)` waits for, all
    streams end, the pages where they were decoded are back, and the victim is started again."""
    clients, specs = run.clients(cluster.routers[0]), run.streams()
    run.reference(clients, specs)
    cluster.wait_healed()
    pages_back = []
    for i in range(times):
        # A salt makes the prompts new: the same answers, but nobody has them cached.
        salt = f"salt-{i}" if i % uncached_every == uncached_every - 1 else ""
        streams = run.wave(clients, specs, f"round-{i}", STREAM_S, salt)
        moment(streams)
        victim = victims[i % len(victims)]
        run.fault("kill", service=victim.name)
        victim.kill()
        wait_all(streams)
        over = run.history.now()
        wait_until(lambda: not any(pages_in_use(worker) for worker in cluster.decodes if worker.running()), "pages are back")
        pages_back.append(run.history.now() - over)
        cluster.restart_dead()
        cluster.wait_in_rotation()
    over = run.history.now()
    cluster.wait_healed()
    run.figures.update(kills=times, pages_back_ms_max=milliseconds(max(pages_back)), healed_s=round(run.history.now() - over, 1))
    clients.close()


@scenario("R1", "kill -9 of a decode worker while streams run, at random positions; two workers, restarted after each",
          ">= 99.9 % of streams finish, all byte-equal; resume gap p99 <= 2 s")
def decode_killed(run):
    kill_decode(run, run.kills(3, 200), "spread")


@scenario("R1 shm", "as R1, all services on one host, pages over shared memory", "as R1")
def decode_killed_on_one_host(run):
    kill_decode(run, run.kills(3, 50), "one-host")


def kill_decode(run, times, topology):
    with run.cluster(decode=2, topology=topology) as cluster:
        def moment(streams):
            for stream in streams:  # all are under way
                stream.first.wait(STREAM_S)
            wait_for_tokens(streams, run.random_position())
        # In most rounds prefill holds the prompts.
        kill_again_and_again(run, cluster, cluster.decodes, times, moment, uncached_every=run.times(3, 20))
    report, events = run.judge(finished_share=0.999)
    gaps = gap_figures(run, report, events)
    assert gaps, "no stream was moved"
    assert checker.percentile(gaps, 0.99) <= run.times(20, 2), run.figures


@scenario("R1 no spare", "kill -9 of the only decode worker while streams run, not restarted",
          "a typed error <= 1 s, nothing that looks finished")
def only_decode_killed(run):
    with run.cluster(decode=1) as cluster:
        clients, specs = run.clients(cluster.routers[0]), run.streams()
        run.reference(clients, specs)
        streams = run.wave(clients, specs, "alone", STREAM_S)
        wait_for_tokens(streams, 5)
        killed = run.fault("kill", service="decode-0")
        cluster.decodes[0].kill()
        wait_all(streams)
        clients.close()
    report, _ = run.judge(finished_share=0.0)
    late = [r.ends[0]["t"] - killed for r in report.streams.values() if r.ends[0]["kind"] == "error"]
    assert late, "no stream was hit"
    run.figures["error_after_ms_max"] = milliseconds(max(late))
    assert max(late) <= 1, run.figures


@scenario("R2", "kill -9 of a prefill worker before, during and after its pages move; two workers, restarted after each",
          ">= 99.9 % of streams finish, all byte-equal; decode-side pages back <= 5 s", quick=True)
def prefill_killed(run):
    with run.cluster(prefill=2, decode=1) as cluster:
        first = []

        def moment(streams):
            begin = time.monotonic()
            if not first:  # of the first round on: how long prompts take here
                streams[-1].first.wait(STREAM_S)
                first.append(time.monotonic() - begin)
                return
            end = begin + run.random.random() * first[0] * 1.2
            wait_until(lambda: time.monotonic() >= end, "the moment to kill")
        kill_again_and_again(run, cluster, cluster.prefills, run.kills(3, 100), moment)
    report, events = run.judge(finished_share=0.999)
    gap_figures(run, report, events)
    assert run.figures["pages_back_ms_max"] <= 5000, run.figures


@scenario("R3", "kill -9 of one of two routers while it streams; not restarted until all is over",
          "new requests by the other <= 1 s; orphans cancelled, their pages free <= 5 s")
def router_killed(run):
    with run.cluster(routers=2) as cluster:
        clients, other, specs = run.clients(cluster.routers[0]), run.clients(cluster.routers[1]), run.streams()
        run.reference(clients, specs)
        for i in range(3):
            wait_all(run.wave(other, specs, f"warm-other-{i}", salt=f"other-{i}"))
        cluster.remember_resources()  # the other router is warm too
        freed, answered = [], []
        for i in range(run.times(2, 20)):
            streams = run.wave(clients, specs, f"round-{i}", salt=f"salt-{i}")
            wait_for_tokens(streams, run.random_position())
            killed = run.fault("kill", service="router-0")
            cluster.routers[0].kill()
            late = run.wave(other, specs[:1], f"late-{i}", salt=f"salt-{i}")[0]
            late.first.wait(STREAM_S)
            answered.append(run.history.now() - killed)
            wait_all([*streams, late])
            wait_until(lambda: not any(pages_in_use(worker) for worker in cluster.workers), "pages of orphans are free")
            freed.append(run.history.now() - killed)
            cluster.restart_dead()
            cluster.wait_healed()
        clients.close()
        other.close()
    run.judge(untyped_codes=("UNAVAILABLE",), finished_share=0.0)
    run.figures.update(first_token_elsewhere_ms_max=milliseconds(max(answered)), pages_free_ms_max=milliseconds(max(freed)))
    assert max(freed) <= 5 and max(answered) <= run.times(10, 1), run.figures


@scenario("R24", "a long request whose decode worker is killed with -9 wherever it goes, short ones beside it; three workers",
          "<= 2 workers lost, then REQUEST_POISONED; the others finish")
def poison(run):
    prompt_tokens = 7000 if run.toy else 2000  # its pages lie there for a while before it gets on
    with run.cluster(decode=3) as cluster:
        clients = run.clients(cluster.routers[0])
        pill, innocents = run.specs(1, prompt_tokens, 1000, sampled=0), run.specs(6, 50, 200)
        run.reference(clients, pill + innocents)
        cluster.wait_healed()
        for i in range(run.kills(1, 10)):
            lost = 0
            poisoned = run.wave(clients, pill, f"pill-{i}", STREAM_S, salt=f"p{i}")[0]
            others = run.wave(clients, innocents, f"innocent-{i}", STREAM_S, salt=f"i{i}")
            while not poisoned.finished.is_set():
                for worker in cluster.decodes:
                    # Nobody else has so many pages.
                    if worker.running() and worker.sum("sluice_kv_pages", 'state="active"') > prompt_tokens / 32 * 0.95:
                        run.fault("kill", service=worker.name)
                        worker.kill()
                        lost += 1
                poisoned.finished.wait(0.002)
            wait_all(others)
            cluster.restart_dead()
            cluster.wait_healed()
            run.figures["workers_lost_max"] = max(lost, run.figures.get("workers_lost_max", 0))
        clients.close()
    report, _ = run.judge(finished_share=0.0)
    for name, request in report.streams.items():
        end = request.ends[0]
        if name.startswith("innocent"):
            assert end["kind"] == "finished", (name, end)
        else:
            assert end["kind"] == "error" and end["reason"] == "REQUEST_POISONED", (name, end)
    assert run.figures["workers_lost_max"] <= 2, run.figures

"""Starts, ends, and crowds: R11, R12, R18, R23, and everything killed in turn."""
import concurrent.futures
import json
import resource
import threading
import time

import harness
import load
from cluster import KEY
from crashes import milliseconds, wait_for_tokens
from harness import wait_until
from scenario import scenario, wait_all

STREAM_S = 300
CROWD = 32  # requests at a time of clients that keep a cluster busy


@scenario("R18", "SIGTERM of each service while streams run, started again afterwards; two of each but the cache-manager",
          "not ready <= 1 s and alive until the end; streams finish or move, none fails; exit code 0", quick=True)
def drain(run):
    with run.cluster(prefill=2, decode=2, extra=[("prefill", "service.drain_s=5"), ("decode", "service.drain_s=5")]) as cluster:
        clients, specs = run.clients(cluster.routers[0]), run.long_streams()
        run.reference(clients, specs)
        not_ready, took = [], []
        for i in range(run.times(1, 5)):
            for victim in (cluster.decodes[i % 2], cluster.prefills[i % 2], cluster.manager, cluster.routers[0]):
                name = f"{victim.name}-{i}"
                streams = run.wave(clients, specs, name, STREAM_S, salt=name)
                wait_for_tokens(streams, run.random_position())
                begin = run.fault("term", service=victim.name)
                victim.process.terminate()
                wait_until(lambda: victim.http_status("/ready") != 200, f"{victim.name} says that it is not ready")
                not_ready.append(run.history.now() - begin)
                while victim.running():
                    live = victim.http_status("/live")
                    assert live == 200 or not victim.running() or live == 0, f"{victim.name} drains and says it is dead: {live}"
                    wait_until(lambda until=time.monotonic() + 0.1: time.monotonic() > until, "a moment")
                took.append(run.history.now() - begin)
                assert victim.process.returncode == 0, f"{victim.name} ended with {victim.process.returncode}"
                wait_all(streams)
                cluster.restart_dead()
                cluster.wait_healed()
        run.figures.update(drains=len(took), not_ready_ms_max=milliseconds(max(not_ready)), ended_s_max=round(max(took), 1))
        clients.close()
    run.judge(finished_share=1.0)
    assert max(not_ready) <= run.times(10, 1), run.figures


@scenario("rolling", "everything killed with -9 in turn, again and again, under constant load; each started again at once",
          ">= 99.9 % of streams finish unless their router died; all byte-equal")
def rolling_kill(run):
    rounds = run.times(1, 10)
    with run.cluster(prefill=2, decode=2, routers=1) as cluster:
        clients, specs = run.clients(cluster.routers[0]), run.streams()
        run.reference(clients, specs)
        for i in range(rounds):
            for victim in [*cluster.decodes, *cluster.prefills, cluster.manager]:
                streams = run.wave(clients, specs, f"{victim.name}-{i}", STREAM_S, salt=f"{victim.name}{i}")
                wait_for_tokens(streams, run.random_position())
                run.fault("kill", service=victim.name)
                victim.kill()
                cluster.restart_dead()
                wait_all(streams)
                cluster.wait_in_rotation()
        cluster.wait_healed()
        run.figures["kills"] = 5 * rounds
        clients.close()
    run.judge(finished_share=0.999)


@scenario("R23", "services started in random orders with pauses, the last one 10 s late",
          "ready by itself; until then the router says why not")
def start_orders(run):
    with run.cluster(decode=1) as cluster:
        clients, specs = run.clients(cluster.routers[0]), run.specs(2, 100, 100)
        run.reference(clients, specs)
        late = []
        for i in range(run.times(2, 10)):
            order = list(cluster.services)
            run.random.shuffle(order)
            for service in cluster.services:
                service.kill()
            for n, service in enumerate(order):
                # The last one comes long after the others.
                until = time.monotonic() + (run.times(2, 10) if n == len(order) - 1 else run.random.random())
                wait_until(lambda until=until: time.monotonic() > until, "the next start", 60)
                router_up = cluster.routers[0].running() and cluster.routers[0].http_status("/ready") != 0
                if router_up:
                    assert cluster.routers[0].http_status("/ready") == 503, "a router without workers says that it is ready"
                service.start(wait=False)
            begin = time.monotonic()
            for service in order:
                service.wait_started()
            cluster.wait_healed()
            late.append(time.monotonic() - begin)
            wait_all(run.wave(clients, specs, f"round-{i}"))
        run.figures.update(orders=run.times(2, 10), in_rotation_s_max=round(max(late), 1))
        clients.close()
    run.judge(finished_share=1.0)


def ask_until_answered(run, clients, spec, name, tries, used):
    """As a client library does: again after the time that the refusal names, or a second."""
    for n in range(tries):
        stream = load.Stream(run.history, clients, f"{name}-try-{n}", spec, STREAM_S)
        stream.wait()
        if stream.succeeded:
            break
        wait_until(lambda until=time.monotonic() + 1 + run.random.random(): time.monotonic() > until, "the retry")
    used.append(n + 1)


@scenario("R12", "all workers killed at once while 1,000 clients wait; started again; clients that were refused ask again",
          "all answered; no second collapse: <= 1.2 attempts of the router a request; steady <= 30 s after the restart")
def herd(run):
    count = run.times(100, 1000)
    with run.cluster(prefill=2, decode=2, extra=[("router", "queue_max=2000")]) as cluster:
        router = cluster.routers[0]
        clients = run.clients(router, channels=count // load.STREAMS_PER_CHANNEL + 1)
        specs = run.specs(8, 50, 50)
        run.reference(clients, specs)
        used = []
        threads = [threading.Thread(target=ask_until_answered, args=(run, clients, specs[i % 8], f"herd-{i}", 20, used))
                   for i in range(count)]
        for thread in threads:
            thread.start()
        wait_until(lambda: used, "the first answer", 60)
        run.fault("kill all")
        for worker in cluster.workers:
            worker.kill()
        cluster.restart_dead()
        cluster.wait_in_rotation()
        back = run.history.now()
        for thread in threads:
            thread.join()
        steady = run.history.now() - back
        metrics = router.metrics()
        retries = sum(v for k, v in metrics.items() if k.startswith(("sluice_retries_total", "sluice_migrations_total")))
        run.figures.update(clients=count, steady_s=round(steady, 1), tries_of_clients=round(sum(used) / count, 2),
                           attempts_of_router=round(1 + retries / sum(used), 2))
        cluster.wait_healed()
        clients.close()
    report, _ = run.judge(finished_share=0.0)
    assert report.ends["finished"] == count, report.ends
    # What ran when the workers died had to be tried again; of few clients that is a larger share.
    assert steady <= run.times(60, 30) and run.figures["attempts_of_router"] <= run.times(2, 1.2), run.figures


class Load:
    """Requests to one router from `sluice bench serve`, which takes little from the cores that the services need, and beside them one
    stream after the other from here, whose answers and refusals are looked at."""

    def __init__(self, run, cluster, clients, specs):
        self.run, self.cluster, self.clients, self.specs = run, cluster, clients, specs
        self.sent = len(specs[0]["ids"]), specs[0]["max_tokens"]

    def start(self, name):
        return load.Stream(self.run.history, self.clients, name, self.run.random.choice(self.specs), STREAM_S)

    def bench(self, count, *flags):
        """(report, when it was over) of that many requests, their prompts cached but for the end."""
        router = self.cluster.routers[0].at("grpc")
        result = harness.run_sluice("bench", "serve", "--url", f"grpc://{router}", "--api-key", KEY, "--dataset", "shared-prefix",
                                    "--groups", "16", "--prefix-len", str(self.sent[0] - 1), "--input-len", "1", "--output-len",
                                    str(self.sent[1]), "--range-ratio", "1", "--num-requests", str(int(count)), "--timeout",
                                    str(STREAM_S), "--json", *flags, timeout=600)
        return json.loads(result.stdout), time.monotonic()

    def keep_busy(self, concurrency, seconds):
        """Answers a second of clients that ask again at once."""
        together = ("--max-concurrency", str(concurrency))
        short, _ = self.bench(2 * concurrency, *together)
        long, _ = self.bench(max(2 * concurrency, short["request_throughput"] * seconds), *together)
        assert not long["failed"], long["errors"]
        return long["request_throughput"]

    def cpu_seconds(self):
        """Of the processor so far: the clients, the router, the workers."""
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return (sum(u.ru_utime + u.ru_stime for u in used), self.cluster.routers[0].cpu_seconds(),
                sum(w.cpu_seconds() for w in self.cluster.workers))

    def flood(self, name, per_s, seconds):
        """The report on that many requests a second, the seconds after the last one until a request is answered within twice the
        time that it takes undisturbed, and the cores that clients, router and workers took."""
        begin = time.monotonic()
        self.start(f"{name}-alone").wait()
        enough_s = 2 * (time.monotonic() - begin)
        before, begin = self.cpu_seconds(), time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(1) as other:
            flood = other.submit(self.bench, per_s * seconds, "--request-rate", str(per_s))
            probes = []  # [(begin, end) of those that were answered soon]
            while not flood.done() or not probes or probes[-1][0] < flood.result()[1]:
                began = time.monotonic()
                probe = self.start(f"{name}-{began:.2f}")
                probe.wait()
                if probe.succeeded and probe.ended_at - began <= enough_s:
                    probes.append((began, probe.ended_at))
                wait_until(lambda: time.monotonic() > began + 0.2, "the next probe")
                assert time.monotonic() < begin + seconds + STREAM_S, "no request is answered as before the flood"
            report, ended = flood.result()
        cores = [(b - a) / (time.monotonic() - begin) for a, b in zip(before, self.cpu_seconds())]
        over = ended - report["duration_s"] + report["sending_s"]
        recovered_s = min(end for began, end in probes if began >= over) - over
        return report, recovered_s, cores


@scenario("R11", "twice and ten times as many requests a second as are served, for 60 s, at a router that lets 32 wait",
          "goodput >= 90 % of the peak; refusals typed with a time to retry, p99 <= 50 ms; as before <= 10 s after it")
def overload(run):
    with run.cluster(decode=2, extra=[("router", "queue_max=32")]) as cluster:
        clients = run.clients(cluster.routers[0], channels=4)
        specs = run.specs(16, 50, 1500) if run.toy else run.specs(16, 128, 64)
        run.reference(clients, specs)
        cluster.usual = {}  # a router under ten times its load may keep the buffers of that
        sent, seconds = Load(run, cluster, clients, specs), run.times(5, 60)
        peak = sent.keep_busy(CROWD, run.times(5, 20))
        run.figures["peak_per_s"] = round(peak, 1)
        goodput, recovered_s, refused_ms = [], [], []
        for factor in (2, 10):
            report, recovered, cores = sent.flood(f"times-{factor}", factor * peak, seconds)
            assert set(report["errors"]) <= {"OVERLOADED"}, report["errors"]
            goodput.append(report["request_throughput"] / peak)
            recovered_s.append(recovered)
            refused_ms.append(report["failure_ms"]["p99"])
            run.figures[f"at_{factor}x"] = {
                "answered": report["completed"], "refused": report["failed"], "goodput": round(goodput[-1], 2),
                "refused_ms_p50": round(report["failure_ms"]["p50"], 1), "refused_ms_p99": round(refused_ms[-1], 1),
                "sent_late_ms_p99": round(report["send_delay_ms"]["p99"], 1), "recovered_s": round(recovered, 1),
                "cores_of_clients_router_workers": [round(c, 2) for c in cores]}
        cluster.wait_healed()
        clients.close()
    report, _ = run.judge(finished_share=0.0)
    refused = [r for r in report.streams.values() if r.ends[0]["kind"] == "error"]
    assert all(r.ends[0]["reason"] == "OVERLOADED" and r.ends[0]["retry_after_s"] for r in refused), \
        "a refusal does not say when to ask again"
    if not run.quick:
        assert min(goodput) >= 0.9 and max(recovered_s) <= 10 and max(refused_ms) <= 50, run.figures

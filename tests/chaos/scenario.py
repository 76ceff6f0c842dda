"""What all scenarios share: the table they stand in, and one run of one of them."""
import os
import random
import tempfile

import checker
import cluster
import history
import load

TABLE = []
WARM_WAVES = 3  # until buffers and pools have the size that these streams need


class Scenario:
    def __init__(self, name, what, passes, function, quick):
        self.name, self.what, self.passes, self.function, self.quick = name, what, passes, function, quick


def scenario(name, what, passes, quick=False):
    """Puts a function into the table. `quick`: part of the short run, with fewer repetitions."""
    def add(function):
        TABLE.append(Scenario(name, what, passes, function, quick))
        return function
    return add


class Run:
    """One scenario: its cluster, clients, history, random numbers; what it measured (`figures`)."""

    def __init__(self, args, found, folder):
        self.args, self.name, self.folder = args, found.name, folder
        self.quick = args.quick
        self.random = random.Random(f"{args.seed} {found.name}")
        self.figures = {}
        self.history = history.History(os.path.join(folder, f"{found.name}.history"))
        self.model = args.model
        self.toy = args.model == "toy"
        self.vocabulary = 256 if self.toy else 49152

    def times(self, quick, full):
        return quick if self.quick else full

    def kills(self, quick, full):
        """How often a scenario that kills again and again does so."""
        return self.args.kills or self.times(quick, full)

    def cluster(self, folder=None, **options):
        # Few pages of the toy model, so that what an index of a full pool takes is taken before the faults.
        options.setdefault("kv_pool_mib", 8 if self.toy else 256)
        self.running = cluster.Cluster(folder or tempfile.mkdtemp(dir=self.folder), self.model, **options)
        return self.running

    def clients(self, router, channels=1):
        return load.Clients(router.at("grpc"), cluster.KEY, channels)

    def specs(self, count, prompt_tokens, max_tokens, sampled=0.25):
        return load.prompts(self.random.random(), count, prompt_tokens, self.vocabulary, max_tokens, sampled)

    def streams(self):
        """What most scenarios send: long enough to be hit in the middle. The toy model makes tokens faster than these clients
        read them, so its streams are longer."""
        return self.specs(8, 100, 2000) if self.toy else self.specs(16, 512, 64)

    def long_streams(self):
        """For faults that take a while to be made, or to be noticed."""
        return self.specs(4, 100, 6000) if self.toy else self.specs(8, 200, 400)

    def random_position(self):
        """Of the tokens at which a stream is hit."""
        return self.random.randrange(1, 600 if self.toy else 58)

    def reference(self, clients, specs):
        """Every spec undisturbed. In a full run the cluster is then made warm: what it holds is what it must hold after the
        faults."""
        load.record_reference(self.history, clients, specs)
        if self.quick:
            return
        self._fill_pools(clients)
        for i in range(WARM_WAVES):
            # Two at a time, as in scenarios that send one before and one during a fault.
            wait_all([s for half in "ab" for s in self.wave(clients, specs, f"warm-{i}-{half}", salt=f"warm-{i}-{half}")])
        self.running.wait_healed()
        self.running.remember_resources()

    def _fill_pools(self, clients):
        """Until every page of every worker has been used: what is cached takes memory for its index too."""
        def full(worker):
            return worker.sum("sluice_kv_pages", 'state="free"') < 0.05 * worker.sum("sluice_kv_pages")
        sent = 0
        while sent < 400 and not all(full(worker) for worker in self.running.workers):
            prompts = self.specs(8, 7000 if self.toy else 1500, 2, sampled=0)
            for answer in [clients.generate(spec, f"fill-{sent + i}", 60) for i, spec in enumerate(prompts)]:
                list(answer)
            sent += len(prompts)

    def wave(self, clients, specs, name, timeout=120, salt=""):
        self.history.add("wave", name=name)
        return load.start_wave(self.history, clients, specs, name, timeout, salt)

    def fault(self, what, **fields):
        """Notes a fault and returns its time."""
        self.history.add("fault", what=what, **fields)
        return self.history.now()

    def judge(self, untyped_codes=(), finished_share=1.0):
        """Closes the history and checks it; at least that share of the streams must have finished."""
        self.history.close()
        events = history.read(self.history.path)
        report = checker.check(events, untyped_codes)
        assert not report.violations, "\n".join(report.violations[:20])
        assert report.streams, "no stream was disturbed"
        share = report.finished_share()
        self.figures.update({"streams": len(report.streams), **report.ends})
        assert share >= finished_share, f"{share:.4%} of streams finished: {failures(report)}"
        return report, events


def failures(report):
    """{how streams ended that did not finish: number of them}."""
    found = {}
    for request in report.streams.values():
        end = request.ends[0]
        if end["kind"] == "error":
            text = f"{end['code']} {end['reason']}: {(end['details'] or '')[:120]}"
            found[text] = found.get(text, 0) + 1
    return found


def resume_gaps(report, events, what="kill", window_s=1.0):
    """Seconds without a token of streams that were moved by the faults called `what`, over all of them."""
    gaps = []
    moved = checker.Report()
    moved.streams = {n: r for n, r in report.streams.items() if r.ends[0].get("usage") and
                     r.ends[0]["usage"].get("recomputed_tokens")}
    for event in events:
        if event["event"] == "fault" and event["what"] == what:
            gaps += checker.gaps_after(moved, event["t"], event["t"] + window_s)
    return gaps


def wait_all(streams):
    for stream in streams:
        stream.wait()

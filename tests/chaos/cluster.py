"""The real services, each on a host of its own (or all on one), and what a supervisor does: start, restart, look after them."""
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request

import harness
from network import Host
from services import PEPPER, tenants_file

GRPC, METRICS, ADMIN, PAGES, HTTP = 7000, 7001, 7002, 7003, 7004
KEY = "chaos-key"
HEALED_S = 30  # of the contract: from the last fault to a cluster as at the beginning
HOUSEKEEPING_S = 5  # how often a service gives memory that nobody uses back
BUSY_PAGES = ("active", "quarantined")
# Of the contract: what lived through a fault holds so much of the memory it held before, and no more descriptors; but for the
# connections to the metrics and of clients that come and go.
MEMORY_GROWTH, DESCRIPTORS_MORE = 1.05, 4


class Service:
    """One process of a name on a host; several in turn, when it is killed and started again."""

    def __init__(self, cluster, role, name, host, slot):
        self.cluster, self.role, self.name, self.host = cluster, role, name, host
        self.ports = {k: v + 10 * slot for k, v in (("grpc", GRPC), ("metrics", METRICS), ("admin", ADMIN), ("pages", PAGES),
                                                    ("http", HTTP))}
        self.process = None
        self.extra = []  # settings of a scenario
        self.outside = []  # a program that starts the service, run outside of its host
        self.environment = {}

    def at(self, port):
        return f"{self.host.ip}:{self.ports[port]}"

    def settings(self):
        folder = self.cluster.folder
        certificates = os.path.join(folder, "certificates", self.role)
        common = [f"service.name={self.name}", f"service.listen={self.at('grpc')}", f"service.metrics_listen={self.at('metrics')}",
                  f"service.admin_listen={self.at('admin')}", "service.insecure_metrics_anywhere=true",
                  f"service.ready_file={folder}/{self.name}.ready",
                  f"service.tls.cert_file={certificates}/tls.crt", f"service.tls.key_file={certificates}/tls.key",
                  f"service.tls.ca_file={certificates}/ca.crt"]
        if self.role == "cache-manager":
            return common
        common.append(f"cache_manager={self.cluster.manager.at('grpc')}")
        if self.role == "router":
            return common + [f"http_listen={self.at('http')}", "insecure_clients_anywhere=true", "split=always",
                             f"tenants_file={folder}/tenants.yaml", f"cache_secret_file={folder}/secret"]
        return common + [f"model.path={self.cluster.model}", f"engine.threads={self.cluster.threads}",
                         f"engine.kv_pool_mib={self.cluster.kv_pool_mib}", f"transport.listen={self.at('pages')}",
                         f"transport.backends=[{self.cluster.transport}]"]

    def start(self, wait=True):
        ready = f"{self.cluster.folder}/{self.name}.ready"
        if os.path.exists(ready):
            os.unlink(ready)
        arguments = [os.path.join(harness.ARGS.bin, f"sluice-{self.role}")]
        for setting in [*self.settings(), *self.extra]:
            arguments += ["--set", setting]
        with open(f"{self.cluster.folder}/{self.name}.log", "a") as log:
            self.process = subprocess.Popen([*self.outside, *self.host.command(*arguments)], stdout=log, stderr=log,
                                            env={**os.environ, **self.environment})
        if wait:
            self.wait_started()

    def wait_started(self):
        ready = f"{self.cluster.folder}/{self.name}.ready"
        harness.wait_until(lambda: os.path.exists(ready) or self.process.poll() is not None, f"{self.name} is up", 60)
        if self.process.poll() is not None:
            raise AssertionError(f"{self.name} ended at start:\n{self.log()[-2000:]}")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def signal(self, number):
        os.kill(self.process.pid, number)

    def terminate(self, timeout=60):
        """Its exit code after SIGTERM."""
        self.process.terminate()
        return self.process.wait(timeout)

    def running(self):
        return self.process is not None and self.process.poll() is None

    def log(self):
        with open(f"{self.cluster.folder}/{self.name}.log") as file:
            return file.read()

    def metrics(self):
        return harness.read_metrics(f"http://{self.at('metrics')}")

    def cpu_seconds(self):
        """Of the processor, since its start."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            user, system = file.read().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def sum(self, prefix, *parts):
        return sum(v for k, v in self.metrics().items() if k.startswith(prefix) and all(p in k for p in parts))

    def http_status(self, path, timeout=5):
        try:
            return urllib.request.urlopen(f"http://{self.at('metrics')}{path}", timeout=timeout).status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0


class Cluster:
    """Routers, a cache-manager, prefill and decode workers under mTLS. One `topology` of: "spread", a host for each service and
    pages over tls; "one-host", all on one and pages over shared memory."""

    def __init__(self, folder, model, routers=1, prefill=1, decode=2, topology="spread", kv_pool_mib=256, threads=1, extra=(),
                 before_start=None):
        self.folder, self.model, self.kv_pool_mib, self.threads = folder, model, kv_pool_mib, threads
        self.transport = "tls" if topology == "spread" else "ucx-shm"
        self.hosts, self.services = {}, []
        self.usual = {}  # {pid: (resident bytes, descriptors)} of the warm cluster, before any fault
        self.one_host = None if topology == "spread" else self._host("node")
        self.manager = self._service("cache-manager", "cache-manager")
        self.prefills = [self._service("prefill", f"prefill-{i}") for i in range(prefill)]
        self.decodes = [self._service("decode", f"decode-{i}") for i in range(decode)]
        self.routers = [self._service("router", f"router-{i}") for i in range(routers)]
        self.workers = self.prefills + self.decodes
        for service in self.services:
            service.extra += [text for role, text in extra if role == service.role]
            if before_start:
                before_start(service)

    def _host(self, name):
        self.hosts[name] = Host(name, 10 + len(self.hosts))
        return self.hosts[name]

    def _service(self, role, name):
        host = self.one_host or self._host(name)
        service = Service(self, role, name, host, len(self.services) if self.one_host else 0)
        self.services.append(service)
        return service

    def __enter__(self):
        harness.run_sluice("certs", "--out", os.path.join(self.folder, "certificates"))
        for name, text in (("tenants.yaml", tenants_file({KEY: "chaos"})), ("pepper", PEPPER),
                           ("secret", "0123456789abcdef" * 4 + "\n")):
            with open(os.path.join(self.folder, name), "w") as file:
                file.write(text)
            os.chmod(file.name, 0o600)
        try:
            self.start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for service in self.services:
            if service.running():
                service.kill()
        for host in self.hosts.values():
            host.remove()

    def start_all(self):
        for service in self.services:
            service.start(wait=False)
        for service in self.services:
            service.wait_started()
        self.wait_in_rotation()

    def restart_dead(self):
        dead = [service for service in self.services if not service.running()]
        for service in dead:
            service.start(wait=False)
        for service in dead:
            service.wait_started()
        return dead

    def in_rotation(self):
        """Every router is ready and would use every worker."""
        return all(router.http_status("/ready") == 200 and
                   router.sum("sluice_router_workers", 'state="usable"') == len(self.workers) for router in self.routers)

    def wait_in_rotation(self, seconds=HEALED_S):
        harness.wait_until(self.in_rotation, "every worker is in rotation", seconds)

    def leftovers(self):
        """What should be zero in an idle cluster and is not: {service and gauge: value}."""
        found = {}
        for service in self.services:
            metrics = service.metrics()
            for name, value in metrics.items():
                idle_is_zero = (name.startswith(("sluice_requests_in_flight", "sluice_engine_running", "sluice_engine_waiting",
                                                 "sluice_queue_requests", "sluice_engine_prefill_backlog", "sluice_degraded")) or
                                name.startswith("sluice_kv_pages") and any(f'state="{s}"' in name for s in BUSY_PAGES))
                if idle_is_zero and value != 0:
                    found[f"{service.name} {name}"] = value
            evicted = sum(v for k, v in metrics.items() if k.startswith("sluice_kv_evictions_total") and 'cause="foreign"' in k)
            if evicted:
                found[f"{service.name} foreign evictions"] = evicted
            found.update(self._grown(service, metrics))
        return found

    def _grown(self, service, metrics):
        """What a process that was there before the faults holds now beyond that: {what: [before, now]}."""
        if service.process.pid not in self.usual:
            return {}
        before, now, found = self.usual[service.process.pid], resources_of(metrics), {}
        if now[0] > before[0] * MEMORY_GROWTH:
            found[f"{service.name} resident bytes"] = [before[0], now[0]]
        if now[1] > before[1] + DESCRIPTORS_MORE:
            found[f"{service.name} descriptors"] = [before[1], now[1]]
        return found

    def remember_resources(self):
        """From here on wait_healed holds memory and descriptors against those of now, without memory that nobody uses. For a warm
        cluster."""
        trimmed = time.monotonic() + 2 * HOUSEKEEPING_S
        harness.wait_until(lambda: time.monotonic() > trimmed, "memory that nobody uses is given back")
        self.usual = {s.process.pid: resources_of(s.metrics()) for s in self.services}

    def wait_healed(self, seconds=HEALED_S):
        """The contract after healing: all workers in rotation, all pages back, gauges at zero, memory and descriptors as before."""
        self.wait_in_rotation(seconds)
        left = {}

        def clean():
            nonlocal left
            left = self.leftovers()
            return not left
        try:
            harness.wait_until(clean, "an idle cluster", seconds)
        except AssertionError:
            raise AssertionError(f"{seconds} s after healing: {json.dumps(left, indent=1)}") from None


def resources_of(metrics):
    """(resident bytes, open descriptors)."""
    return metrics["sluice_process_resident_bytes"], metrics["sluice_process_open_fds"]


def stop(service):
    service.signal(signal.SIGSTOP)


def resume(service):
    service.signal(signal.SIGCONT)

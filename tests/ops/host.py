"""The pods of a release as processes of this host, from the rendered manifests.

What a cluster would give them is replaced, and nothing else: the addresses of pods and services become ports of the loopback
interface, `eth0` becomes `lo`, and /etc/sluice becomes a folder that holds what the pod mounts there.
"""
import os
import pathlib
import socket
import subprocess
import urllib.request

import chart
import grpc

PORTS = {"http": "0.0.0.0:8080", "grpc": "0.0.0.0:8081", "metrics": "0.0.0.0:8082", "admin": "127.0.0.1:8083",
         "pages": "0.0.0.0:8090"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Process:
    """A started pod: `ports` by name, `grpc_health(service)`, `is_ready()`."""

    def __init__(self, popen, ports, container=None):
        self.popen, self.ports, self.container = popen, ports, container

    def is_ready(self):
        """What the readiness probe of the pod says."""
        probe = self.container["readinessProbe"]
        if "grpc" in probe:
            return self.grpc_health(probe["grpc"]["service"])
        try:
            url = f"http://127.0.0.1:{self.ports['metrics']}{probe['httpGet']['path']}"
            return urllib.request.urlopen(url, timeout=5).status == 200
        except OSError:
            return False

    def grpc_health(self, service):
        """What a kubelet's probe learns: whether `service` is SERVING."""
        with grpc.insecure_channel(f"127.0.0.1:{self.ports['grpc']}") as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            request = b"\x0a" + bytes([len(service)]) + service.encode()
            try:
                return check(request, timeout=5) == b"\x08\x01"
            except grpc.RpcError:
                return False

    def listens_on(self):
        """Local TCP ports of the process."""
        inodes = set()
        for fd in os.listdir(f"/proc/{self.popen.pid}/fd"):
            try:
                inodes.add(os.readlink(f"/proc/{self.popen.pid}/fd/{fd}"))
            except OSError:
                pass
        ports = set()
        for table in ("tcp", "tcp6"):
            for line in pathlib.Path(f"/proc/{self.popen.pid}/net/{table}").read_text().splitlines()[1:]:
                local, state, inode = (line.split()[i] for i in (1, 3, 9))
                if state == "0A" and f"socket:[{inode}]" in inodes:
                    ports.add(int(local.rpartition(":")[2], 16))
        return ports


class Host:
    def __init__(self, folder, documents, secret):
        self.folder, self.documents, self.secret = pathlib.Path(folder), documents, secret
        self.pods = chart.pod_specs(documents)
        self.ports = {name: {port: free_port() for port in PORTS} for name in self.pods}
        self.running = {}

    def replacements(self, name):
        """The whole mapping for one pod."""
        own = self.ports.get(name, {})
        mapping = {address: f"127.0.0.1:{own[port]}" for port, address in PORTS.items() if own}
        if own:
            mapping["127.0.0.1:8081"] = f"127.0.0.1:{own['grpc']}"  # the pod's address, $(POD_IP)
        for service in chart.of_kind(self.documents, "Service"):
            target = self.ports[chart.component(service)]
            for port in service["spec"]["ports"]:
                mapping[f"{service['metadata']['name']}.default.svc:{port['port']}"] = f"127.0.0.1:{target[port['targetPort']]}"
        mapping["net_devices: eth0"] = "net_devices: lo"
        mapping["/etc/sluice"] = str(self.folder / name / "etc/sluice")
        return mapping

    def replaced(self, name, text):
        for old, new in self.replacements(name).items():
            text = text.replace(old, new)
        return text

    def mount(self, name, spec):
        """Writes the files that the pod sees below /etc/sluice."""
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for mount in spec["containers"][0]["volumeMounts"]:
            folder = self.folder / name / mount["mountPath"].lstrip("/")
            folder.mkdir(parents=True)
            volume = volumes[mount["name"]]
            if "configMap" in volume:
                data = next(d["data"] for d in chart.of_kind(self.documents, "ConfigMap")
                            if d["metadata"]["name"] == volume["configMap"]["name"])
                for key, text in data.items():
                    (folder / key).write_text(self.replaced(name, text))
            else:
                secret = self.secret(volume["secret"]["secretName"])
                for item in volume["secret"].get("items") or [{"key": key, "path": key} for key in secret]:
                    (folder / item["path"]).write_bytes(secret[item["key"]])

    def command(self, name, spec):
        """(argument list, environment) of the pod's container."""
        container = spec["containers"][0]
        fields = {"metadata.name": f"sluice-{name}-0", "status.podIP": "127.0.0.1"}
        variables = {e["name"]: self.replaced(name, e["value"]) if "value" in e else fields[e["valueFrom"]["fieldRef"]["fieldPath"]]
                     for e in container["env"]}
        arguments = []
        for argument in container["command"] + container["args"]:
            for variable, value in variables.items():
                argument = argument.replace(f"$({variable})", value)
            arguments.append(self.replaced(name, argument))
        return arguments, {"PATH": f"{chart.ARGS.bin}:/usr/bin:/bin", **variables}

    def start(self, name):
        spec = self.pods[name]
        self.mount(name, spec)
        arguments, environment = self.command(name, spec)
        # subprocess looks the program up in the PATH of this process.
        arguments[0] = os.path.join(chart.ARGS.bin, arguments[0])
        with open(self.folder / f"{name}.log", "w") as log:
            popen = subprocess.Popen(arguments, env=environment, stderr=log)
        self.running[name] = Process(popen, self.ports[name], spec["containers"][0])

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def run_test_pod(self):
        """The finished command of the `helm test` pod."""
        spec = chart.of_kind(self.documents, "Pod")[0]["spec"]
        self.mount("test", spec)
        arguments, environment = self.command("test", spec)
        return subprocess.run(arguments, env=environment, capture_output=True, timeout=60)

    def stop(self):
        """Exit codes after SIGTERM, routers first."""
        codes = {}
        for name in sorted(self.running, reverse=True):
            self.running[name].popen.terminate()
            codes[name] = self.running[name].popen.wait(100)
        self.running = {}
        return codes

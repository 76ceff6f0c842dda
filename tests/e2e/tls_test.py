"""A cluster under mTLS, and strangers at its doors: refused and counted, while honest requests go on."""
import contextlib
import os
import socket
import ssl
import tempfile
import unittest

import grpc
import harness
from harness import Cluster, read_metrics, wait_until

ROLES = ("router", "prefill", "decode", "cache-manager", "operator")


def certificates(folder):
    harness.run_sluice("certs", "--out", folder)
    return folder


def credentials(folder, role):
    """Of a caller with the certificate of `role`."""
    def read(name):
        with open(os.path.join(folder, role, name), "rb") as file:
            return file.read()
    return grpc.ssl_channel_credentials(read("ca.crt"), read("tls.key"), read("tls.crt"))


def session(folder, role, port):
    """What a caller with the certificate of `role` sends in a whole TLS session: the handshake, then noise."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(os.path.join(folder, role, "ca.crt"))
    context.load_cert_chain(os.path.join(folder, role, "tls.crt"), os.path.join(folder, role, "tls.key"))
    context.set_alpn_protocols(["h2"])
    received, sending = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(received, sending)
    sent = b""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
        def flush():
            nonlocal sent
            flight = sending.read()
            stranger.sendall(flight)
            sent += flight
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                flush()
                received.write(stranger.recv(65536))
        tls.write(os.urandom(1000))
        flush()
        with contextlib.suppress(ConnectionError):
            while stranger.recv(65536):  # until the other side has had enough
                pass
    return sent


def code_of(channel, method, request=b""):
    """How a call ended; its details."""
    with channel:
        try:
            channel.unary_unary(method)(request, timeout=10)
            return grpc.StatusCode.OK, ""
        except grpc.RpcError as error:
            return error.code(), error.details()


def ports_of(pid):
    """TCP ports that a process listens on, in order."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            pass
    rows = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}") as lines:
            rows += [line.split() for line in lines.readlines()[1:]]
    return sorted(int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes)


class TlsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.own = certificates(os.path.join(cls.folder.name, "own"))
        cls.foreign = certificates(os.path.join(cls.folder.name, "foreign"))
        cls.cluster = cls.enterClassContext(Cluster("--tls", cls.own))
        cls.prompt = list(range(200))
        cls.expected = cls.cluster.client.complete(tokens=cls.prompt, max_tokens=8, ignore_eos=True).tokens

    def check_that_honest_requests_go_on(self):
        """Another prompt each time, so that its pages have to travel."""
        sent = self.cluster.metric_sum("prefill", "sluice_kv_transfer_bytes_total", 'side="send"', 'transport="tls"')
        again = self.cluster.client.complete(tokens=self.prompt, max_tokens=8, ignore_eos=True)
        self.assertEqual(again.tokens, self.expected)
        self.cluster.client.complete(tokens=[os.urandom(1)[0] for _ in range(200)], max_tokens=4, ignore_eos=True)
        self.assertGreater(self.cluster.metric_sum("prefill", "sluice_kv_transfer_bytes_total", 'side="send"',
                                                   'transport="tls"'), sent)

    def doors(self):
        """{(role, kind): port}: the gRPC and page ports of the services under mTLS."""
        found = {}
        for role in ("prefill", "decode", "cache_manager"):
            pids, urls = self.cluster.endpoints["pids"][role], self.cluster.endpoints["metrics"][role]
            metrics = int((urls if isinstance(urls, str) else urls[0]).rpartition(":")[2])
            for port in ports_of(pids if isinstance(pids, int) else pids[0]):
                if port != metrics:
                    found[role, port] = port
        return found

    def refusals(self):
        return {(role, kind): self.cluster.metric_sum(role, f"sluice_{kind}_refusals_total")
                for role, kind in (("prefill", "rpc"), ("decode", "rpc"), ("cache_manager", "rpc"), ("prefill", "transport"),
                                   ("decode", "transport"))}

    def test_health_and_metrics_stay_readable(self):
        for urls in self.cluster.endpoints["metrics"].values():
            for url in [urls] if isinstance(urls, str) else urls:
                self.assertEqual(read_metrics(url)["sluice_ready"], 1)

    def test_noise_silence_and_size_are_refused_and_counted(self):
        before, doors = self.refusals(), self.doors()
        self.assertEqual(len(doors), 3 + 3 + 2, doors)  # gRPC and admin each, and pages of workers
        noise = [b"", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64), os.urandom(100000),
                 b"\x16\x03\x01\xff\xff" + bytes(70000)]
        held = []
        for port in doors.values():
            for bytes_ in noise:
                stranger = socket.create_connection(("127.0.0.1", port), timeout=5)
                held.append(stranger)
                try:
                    stranger.sendall(bytes_)
                except OSError:
                    pass  # refused before it had said everything
        self.check_that_honest_requests_go_on()

        def counted():
            now = self.refusals()
            # Workers and manager have two gRPC ports, workers one for pages; silence is given up after some seconds.
            return all(now[key] - before[key] >= len(noise) * (2 if key[1] == "rpc" else 1) for key in now)
        wait_until(counted, "every stranger was counted")
        for stranger in held:
            stranger.close()
        self.check_that_honest_requests_go_on()

    def test_a_replayed_session_and_noise_under_a_good_certificate_are_refused_and_counted(self):
        """The handshake is made anew each time, so what was recorded opens nothing; and a certificate excuses no noise."""
        caller = {"prefill": "decode", "decode": "prefill"}  # who may reach the pages of whom
        for (role, _), port in self.doors().items():
            is_for_pages = role in caller and port == self.page_port(role)
            kind = (role, "transport" if is_for_pages else "rpc")
            before = self.refusals()[kind]
            recorded = session(self.own, caller[role] if is_for_pages else "operator", port)
            if is_for_pages:
                wait_until(lambda: self.refusals()[kind] > before, f"noise is counted by {role}")
            before = self.refusals()[kind]
            with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
                with contextlib.suppress(ConnectionError):
                    stranger.sendall(recorded)
                    while stranger.recv(65536):
                        pass
            wait_until(lambda: self.refusals()[kind] > before, f"the replay is counted by {role} at {kind}")
        self.check_that_honest_requests_go_on()

    def page_port(self, role):
        """The only port of a worker that speaks no gRPC."""
        name = (("grpc.ssl_target_name_override", "localhost"),)
        found = [port for (door, _), port in self.doors().items() if door == role and code_of(
            grpc.secure_channel(f"127.0.0.1:{port}", credentials(self.own, "operator"), name),
            "/grpc.health.v1.Health/Check")[0] == grpc.StatusCode.UNAVAILABLE]
        self.assertEqual(len(found), 1)
        return found[0]

    def test_certificates_of_others_are_refused_and_counted(self):
        before = self.refusals()
        name = (("grpc.ssl_target_name_override", "localhost"),)
        for port in self.doors().values():
            channel = grpc.secure_channel(f"127.0.0.1:{port}", credentials(self.foreign, "router"), name)
            self.assertEqual(code_of(channel, "/sluice.v1.Prefill/Run")[0], grpc.StatusCode.UNAVAILABLE)
            channel = grpc.insecure_channel(f"127.0.0.1:{port}")
            self.assertNotEqual(code_of(channel, "/sluice.v1.Prefill/Run")[0], grpc.StatusCode.OK)
        self.assertTrue(all(value > before[key] for key, value in self.refusals().items()), (before, self.refusals()))
        self.check_that_honest_requests_go_on()

    def test_a_grant_from_the_wrong_hands_is_refused(self):
        """A worker's own certificate opens no method that only routers may call, whatever the message says."""
        name = (("grpc.ssl_target_name_override", "localhost"),)
        for role in ROLES:
            for (door, _), port in self.doors().items():
                for method in ("/sluice.v1.Prefill/Run", "/sluice.v1.Decode/Generate"):
                    if door == "cache_manager" or role == "router":
                        continue
                    channel = grpc.secure_channel(f"127.0.0.1:{port}", credentials(self.own, role), name)
                    code, details = code_of(channel, method, os.urandom(50))
                    if code != grpc.StatusCode.UNAVAILABLE:  # the port for pages speaks no gRPC
                        self.assertEqual(code, grpc.StatusCode.PERMISSION_DENIED, details)
                        self.assertIn(f"sluice://{role}/trial", details)
                        self.assertIn("sluice://router/", details)
        self.check_that_honest_requests_go_on()


class CertsTest(unittest.TestCase):
    def test_existing_certificates_are_not_replaced(self):
        with tempfile.TemporaryDirectory() as folder:
            first = harness.run_sluice("certs", "--out", folder, "--name", "a")
            self.assertIn("sluice://cache-manager/a", first.stdout)
            again = harness.run_sluice("certs", "--out", folder, check=False)
            self.assertEqual(again.returncode, 1)
            self.assertIn("--force", again.stderr)
            self.assertIn("sluice://cache-manager/b", harness.run_sluice("certs", "--out", folder, "--name", "b", "--force").stdout)

    def test_a_certificate_of_another_role_is_refused_at_start(self):
        with tempfile.TemporaryDirectory() as folder:
            certificates(folder)
            router = os.path.join(folder, "router")
            os.rename(os.path.join(folder, "cache-manager"), os.path.join(folder, "old"))
            os.symlink(router, os.path.join(folder, "cache-manager"))
            result = harness.run_sluice("up", "--demo", "--detach", "--tls", folder, check=False)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("sluice://router/trial", result.stderr)
            self.assertIn("expected sluice://cache-manager/", result.stderr)


if __name__ == "__main__":
    harness.main()

"""Hosts that exist only for one program: network namespaces on a bridge, inside namespaces of our own.

`enter` needs no root where users may make namespaces, and all that was made, processes included, ends with the program.
"""
import json
import os
import subprocess
import sys

ENTERED = "SLUICE_CHAOS_INSIDE_NAMESPACES"
CLIENT_IP = "10.77.0.1"
MTU = 1500


class NetworkError(Exception):
    pass


def enter():
    """Runs this program again inside its own user, network, mount and pid namespaces, where it returns at once."""
    if ENTERED in os.environ:
        return
    namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child"]
    tried = []
    # As a user first: root inside is then nobody outside. Some containers allow only their root to do it.
    for flags in (["--user", "--map-root-user", *namespaces], namespaces):
        try:
            probe = subprocess.run(["unshare", *flags, "true"], capture_output=True, text=True)
        except FileNotFoundError:
            raise SystemExit("unshare is not installed; it is in Debian's package util-linux") from None
        if probe.returncode == 0:
            os.execvpe("unshare", ["unshare", *flags, sys.executable, *sys.argv], {**os.environ, ENTERED: "yes"})
        tried.append(f"unshare {' '.join(flags)}: {probe.stderr.strip()}")
    raise SystemExit("This test makes network namespaces and was not allowed to:\n  " + "\n  ".join(tried) +
                     "\nAllow user namespaces (sysctl kernel.unprivileged_userns_clone=1 or user.max_user_namespaces > 0; in a "
                     "container: a seccomp profile that permits unshare), or run it as root with CAP_SYS_ADMIN.")


def run(*arguments, check=True):
    try:
        result = subprocess.run(arguments, capture_output=True, text=True)
    except FileNotFoundError:
        raise NetworkError(f"{arguments[0]} is not installed; deploy/local/install-packages installs it") from None
    if check and result.returncode != 0:
        raise NetworkError(f"{' '.join(arguments)}: {result.stderr.strip()}")
    return result


def set_up_client_host():
    """The clients' end of the network: a bridge that all hosts hang on."""
    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "tmpfs", "none", "/run")  # where ip keeps the names of namespaces
    # Of our own pids: UCX finds shared memory through it. A container may forbid it; only scenarios that need it fail then.
    run("mount", "-t", "proc", "proc", "/proc", check=False)
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "bridge", "type", "bridge")
    run("ip", "addr", "add", f"{CLIENT_IP}/24", "dev", "bridge")
    run("ip", "link", "set", "bridge", "up")


class Host:
    """A machine of its own: one address, one link, no other way out. Faults of its link are made here."""

    made = 0

    def __init__(self, name, number):
        # The kernel may keep a removed namespace for a while: names are used once.
        Host.made += 1
        self.name, self.ip, self.link = f"{name}.{Host.made}", f"10.77.0.{number}", f"to-{Host.made}"
        name = self.name
        run("ip", "netns", "add", name)
        run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", self.link, "master", "bridge", "up")
        run("ip", "-n", name, "addr", "add", f"{self.ip}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", name, "link", "set", device, "up")
        self.nft("add table inet faults")
        self.nft("add chain inet faults in { type filter hook input priority 0 ; }")
        self.nft("add chain inet faults out { type filter hook output priority 0 ; }")

    def remove(self):
        run("ip", "link", "del", self.link)
        run("ip", "netns", "del", self.name, check=False)

    def command(self, *arguments):
        """What runs a program on this host, with the pid of the process that is started."""
        return ["ip", "netns", "exec", self.name, *arguments]

    def nft(self, text):
        run(*self.command("nft", text))

    def drop_from(self, others):
        """Nothing from these hosts arrives: one way only."""
        self.nft("\n".join(f"add rule inet faults in ip saddr {other.ip} drop" for other in others))

    def reset_from(self, others):
        """Connections from and to these hosts are reset at their next packet."""
        self.nft("\n".join(f"add rule inet faults in ip saddr {other.ip} meta l4proto tcp reject with tcp reset" for other in others))

    def lose(self, percent):
        """Of all packets that arrive from other hosts, at random."""
        self.nft(f"add rule inet faults in iif eth0 numgen random mod 1000 < {round(percent * 10)} drop")

    def limit_rate(self, megabit):
        """Of what this host sends."""
        run("tc", "-n", self.name, "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", f"{megabit}mbit",
            "burst", "64kb", "latency", "100ms")

    def heal(self):
        for chain in ("in", "out"):
            self.nft(f"flush chain inet faults {chain}")
        run("tc", "-n", self.name, "qdisc", "del", "dev", "eth0", "root", check=False)


def partition(left, right):
    """Neither side hears the other."""
    for host in left:
        host.drop_from(right)
    for host in right:
        host.drop_from(left)


class BadCable:
    """Puts slow_link.py between a host and the bridge, until the end of the with block. `counts`: what it did."""

    def __init__(self, host, *arguments):
        self.host, self.arguments, self.counts = host, arguments, {}

    def __enter__(self):
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "slow_link.py")
        run(*self.host.command(sys.executable, program, "--offloads-off", "eth0"))
        run("ip", "link", "set", self.host.link, "nomaster")
        run("ip", "link", "add", "cable-in", "type", "veth", "peer", "name", "cable-out")
        run("ip", "link", "set", "cable-out", "master", "bridge", "up")
        run("ip", "link", "set", "cable-in", "up")
        run(sys.executable, program, "--offloads-off", "cable-out")
        self.process = subprocess.Popen([sys.executable, program, self.host.link, "cable-in", *self.arguments],
                                        stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            raise NetworkError("slow_link.py does not run")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.counts = json.loads(self.process.stdout.readline() or "{}")
        self.process.wait()
        run("ip", "link", "del", "cable-in")
        run("ip", "link", "set", self.host.link, "master", "bridge")

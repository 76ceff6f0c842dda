"""Control groups for processes under test, with either hierarchy of the kernel."""
import os

import harness

GROUPS = "/sys/fs/cgroup"
PERIOD_US = 10_000


class ControlGroup:
    """One group with one controller; gone, once it is empty, at the end of the with block. Needs the right to make it (root's, or a
    delegated one)."""

    def __init__(self, name, controller):
        old = os.path.join(GROUPS, controller)
        self.is_v1 = os.path.isdir(old)
        self.folder = os.path.join(old if self.is_v1 else GROUPS, name)
        try:
            os.mkdir(self.folder)
        except OSError as error:
            raise AssertionError(f"{error}: the right to make control groups under {GROUPS} is needed") from None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        harness.wait_until(self._remove, f"{self.folder} is empty")

    def _remove(self):
        try:
            os.rmdir(self.folder)
            return True
        except OSError:
            return False

    def entrance(self):
        """What starts a program inside."""
        return ["sh", "-c", 'echo 0 >"$0" && exec "$@"', os.path.join(self.folder, "cgroup.procs")]

    def take_in(self, pid):
        self.write("cgroup.procs", pid)

    def read(self, name):
        with open(os.path.join(self.folder, name)) as file:
            return file.read()

    def write(self, name, value):
        with open(os.path.join(self.folder, name), "w") as file:
            file.write(str(value))

    def memory_bytes(self):
        return int(self.read("memory.usage_in_bytes" if self.is_v1 else "memory.current"))

    def limit_memory(self, limit_bytes):
        self.write("memory.limit_in_bytes" if self.is_v1 else "memory.max", limit_bytes)

    def limit_threads(self, count):
        self.write("pids.max", count)

    def threads(self):
        return int(self.read("pids.current"))

    def limit_cores(self, cores):
        quota_us = int(cores * PERIOD_US)
        if self.is_v1:
            self.write("cpu.cfs_period_us", PERIOD_US)
            self.write("cpu.cfs_quota_us", quota_us)
        else:
            self.write("cpu.max", f"{quota_us} {PERIOD_US}")

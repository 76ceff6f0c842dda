"""What happened, one JSON object a line: written while the faults run, judged afterwards by checker.py, or again later."""
import json
import threading
import time


class History:
    """Times are seconds of this machine's monotonic clock since the start. Thread-safe."""

    def __init__(self, path):
        self.path, self.lock, self.begin = path, threading.Lock(), time.monotonic()
        self.file = open(path, "w")

    def now(self):
        return time.monotonic() - self.begin

    def add(self, event, **fields):
        line = json.dumps({"t": round(self.now(), 6), "event": event, **fields})
        with self.lock:
            self.file.write(line + "\n")

    def close(self):
        with self.lock:
            self.file.close()


def read(path):
    with open(path) as file:
        return [json.loads(line) for line in file]

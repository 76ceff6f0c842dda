"""Services started one by one, for tests that need settings of their own."""
import json
import os
import subprocess
import tempfile

import harness


class Services:
    """On any free ports; ended by SIGTERM, which must give exit code 0."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.running = []
        return self

    def __exit__(self, *_):
        codes = []
        for process in reversed(self.running):
            process.terminate()
            codes.append(process.wait(60))
        self.folder.cleanup()
        if any(codes):
            raise AssertionError(f"exit codes after SIGTERM: {codes}")

    def start(self, binary, *settings):
        """Returns what the ready file says: grpc, metrics, admin, pid."""
        ready = os.path.join(self.folder.name, f"ready-{len(self.running)}.json")
        settings = [*settings, f"service.ready_file={ready}", *(f"service.{x}=127.0.0.1:0" for x in
                                                                ("listen", "metrics_listen", "admin_listen"))]
        arguments = [os.path.join(harness.ARGS.bin, binary)]
        for setting in settings:
            arguments += ["--set", setting]
        process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
        self.running.append(process)
        harness.wait_until(lambda: os.path.exists(ready) or process.poll() is not None, f"{binary} is up")
        with open(ready) as file:
            return json.load(file)


def wait_for_model(client):
    harness.wait_until(lambda: client.call("ListModels", client.message("ListModelsRequest")).models, "a model is served")

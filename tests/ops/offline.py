"""kubectl and helm of a cluster that is not there, so that the commands of README and NOTES.txt run as they are written.

`Offline(folder, bin)` makes both and keeps what they were told: secrets that were created, manifests that were installed. What has no
meaning without a cluster (port-forward, rollout) is checked against the manifests: the object must exist and have that port.
`helm test` runs the test pod's command on this host, through the `Host` that runs the services.
"""
import base64
import json
import os
import pathlib
import re
import stat
import subprocess
import sys

import yaml

SHIM = """#!/bin/sh
exec {python} {script} {name} {state} "$@"
"""


class Offline:
    def __init__(self, folder, tools):
        self.state = pathlib.Path(folder, "offline")
        self.path = self.state / "bin"
        self.path.mkdir(parents=True)
        (self.state / "tools").symlink_to(tools)
        for name in ("kubectl", "helm"):
            shim = self.path / name
            shim.write_text(SHIM.format(python=sys.executable, script=__file__, name=name, state=self.state))
            shim.chmod(shim.stat().st_mode | stat.S_IXUSR)

    def read(self, name):
        return json.loads((self.state / f"{name}.json").read_text())

    def release(self):
        """What `helm install` said: all manifests and the notes."""
        release = self.read("release")
        hooks = [hook["manifest"] for hook in release.get("hooks", ())]
        documents = [d for text in (release["manifest"], *hooks) for d in yaml.safe_load_all(text) if d]
        return documents, release["info"]["notes"]

    def secret(self, name):
        """{key: bytes}."""
        return {key: base64.b64decode(value) for key, value in self.read("secret-" + name)["data"].items()}


def real(state, tool, *arguments):
    environment = {**os.environ, "HELM_CONFIG_HOME": "/nonexistent", "KUBECONFIG": "/nonexistent"}
    result = subprocess.run([state / "tools" / tool, *arguments], env=environment, stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        sys.exit(result.returncode)
    return result.stdout


def find(state, reference):
    """The manifest of "service/name"."""
    kind, _, name = reference.partition("/")
    release = json.loads((state / "release.json").read_text())
    for document in yaml.safe_load_all(release["manifest"]):
        if document and document["kind"].lower() == kind and document["metadata"]["name"] == name:
            return document
    sys.exit(f"offline: there is no {reference}")


def kubectl(state, arguments):
    if arguments[0] == "--namespace":
        arguments = arguments[2:]
    verb, rest = arguments[0], arguments[1:]
    if verb == "create" and rest[0] == "secret":
        text = real(state, "kubectl", *arguments, "--dry-run=client", "--output=json")
        (state / f"secret-{rest[2]}.json").write_text(text)
    elif verb == "get" and rest[0] == "secret" and rest[2] == "-o":
        key = re.fullmatch(r"jsonpath=\{\.data\.(.*)\}", rest[3]).group(1).replace("\\.", ".")
        sys.stdout.write(json.loads((state / f"secret-{rest[1]}.json").read_text())["data"][key])
    elif verb == "rollout":
        find(state, rest[1])
    elif verb == "port-forward":
        port = int(rest[1].partition(":")[2])
        if port not in [p["port"] for p in find(state, rest[0])["spec"]["ports"]]:
            sys.exit(f"offline: {rest[0]} has no port {port}")
    else:
        sys.exit(f"offline: kubectl {arguments} is not known here")


def helm(state, arguments):
    if arguments[:2] == ["upgrade", "--install"]:
        arguments = ["install", *arguments[2:]]
    if arguments[0] == "install":
        text = real(state, "helm", *arguments, "--dry-run=client", "--output=json")
        (state / "release.json").write_text(text)
        print(json.loads(text)["info"]["notes"])
    elif arguments[0] == "test":
        (state / "test-asked").touch()
    else:
        sys.exit(f"offline: helm {arguments} is not known here")


if __name__ == "__main__":
    {"kubectl": kubectl, "helm": helm}[sys.argv[1]](pathlib.Path(sys.argv[2]), sys.argv[3:])

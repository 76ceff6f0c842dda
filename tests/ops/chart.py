"""The chart rendered by the pinned Helm, without a cluster. Every test program takes --bin FOLDER (the built binaries)."""
import argparse
import functools
import os
import pathlib
import subprocess
import sys
import unittest

import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CHART = ROOT / "helm" / "sluice"
COMPONENTS = ("router", "prefill", "decode", "cache-manager")
ARGS = None


@functools.cache
def tools():
    """The folder of helm and kubectl."""
    return subprocess.run([HERE / "fetch-helm"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def helm(*arguments):
    # A configuration folder of nobody: no repositories, no plugins.
    environment = {**os.environ, "HELM_CONFIG_HOME": "/nonexistent", "KUBECONFIG": "/nonexistent"}
    return subprocess.run([os.path.join(tools(), "helm"), *arguments], capture_output=True, text=True, env=environment, timeout=60)


class Loader(yaml.SafeLoader):
    """Takes no key twice, as Kubernetes' own strict reader."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"twice: {', '.join(twice)}", node.start_mark)
        return super().construct_mapping(node, deep)


def load(text):
    """The documents of a rendered chart."""
    return [document for document in yaml.load_all(text, Loader) if document]


def cases():
    """Names of the examples in ci/."""
    return sorted(path.name.removesuffix("-values.yaml") for path in CHART.glob("ci/*-values.yaml"))


def flags(case):
    """An example comes after the values file of its name beside the chart, if there is one."""
    files = [path for path in (CHART / f"values-{case}.yaml", CHART / "ci" / f"{case}-values.yaml") if path.exists()]
    return [argument for path in files for argument in ("--values", str(path))]


@functools.cache
def render(case, *more):
    """All manifests of `helm template`, in order."""
    result = helm("template", "sluice", str(CHART), *flags(case), *more)
    if result.returncode != 0:
        raise AssertionError(f"{case} {more}: {result.stderr}")
    return load(result.stdout)


def of_kind(documents, kind):
    return [document for document in documents if document["kind"] == kind]


def component(document):
    return document["metadata"]["labels"].get("app.kubernetes.io/component")


def by_component(documents, kind):
    return {component(document): document for document in of_kind(documents, kind) if component(document)}


def configs(documents):
    """{component: the text of its config.yaml}."""
    maps = by_component(documents, "ConfigMap")
    return {name: maps[name]["data"]["config.yaml"] for name in COMPONENTS}


def pod_specs(documents):
    """{component: what its Deployment says of a pod}."""
    return {name: deployment["spec"]["template"]["spec"] for name, deployment in by_component(documents, "Deployment").items()}


def containers(documents):
    """{component: the container of its pods}."""
    return {name: spec["containers"][0] for name, spec in pod_specs(documents).items()}


def pods(documents):
    """{name: pod with metadata and spec} of every workload."""
    found = {document["metadata"]["name"]: document["spec"]["template"] for document in of_kind(documents, "Deployment")}
    return {**found, **{document["metadata"]["name"]: document for document in of_kind(documents, "Pod")}}


def main():
    global ARGS
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default=str(ROOT / "build" / "dev" / "bin"))
    parser.add_argument("--renders", type=int, default=20, help="of values_test: how many random values are rendered")
    ARGS, rest = parser.parse_known_args()
    # One test program, one module: the instance that unittest imports must see the same arguments.
    sys.modules["chart"].ARGS = ARGS
    unittest.main(module="__main__", argv=[sys.argv[0], *rest], verbosity=2)

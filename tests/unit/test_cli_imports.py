"""What a verb that talks to a cluster does not import: each of these costs more than what the verb does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HEAVY = (
    *(
        "kubernetes.client",
        "kubernetes.config",
        "kubernetes.dynamic",
        "kubernetes.aio.dynamic",
        "kubernetes.aio.stream",
    ),
    *("requests", "urllib3", "prometheus_client", "prometheus_api_client", "promql_parser", "kopf"),
    *("pydantic", "pydantic_core", "dateutil", "kubernetes.aio.client.api_client", "rich.live"),
    *("matplotlib", "numpy", "torch", "jsonschema", "cel_expr_python", "rich.markdown"),
    *("precision_operator.signals", "precision_operator.replay", "precision_operator.incidents"),
)
PROGRAM = """
import sys
from precision_operator.cli import main
main(sys.argv[1:])
print("\\n".join(sys.modules))
"""
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
clusters: [{name: a, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: a, user: {}}]
"""


@pytest.mark.parametrize("words", [["status"], ["get"], ["wait", "--for=Healthy"], ["retry"], ["doctor"], ["explain"]])
def test_a_cluster_verb_imports_nothing_heavy(tmp_path: Path, words: list[str]) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(KUBECONFIG)
    command = [sys.executable, "-c", PROGRAM, *words, "--kubeconfig", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    imported = set(done.stdout.split())
    assert "kubernetes.aio.client" in imported
    assert {name for name in imported if name.startswith(tuple(HEAVY))} == set()


LATER = """
import kubernetes, kubernetes.aio.client
from kubernetes import dynamic
assert kubernetes.aio.client.ApiClient.__name__ == "ApiClient"
assert kubernetes.client.CoreV1Api and kubernetes.aio.watch and kubernetes.__version__
"""


def test_who_imports_the_kubernetes_client_after_a_verb_gets_the_whole_of_it(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(KUBECONFIG)
    command = [sys.executable, "-c", PROGRAM + LATER, "status", "--kubeconfig", str(file)]
    subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)

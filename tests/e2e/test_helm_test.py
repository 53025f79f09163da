"""`helm test` on a real node: it passes where the operator answers and admission works, and says what is wrong elsewhere."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.cluster import Kubectl
from lab.cluster.manifests import apply_product
from lab.setup.kube import kube_binaries
from tests.support.cluster_scene import ROOT

NAMESPACE = "precision-system"
RELEASE = "precision-operator"
IMAGE = {"image.registry": "localhost", "image.tag": "dev", "image.pullPolicy": "Never"}

Helm = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def helm(kubectl: Kubectl, tmp_path: Path) -> Iterator[Helm]:
    """helm, where the chart is installed with what the cluster has of the product already; all of that is put back."""

    def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        where: list[str | Path] = ["--kubeconfig", kubectl.kubeconfig, "--namespace", NAMESPACE]
        command: list[str | Path] = [kube_binaries() / "helm", *arguments, *where]
        return subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, cwd=tmp_path)

    values = [f"--set={name}={value}" for name, value in IMAGE.items()]
    chart = ROOT / "helm" / "precision-operator"
    adopting = ["--create-namespace", "--take-ownership", "--force-conflicts", "--timeout=180s", "--wait"]
    done = call("install", RELEASE, chart, *adopting, *values)
    try:
        assert done.returncode == 0, done.stderr
        yield call
    finally:
        call("uninstall", RELEASE, "--no-hooks", "--ignore-not-found", "--wait")
        kubectl("delete", "pods", "-n", "default", "-l", f"app.kubernetes.io/instance={RELEASE}", "--ignore-not-found")
        apply_product(kubectl)


def test_a_release_that_works_passes_and_one_without_admission_is_told(kubectl: Kubectl, helm: Helm) -> None:
    done = helm("test", RELEASE, "--timeout=180s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Phase:          Succeeded") == 2, done.stdout

    kubectl("delete", "mutatingadmissionpolicybinding", "precision-inject.precision.genesis.ai")
    done = helm("test", RELEASE, "--timeout=180s")
    assert done.returncode != 0
    said = kubectl("logs", f"{RELEASE}-test-injected", "-n", "default").stdout
    assert "expected admission to write precision.genesis.ai/injected: selftest into this pod" in said

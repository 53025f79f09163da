"""The chart's pre-delete hook, run by a kubelet: in webhook mode, `helm uninstall` refuses while anything is held."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.cluster import Kubectl
from lab.cluster.manifests import AS_OPERATOR, apply_product
from lab.setup.kube import kube_binaries
from tests.support.cluster_scene import ROOT
from tests.support.holds import held

RELEASE = "uninstall-hook"
JOB = f"{RELEASE}-precision-operator-holds"
# The cluster has the CRDs and the other admission policies already, and they are not this release's.
PARTS = ("inject", "commands", "author", "assignments", "fence")

Helm = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def product(kubectl: Kubectl) -> None:
    """CRDs and policies, which another test's story may have taken away as it ended."""
    apply_product(kubectl)


@pytest.fixture
def helm(kubectl: Kubectl, namespace: str, tmp_path: Path) -> Iterator[Helm]:
    """helm in a namespace of the test's own. What was installed there is taken away."""

    def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        where: list[str | Path] = ["--kubeconfig", kubectl.kubeconfig, "--namespace", namespace]
        command: list[str | Path] = [kube_binaries() / "helm", *arguments, *where]
        return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path)

    yield call
    call("uninstall", RELEASE, "--no-hooks", "--ignore-not-found")


def install(helm: Helm, *namespaces: str) -> None:
    """A release in webhook mode, for some namespaces or the whole cluster. No replica of it runs: the hook needs none."""
    values = {
        "image.registry": "localhost",
        "image.tag": "dev",
        "image.pullPolicy": "Never",
        "replicaCount": "0",
        "admission.mode": "Webhook",
        "crds.enabled": "false",
        **{f"admission.{part}.enabled": "false" for part in PARTS},
        **{f"namespaces[{index}]": name for index, name in enumerate(namespaces)},
    }
    settings = [f"--set={name}={value}" for name, value in values.items()]
    done = helm("install", RELEASE, ROOT / "helm" / "precision-operator", *settings)
    assert done.returncode == 0, done.stderr


def exit_codes(kubectl: Kubectl, namespace: str) -> list[int]:
    pods = kubectl.json("get", "pods", "-n", namespace, "-l", f"job-name={JOB}")["items"]
    return [c["state"]["terminated"]["exitCode"] for pod in pods for c in pod["status"]["containerStatuses"]]


def story(kubectl: Kubectl, namespace: str) -> str:
    """What the hook said and how its pod ended, for a failure's message."""
    pods = kubectl("get", "pods", "-n", namespace, "-o", "yaml", check=False).stdout
    return kubectl("logs", f"job/{JOB}", "-n", namespace, check=False).stdout + pods[-3000:]


def test_a_release_is_uninstalled_where_nothing_is_held(kubectl: Kubectl, namespace: str, helm: Helm) -> None:
    install(helm, namespace)
    done = helm("uninstall", RELEASE, "--wait")
    assert done.returncode == 0, done.stderr + story(kubectl, namespace)
    assert kubectl.find("job", JOB, "-n", namespace) is None, "a hook that succeeded is removed"
    assert kubectl.find("service", f"{RELEASE}-precision-operator-webhook", "-n", namespace) is None


def test_a_release_stays_while_a_workload_is_held_and_goes_once_it_is_released(
    kubectl: Kubectl, namespace: str, helm: Helm
) -> None:
    install(helm, namespace)
    kubectl("create", "-n", namespace, "-f", "-", *AS_OPERATOR, input=json.dumps(held()))
    done = helm("uninstall", RELEASE, "--wait")
    assert done.returncode != 0
    assert f"{JOB} not ready. status: Failed" in done.stderr
    assert exit_codes(kubectl, namespace) == [1]
    said = kubectl("logs", f"job/{JOB}", "-n", namespace).stdout
    assert "/Pod/trainer" in said
    assert "LossNotFinite" in said
    assert kubectl.find("mutatingwebhookconfiguration", "precision-webhook.precision.genesis.ai")
    assert kubectl.find("service", f"{RELEASE}-precision-operator-webhook", "-n", namespace)

    kubectl("delete", "precisionassignment", "fleet", "-n", namespace)
    done = helm("uninstall", RELEASE, "--wait")
    assert done.returncode == 0, done.stderr + story(kubectl, namespace)
    assert kubectl.find("mutatingwebhookconfiguration", "precision-webhook.precision.genesis.ai") is None


def test_a_release_for_the_whole_cluster_stays_while_anything_is_held_anywhere(
    kubectl: Kubectl, namespace: str, helm: Helm
) -> None:
    install(helm)
    kubectl("create", "-n", namespace, "-f", "-", *AS_OPERATOR, input=json.dumps(held()))
    assert helm("uninstall", RELEASE, "--wait").returncode != 0
    assert exit_codes(kubectl, namespace) == [1]
    assert f"{namespace}/fleet" in kubectl("logs", f"job/{JOB}", "-n", namespace).stdout

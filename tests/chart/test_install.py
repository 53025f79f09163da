"""Installing on an empty, real API server that enforces the restricted Pod Security Standard."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import ControlPlane, Kubectl
from lab.cluster.manifests import until_admitted
from lab.setup.kube import kube_binaries
from lab.waiting import wait_for

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "precision-operator"
NAMESPACE = "precision-system"
OPERATOR = f"system:serviceaccount:{NAMESPACE}:precision-operator"

pytestmark = pytest.mark.cluster


def run_helm(cluster: ControlPlane, *arguments: str | Path) -> str:
    environment = {
        **os.environ,
        "KUBECONFIG": str(cluster.kubeconfig),
        "HELM_CACHE_HOME": str(cluster.directory / "helm"),
    }
    command = [kube_binaries() / "helm", *arguments, "--namespace", NAMESPACE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("install")) as cluster:
        cluster.kubectl.apply(ROOT / "manifests" / "base" / "namespace.yaml")
        cluster.kubectl.wait_for_namespace(NAMESPACE)
        yield cluster


@pytest.fixture(scope="module")
def release(empty: ControlPlane) -> Iterator[Kubectl]:
    """The chart, installed by helm."""
    notes = run_helm(empty, "install", "precision-operator", CHART)
    assert "NOTE:" not in notes, "a cluster of 1.36 has the gate"
    until_admitted(empty.kubectl)
    yield empty.kubectl
    run_helm(empty, "uninstall", "precision-operator", "--wait")


def test_the_plain_manifests_are_accepted_by_an_empty_cluster(empty: ControlPlane) -> None:
    done = empty.kubectl("apply", "--server-side", "--dry-run=server", "-k", ROOT / "manifests" / "base")
    assert "Warning" not in done.stderr
    assert "mutatingadmissionpolicy.admissionregistration.k8s.io/precision-gate.precision.genesis.ai" in done.stdout


def test_the_rendered_chart_is_accepted_without_a_warning(empty: ControlPlane) -> None:
    rendered = run_helm(empty, "template", "precision-operator", CHART, "--validate")
    done = empty.kubectl("apply", "--dry-run=server", "-n", NAMESPACE, "-f", "-", input=rendered)
    assert "Warning" not in done.stderr


def test_both_replicas_pass_the_restricted_standard(release: Kubectl) -> None:
    def pods() -> bool:
        return len(release.json("get", "pods", "-n", NAMESPACE)["items"]) == 2

    def state() -> str:
        return release("get", "replicasets", "-n", NAMESPACE, "-o", "yaml").stdout

    wait_for(pods, what="both pods to be admitted", seconds=30, found=state)


@pytest.mark.parametrize("sample", sorted(path.name for path in (ROOT / "manifests" / "samples").glob("*.yaml")))
def test_the_samples_are_good_policies(release: Kubectl, sample: str) -> None:
    text = (ROOT / "manifests" / "samples" / sample).read_text()
    accepted = release(
        "create", "--dry-run=server", "-f", "-", input=text.replace("namespace: training", "namespace: default")
    )
    assert "created" in accepted.stdout


@pytest.mark.parametrize(
    ("verb", "resource"),
    [
        ("get", "secrets"),
        ("list", "configmaps"),
        ("create", "pods"),
        ("delete", "pods"),
        ("create", "pods/exec"),
        ("update", "pods/ephemeralcontainers"),
        ("create", "deployments.apps"),
        ("delete", "deployments.apps"),
        ("patch", "deployments.apps/scale"),
        ("patch", "statefulsets.apps"),
        ("create", "precisionpolicies.precision.genesis.ai"),
        ("delete", "precisionpolicies.precision.genesis.ai"),
        ("create", "serviceaccounts/token"),
        ("impersonate", "users"),
        ("create", "rolebindings.rbac.authorization.k8s.io"),
        ("escalate", "clusterroles.rbac.authorization.k8s.io"),
        ("bind", "clusterroles.rbac.authorization.k8s.io"),
        ("patch", "customresourcedefinitions.apiextensions.k8s.io"),
        ("patch", "mutatingadmissionpolicies.admissionregistration.k8s.io"),
        ("delete", "validatingadmissionpolicybindings.admissionregistration.k8s.io"),
        ("patch", "nodes"),
        ("delete", "leases.coordination.k8s.io"),
        ("get", "leases.coordination.k8s.io/somebody-elses"),
    ],
)
def test_the_operators_account_may_not(release: Kubectl, verb: str, resource: str) -> None:
    kind, _, name = resource.partition("/")
    subresource = name if name and name != "somebody-elses" else ""
    target = f"{kind}/{name}" if name == "somebody-elses" else kind
    arguments = ["auth", "can-i", verb, target, "-n", NAMESPACE, "--as", OPERATOR]
    done = release(*arguments, *([f"--subresource={subresource}"] if subresource else []), check=False)
    assert done.stdout.strip() == "no"


@pytest.mark.parametrize(
    ("verb", "resource", "namespace"),
    [
        ("watch", "precisionpolicies.precision.genesis.ai", "default"),
        ("patch", "precisionpolicies.precision.genesis.ai", "default"),
        ("patch", "deployments.apps", "default"),
        ("patch", "pods", "default"),
        ("create", "leases.coordination.k8s.io", NAMESPACE),
        ("update", "leases.coordination.k8s.io/precision-operator", NAMESPACE),
    ],
)
def test_the_operators_account_may(release: Kubectl, verb: str, resource: str, namespace: str) -> None:
    done = release("auth", "can-i", verb, resource, "-n", namespace, "--as", OPERATOR, check=False)
    assert done.stdout.strip() == "yes"


def test_the_installed_scope_holds_the_releases_account(release: Kubectl) -> None:
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "victim", "namespace": "default"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "victim"}},
            "template": {
                "metadata": {"labels": {"app": "victim"}},
                "spec": {"containers": [{"name": "c", "image": "good"}]},
            },
        },
    }
    release("create", "-f", "-", input=json.dumps(deployment))
    patch = json.dumps([{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "evil"}])
    command = (
        "patch",
        "deployment",
        "victim",
        "-n",
        "default",
        "--type=json",
        "-p",
        patch,
        "--dry-run=server",
        "--as",
        OPERATOR,
    )

    def refused() -> bool:
        return "the operator may change no field of a container but env" in release(*command, check=False).stderr

    wait_for(refused, what="the operator-scope policy to be in force", seconds=30)


def test_the_crd_is_upgraded_and_outlives_the_release(empty: ControlPlane, release: Kubectl) -> None:
    run_helm(empty, "upgrade", "precision-operator", CHART, "--set", "replicaCount=1")
    done = release("get", "crd", "precisionpolicies.precision.genesis.ai", "-o", "jsonpath={.metadata.annotations}")
    assert '"helm.sh/resource-policy":"keep"' in done.stdout

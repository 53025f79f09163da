"""A real control plane for the session. What it needs is built; what cannot be built fails the tests, and never skips
them.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import ControlPlane, Kubectl
from lab.cluster.manifests import apply_product, operator_access
from lab.waiting import wait_for
from tests.support.cluster_fleet import deployment
from tests.support.cluster_scene import HOT, PATIENCE_SECONDS, Scene, staged
from tests.support.shadow_trainers import ShadowTrainers
from tests.support.users import Client, person, unlimited_operator

_HERE = Path(__file__).parent
_COMPILED = {"older_minor": "Older minor of Kubernetes", "cert_manager": "cert-manager"}
"""Markers of tests that compile something first; what they are about."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark all tests here, so that `-m "not cluster"` leaves them out; those that compile something run where asked for.

    Files of few tests come first: they are the long ones, and workers that share files should end together.
    """
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)
    for marker in _unasked(config):
        left_out = [item for item in items if item.get_closest_marker(marker) is not None]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (tests[item.path], item.path))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What was left out is never the same as passed."""
    for marker in _unasked(config):
        line = f"{_COMPILED[marker]}: not run (make test-all runs it; here: --{marker.replace('_', '-')})"
        terminalreporter.write_line(line, yellow=True)


def _unasked(config: pytest.Config) -> list[str]:
    """Markers of what nobody asked for."""
    return [marker for marker in _COMPILED if not config.getoption(f"--{marker.replace('_', '-')}")]


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with the product's CRDs and admission policies, shared by the session."""
    with ControlPlane(tmp_path_factory.mktemp("control-plane")) as cluster:
        apply_product(cluster.kubectl)
        yield cluster


@pytest.fixture(scope="session")
def kubectl(control_plane: ControlPlane) -> Kubectl:
    """Administrator's kubectl: `kubectl(*args, input=None)`, `kubectl.json(...)`, `kubectl.find(...)`,
    `kubectl.apply(...)`.
    """
    return control_plane.kubectl


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A namespace of the test's own, in which pods can be made."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    kubectl.wait_for_namespace(name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.fixture(scope="module")
def operator(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """The operator's account, with every right that RBAC can give: what is refused, a policy refuses."""
    with unlimited_operator(control_plane, tmp_path_factory.mktemp("operator")) as client:
        yield client


@pytest.fixture(scope="module")
def admin(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A person with every right."""
    with person(control_plane, tmp_path_factory.mktemp("admin"), "root", groups=("system:masters",)) as client:
        yield client


@pytest.fixture(scope="session")
def operator_kubeconfig(control_plane: ControlPlane) -> Path:
    """The installed operator's rights, and its fence."""
    return operator_access(control_plane)


@pytest.fixture
def scene(kubectl: Kubectl, operator_kubeconfig: Path, namespace: str, tmp_path: Path) -> Iterator[Scene]:
    """Four hot trainers and a literal one, their metrics in Prometheus, no operator yet."""
    with staged(kubectl, ShadowTrainers(kubectl, namespace), tmp_path, operator=operator_kubeconfig) as scene:
        scene.apply(*(deployment(name) for name in HOT), deployment("literal", hot=False))
        wait_for(lambda: len(scene.shadow.modes()) == 5, what="pods of all five", seconds=PATIENCE_SECONDS)
        yield scene

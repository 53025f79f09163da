"""The full cluster for the session: brought up if need be, and left as it was found (a running one keeps running)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import Cluster, Kubectl
from lab.cluster.manifests import apply_product
from lab.cluster.monitoring import apply_prometheus


def mark_e2e(items: list[pytest.Item], folder: Path) -> None:
    """Mark all tests of a folder, so that `-m "not e2e"` leaves them out."""
    for item in items:
        if folder in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster with one node, all images, CRDs and admission policies. What cannot be had fails the tests."""
    cluster = Cluster()
    found_running = cluster.running()
    cluster.up()
    try:
        apply_product(cluster.kubectl)
        yield cluster
    finally:
        if not found_running:
            cluster.down()


@pytest.fixture(scope="session")
def prometheus_url(cluster: Cluster) -> str:
    """The cluster's Prometheus, by an address that this process and pods reach alike."""
    return apply_prometheus(cluster.kubectl)


@pytest.fixture(scope="session")
def kubectl(cluster: Cluster) -> Kubectl:
    """Administrator's kubectl: `kubectl(*args, input=None)`, `.json(...)`, `.find(...)`, `.apply(...)`."""
    return cluster.kubectl

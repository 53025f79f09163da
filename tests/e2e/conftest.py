"""Tests on the full cluster."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import Kubectl
from tests.support.full_cluster import cluster, kubectl, mark_e2e, prometheus_url

__all__ = ["cluster", "kubectl", "prometheus_url"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests here."""
    mark_e2e(items, Path(__file__).parent)


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A namespace of the test's own, in which pods can be made."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    kubectl.wait_for_namespace(name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")

"""What takes long on the full cluster: part of `make test-all` only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.full_cluster import cluster, kubectl, mark_e2e, prometheus_url

__all__ = ["cluster", "kubectl", "prometheus_url"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests here."""
    mark_e2e(items, Path(__file__).parent)

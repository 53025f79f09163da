"""What takes long on the full cluster: part of `make test-all` only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import cluster, kubectl, prometheus_url

__all__ = ["cluster", "kubectl", "prometheus_url"]

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests here, so that `-m "not e2e"` leaves them out."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)

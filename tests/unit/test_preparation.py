"""What a test run prepares before its first test."""

from __future__ import annotations

import pytest

from lab.setup import kube
from tests.support.preparation import prepare


@pytest.mark.parametrize(
    ("node_ids", "compiled"),
    [
        (["tests/unit/test_settings.py::test_a", "tests/cluster/test_holds.py::test_b"], 1),
        (["tests/e2e/test_story.py::test_a", "tests/e2e/test_story.py::test_b"], 1),
        (["tests/unit/test_settings.py::test_a", "tests/trainer/test_cluster.py::test_b"], 0),
        ([], 0),
    ],
)
def test_kubernetes_is_compiled_before_the_first_test_that_needs_it_and_for_no_other(
    node_ids: list[str], compiled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []
    monkeypatch.setattr(kube, "kube_binaries", lambda: calls.append(None))
    prepare(node_ids)
    assert len(calls) == compiled

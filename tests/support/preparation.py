"""What takes longer than a test may, and is done once a machine before the first one."""

from __future__ import annotations

from collections.abc import Iterable

from lab.setup import kube

PREPARED = ("tests/chart/", "tests/cluster/", "tests/e2e/")
"""Folders of which the tests run programs of Kubernetes."""


def prepare(node_ids: Iterable[str]) -> None:
    """Compile Kubernetes where one of these tests needs it: on a bare machine that takes ten minutes."""
    if any(node_id.startswith(PREPARED) for node_id in node_ids):
        kube.kube_binaries()

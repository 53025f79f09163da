"""Which revision and which indexes a StatefulSet's controller gives its pods."""

from __future__ import annotations

from typing import Any

import pytest

from precision_operator.contract import MAX_INDEXES
from precision_operator.workloads.kinds.statefulset import read_statefulset
from precision_operator.workloads.reading import read_pod
from tests.support.recorded_kinds import recorded

Body = dict[str, Any]


@pytest.mark.parametrize(
    ("strategy", "pods"),
    [
        ({"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}, []),
        ({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}, ["db-0"]),
        ({"type": "RollingUpdate"}, ["db-0"]),
        ({"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}, ["db-1"]),
        ({"type": "OnDelete"}, ["db-0"]),
        ({}, ["db-0"]),
    ],
)
def test_a_statefulset_brings_a_pod_back_in_the_revision_of_its_index(strategy: Body, pods: list[str]) -> None:
    body = recorded("statefulset")
    body["spec"]["updateStrategy"] = strategy
    revisions = read_statefulset(body).revisions
    assert revisions is not None
    members = [read_pod(recorded(f"statefulset-pod-{index}")) for index in (0, 1)]
    assert [pod.view.name for pod in members if revisions.passed(pod)] == pods


def test_a_partition_counts_from_the_first_ordinal() -> None:
    body = recorded("statefulset")
    body["spec"] |= {"ordinals": {"start": 5}}
    pod = recorded("statefulset-pod-0")
    pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] = "5"
    revisions = read_statefulset(body).revisions
    assert revisions is not None
    assert not revisions.passed(read_pod(pod))
    pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] = "6"
    assert revisions.passed(read_pod(pod))
    del pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"]
    assert revisions.passed(read_pod(pod))
    del pod["metadata"]["labels"]["controller-revision-hash"]
    assert not revisions.passed(read_pod(pod))


def test_without_a_partition_a_pod_below_the_first_ordinal_is_due_in_the_new_revision_too() -> None:
    body = recorded("statefulset")
    body["spec"] |= {"ordinals": {"start": 5}, "updateStrategy": {"type": "RollingUpdate"}}
    revisions = read_statefulset(body).revisions
    assert revisions is not None
    members = [read_pod(recorded(f"statefulset-pod-{index}")) for index in (0, 1)]
    assert [pod.view.name for pod in members if revisions.passed(pod)] == ["db-0"]


@pytest.mark.parametrize(
    ("spec", "first", "count"),
    [
        ({}, 0, 1),
        ({"replicas": 3}, 0, 3),
        ({"replicas": 3, "ordinals": {"start": 5}}, 5, 3),
        ({"replicas": MAX_INDEXES}, 0, MAX_INDEXES),
        ({"replicas": MAX_INDEXES, "ordinals": {"start": 1}}, 1, 0),
        ({"replicas": 2**31 - 1}, 0, 0),
    ],
)
def test_a_statefulset_says_which_indexes_its_pods_have(spec: Body, first: int, count: int) -> None:
    body = recorded("statefulset")
    del body["spec"]["replicas"]
    body["spec"] |= spec
    view = read_statefulset(body).view
    assert (view.first_index, view.indexes) == (first, count)

"""What a workload and its pods say of themselves: what a pod was told, and whether a rollout of it is under way."""

from dataclasses import replace

import pytest

from precision_operator.api.modes import Mode
from precision_operator.core.model import PodView, Request, WorkloadView

READY = PodView("p", "uid-p", node="n", ready=True)
QUIET = WorkloadView("ns", "w", "uid-w", replicas=2, updated_replicas=2, pods=(READY, replace(READY, name="q")))


def with_second(**fields: object) -> WorkloadView:
    """One pod is ready, the other differs."""
    return replace(QUIET, pods=(READY, replace(READY, name="q", **fields)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hot", "request_", "told"),
    [
        (True, Request(7, Mode.FP32), Mode.FP32),
        (True, None, Mode.FP16),
        (False, Request(7, Mode.FP32), Mode.FP16),
        (False, None, Mode.FP16),
    ],
)
def test_a_request_counts_only_where_the_pod_can_read_it(hot: bool, request_: Request | None, told: Mode) -> None:
    assert replace(READY, hot=hot, request=request_, started_mode=Mode.FP16).effective_mode is told


@pytest.mark.parametrize(
    ("workload", "coming_up"),
    [
        (QUIET, False),
        (replace(QUIET, observed=False), True),
        (replace(QUIET, updated_replicas=1), True),
        (replace(QUIET, pods=(READY,)), True),
        (with_second(ready=False), True),
        (with_second(ready=False, node=""), False),
        (with_second(ready=False, crashing=True), False),
    ],
    ids=[
        "all pods are ready",
        "its controller has not seen the newest spec",
        "old pods are still replaced",
        "a pod is missing",
        "one of two pods is not ready",
        "a pod waits for a node",
        "a pod crashes",
    ],
)
def test_a_restart_takes_its_place_in_the_budget_until_every_pod_is_ready_waits_for_a_node_or_crashes(
    workload: WorkloadView, coming_up: bool
) -> None:
    assert workload.coming_up is coming_up

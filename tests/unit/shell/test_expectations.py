"""What was written a moment ago is not written again, and is forgotten in time."""

from __future__ import annotations

from precision_operator.api.modes import Mode
from precision_operator.core.actions import RequestPod, Restore, WriteTemplate
from precision_operator.core.model import PodView, WorkloadView
from precision_operator.shell.expectations import EXPIRY_SECONDS, Expectations
from tests.unit.runtime.manual_clock import ManualClock


def write(name: str) -> WriteTemplate:
    return WriteTemplate(WorkloadView("ns", name, f"uid-{name}"), Mode.FP32, 3, None)


async def test_a_write_is_asked_for_again_once_the_watch_has_had_its_time() -> None:
    clock = ManualClock()
    expectations = Expectations(clock)
    assert expectations.fresh(write("a"))
    expectations.wrote(write("a"))
    assert not expectations.fresh(write("a"))
    assert expectations.fresh(write("b"))
    assert expectations.restarting() == {"uid-a"}
    await clock.advance(EXPIRY_SECONDS)
    assert expectations.fresh(write("a"))
    assert expectations.restarting() == frozenset()


async def test_a_write_made_again_counts_from_then_and_keeps_nobody_else_alive() -> None:
    clock = ManualClock()
    expectations = Expectations(clock)
    expectations.wrote(write("a"))
    expectations.wrote(write("b"))
    await clock.advance(EXPIRY_SECONDS - 1)
    expectations.wrote(write("a"))
    await clock.advance(1.5)
    assert expectations.restarting() == {"uid-a"}


async def test_a_pod_is_asked_again_when_its_annotation_has_changed_since() -> None:
    expectations = Expectations(ManualClock())
    workload = WorkloadView("ns", "a", "u")
    expectations.wrote(RequestPod(workload, PodView("p", "pu"), Mode.FP32, 3))
    assert not expectations.fresh(RequestPod(workload, PodView("p", "pu"), Mode.FP32, 3))
    assert expectations.fresh(RequestPod(workload, PodView("p", "pu", request_raw="{}"), Mode.FP32, 3))
    assert expectations.fresh(Restore(workload))

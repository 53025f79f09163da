"""What was written a moment ago is not written again, and is forgotten in time."""

from __future__ import annotations

from dataclasses import replace

from precision_operator.api.modes import Mode
from precision_operator.controller.expectations import EXPIRY_SECONDS, Expectations
from precision_operator.core.actions import DeletePod, EvictPod, Notify, RequestPod, ResumeJob, SuspendJob
from precision_operator.reasons import Reason
from tests.support.manual_clock import ManualClock
from tests.support.views import pod, workload


def request(name: str) -> RequestPod:
    return RequestPod(workload(), pod(name), Mode.FP32, 3)


async def test_a_write_is_asked_for_again_once_the_watch_has_had_its_time() -> None:
    clock = ManualClock()
    expectations = Expectations(clock)
    assert expectations.fresh(request("a"))
    expectations.wrote(request("a"))
    assert not expectations.fresh(request("a"))
    assert expectations.fresh(request("b"))
    await clock.advance(EXPIRY_SECONDS)
    assert expectations.fresh(request("a"))


async def test_a_write_made_again_counts_from_then_and_keeps_no_other_alive() -> None:
    clock = ManualClock()
    expectations = Expectations(clock)
    expectations.wrote(request("a"))
    expectations.wrote(request("b"))
    await clock.advance(EXPIRY_SECONDS - 1)
    expectations.wrote(request("a"))
    await clock.advance(1.5)
    assert not expectations.fresh(request("a"))
    assert expectations.fresh(request("b"))


async def test_nothing_is_kept_of_what_has_had_its_time() -> None:
    clock = ManualClock()
    expectations = Expectations(clock)
    for number in range(100):
        expectations.wrote(request(str(number)))
    await clock.advance(EXPIRY_SECONDS)
    expectations.wrote(request("last"))
    assert len(expectations._written) == 1


async def test_a_pod_is_asked_again_when_its_annotation_has_changed_since_or_something_else_is_asked() -> None:
    expectations = Expectations(ManualClock())
    first = request("a")
    expectations.wrote(first)
    assert not expectations.fresh(first)
    assert expectations.fresh(replace(first, pod=pod("a", request_raw="{}")))
    assert expectations.fresh(replace(first, mode=Mode.BF16))
    assert expectations.fresh(replace(first, generation=4))
    assert expectations.fresh(DeletePod(first.workload, first.pod, 3))


async def test_a_pod_is_taken_away_once_whatever_the_generation() -> None:
    expectations = Expectations(ManualClock())
    deletion = DeletePod(workload(), pod(), 3)
    expectations.wrote(deletion)
    assert not expectations.fresh(replace(deletion, generation=4))
    assert expectations.fresh(replace(deletion, pod=pod(uid="its-successor")))
    expectations.wrote(Notify(Reason.PROMOTED, "an Event is no write that is waited for"))
    assert expectations.fresh(Notify(Reason.PROMOTED, "an Event is no write that is waited for"))


async def test_a_pod_that_is_late_is_deleted_again_at_once_with_less_grace() -> None:
    expectations = Expectations(ManualClock())
    deletion = DeletePod(workload(), pod(), 3)
    expectations.wrote(deletion)
    assert expectations.fresh(replace(deletion, grace_seconds=1))
    assert expectations.fresh(EvictPod(workload(), pod(), 3))


async def test_a_job_is_suspended_once_and_resumed_once_as_it_is_seen() -> None:
    expectations = Expectations(ManualClock())
    running, suspended = workload(), workload(suspended=True)
    expectations.wrote(SuspendJob(running, 3, 1))
    assert not expectations.fresh(SuspendJob(running, 4, 1, respects_budgets=True))
    assert expectations.fresh(ResumeJob(suspended, 3, 2))
    expectations.wrote(ResumeJob(suspended, 3, 2))
    assert not expectations.fresh(ResumeJob(suspended, 4, 2))
    assert expectations.fresh(SuspendJob(suspended, 3, 1))


async def test_a_pod_is_evicted_once() -> None:
    expectations = Expectations(ManualClock())
    eviction = EvictPod(workload(), pod(), 3)
    expectations.wrote(eviction)
    assert not expectations.fresh(replace(eviction, generation=4))
    assert expectations.fresh(replace(eviction, pod=pod(uid="its-successor")))

"""The checklist's counts on their way from the report to the policy's status."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from precision_operator.api.modes import Mode
from precision_operator.api.policy import PolicyKey
from precision_operator.api.signals import Signal
from precision_operator.core.model import PodSignals, PodView
from precision_operator.core.observer import RecordedPass
from precision_operator.incidents.checklist import blank, counted, verify
from precision_operator.incidents.report import Check, CheckResult
from precision_operator.settings import IncidentSettings
from tests.support.reported import promoted, rolled_back

KEY = PolicyKey("ns", "fleet")
WINDOWS = IncidentSettings(immediate_seconds=300.0, short_seconds=1800.0, long_seconds=7200.0)


def test_lines_are_counted_by_their_result() -> None:
    results = (CheckResult.PASSED, CheckResult.PASSED, CheckResult.FAILED, CheckResult.UNKNOWN, CheckResult.PENDING)
    found = counted(tuple(Check(f"line {index}", "Short", result) for index, result in enumerate(results)))
    assert (found.passed, found.failed, found.unknown, found.pending) == (2, 1, 1, 1)


async def test_the_reporter_gives_the_counts_as_they_come_in_and_keeps_them_when_the_incident_is_closed() -> None:
    stage = await rolled_back()
    assert stage.reporter.verified(PolicyKey("ns", "other")) is None
    early = stage.reporter.verified(KEY)
    assert early == (stage.report.id, counted(stage.report.checklist))
    assert early[1].pending > 0
    await stage.passes(130, 60.0)
    closed = stage.reporter.verified(KEY)
    assert closed == (stage.report.id, counted(stage.report.checklist))
    assert (closed[1].pending, closed[1].failed) == (0, 0)


async def test_a_rollback_that_is_under_way_has_failed_nothing_until_its_first_window_is_over() -> None:
    stage = await promoted()
    stage.breach()
    await stage.unacted(4)
    assert stage.report.in_fallback_at is None
    under_way = counted(stage.report.checklist)
    assert under_way.pending == sum((under_way.passed, under_way.failed, under_way.unknown, under_way.pending))
    await stage.unacted(20)
    assert counted(stage.report.checklist).failed > 0


Damage = Callable[[PodView, PodSignals], tuple[PodView, PodSignals]]


def values(**changed: float) -> Damage:
    """Another value of a signal."""
    return lambda pod, s: (pod, replace(s, values={**s.values, **{Signal(k): v for k, v in changed.items()}}))


DAMAGES: dict[str, Damage] = {
    # line: what it fails for
    "Services restarted": lambda pod, s: (replace(pod, ready=False), s),
    "Fallback confirmed by the processes": lambda pod, s: (pod, replace(s, mode=Mode.FP16)),
    "No low-precision statistics": values(overflow=0.01),
    "Training jobs starting": lambda pod, s: (pod, replace(s, steps=0.0)),
    "Training completion rate above 95 %": values(failures=0.06),
    "Loss matches the FP32 baseline": values(divergence=0.06),
    "No overflow": values(overflow=0.01),
    "Performance matches the FP32 baseline": values(speed=0.8),
    "System stability": lambda pod, s: (replace(pod, crashing=True), s),
    "Model accuracy": values(divergence=0.03),
    "Throughput at the FP32 level": values(speed=0.8),
    "Memory at the FP32 level": lambda pod, s: (pod, replace(s, fp32_memory=1.2)),
}


async def judged(damage: Damage | None = None, *, silent: bool = False) -> dict[str, CheckResult]:
    """Every line, looked at once after a rollback of everything; the damage is one pod's."""
    stage = await rolled_back()
    seen, report = stage.world.observe(), replace(stage.report, checklist=blank())
    assert seen.evaluation is not None
    late = stage.world.now + 3 * 3600.0
    workloads, pods = list(seen.workloads), dict(seen.evaluation.pods)
    (pod,) = workloads[0].pods
    ready = [replace(w, pods=tuple(replace(p, ready=True) for p in w.pods)) for w in workloads]
    if damage is not None:
        pod, pods[pod.name] = damage(replace(pod, ready=True), pods[pod.name])
        ready[0] = replace(ready[0], pods=(pod,))
    evaluation = replace(seen.evaluation, at=late, pods={} if silent else pods)
    observation = replace(seen, workloads=tuple(ready), evaluation=evaluation)
    given = RecordedPass(stage.world.policy, stage.world.state, observation, stage.world.decide(), late)
    found = verify(report, given, WINDOWS, now=late)
    return {check.name: check.result for check in found}


async def test_every_line_can_pass() -> None:
    assert set((await judged()).values()) == {CheckResult.PASSED}


@pytest.mark.parametrize("line", [check.name for check in blank()])
async def test_every_line_can_fail(line: str) -> None:
    assert (await judged(DAMAGES[line]))[line] is CheckResult.FAILED


async def test_no_line_that_asks_metrics_passes_without_them() -> None:
    found = await judged(silent=True)
    assert {name for name, result in found.items() if result is CheckResult.PASSED} == {
        "Services restarted",
        "System stability",
    }
    assert set(found.values()) == {CheckResult.PASSED, CheckResult.UNKNOWN}


async def test_runs_of_which_none_has_ended_have_not_ended_well() -> None:
    assert (await judged(values(failures=math.nan)))["Training completion rate above 95 %"] is CheckResult.UNKNOWN

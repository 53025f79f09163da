"""What a rollback has cost: what was not measured is Unknown, and never 0."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from precision_operator.api.state import Phase
from precision_operator.api.wire import parse_time
from precision_operator.incidents.cost import ORIGIN, STEP, Cost, cost_text, with_steps
from precision_operator.incidents.markdown import page
from precision_operator.incidents.report import IncidentPhase
from precision_operator.signals.port import Series
from tests.support.reported import Stage, promoted, rolled_back

DETECTED = 100.0
HOUR = 3600.0
Points = tuple[tuple[float, float, float], ...]


def lost(**pods: Points) -> tuple[int | None, int]:
    """(steps lost, in how many workloads), of pods named ``workload_number`` with (time, step, origin)."""
    steps = [Series({"pod": pod}, tuple((at, step) for at, step, _ in points)) for pod, points in pods.items()]
    origins = [Series({"pod": pod}, tuple((at, origin) for at, _, origin in points)) for pod, points in pods.items()]
    workloads = {pod: pod.partition("_")[0] for pod in pods}
    cost = with_steps(Cost(workloads=3), steps, origins, pods=workloads, since=DETECTED)
    return cost.steps_lost, cost.steps_of


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ({"a_1": ((90, 800, 0), (105, 900, 0), (120, 1000, 0))}, (0, 1)),
        ({"a_1": ((90, 800, 0), (105, 850, -12), (120, 950, -12))}, (12, 1)),
        ({"a_1": ((60, 800, 0), (90, 850, -50), (120, 950, -50))}, (0, 1)),
        ({"a_1": ((90, 800, 0), (105, 812, 0), (120, 805, 800))}, (12, 1)),
        ({"a_1": ((90, 900, 800), (105, 950, 800), (120, 805, 800))}, (150, 1)),
        ({"a_1": ((90, 800, 0), (105, 812, 0)), "a_2": ((120, 803, 800), (135, 830, 800))}, (12, 1)),
        ({"a_1": ((90, 800, 0), (105, 812, 0)), "a_2": ((120, 815, 812),)}, (0, 1)),
        ({"a_1": ((90, 800, 0), (105, 850, -12)), "a_2": ((90, 800, 0), (105, 850, -12))}, (12, 1)),
        ({"a_1": ((90, 800, 0), (105, 850, -12)), "b_1": ((90, 10, 0), (105, 20, -3))}, (15, 2)),
        ({"a_1": ((90, 8, 0),), "a_2": ((90, 9, 0),), "a_3": ((120, 8, 8),)}, (None, 0)),
        ({"a_1": ((90, 800, 0), (105, 812, 0)), "b_1": ((90, 10, 0), (120, 20, 0))}, (0, 1)),
        ({"a_2": ((120, 803, 800), (135, 830, 800))}, (None, 0)),
        ({"a_1": ((90, 800, 0), (105, math.nan, math.nan))}, (None, 0)),
        ({"a_1": ((90, 1e300, 1e300), (105, 0, 0))}, (None, 0)),
        ({}, (None, 0)),
    ],
)
def test_steps_are_lost_by_rewinds_and_restarts_after_the_breach(
    pods: dict[str, Points], expected: tuple[int | None, int]
) -> None:
    assert lost(**pods) == expected


def test_pods_that_are_not_of_the_rollback_count_in_nothing() -> None:
    points = ((90.0, 800.0), (105.0, 700.0))
    series = [Series({"pod": "others"}, points)]
    assert with_steps(Cost(workloads=1), series, series, pods={}, since=DETECTED).steps_lost is None


@pytest.mark.parametrize(
    ("cost", "until", "ended", "expected"),
    [
        (Cost(), HOUR, False, "steps lost: unknown; 0.00 h of restarts; slower training in the fallback: unknown"),
        (
            Cost(workloads=3, steps_lost=12, steps_of=2, restart_hours=0.25, slower_rate=0.5, slower_of=3),
            5 * HOUR,
            True,
            "12 steps lost (in 2 of 3 workloads); 0.25 h of restarts; 2.50 h of slower training in the fallback",
        ),
        (
            Cost(workloads=1, steps_lost=0, steps_of=1, slower_rate=0.5, slower_of=1),
            HOUR,
            False,
            "0 steps lost; 0.00 h of restarts; 0.50 h of slower training in the fallback, so far",
        ),
        (
            Cost(workloads=2, steps_lost=0, steps_of=2, slower_rate=0.5, slower_of=1),
            None,
            False,
            "0 steps lost; 0.00 h of restarts; 0.50 h in each hour in the fallback (in 1 of 2 workloads), "
            "until when: unknown",
        ),
    ],
)
def test_the_cost_in_words(cost: Cost, until: float | None, ended: bool, expected: str) -> None:
    assert cost_text(cost, since=0.0, until=until, ended=ended) == expected


async def retried(stage: Stage) -> None:
    """A person retries, and the policy goes back to the target."""
    stage.world.bad = {}
    answered = {"precision.genesis.ai/retry": str(stage.world.state.transition_id)}
    stage.world.policy = replace(stage.world.policy, annotations=answered)
    await stage.passes(2)
    assert stage.world.state.phase is not Phase.HELD


async def test_an_incident_says_what_an_hour_in_the_fallback_costs_and_until_when() -> None:
    stage = await rolled_back()
    cost = stage.report.cost
    assert (cost.workloads, cost.slower_of, cost.slower_rate) == (4, 4, 0.8)
    assert (cost.restart_hours, cost.steps_lost) == (0.0, None), "hot workloads, of which no steps are known"
    await stage.passes(25, 60.0)
    await retried(stage)
    report = stage.report
    assert report.phase is IncidentPhase.CLOSED
    assert report.stages.left_at
    hours = ((parse_time(report.stages.left_at) or 0.0) - (report.in_fallback_at or 0.0)) / HOUR
    assert f"{0.8 * hours:.2f} h of slower training in the fallback |" in page(report, namespace="ns", name="x")


async def test_a_retry_long_after_the_incident_was_closed_is_written_once() -> None:
    stage = await rolled_back()
    await stage.passes(150, 60.0)
    assert stage.report.phase is IncidentPhase.CLOSED
    assert not stage.report.stages.left_at
    await retried(stage)
    assert stage.report.stages.left_at
    writes = stage.incident_writes
    await stage.passes(5)
    assert stage.incident_writes == writes


async def test_the_steps_of_a_rewind_stand_in_the_incident() -> None:
    stage = await rolled_back_with_steps()
    assert (stage.report.cost.steps_lost, stage.report.cost.steps_of) == (40, 1)
    assert {STEP, ORIGIN} <= {evidence.name for evidence in stage.report.evidence}


async def rolled_back_with_steps() -> Stage:
    """A fleet of which one pod's history shows that it was rewound by 40 steps."""
    stage = await promoted()
    shown = stage.past.history

    async def history(query: str, start: float, end: float, step_seconds: float) -> list[Series]:
        if "genesis_training_step{" not in query:
            return list(await shown(query, start, end, step_seconds))
        before, after = (0.0, -40.0) if "steps_total" in query else (500.0, 480.0)
        return [Series({"pod": "hot-1-2"}, ((start, before), (end, after)))]

    stage.past.history = history  # type: ignore[method-assign]  # below the port
    stage.breach()
    await stage.passes(8)
    return stage

"""Evidence that is asked for while something else happens: somebody writes, another incident follows, a circuit is open."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from precision_operator.core.observer import RecordedPass
from precision_operator.incidents.collector import EvidenceCollector
from precision_operator.incidents.report import IncidentPhase, Report
from precision_operator.signals.endpoint import Circuit
from tests.support.manual_clock import ManualClock
from tests.support.reported import Stage, promoted, rolled_back

pytestmark = pytest.mark.slow


async def verifying() -> Stage:
    """All are in the fallback and their object says so, with evidence from before; Prometheus hangs since."""
    stage = await promoted()
    stage.world.unresponsive = {"hot-3"}
    stage.breach()
    while not stage.reports() or not stage.report.evidence:
        await stage.passes(1)
    assert stage.report.phase is IncidentPhase.ACTIVE
    stage.past.answers.clear()
    stage.world.unresponsive = set()
    while stage.report.phase is IncidentPhase.ACTIVE:
        await stage.passes(1)
    await stage.passes(2)
    assert not is_final(stage.report)
    return stage


def is_final(report: Report) -> bool:
    """The evidence is from after all were in the fallback."""
    return min(evidence.end for evidence in report.evidence) >= report.stages.last_ack_at


async def test_somebody_who_writes_an_incident_costs_it_no_evidence() -> None:
    stage = await verifying()
    stage.annotate()
    await stage.passes(6, 60.0)
    stage.past.answers.set()
    await stage.passes(3, 60.0)
    assert is_final(stage.report)


async def test_evidence_that_was_found_when_somebody_wrote_is_asked_for_again() -> None:
    stage = await verifying()
    stage.annotate()
    stage.past.answers.set()
    await stage.passes(6, 60.0)
    assert is_final(stage.report)


async def test_a_new_leader_asks_for_what_the_one_before_did_not_get() -> None:
    stage = await verifying()
    stage.reporter = stage.hired()
    stage.past.answers.set()
    await stage.passes(4, 60.0)
    assert is_final(stage.report)
    asked = len(stage.past.asked)
    stage.reporter = stage.hired()
    await stage.passes(4, 60.0)
    assert len(stage.past.asked) == asked, "it is there"


@pytest.mark.parametrize("newer", [True, False])
async def test_an_incident_that_another_one_follows_gets_the_evidence_that_was_asked_for(newer: bool) -> None:
    stage = await verifying()
    first, incident = stage.report.id, stage.world.state.incident
    assert incident is not None
    stage.follow(replace(incident, id="fleet-99", decided_at=stage.world.now) if newer else None)
    await stage.turn()
    closed = next(report for report in stage.reports() if report.id == first)
    assert (closed.phase, is_final(closed)) == (IncidentPhase.CLOSED, False)
    assert len(stage.reports()) == 1 + newer, "no incident waits for another one's evidence"
    stage.past.answers.set()
    await stage.turn()
    report = next(report for report in stage.reports() if report.id == first)
    assert is_final(report)
    assert report == replace(closed, evidence=report.evidence, cost=report.cost, questions=report.questions)


@pytest.mark.parametrize(("rest_seconds", "error"), [(15.0, ""), (3600.0, "EndpointNotAnswering")])
async def test_a_circuit_that_is_open_is_waited_for_and_not_for_ever(rest_seconds: float, error: str) -> None:
    stage, clock = await rolled_back(), ManualClock()
    seen = RecordedPass(
        stage.world.policy, stage.world.state, stage.world.observe(), stage.world.decide(), stage.world.now
    )
    opened_at, asked = clock.now, len(stage.past.asked)
    collector = EvidenceCollector(
        {"default": stage.past},
        {},
        clock=clock,
        failed=stage.metrics.report_error,
        circuits=lambda: {"default": Circuit.OPEN if clock.now < opened_at + rest_seconds else Circuit.CLOSED},
    )
    gathering = asyncio.create_task(collector.gather(stage.report, seen, now=stage.world.now))
    await clock.advance(rest_seconds / 2)
    assert (len(stage.past.asked), gathering.done()) == (asked, bool(error))
    await clock.advance(rest_seconds / 2)
    assert {evidence.error for evidence in await gathering} == {error}

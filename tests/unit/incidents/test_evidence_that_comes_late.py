"""Evidence that is asked for while something else happens: somebody writes, another incident follows, a circuit is open."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from precision_operator.core.observer import RecordedPass
from precision_operator.errors import Unavailable
from precision_operator.incidents.closing import AGAIN
from precision_operator.incidents.collector import EvidenceCollector
from precision_operator.incidents.report import IncidentPhase, Report
from precision_operator.kube.port import JsonObject, Resource
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


async def test_evidence_that_was_found_when_somebody_wrote_is_not_lost() -> None:
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


@pytest.mark.parametrize("hindered", ["refused once", "somebody wrote", "somebody wrote before", "found before"])
async def test_an_incident_that_is_not_closed_at_the_first_try_gets_the_evidence_that_was_asked_for(
    hindered: str,
) -> None:
    stage = await verifying()
    first = stage.report.id
    if hindered == "refused once":
        stage.refuse(Unavailable("no answer", status=503))
    else:
        stage.annotate()
    if hindered == "somebody wrote before":
        incident = stage.world.state.incident
        assert incident is not None
        stage.follow(replace(incident, message="another word, which is saved"))
        stage.world.now += 60.0
        await stage.reporter.turn()
    if hindered == "found before":
        stage.past.answers.set()
        await stage.idle(2, 60.0)
    (track,) = stage.reporter._tracks.values()
    assert (track.stale is not None) is hindered.endswith("before"), "its save was a conflict"
    stage.supersede()
    await stage.turn()
    stage.refuse(None)
    stage.past.answers.set()
    await stage.idle(3, AGAIN.limit_seconds)
    report = next(report for report in stage.reports() if report.id == first)
    assert (report.phase, is_final(report)) == (IncidentPhase.CLOSED, True)


@pytest.mark.parametrize("seconds", [10.0, AGAIN.first_seconds], ids=["before the next try", "with it"])
async def test_evidence_that_comes_before_it_is_known_that_an_incident_is_closed_is_not_lost(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = await verifying()
    write = stage.kube.replace

    async def unanswered(resource: Resource, namespace: str, name: str, body: JsonObject) -> JsonObject:
        await write(resource, namespace, name, body)
        raise Unavailable("no answer", status=503)

    with monkeypatch.context() as broken:
        broken.setattr(stage.kube, "replace", unanswered)
        stage.supersede(None)
        await stage.turn()
    assert (stage.report.phase, is_final(stage.report)) == (IncidentPhase.CLOSED, False)
    stage.past.answers.set()
    await stage.idle(1, seconds)
    await stage.idle(2, AGAIN.first_seconds)
    assert is_final(stage.report)


async def test_the_evidence_of_an_incident_that_is_closed_is_written_although_it_was_refused_at_first() -> None:
    stage = await verifying()
    stage.supersede(None)
    await stage.turn()
    assert stage.report.phase is IncidentPhase.CLOSED
    stage.refuse(Unavailable("no answer", status=503))
    stage.past.answers.set()
    await stage.turn()
    stage.refuse(None)
    await stage.idle(1, AGAIN.first_seconds)
    assert is_final(stage.report)


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
        most_bytes=2**20,
        circuits=lambda: {"default": Circuit.OPEN if clock.now < opened_at + rest_seconds else Circuit.CLOSED},
    )
    gathering = asyncio.create_task(collector.gather(stage.report, seen, now=stage.world.now))
    await clock.advance(rest_seconds / 2)
    assert (len(stage.past.asked), gathering.done()) == (asked, bool(error))
    await clock.advance(rest_seconds / 2)
    assert {evidence.error for evidence in await gathering} == {error}

"""An incident that another one follows while somebody else writes its object: it is closed all the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precision_operator.incidents.report import IncidentPhase
from tests.support.reported import Stage, rolled_back


async def until_quiet(stage: Stage) -> None:
    for _ in range(4):
        stage.world.now += 10.0
        await stage.turn()


@pytest.mark.parametrize("newer", [True, False])
@pytest.mark.parametrize("seen_before", [True, False], ids=["met before it was followed", "met by its last save"])
async def test_a_conflict_leaves_no_incident_open_that_another_one_followed(newer: bool, seen_before: bool) -> None:
    stage = await rolled_back()
    first, incident = stage.report.id, stage.world.state.incident
    assert incident is not None
    stage.annotate()
    if seen_before:
        stage.follow(replace(incident, message="another word, which is saved"))
        stage.world.now += 60.0
        await stage.reporter.turn()
    stage.follow(replace(incident, id="fleet-99", decided_at=stage.world.now) if newer else None)
    await stage.turn()
    assert stage.report.phase is not IncidentPhase.CLOSED, "somebody wrote"
    await until_quiet(stage)
    reports = {report.id: report for report in stage.reports()}
    assert reports.keys() == ({first, "fleet-99"} if newer else {first})
    assert reports[first].phase is IncidentPhase.CLOSED
    assert [moment.what for moment in reports[first].timeline].count("Superseded") == 1
    assert all(moment.what != "Superseded" for moment in reports.get("fleet-99", reports[first]).timeline) is newer


async def test_one_that_was_deleted_is_not_made_anew_for_its_end() -> None:
    stage = await rolled_back()
    incident = stage.world.state.incident
    assert incident is not None
    stage.annotate()
    stage.follow(replace(incident, id="fleet-99", decided_at=stage.world.now))
    await stage.turn()
    stage.kube.objects.clear()
    await until_quiet(stage)
    assert stage.report.id == "fleet-99"

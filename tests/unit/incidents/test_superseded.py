"""An incident that another one follows while somebody else writes its object: it is closed all the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from precision_operator.errors import Forbidden, OperatorError, Unavailable
from precision_operator.incidents.document import name_for
from precision_operator.incidents.report import IncidentPhase
from precision_operator.incidents.reporter import UNCLOSED_SECONDS
from precision_operator.kube.port import INCIDENTS, Resource
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


Break = Callable[[Stage, pytest.MonkeyPatch], None]


def refuse(verb: str, error: OperatorError) -> Break:
    """Of the first incident's object."""

    def refused(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        stage.annotate() if verb == "get" else None
        first, call = name_for(stage.report), getattr(stage.kube, verb)

        async def answer(resource: Resource, namespace: str, name: str, *given: object) -> object:
            if (resource, name) == (INCIDENTS, first):
                raise error
            return await call(resource, namespace, name, *given)

        monkeypatch.setattr(stage.kube, verb, answer)

    return refused


def damage(stage: Stage, _: pytest.MonkeyPatch) -> None:
    """Somebody writes into the tape."""
    stage.annotate()
    (body,) = (body for (plural, *_), body in stage.kube.objects.items() if plural == INCIDENTS.plural)
    body["report"]["recordings"]["tape"] = "AAAA"  # type: ignore[index, call-overload]


@pytest.mark.parametrize(
    ("breaks", "closed"),
    [
        (refuse("get", Forbidden("no", status=403)), False),
        (refuse("get", Unavailable("no answer", status=503)), True),
        (refuse("replace", Forbidden("no", status=403)), True),
        (damage, False),
    ],
    ids=["unreadable", "no answer", "not to be replaced", "damaged"],
)
async def test_one_that_cannot_be_closed_holds_the_next_one_up_in_nothing_and_is_closed_later(
    breaks: Break, closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = await rolled_back()
    incident, first = stage.world.state.incident, stage.report.id
    assert incident is not None
    stage.delivered.clear()
    with monkeypatch.context() as broken:
        breaks(stage, broken)
        stage.follow(replace(incident, id="fleet-99", decided_at=stage.world.now))
        await stage.turn()
        await until_quiet(stage)
        assert "fleet-99" in {report.id for report in stage.reports()}
        assert "on-call" in {role for role, _ in stage.delivered}
    stage.world.now += UNCLOSED_SECONDS
    await until_quiet(stage)
    reports = {report.id: report for report in stage.reports()}
    assert (reports[first].phase is IncidentPhase.CLOSED) is closed
    superseded = [moment.what for moment in reports[first].timeline].count("Superseded")
    assert superseded == (1 if closed else 0)


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

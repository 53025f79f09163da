"""An incident that another one follows while its object cannot be written, or somebody else writes it: it is closed all the
same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from precision_operator.api.policy import PolicyKey
from precision_operator.errors import Forbidden, NotFound, OperatorError, Unavailable
from precision_operator.incidents.closing import AGAIN, SUPERSEDED_LIMIT
from precision_operator.incidents.document import name_for, name_of
from precision_operator.incidents.report import IncidentPhase, stamp
from precision_operator.incidents.reporter import RETRY
from precision_operator.kube.port import INCIDENTS, JsonObject, Resource
from tests.support.reported import Stage, promoted, rolled_back

FIRST = "fleet-5"
"""The incident of :func:`rolled_back`."""
KEY = PolicyKey("ns", "fleet")


async def until_quiet(stage: Stage) -> None:
    await stage.idle(4, 10.0)


async def until_tried_again(stage: Stage) -> None:
    """Each that is not closed is tried again, however often it has failed."""
    await stage.idle(3, AGAIN.limit_seconds)


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
    await until_quiet(stage)
    reports = {report.id: report for report in stage.reports()}
    assert reports.keys() == ({first, "fleet-99"} if newer else {first})
    assert reports[first].phase is IncidentPhase.CLOSED
    assert [moment.what for moment in reports[first].timeline].count("Superseded") == 1
    assert all(moment.what != "Superseded" for moment in reports.get("fleet-99", reports[first]).timeline) is newer


AWAY = Unavailable("no answer", status=503)
REFUSED = Forbidden("no", status=403)

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
        (refuse("get", REFUSED), False),
        (refuse("get", AWAY), True),
        (refuse("replace", REFUSED), True),
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
    stage.world.now += AGAIN.first_seconds
    await until_quiet(stage)
    reports = {report.id: report for report in stage.reports()}
    assert (reports[first].phase is IncidentPhase.CLOSED) is closed
    superseded = [moment.what for moment in reports[first].timeline].count("Superseded")
    assert superseded == (1 if closed else 0)


async def test_a_newer_one_that_is_refused_for_ever_keeps_none_before_it_open() -> None:
    stage = await rolled_back()
    stage.refuse(AWAY)
    stage.supersede()
    await stage.turn()
    stage.refuse(REFUSED, name=name_of("fleet-99", stamp(stage.world.now)))
    await stage.idle(3, AGAIN.limit_seconds)
    assert stage.phases() == {FIRST: IncidentPhase.CLOSED}


async def test_one_that_was_deleted_is_not_made_anew_for_its_end() -> None:
    stage = await rolled_back()
    stage.refuse(AWAY)
    stage.supersede()
    await stage.turn()
    stage.kube.objects.clear()
    stage.refuse(None)
    await until_tried_again(stage)
    assert stage.phases().keys() == {"fleet-99"}


@pytest.mark.parametrize("deleted", [False, True], ids=["its policy stays", "its policy is deleted"])
async def test_one_that_had_no_place_is_created_later_unless_its_policy_is_deleted(deleted: bool) -> None:
    stage = await promoted()
    stage.refuse(NotFound("the server could not find the requested resource", status=404))
    stage.breach()
    await stage.passes(8)
    stage.supersede(None)
    await stage.idle(1, RETRY.limit_seconds)
    if deleted:
        stage.reporter.gone(KEY)
    await until_tried_again(stage)
    stage.refuse(None)
    await until_tried_again(stage)
    assert list(stage.phases().values()) == ([] if deleted else [IncidentPhase.CLOSED])
    assert len(stage.reporter._tracks) == (0 if deleted else 1)


async def test_one_whose_creation_was_never_answered_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = await promoted()
    create = stage.kube.create

    async def unanswered(resource: Resource, namespace: str, body: JsonObject) -> JsonObject:
        await create(resource, namespace, body)
        stage.refuse(AWAY)
        raise AWAY

    stage.breach()
    with monkeypatch.context() as broken:
        broken.setattr(stage.kube, "create", unanswered)
        while not stage.reports():
            await stage.passes(1)
    stage.supersede()
    await stage.turn()
    assert stage.phases()[FIRST] is IncidentPhase.ACTIVE
    stage.refuse(None)
    await until_tried_again(stage)
    assert stage.phases()[FIRST] is IncidentPhase.CLOSED


async def test_each_of_several_that_could_not_be_closed_is_closed_later() -> None:
    stage = await rolled_back()
    stage.refuse(AWAY)
    for newer in ("fleet-97", "fleet-98", "fleet-99"):
        stage.supersede(newer)
        await stage.turn()
        await until_quiet(stage)
    stage.refuse(None)
    await until_tried_again(stage)
    await until_tried_again(stage)
    phases = stage.phases()
    assert [phases.pop(incident) for incident in (FIRST, "fleet-97", "fleet-98")] == [IncidentPhase.CLOSED] * 3


async def test_of_more_than_may_wait_the_oldest_is_left_open_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    stage = await rolled_back()
    stage.refuse(AWAY, name=name_for(stage.report))
    stage.supersede("fleet-80")
    await stage.turn()
    stage.refuse(AWAY)
    for n in range(SUPERSEDED_LIMIT):
        stage.world.now += 60.0
        stage.supersede(f"fleet-{81 + n}")
        await stage.turn()
    await until_tried_again(stage)
    stage.refuse(None)
    await until_tried_again(stage)
    await until_tried_again(stage)
    (track,) = stage.reporter._tracks.values()
    assert track.superseded == []
    assert stage.phases()[FIRST] is IncidentPhase.VERIFYING
    assert [record.getMessage() for record in caplog.records if FIRST in record.getMessage()][-1].endswith(
        "8 newer ones wait too; it is closed within about an hour"
    )


async def test_the_reporter_wakes_in_time_for_one_that_is_not_closed() -> None:
    stage = await rolled_back()
    stage.refuse(AWAY)
    stage.supersede(None)
    await stage.turn()
    assert stage.reporter._pause_seconds() == AGAIN.first_seconds


async def test_the_longer_one_cannot_be_closed_the_less_often_it_is_tried() -> None:
    stage = await rolled_back()
    stage.refuse(AWAY)
    stage.supersede(None)
    await stage.turn()
    before = stage.incident_writes
    await stage.idle(60, 60.0)
    assert 10 <= stage.incident_writes - before <= 16, "in an hour"


async def test_on_call_is_not_told_again_while_one_cannot_be_closed() -> None:
    stage = await promoted()
    stage.breach()
    while not stage.reports():
        await stage.passes(1)
    stage.refuse(REFUSED, name=name_for(stage.report))
    await stage.passes(4)
    stage.supersede()
    await stage.turn()
    await until_quiet(stage)
    stage.delivered.clear()
    await stage.idle(30, 61.0)
    assert len(stage.delivered) == len(set(stage.delivered)), "of the newer one alone"


async def test_what_was_delivered_before_somebody_wrote_is_not_sent_again() -> None:
    stage = await promoted()
    stage.breach()
    while not stage.reports():
        await stage.passes(1)
    stage.refuse(REFUSED)
    await stage.passes(4)
    stage.refuse(None)
    stage.annotate()
    stage.delivered.clear()
    stage.supersede(None)
    await until_quiet(stage)
    assert stage.report.phase is IncidentPhase.CLOSED
    assert stage.delivered == []


@pytest.mark.parametrize("annotated", [False, True])
async def test_one_that_is_closed_late_has_the_stages_that_were_seen_meanwhile(annotated: bool) -> None:
    stage = await promoted()
    stage.breach()
    while not stage.reports():
        await stage.passes(1)
    assert not stage.report.stages.last_ack_at
    stage.refuse(REFUSED)
    await stage.passes(8)
    incident = stage.world.state.incident
    assert incident is not None
    if annotated:
        stage.annotate()
    stage.supersede()
    await stage.turn()
    stage.refuse(None)
    await until_tried_again(stage)
    first = next(report for report in stage.reports() if report.id == FIRST)
    assert first.phase is IncidentPhase.CLOSED
    assert first.in_fallback_at == incident.last_ack_at


async def test_one_that_cannot_be_read_is_given_up_with_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = await rolled_back()
    refuse("get", REFUSED)(stage, monkeypatch)
    stage.supersede()
    await stage.turn()
    await until_tried_again(stage)
    warned = [record.getMessage() for record in caplog.records if FIRST in record.getMessage()]
    assert warned == [f"{FIRST} of {KEY} stays open: no"]


async def test_one_whose_policy_is_deleted_before_it_could_be_closed_is_closed() -> None:
    stage = await rolled_back()
    stage.refuse(AWAY)
    stage.supersede(None)
    await stage.turn()
    stage.reporter.gone(KEY)
    await stage.turn()
    stage.refuse(None)
    await until_tried_again(stage)
    assert stage.report.timeline[-1].what == "Superseded"
    assert stage.reporter._tracks == {}

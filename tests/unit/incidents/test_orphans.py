"""Open incidents that no pass carries on any more, because their policy has a newer one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precision_operator.api.assignment import VERSION, assignment_to_wire
from precision_operator.api.incident import Incident
from precision_operator.api.state import State
from precision_operator.errors import Forbidden, Unavailable
from precision_operator.incidents.document import name_for, to_body
from precision_operator.incidents.orphans import EVERY_SECONDS
from precision_operator.incidents.report import IncidentPhase
from precision_operator.kube.port import ASSIGNMENTS, INCIDENTS, JsonObject
from tests.support.reported import Stage, rolled_back


def assign(stage: Stage, state: State, *, version: int = VERSION) -> None:
    """The policy's assignment as the operator writes it."""
    wire: JsonObject = assignment_to_wire(state)  # type: ignore[assignment]
    wire["state"]["version"] = version  # type: ignore[index, call-overload]
    stage.kube.put(ASSIGNMENTS, {**wire, "metadata": {"name": "fleet", "namespace": "ns"}})


def incident_of(stage: Stage) -> Incident:
    assert stage.world.state.incident is not None
    return stage.world.state.incident


async def test_a_new_leader_closes_what_the_one_before_could_not() -> None:
    stage = await rolled_back()
    first = stage.report.id
    stage.refuse(Unavailable("no answer", status=503))
    stage.supersede()
    await stage.turn()
    stage.refuse(None)
    newer = replace(incident_of(stage), id="fleet-99", decided_at=stage.world.now)
    assign(stage, replace(stage.world.state, incident=newer))
    stage.reporter = stage.hired()
    stage.follow(newer)
    await stage.turn()
    assert stage.phases() == {first: IncidentPhase.CLOSED, "fleet-99": IncidentPhase.VERIFYING}
    closed = next(report for report in stage.reports() if report.id == first)
    assert (closed.timeline[-1].what, closed.timeline[-1].message) == ("Superseded", "by fleet-99")


@pytest.mark.parametrize(
    ("change", "closed"),
    [
        ({}, False),
        ({"id": "fleet-99"}, True),
        ({"decided_at": 1.0}, True),
    ],
    ids=["itself", "another one", "another one of that name"],
)
async def test_an_incident_is_closed_where_its_assignment_names_another_one(
    change: dict[str, object], closed: bool
) -> None:
    stage = await rolled_back()
    assign(stage, replace(stage.world.state, incident=replace(incident_of(stage), **change)))  # type: ignore[arg-type]
    stage.reporter = stage.hired()
    await stage.turn()
    assert (stage.report.phase is IncidentPhase.CLOSED) is closed


async def test_an_incident_is_closed_where_its_assignment_names_none() -> None:
    stage = await rolled_back()
    assign(stage, replace(stage.world.state, incident=None))
    stage.reporter = stage.hired()
    await stage.turn()
    assert stage.report.timeline[-1].message == "by a policy without an incident"


async def test_an_assignment_of_a_newer_operator_ends_no_incident() -> None:
    stage = await rolled_back()
    assign(stage, replace(stage.world.state, incident=None), version=VERSION + 1)
    stage.reporter = stage.hired()
    await stage.turn()
    assert stage.report.phase is IncidentPhase.VERIFYING


async def test_one_that_the_api_server_refuses_keeps_none_behind_it_open() -> None:
    stage = await rolled_back()
    assign(stage, replace(stage.world.state, incident=None))
    (body,) = (body for (plural, *_), body in stage.kube.objects.items() if plural == INCIDENTS.plural)
    first, name = stage.report, name_for(stage.report)
    second = replace(first, id="fleet-99")
    stage.kube.put(INCIDENTS, {**body, **to_body(second, namespace="ns")})
    stage.refuse(Forbidden("not this one", status=403), name=name)
    stage.reporter = stage.hired()
    await stage.turn()
    assert stage.phases() == {first.id: IncidentPhase.VERIFYING, second.id: IncidentPhase.CLOSED}


async def test_an_incident_that_this_process_works_on_is_left_to_that() -> None:
    stage = await rolled_back()
    assign(stage, replace(stage.world.state, incident=None))
    await stage.idle(1, EVERY_SECONDS)
    assert stage.report.phase is IncidentPhase.VERIFYING

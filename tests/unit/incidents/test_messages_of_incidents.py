"""The messages of a rollback: to whom they go, what they say of its strategy, and that none is lost or told late."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precision_operator.api.choices import Severity, Strategy
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from precision_operator.api.wire import mapping
from precision_operator.api.workload import name_of as workload_name
from precision_operator.errors import Forbidden
from precision_operator.incidents.document import SEVERITY_LABEL
from precision_operator.incidents.notifier import PROMPT_TRIES
from precision_operator.incidents.report import IncidentPhase
from precision_operator.incidents.reporter import PAST_SECONDS
from precision_operator.kube.port import INCIDENTS, JsonObject, Resource
from precision_operator.replay.recording import unpack
from precision_operator.replay.rerun import first_difference
from tests.support.fake_kube import Key
from tests.support.reported import Stage, promoted, rolled_back
from tests.support.rollbacks import MILD, QUICK, annotate

pytestmark = pytest.mark.slow


async def test_messages_go_to_who_is_on_call_once() -> None:
    stage = await rolled_back()
    stage.reporter = stage.hired()
    await stage.passes(130, 60.0)
    assert stage.delivered == [("on-call", "Notice"), ("on-call", "AllClear")]
    assert [m.delivered for m in stage.report.messages] == [("on-call",), ("on-call",)]


async def test_a_channel_that_refuses_is_tried_again_for_as_long_as_the_incident_is_kept() -> None:
    stage = await promoted()
    stage.refused = 3
    stage.breach()
    await stage.passes(8)
    assert stage.delivered == [("on-call", "Notice")]
    assert b'precision_report_errors_total{reason="NotDelivered"} 3.0' in stage.metrics.exposition()
    long = await promoted()
    long.refused = 1000
    long.breach()
    await long.passes(8)
    await long.passes(150, 60.0)
    assert long.report.phase is IncidentPhase.CLOSED
    writes, tries = long.incident_writes, 1000 - long.refused
    assert tries > 2 * PROMPT_TRIES
    long.refused = 0
    await long.passes(10, 60.0)
    assert long.delivered == [("on-call", "Notice"), ("on-call", "AllClear")]
    assert [m.delivered for m in long.report.messages] == [("on-call",), ("on-call",)]
    assert long.incident_writes - writes <= 2


async def closed_untold() -> Stage:
    """A person retried before the channel took the notice."""
    stage = await promoted()
    stage.refused = 10**6
    stage.breach()
    await stage.passes(8)
    stage.world.bad = {}
    annotate(stage.world)
    await stage.passes(10)
    assert stage.report.phase is IncidentPhase.CLOSED
    assert [m.delivered for m in stage.report.messages] == [()]
    stage.refused = 0
    return stage


async def test_a_new_leader_sends_what_a_closed_incident_owes_and_adds_nothing_else() -> None:
    stage = await closed_untold()
    before = stage.report
    stage.reporter = stage.hired()
    await stage.passes(20)
    assert stage.delivered == [("on-call", "Notice")]
    told = (replace(before.messages[0], delivered=("on-call",)),)
    assert replace(stage.report, recordings=before.recordings) == replace(before, messages=told)
    assert stage.report.recordings.count == before.recordings.count
    stage.reporter = stage.hired()
    await stage.passes(3)
    assert stage.delivered == [("on-call", "Notice")]


async def test_a_new_leader_sends_nothing_of_an_incident_that_was_closed_long_ago() -> None:
    stage = await closed_untold()
    stage.world.now += PAST_SECONDS + 60.0
    stage.reporter = stage.hired()
    await stage.passes(5)
    assert stage.delivered == []


async def test_a_leader_that_leads_again_sends_nothing_of_what_it_knew_before() -> None:
    stage = await promoted()
    stage.refused = 1
    stage.breach()
    await stage.passes(1)
    stage.leads = False
    await stage.turn()
    stage.world.now += 4 * 3600.0
    stage.leads, stage.refused = True, 0
    await stage.turn()
    assert stage.delivered == []


async def test_a_retry_is_noted_of_an_incident_that_is_closed_and_still_owes_a_message() -> None:
    stage = await rolled_back()
    stage.world.bad = {}
    await stage.passes(29, 60.0)
    stage.refused = 10**6
    await stage.passes(130, 60.0)
    assert stage.report.phase is IncidentPhase.CLOSED
    annotate(stage.world)
    await stage.passes(3)
    assert stage.report.stages.left_at != ""


@pytest.mark.parametrize("read", [True, False])
async def test_a_rollback_goes_on_and_is_told_of_while_incidents_cannot_be_written(
    read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = await promoted()
    get = stage.kube.get

    async def refuse_reading(resource: Resource, namespace: str, name: str) -> JsonObject:
        if resource == INCIDENTS:
            raise Forbidden("precisionincidents is forbidden", status=403)
        return await get(resource, namespace, name)

    if not read:
        monkeypatch.setattr(stage.kube, "get", refuse_reading)

    def refuse(verb: str, key: Key) -> None:
        raise Forbidden("precisionincidents is forbidden", status=403)

    stage.kube.before_write = refuse
    stage.breach()
    await stage.passes(8)
    assert stage.world.state.phase is Phase.HELD
    assert stage.reports() == []
    assert b'precision_report_errors_total{reason="Forbidden"}' in stage.metrics.exposition()
    assert stage.delivered == [("on-call", "Notice")]
    monkeypatch.undo()
    stage.kube.before_write = lambda verb, key: None
    await stage.passes(20, 60.0)
    assert ("on-call", "Notice") not in stage.delivered[1:]
    assert {"Detected", "Decided", "InFallback"} <= {m.what for m in stage.report.timeline}
    assert first_difference(unpack(stage.report.recordings.tape).recordings) is None


def said(stage: Stage) -> str:
    """The body of the notice."""
    return stage.report.messages[0].body


async def test_the_notice_of_a_rollback_canary_is_of_the_canary_alone() -> None:
    stage = await promoted(rollback={**QUICK, "strategies": {"P2": "Canary"}})
    stage.world.bad = dict.fromkeys(stage.world.workloads, MILD)
    await stage.passes(10)
    assert stage.world.state.by_canary
    (canary,) = map(workload_name, stage.world.state.canary)
    assert "Rollback Canary" in stage.report.messages[0].subject
    body = said(stage)
    assert f"rollback of a canary ({canary}) to fp32" in body
    assert "whole fleet" not in body
    assert "ETA: the canary is judged by " in body
    assert "those of the rest start as before" in body
    assert "kubectl precision rollback -n ns fleet --emergency" in body


async def test_the_notice_of_a_gradual_rollback_says_that_work_in_flight_ends_first() -> None:
    stage = await promoted(rollback=QUICK)
    stage.world.bad = dict.fromkeys(stage.world.workloads, MILD)
    await stage.passes(10)
    incident = stage.world.state.incident
    assert incident is not None
    assert incident.strategy is Strategy.GRADUAL
    assert "Gradual Rollback" in stage.report.messages[0].subject
    assert "2. Work in flight ends first: to the next checkpoint or the end of a Job, for at most 1.0 min" in said(
        stage
    )
    assert "3. Workloads follow in batches of 34 %" in said(stage)
    assert "then deleted" not in said(stage)


async def test_the_notice_of_an_emergency_names_what_is_done_at_once() -> None:
    stage = await rolled_back()
    assert "1. New pods start in fp32" in said(stage)
    assert "2. Running trainers are asked for fp32 at their next step boundary" in said(stage)


async def test_a_canary_that_is_compared_for_hours_is_no_rollback_that_hangs() -> None:
    rollback = {**QUICK, "strategies": {"P2": "Canary"}, "fleetShare": 0.5}
    stage = await promoted(rollback=rollback)
    stage.world.everywhere = {Signal.SPEED: 0.7}
    await stage.passes(100, 60.0)
    assert stage.world.state.by_canary
    assert (stage.report.phase, stage.delivered) == (IncidentPhase.ACTIVE, [("on-call", "Notice")])
    number = str(stage.world.state.transition_id)
    stage.world.policy = replace(stage.world.policy, annotations={"precision.genesis.ai/promote": number})
    await stage.passes(20)
    assert stage.world.state.phase is Phase.HELD
    assert stage.report.phase is IncidentPhase.VERIFYING
    assert "CanaryPromoted" in {m.what for m in stage.report.timeline}
    assert {kind for _, kind in stage.delivered} == {"Notice"}


async def test_a_rollback_that_hangs_is_escalated_twice() -> None:
    stage = await promoted()
    stage.breach()
    stage.world.unobservable = {"hot-3"}
    await stage.unacted(40, 60.0)
    assert stage.report.phase is IncidentPhase.ACTIVE
    assert [m.kind for m in stage.report.messages] == ["Notice", "Escalation", "Escalation"]
    assert stage.delivered == [
        ("on-call", "Notice"),
        *(("ml-lead", "Escalation"), ("on-call", "Escalation")),
        *(("executive", "Escalation"), ("ml-lead", "Escalation"), ("on-call", "Escalation")),
    ]
    assert [m.subject.rpartition(" after ")[2] for m in stage.report.messages[1:]] == ["15.0 min", "30.0 min"]


async def mild(**rollback: object) -> Stage:
    """A fleet of which a gradual rollback has begun, and was told of."""
    stage = await promoted(rollback={**QUICK, **rollback})
    stage.world.bad = dict.fromkeys(stage.world.workloads, MILD)
    while stage.world.state.phase is not Phase.ROLLING_BACK:
        await stage.passes(1)
    return stage


GRAVER = {"hot-3": {Signal.NON_FINITE: 3.0}}


async def test_a_rollback_that_becomes_graver_is_told_of_again_and_so_its_object_says() -> None:
    stage = await mild()
    known = stage.report
    assert (known.severity, known.reason) == (Severity.P2, "OverflowRateHigh")
    stage.world.bad = {**stage.world.bad, **GRAVER}
    await stage.passes(3)
    assert [m.subject for m in stage.report.messages if m.kind == "Notice"] == [
        "[P2] ns/fleet: Gradual Rollback: OverflowRateHigh",
        "[P0] ns/fleet: Action Required: LossNotFinite",
    ]
    assert stage.delivered == [("on-call", "Notice")] * 2
    assert (stage.report.id, stage.report.severity, stage.report.reason) == (known.id, Severity.P0, "LossNotFinite")
    assert "nonFinite" in stage.report.message
    assert set(stage.report.workloads) == {"hot-0", "hot-1", "hot-2", "hot-3"}
    (body,) = (body for (plural, *_), body in stage.kube.objects.items() if plural == INCIDENTS.plural)
    assert mapping(mapping(body["metadata"]).get("labels")).get(SEVERITY_LABEL) == "P0"
    stage.world.bad = {}
    await stage.passes(60, 60.0)
    assert [kind for _, kind in stage.delivered] == ["Notice", "Notice", "AllClear"]


async def test_a_new_leader_tells_that_a_rollback_became_graver_meanwhile_and_once() -> None:
    stage = await mild()
    await stage.passes(2)
    assert [m.delivered for m in stage.report.messages] == [("on-call",)]
    stage.world.bad = {**stage.world.bad, **GRAVER}
    stage.world.step(15.0)
    for _ in range(2):
        stage.reporter = stage.hired()
        await stage.passes(10)
    assert stage.delivered == [("on-call", "Notice")] * 2
    assert [m.severity for m in stage.report.messages if m.kind == "Notice"] == [Severity.P2, Severity.P0]


async def test_a_rollback_that_is_hastened_is_told_of_again() -> None:
    stage = await mild()
    spec = stage.world.policy.spec
    strategies = {**spec.rollback.strategies, Severity.P2: Strategy.EMERGENCY}
    hastened = replace(spec, rollback=replace(spec.rollback, strategies=strategies))
    stage.world.policy = replace(stage.world.policy, spec=hastened)
    await stage.passes(1)
    assert stage.delivered == [("on-call", "Notice")] * 2
    assert "Gradual" not in stage.report.messages[-1].subject


async def test_a_graver_workload_that_joins_an_incident_is_told_of() -> None:
    stage = await promoted(rollback={**QUICK, "fleetShare": 1.0, "fleetMinimum": 4})
    stage.breach("hot-1")
    await stage.unacted(2)
    assert stage.report.severity is Severity.P1
    stage.world.bad = {"hot-1": {Signal.OVERFLOW: 0.9}, "hot-2": {Signal.NON_FINITE: 3.0}}
    await stage.unacted(2)
    assert (stage.report.severity, set(stage.report.workloads)) == (Severity.P0, {"hot-1", "hot-2"})
    assert [m.subject.partition("]")[0] for m in stage.report.messages] == ["[P1", "[P0"]

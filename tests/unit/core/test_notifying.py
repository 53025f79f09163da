"""What a person is told of: each kind once while it stands, again when it comes again, and never in a storm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.drill import DrillResult
from precision_operator.api.messages import MessageKind, Notified, Tone
from precision_operator.api.signals import Signal
from precision_operator.api.state import HeldWorkload, Phase, State
from precision_operator.core.calling import DRILL_SECONDS, SETTLE_SECONDS, STEP_SECONDS, calls
from precision_operator.core.decide import decide
from precision_operator.core.notifying import (
    ESCALATE_SECONDS,
    HOUR_SECONDS,
    KEPT,
    MOST_AN_HOUR,
    QUIET_SECONDS,
    owed,
    remembered,
)
from precision_operator.core.rollback.drill import OVERDUE_SECONDS
from precision_operator.reasons import Reason
from tests.support.fleets import fleet, promoted, until
from tests.support.standing_calls import DRILL, INCIDENT, NOW, STANDS, condition, progressing, rolling

OF_INCIDENTS = {"Notice", "Escalation", "AllClear", "VerificationFailed"}


def kinds(state: State, now: float) -> list[str]:
    return [str(call.kind) for call in calls(state, now)]


def test_every_kind_about_a_policy_has_a_state() -> None:
    assert set(STANDS) == {str(kind) for kind in MessageKind} - OF_INCIDENTS


@pytest.mark.parametrize("kind", STANDS)
def test_each_is_told_of_once_and_as_soon_as_it_has_settled(kind: str) -> None:
    state, after = STANDS[kind]
    if after:
        assert kind not in kinds(state, NOW + after - 1.0)
    now = NOW + after
    (first,) = owed(state, state.notified, now)
    assert (str(first.call.kind), first.level, first.due_at) == (kind, 0, now)
    told = replace(state, notified=remembered(state, [first.notified(now)], now))
    later = owed(told, told.notified, now + 1.0)
    assert [entry.level for entry in later] == [1] * first.call.kind.escalates


@pytest.mark.parametrize("kind", STANDS)
def test_nothing_is_told_of_an_empty_state_or_one_that_has_passed(kind: str) -> None:
    state, after = STANDS[kind]
    assert calls(State(), NOW + after) == ()
    over = replace(state, phase=Phase.PENDING, conditions=(), mitigations=(), incident=None, no_data_since=None)
    assert calls(replace(over, comparison=None, last_drill=None), NOW + after) == ()


def test_workloads_that_are_held_alone_wait_for_a_person_once_they_are_in_the_fallback() -> None:
    alone = State(phase=Phase.DEGRADED, held=(HeldWorkload("apps/Deployment/vit", "LossDiverged", NOW),))
    reached = replace(alone, incident=replace(INCIDENT, last_ack_at=NOW))
    for waits_for, kind in (
        (Reason.AWAITING_PREREQUISITES, "AcknowledgementsWanted"),
        (Reason.AWAITING_RETRY, "RetryPossible"),
    ):
        assert kinds(replace(alone, conditions=progressing(waits_for), incident=INCIDENT), NOW) == []
        assert kinds(replace(reached, conditions=progressing(waits_for)), NOW) == [kind]


def test_a_workload_that_is_held_without_prerequisites_may_be_retried_and_is_said_to() -> None:
    world = promoted(reenable={"prerequisites": [], "backoff": "0s", "dwell": "0s"})
    world.bad = {"hot-1": {Signal.OVERFLOW: 0.9}}
    until(world, lambda w: w.state.phase is Phase.DEGRADED)
    until(world, lambda w: bool(calls(w.state, w.now)))
    assert kinds(world.state, world.now) == ["RetryPossible"]


def test_a_drill_is_proposed_until_one_has_passed_and_again_after_each_rollback() -> None:
    passed = replace(DRILL, result=DrillResult.PASSED, passed_at=NOW - 5)
    well, later = State(phase=Phase.HEALTHY, phase_since=NOW), NOW + DRILL_SECONDS
    assert kinds(replace(well, last_drill=passed), later) == []
    assert kinds(replace(well, last_drill=passed), NOW + OVERDUE_SECONDS) == ["DrillProposed"]
    assert kinds(replace(well, incident=INCIDENT), later) == ["DrillProposed"]
    assert kinds(replace(well, incident=INCIDENT, last_drill=passed), later) == []
    after = replace(well, incident=replace(INCIDENT, decided_at=NOW), last_drill=passed)
    assert kinds(after, later) == ["DrillProposed"]
    first, second = (calls(replace(well, incident=i), later)[0] for i in (None, INCIDENT))
    assert first.occasion != second.occasion


@pytest.mark.parametrize("kind", ["Unresponsive", "DeadlineAtRisk", "DeadlineMissed"])
def test_a_retried_rollback_waits_for_no_trainer_any_more(kind: str) -> None:
    state, after = STANDS[kind]
    assert kinds(replace(state, phase=Phase.HEALTHY), NOW + after) == []


def test_a_new_leader_owes_what_stands_though_it_saw_no_edge_and_nothing_that_was_told() -> None:
    state, _ = STANDS["ApprovalWanted"]
    (found,) = owed(state, (), NOW)
    known = replace(state, notified=remembered(state, [found.notified(NOW)], NOW))
    assert owed(known, known.notified, NOW + 7 * HOUR_SECONDS) == ()
    assert remembered(known, (), NOW + 7 * HOUR_SECONDS) == known.notified, "what stands is remembered however long"


@pytest.mark.parametrize(
    ("topic", "occasion", "kept"),
    [
        ("ApprovalWanted", "transition-4", True),
        ("RolloutHeld", "transition-4-ProgressDeadlineExceeded", True),
        ("RolloutHeld", "transition-3-ProgressDeadlineExceeded", False),
        ("ApprovalWanted", "transition-41", False),
        ("CauseNotPrecision", "transition-4", False),
    ],
)
def test_only_what_comes_and_goes_in_this_very_step_is_remembered_after_an_hour_in_which_it_did_not_stand(
    topic: str, occasion: str, kept: bool
) -> None:
    told = Notified(topic, occasion, NOW - 2 * HOUR_SECONDS)
    assert remembered(State(transition_id=4, notified=(told,)), (), NOW) == ((told,) if kept else ())


def test_the_next_step_is_another_approval() -> None:
    state, _ = STANDS["ApprovalWanted"]
    told = [found.notified(NOW) for found in owed(state, (), NOW)]
    told.append(Notified("InvestigationBegun", "1-overflow", NOW + QUIET_SECONDS))
    (again,) = owed(replace(state, transition_id=6), told, NOW + QUIET_SECONDS)
    assert again.due_at == NOW + QUIET_SECONDS, "other topics do not delay it"


@pytest.mark.parametrize(("minutes", "held"), [(2, 0), (8, 1)], ids=["one look", "for some minutes"])
def test_a_step_that_waits_for_long_is_told_of_once_though_its_evidence_is_poor_now_and_then(
    minutes: int, held: int
) -> None:
    world = fleet(strategy={"steps": [{"setWeight": 50}, {"pause": {}}, {"setWeight": 100}]})
    until(world, lambda w: w.state.phase is Phase.PAUSED, seconds=15.0)
    told: list[str] = []
    for minute in range(0, 12 * 60, 2):
        world.everywhere = {Signal.OVERFLOW: 0.07} if minute % 120 < minutes and minute >= 120 else {}
        world.step(120.0)
        due = [found for found in owed(world.state, world.state.notified, world.now) if found.due_at <= world.now]
        told += [str(found.call.kind) for found in due]
        sent = [found.notified(world.now) for found in due]
        world.state = replace(world.state, notified=remembered(world.state, sent, world.now))
    assert (told.count("ApprovalWanted"), told.count("RolloutHeld")) == (1, held)


@pytest.mark.parametrize(("poor", "good"), [(18, 2), (16, 16)], ids=["mostly poor", "as often good"])
def test_a_step_of_which_the_evidence_is_never_good_for_as_long_as_it_asks_is_told_of_once(
    poor: int, good: int
) -> None:
    world = fleet(strategy={"steps": [{"setWeight": 50}, {"pause": {"duration": "600s"}}, {"setWeight": 100}]})
    until(world, lambda w: w.state.phase is Phase.PROGRESSING)
    told: list[float] = []
    began = world.now
    for look in range(6 * 60):
        world.everywhere = {Signal.OVERFLOW: 0.07} if look % (poor + good) < poor else {}
        world.step(15.0)
        due = [found for found in owed(world.state, world.state.notified, world.now) if found.due_at <= world.now]
        told += [world.now - began for found in due if found.call.kind is MessageKind.ROLLOUT_HELD]
        sent = [found.notified(world.now) for found in due]
        world.state = replace(world.state, notified=remembered(world.state, sent, world.now))
    assert world.state.phase is Phase.PROGRESSING
    assert told == pytest.approx([STEP_SECONDS], abs=SETTLE_SECONDS)


def test_what_comes_and_goes_is_told_of_once_in_ten_minutes() -> None:
    told: list[Notified] = []
    for minute in range(60):
        since = NOW + minute * 60.0
        flapping = State(conditions=(replace(condition("Stuck", "True"), last_transition_time=since),))
        told += [
            found.notified(since) for found in owed(flapping, told, since) if found.level == 0 and found.due_at <= since
        ]
    assert [(b.at - a.at) >= QUIET_SECONDS for a, b in pairwise(told)] == [True] * (len(told) - 1)
    assert len(told) == HOUR_SECONDS / QUIET_SECONDS


@pytest.mark.parametrize("kind", ["Blocked", "WritesAccepted"])
def test_another_reason_of_what_stands_is_told_of_and_none_of_them_twice(kind: str) -> None:
    status, now = {"Blocked": "True", "WritesAccepted": "False"}[kind], NOW + SETTLE_SECONDS
    told: list[Notified] = []
    for reason in ("NodeUnreachable", "ForeignFinalizer", "NodeUnreachable", "ForeignFinalizer"):
        now += QUIET_SECONDS
        state = State(conditions=(condition(kind, status, reason),))
        found = [entry for entry in owed(state, told, now) if entry.level == 0]
        told += [entry.notified(now) for entry in found if entry.due_at <= now]
    assert [entry.occasion.partition("-")[2] for entry in told] == ["NodeUnreachable", "ForeignFinalizer"]


def test_a_second_alert_beside_one_that_stands_is_told_of() -> None:
    world, drifts = promoted(), {Signal.DIVERGENCE: 0.12}
    both = {**drifts, Signal.MEMORY: 0.85}
    world.bad = dict.fromkeys(world.workloads, drifts)
    told: list[Notified] = []
    reasons: list[str] = []
    for _ in range(100):
        world.step(60.0)
        if "LossDiverging" in reasons:
            world.bad = dict.fromkeys(world.workloads, both)
        due = [entry for entry in owed(world.state, told, world.now) if entry.due_at <= world.now]
        told += [entry.notified(world.now) for entry in due]
        reasons += [entry.call.reason for entry in due if entry.call.condition == "Alerting"]
    assert reasons == ["LossDiverging", "MemoryRatioHigh"]


def flood(now: float) -> State:
    """Everything at once, each time anew."""
    names = ("Blocked", "Stuck", "WeightsSuspect", "CapacityLost", "PendingRevision")
    since = [replace(condition(name, "True"), last_transition_time=now) for name in names]
    return replace(rolling(escalated=True, predicted_seconds=9e6, decided_at=now), conditions=tuple(since))


@pytest.mark.parametrize("kind", ["InvestigationBegun", "KindOfTheFuture"])
def test_a_failure_does_not_wait_behind_a_dozen_harmless_messages(kind: str) -> None:
    told = [Notified(kind, f"{n}-overflow", NOW - 60.0 * n) for n in range(MOST_AN_HOUR)]
    state, _ = STANDS["WeightsSuspect"]
    assert [found.due_at for found in owed(state, told, NOW)] == [NOW]
    state, _ = STANDS["ApprovalWanted"]
    assert [found.due_at > NOW for found in owed(state, told, NOW)] == [True]


@pytest.mark.parametrize(("told_minutes", "waits_minutes"), [(59, 1), (30, 30), (-30, 60)])
def test_after_a_dozen_the_next_waits_until_the_first_of_them_is_an_hour_old(
    told_minutes: int, waits_minutes: int
) -> None:
    """However the clock was set since: no longer than an hour."""
    first = NOW - 60.0 * told_minutes
    told = [Notified("InvestigationBegun", f"{n}-overflow", max(first, NOW)) for n in range(1, MOST_AN_HOUR)]
    state, _ = STANDS["ApprovalWanted"]
    (found,) = owed(state, [Notified("InvestigationBegun", "0-overflow", first), *told], NOW)
    assert found.due_at == NOW + 60.0 * waits_minutes


def test_a_message_of_a_kind_that_only_another_version_knows_is_remembered_and_delays_nothing() -> None:
    told = [Notified("KindOfTheFuture/Stuck", "once", NOW)]
    state, _ = STANDS["ApprovalWanted"]
    assert [found.due_at for found in owed(state, told, NOW)] == [NOW]
    assert remembered(replace(state, notified=tuple(told)), (), NOW) == tuple(told)


def test_of_more_than_a_dozen_that_stand_at_once_the_rest_waits_an_hour() -> None:
    bad = [("False", ("Accepted", "AdmissionEnforced", "FailSafe", "WritesAccepted", "KindsSupported"))]
    bad += [("True", ("InjectionRefused", "Alerting", "SpeedupLow", "PendingRevision", "CapacityLost"))]
    conditions = [condition(kind, status, seconds=SETTLE_SECONDS) for status, kinds in bad for kind in kinds]
    conditions += [condition("MetricsAvailable", "False"), *progressing(Reason.CAUSE_NOT_PRECISION)]
    windows = STANDS["InvestigationBegun"][0].mitigations
    state = State(phase=Phase.HEALTHY, phase_since=NOW - DRILL_SECONDS, enforce=True, no_data_since=NOW - HOUR_SECONDS)
    found = owed(replace(state, mitigations=windows, conditions=tuple(conditions)), (), NOW)
    harmless = [entry.due_at for entry in found if entry.call.kind.tone is not Tone.FAILURE]
    assert harmless == [NOW] * MOST_AN_HOUR + [NOW + HOUR_SECONDS]


@pytest.mark.parametrize("urgent", [True, False])
def test_in_any_hour_no_more_than_a_dozen_are_told_of_a_policy(urgent: bool) -> None:
    told: list[Notified] = []
    for step in range(3 * 60):
        now = NOW + step * 60.0
        told += [
            found.notified(now)
            for found in owed(flood(now), told, now)
            if found.level == 0 and found.due_at <= now and (found.call.kind.tone is Tone.FAILURE) is urgent
        ]
    assert len(told) > 2 * MOST_AN_HOUR
    times = sorted(entry.at for entry in told)
    assert all(b - a >= HOUR_SECONDS for a, b in zip(times, times[MOST_AN_HOUR:], strict=False))


def test_the_memory_is_bounded_and_forgets_what_is_over() -> None:
    told = [Notified(f"topic-{number}", "once", NOW + number) for number in range(3 * KEPT)]
    kept = remembered(State(), told, NOW + 3 * KEPT)
    assert len(kept) == KEPT
    assert kept[-1] == told[-1]
    assert remembered(State(notified=kept), (), NOW + 2 * HOUR_SECONDS) == ()


def test_a_clock_that_was_set_back_silences_nothing_for_longer_than_the_quiet_time() -> None:
    told = [Notified("ApprovalWanted", "transition-2", NOW + 9e6)]
    state, _ = STANDS["ApprovalWanted"]
    (found,) = owed(state, told, NOW)
    assert found.due_at <= NOW + QUIET_SECONDS


def test_what_blocks_a_rollback_is_escalated_twice_and_an_approval_never() -> None:
    state, _ = STANDS["WorkloadBlocked"]
    told = [found.notified(NOW) for found in owed(state, (), NOW)]
    levels = []
    for seconds in ESCALATE_SECONDS:
        (found,) = owed(state, told, NOW)
        assert found.due_at == NOW + seconds
        levels.append(found.level)
        told = [replace(told[0], level=found.level)]
    assert levels == [1, 2]
    assert owed(state, told, NOW) == ()
    waits, _ = STANDS["ApprovalWanted"]
    assert owed(waits, [found.notified(NOW) for found in owed(waits, (), NOW)], NOW + 9e4) == ()


def healthy() -> World:
    world = World(policy(**FAST))
    for name in ("hot-0", "hot-1", "hot-2", "hot-3"):
        world.add(name)
    for _ in range(40):
        world.step(15.0)
    assert world.state.phase is Phase.HEALTHY
    return world


def passes(world: World, sent: Sequence[Notified]) -> bool:
    """Whether a pass with these deliveries writes the state."""
    observation = replace(world.observe(), notified=tuple(sent))
    before = world.state
    decision = decide(world.policy, before, observation, world.now)
    world.commit(decision)
    return decision.state != before


def test_a_delivery_costs_one_write_and_nothing_after_it() -> None:
    world = healthy()
    sent = [Notified("ApprovalWanted", "transition-1", world.now)]
    assert passes(world, ()) is False
    assert passes(world, sent) is True
    assert world.state.notified == tuple(sent)
    assert passes(world, sent) is False
    world.now += 2 * HOUR_SECONDS
    assert passes(world, ()) is False, "that it may be forgotten is no reason to write"

"""Workloads that are rolled back by themselves, one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import NAN, SLOW, World
from precision_operator.api.incident import Scope
from precision_operator.api.modes import Mode
from precision_operator.api.spec import Severity, Strategy
from precision_operator.api.state import HeldWorkload, Phase
from precision_operator.core.actions import Notify
from precision_operator.core.derive import derive_facts
from precision_operator.core.model import RestartBy
from precision_operator.core.rollback.alone import HOLDS_LIMIT, hold
from precision_operator.core.rollback.triggers import Trigger
from precision_operator.reasons import Reason
from tests.support.fleets import change, held_names, incident_of, until
from tests.support.rollbacks import QUICK
from tests.support.views import key, keys

HOT = tuple(f"hot-{index:02}" for index in range(16))
PATIENT = {**QUICK, "gradual": {"sustain": "15s"}}


def healthy(**rollback: object) -> World:
    """Sixteen hot workloads that train in FP16, and are guarded there."""
    rules = {**FAST, "strategy": {"steps": [{"setWeight": 100}]}, "rollback": {**PATIENT, **rollback}}
    world = World(policy(**rules))
    for name in HOT:
        world.add(name, mode=Mode.FP16)
    until(world, lambda w: w.state.phase is Phase.HEALTHY)
    return world


def one_unresponsive(**rollback: object) -> World:
    """One of them is held in an emergency, and takes no request."""
    world = healthy(**rollback)
    world.bad, world.unresponsive = {"hot-00": NAN}, {"hot-00"}
    until(world, lambda w: held_names(w) == {"hot-00"})
    return world


def out_of_fp16(world: World) -> float:
    """When that one trains in the fallback, in the world's seconds."""
    until(world, lambda w: "hot-00" in w.really_in(Mode.FP32), seconds=5.0)
    return world.now


def slow(world: World, names: Iterable[str]) -> World:
    """These train at half the speed of FP32 besides."""
    world.bad |= dict.fromkeys(names, SLOW)
    return world


@pytest.mark.parametrize(
    ("rules", "others"),
    [({}, HOT[5:6]), ({"strategies": {"P2": "Canary"}}, HOT[5:11])],
    ids=["one that is held too", "so many that a canary begins"],
)
def test_a_second_milder_breach_does_not_slow_down_an_unacknowledged_one(
    rules: dict[str, object], others: tuple[str, ...]
) -> None:
    alone = out_of_fp16(one_unresponsive(**rules))
    assert out_of_fp16(slow(one_unresponsive(**rules), others)) == alone


def test_a_second_milder_breach_leaves_severity_urgency_and_deadline_of_an_unacknowledged_one_as_they_are() -> None:
    world = one_unresponsive()
    before, first = incident_of(world), world.state.incident
    until(slow(world, HOT[5:6]), lambda w: len(w.state.held) == 2)
    assert first is not None
    assert world.state.incident is not None
    assert (incident_of(world), world.state.incident.deadline_at) == (before, first.deadline_at)
    assert set(world.state.incident.workloads) == {"hot-00", "hot-05"}


def test_a_second_graver_breach_brings_its_severity_its_urgency_and_its_deadline() -> None:
    world = healthy()
    world.unresponsive = {"hot-00"}
    until(slow(world, HOT[:1]), held_names)
    world.bad |= {"hot-05": NAN}
    began = world.now
    until(world, lambda w: len(w.state.held) == 2)
    assert world.state.incident is not None
    assert incident_of(world) == (Severity.P0, Strategy.EMERGENCY)
    assert world.state.incident.deadline_at == began + world.policy.spec.rollback.deadlines_seconds[Severity.P0]


def test_a_workload_that_joins_an_unacknowledged_incident_has_its_own_time_to_acknowledge() -> None:
    world = one_unresponsive()
    change(world, "hot-00", restart_by=RestartBy.NEVER)
    until(world, lambda w: w.state.incident is not None and w.state.incident.escalated, seconds=5.0)
    world.unresponsive |= {"hot-05"}
    until(slow(world, HOT[5:6]), lambda w: len(w.state.held) == 2)
    world.step(1.0)
    world.unresponsive -= {"hot-05"}
    world.run(10, 5.0)
    assert "hot-05" in world.really_in(Mode.FP32)
    assert "hot-05" not in world.restarts


def test_a_canary_begins_once_what_is_held_in_an_emergency_has_acknowledged() -> None:
    world = slow(one_unresponsive(strategies={"P2": "Canary"}), HOT[5:11])
    until(world, lambda w: w.state.by_canary, seconds=5.0)
    assert "hot-00" in world.really_in(Mode.FP32)


def test_a_canary_begins_where_an_emergency_has_missed_its_deadline_and_keeps_after_what_is_held() -> None:
    world = one_unresponsive(strategies={"P2": "Canary"})
    change(world, "hot-00", restart_by=RestartBy.NEVER)
    until(slow(world, HOT[5:11]), lambda w: w.state.by_canary, seconds=5.0)
    assert "hot-00" in world.really_in(Mode.FP16)
    world.unresponsive, world.bypassed = set(), True
    world.replace_pods("hot-00")
    world.bypassed = False
    world.run(3)
    assert "hot-00" in world.really_in(Mode.FP32)


def test_a_canary_waits_for_an_emergency_until_a_timeout_after_its_deadline() -> None:
    world = slow(one_unresponsive(strategies={"P2": "Canary"}), HOT[5:11])
    change(world, "hot-00", restart_by=RestartBy.NEVER)
    assert world.state.incident is not None
    limit = world.state.incident.deadline_at + world.policy.spec.rollback.ack_timeout_seconds
    until(world, lambda w: w.now > limit - 10.0, seconds=5.0)
    for world.now, begins in ((limit, False), (limit + 0.001, True)):
        assert world.decide().state.by_canary is begins


def test_a_workload_that_acknowledged_long_ago_and_falls_silent_is_not_restarted_for_another_one() -> None:
    world = healthy()
    world.bad = {"hot-00": NAN}
    until(world, lambda w: w.state.incident is not None and w.state.incident.last_ack_at is not None)
    world.unobservable = {"hot-00"}
    world.bad |= {"hot-05": NAN}
    until(world, lambda w: len(w.state.held) == 2)
    world.run(100, 5.0)
    assert world.restarts == {}
    assert world.state.incident is not None
    assert world.state.incident.last_ack_at is not None


def without_its_policy() -> World:
    """Two are held: one has acknowledged and is not seen any more, the other never will. The policy was deleted."""
    world = healthy()
    world.bad = {"hot-00": NAN}
    until(world, lambda w: w.state.incident is not None and w.state.incident.last_ack_at is not None)
    world.unobservable, world.unresponsive = {"hot-00"}, {"hot-05"}
    world.bad |= {"hot-05": NAN}
    until(world, lambda w: len(w.state.held) == 2)
    change(world, "hot-05", restart_by=RestartBy.NEVER)
    world.delete_policy()
    return world


def test_without_its_policy_too_only_what_has_not_acknowledged_is_restarted() -> None:
    world = without_its_policy()
    world.run(100, 5.0)
    assert world.restarts == {}


def test_without_its_policy_too_no_event_is_repeated_while_nothing_changes() -> None:
    world = without_its_policy()
    actions = [action for _ in range(100) for action in world.step(5.0).actions]
    told = [action.reason for action in actions if isinstance(action, Notify)]
    assert sorted(set(told)) == sorted(told)


@pytest.mark.parametrize(
    ("times", "timeout", "grid_seconds"),
    [(HOLDS_LIMIT, "90s", 0.5), (HOLDS_LIMIT + 1, "90s", 3.0), (HOLDS_LIMIT + 1, "20s", 1.0)],
    ids=["as many as are kept", "one more", "one more, with little time to acknowledge"],
)
def test_who_may_still_acknowledge_loses_little_of_its_time_where_too_many_times_would_be_kept(
    times: int, timeout: str, grid_seconds: float
) -> None:
    world = healthy(ackTimeout=timeout)
    world.now = 1_000_000.0
    long_ago = [HeldWorkload(key(f"gone-{n}"), "LossNotFinite", world.now - 1000.0 * n) for n in range(1, times - 1)]
    recent = HeldWorkload(key("hot-01"), "LossNotFinite", world.now - 10.5)
    world.state = replace(world.state, held=(*long_ago, recent))
    facts = derive_facts(world.policy, world.state, world.observe(), world.now)
    breach = Trigger(Severity.P0, Scope.WORKLOAD, Reason.NO_DATA, "", keys("hot-00"), world.now, Strategy.EMERGENCY)
    since = {held.name: held.since for held in hold(facts, breach).held}
    assert since["hot-01"] == recent.since // grid_seconds * grid_seconds
    assert since["hot-00"] == world.now // grid_seconds * grid_seconds


@pytest.mark.slow
def test_of_a_fleet_that_is_held_one_by_one_few_times_are_kept_and_nobody_loses_time_to_acknowledge() -> None:
    world = World(policy(**{**FAST, "rollback": {"fleetShare": 1.0, "ackTimeout": "90s"}}))
    names = [f"trainer-{number:03}" for number in range(120)]
    for name in (*names, "good"):
        world.add(name, mode=Mode.FP16)
    until(world, lambda w: w.state.phase is Phase.HEALTHY, seconds=15.0)
    began: dict[str, float] = {}
    for name in names:
        world.bad[name], began[name] = NAN, world.now
        world.step(20.0)
    since = {hold.name: hold.since for hold in world.state.held}
    lost = {name: began[name] - since[name] for name in names}
    assert len(set(since.values())) <= 2 * HOLDS_LIMIT
    assert 0 <= min(lost.values()) <= max(lost.values()) <= 2 * (world.now - began[names[0]]) / HOLDS_LIMIT
    assert max(lost[name] for name in names if world.now - began[name] <= 90.0) <= 90.0 / HOLDS_LIMIT

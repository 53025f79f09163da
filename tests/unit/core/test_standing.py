"""Ready, Reconciling, Stalled: what kstatus makes of a policy in each phase, exactly one of the three."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lab.model.policies import policy
from lab.model.world import NAN, World
from precision_operator.api.signals import Signal
from precision_operator.api.spec import PolicyEnforcement
from precision_operator.api.state import Phase
from precision_operator.core.status.summary import begun
from precision_operator.reasons import Cause, Reason
from tests.support.fleets import fleet, held, moving, promoted, respec, until, waiting_for_a_person


def current(world: World) -> str:
    """What kstatus would say."""
    found = {c.type: c for c in world.summary.conditions if c.type in ("Ready", "Reconciling", "Stalled")}
    kinds = [kind for kind, condition in found.items() if condition.status == "True"]
    assert len(kinds) == 1, found
    assert found["Ready"].status == str(kinds == ["Ready"])
    assert len(found) == (1 if kinds == ["Ready"] else 2)
    return kinds[0]


def empty() -> World:
    world = World(policy())
    world.step()
    return world


def going_back() -> World:
    world = promoted()
    world.unresponsive = set(world.workloads)
    world.bad = dict.fromkeys(world.workloads, NAN)
    until(world, lambda w: w.state.phase is Phase.ROLLING_BACK)
    return world


def one_held() -> World:
    world = promoted()
    world.bad = {"hot-2": NAN}
    world.run(2)
    assert world.state.phase is Phase.DEGRADED
    return world


def late() -> World:
    world = fleet(progressDeadlineSeconds=60)
    world.unresponsive = set(world.workloads)
    until(world, lambda w: w.summary.reason == "ProgressDeadlineExceeded", seconds=15.0)
    return world


def undeliverable() -> World:
    world = World(policy(delivery="Hot"))
    world.add("literal", hot=False)
    world.step()
    return world


def suspended() -> World:
    world = moving()
    respec(world, suspend=True)
    world.step()
    return world


def observing() -> World:
    world = held()
    respec(world, enforcement=PolicyEnforcement.OBSERVE)
    world.run(2)
    return world


def halted() -> World:
    world = promoted()
    world.halted = Cause(Reason.HALTED, "maintenance")
    world.step()
    return world


@pytest.mark.parametrize(
    ("stands", "kind", "reason"),
    [
        (empty, "Reconciling", "NoWorkloads"),
        (moving, "Reconciling", None),
        (waiting_for_a_person, "Reconciling", "AwaitingApproval"),
        (going_back, "Reconciling", None),
        (promoted, "Ready", "Promoted"),
        (held, "Stalled", None),
        (one_held, "Stalled", None),
        (late, "Stalled", "ProgressDeadlineExceeded"),
        (undeliverable, "Stalled", "Undeliverable"),
        (suspended, "Ready", "Suspended"),
        (observing, "Ready", "Observing"),
        (halted, "Reconciling", "Halted"),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_where_a_policy_stands_by_kstatus(stands: Callable[[], World], kind: str, reason: str | None) -> None:
    world = stands()
    assert current(world) == kind
    shown = next(c for c in world.summary.conditions if c.type == "Ready")
    assert reason is None or shown.reason == reason
    assert shown.observed_generation == world.policy.generation


def test_a_mild_breach_that_is_watched_leaves_a_fleet_ready() -> None:
    world = promoted()
    world.bad = {"hot-0": {Signal.SPEED: 1.1}}
    world.step()
    assert world.state.phase is Phase.HEALTHY
    assert current(world) == "Ready"


def test_a_new_policy_is_reconciling_before_its_metrics_were_read() -> None:
    summary = begun(policy(), 1000.0)
    assert (summary.observed_generation, summary.phase, summary.reason) == (1, Phase.PENDING, "AwaitingEvaluation")
    assert [(c.type, c.status) for c in summary.conditions] == [("Ready", "False"), ("Reconciling", "True")]


@pytest.mark.parametrize("stands", [promoted, moving, held])
def test_a_reason_that_only_another_version_knows_stands_in_nobodys_way(stands: Callable[[], World]) -> None:
    world = stands()
    before = current(world)
    world.state = replace(world.state, reason="AwaitingTheFuture")
    world.step()
    assert current(world) == before


@pytest.mark.parametrize("stands", [promoted, held])
def test_a_record_that_lost_its_reason_leaves_no_condition_without_one(stands: Callable[[], World]) -> None:
    """The API server would refuse the whole status."""
    world = stands()
    world.state = replace(world.state, reason="")
    world.step()
    assert all(condition.reason for condition in world.summary.conditions)

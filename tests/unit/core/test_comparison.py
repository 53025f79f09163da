"""The phase of a rollback by canary: when its comparison begins, what ends it, what is done for the canary meanwhile."""

from dataclasses import replace
from typing import Any

import pytest

from lab.model.world import OVERFLOWS, World
from precision_operator.api.canary import CanaryVerdict, Comparison
from precision_operator.api.incident import Incident
from precision_operator.api.modes import Mode
from precision_operator.api.spec import Severity, Strategy
from precision_operator.api.state import Phase
from precision_operator.core.derive import derive_facts
from precision_operator.core.model import Observation
from precision_operator.core.rollback.canary import difference
from precision_operator.reasons import Cause, Reason
from tests.support.fleets import answer, change, condition, incident_of, respec, restart_only, until
from tests.support.rollbacks import MILD, QUICK, by_canary, canary_of, compared, verdict_of
from tests.support.views import key


def incident(world: World) -> Incident:
    assert world.state.incident is not None
    return world.state.incident


def comparison(world: World) -> Comparison:
    assert world.state.comparison is not None
    return world.state.comparison


def progressing(world: World) -> str:
    return condition(world, "Progressing").reason


def without_metrics(world: World) -> None:
    """An operator that has just started: nothing has been read yet."""
    observe = world.observe

    def unread() -> Observation:
        return replace(observe(), evaluation=None)

    world.observe = unread  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("shown", "reason"),
    [({"better": 99.0}, "CanaryPromoted"), ({"worse": 99.0}, "CanaryWorse"), ({}, "CanaryInconclusive")],
)
def test_what_was_shown_counts_in_the_pass_in_which_the_limit_is_over(shown: dict[str, Any], reason: str) -> None:
    world = compared(by_canary())
    world.state = replace(world.state, comparison=replace(comparison(world), **shown))
    world.metrics_away, world.now = True, incident(world).deadline_at - 1.0
    if not shown:
        world.step(1.0)
        assert verdict_of(world) is CanaryVerdict.OPEN
    world.now = incident(world).deadline_at
    assert world.step().state.reason == reason


@pytest.mark.parametrize(
    ("shown", "reason"),
    [({"better": 99.0}, "CanaryPromoted"), ({"worse": 99.0}, "CanaryWorse"), ({}, "CanaryNoDifference")],
)
def test_what_was_shown_counts_in_the_look_that_was_planned_as_the_last(shown: dict[str, Any], reason: str) -> None:
    world = compared(by_canary())
    world.state = replace(world.state, comparison=replace(comparison(world), looks=1000, **shown))
    assert world.step().state.reason == reason


def test_a_graver_breach_that_is_answered_by_a_canary_too_leaves_the_comparison_its_time() -> None:
    world = compared(by_canary())
    before, rules = incident(world), world.policy.spec.rollback
    respec(world, rollback=replace(rules, strategies={**rules.strategies, Severity.P1: Strategy.CANARY}))
    world.bad = dict.fromkeys(world.workloads, OVERFLOWS)
    until(world, lambda w: incident_of(w) == (Severity.P1, Strategy.CANARY), seconds=15.0, passes=20)
    assert incident(world).deadline_at == before.deadline_at


@pytest.mark.parametrize(("severity", "stands"), [(Severity.P1, False), (Severity.P2, True)])
def test_a_rollback_of_the_rest_that_a_person_asks_for_is_due_from_now_by_the_severity_of_its_incident(
    severity: Severity, stands: bool
) -> None:
    world = compared(by_canary({"limit": "24h"}))
    world.state = replace(world.state, incident=replace(incident(world), severity=severity))
    world.bad, began = world.bad if stands else {}, world.now
    answer(world, "rollback")
    world.step(1.0)
    assert incident_of(world) == (severity, Strategy.GRADUAL)
    assert incident(world).deadline_at == began + world.policy.spec.rollback.deadlines_seconds[severity]


def test_where_nobody_is_left_to_compare_with_the_rollback_ends_as_a_gradual_one() -> None:
    world = compared(by_canary())
    for name in set(world.workloads) - canary_of(world):
        world.drop(name)
    world.step()
    assert (world.state.phase, incident(world).strategy) == (Phase.HELD, Strategy.GRADUAL)


def test_a_canary_that_waits_in_back_off_is_unknown_and_no_answer_of_it_is_awaited() -> None:
    world = compared(by_canary())
    world.unobservable = canary_of(world)
    for waits, reason in ((False, Reason.AWAITING_ACKNOWLEDGEMENT), (True, Reason.CANARY_UNKNOWN)):
        for name in canary_of(world):
            (pod, *_) = world.workloads[name].pods
            peer = replace(pod, name="peer", uid="uid-peer", ready=True, backing_off=False)  # of its process group
            change(world, name, pods=(replace(pod, ready=not waits, backing_off=waits), peer), replicas=2)
        found = difference(derive_facts(world.policy, world.state, world.observe(), world.now))
        assert isinstance(found, Cause)
        assert found.reason is reason


def test_a_window_shorter_than_that_of_the_metrics_is_one_look() -> None:
    world = compared(by_canary({"window": "60s"}, everywhere=True))
    assert (verdict_of(world), comparison(world).looks) == (CanaryVerdict.NO_DIFFERENCE, 1)


def test_the_comparison_begins_once_the_canary_has_acknowledged() -> None:
    world = by_canary()
    world.unobservable = canary_of(world)
    world.run(5)
    assert (comparison(world).since, progressing(world)) == (None, "AwaitingAcknowledgement")
    world.unobservable, began = set(), world.now
    world.step()
    assert (comparison(world).since, progressing(world)) == (began, "ComparingCanary")


def test_a_canary_that_does_not_acknowledge_until_the_limit_tells_nothing() -> None:
    world = by_canary()
    world.unobservable = canary_of(world)
    limit = incident(world).deadline_at
    for world.now, verdict in ((limit - 0.001, CanaryVerdict.OPEN), (limit, CanaryVerdict.INCONCLUSIVE)):
        world.step(0.0)
        assert verdict_of(world) is verdict


def test_a_canary_without_a_pod_is_in_fallback_but_nothing_begins_before_the_metrics_are_read() -> None:
    world = by_canary()
    (name,) = canary_of(world)
    change(world, name, replicas=0, pods=())
    observe = world.observe
    without_metrics(world)
    world.step()
    assert comparison(world).since is None
    world.observe = observe  # type: ignore[method-assign]
    began = world.now
    world.step()
    assert comparison(world).since == began


def test_a_pass_without_a_reading_is_no_look_and_ends_nothing() -> None:
    world = compared(by_canary())
    before = comparison(world)
    without_metrics(world)
    world.run(3, world.policy.spec.evaluation.window_seconds)
    assert comparison(world) == before
    assert (world.state.phase, progressing(world)) == (Phase.ROLLING_BACK, "ComparingCanary")


def test_a_comparison_of_which_the_record_was_lost_begins_again() -> None:
    world = compared(by_canary())
    world.state = replace(world.state, comparison=None)
    began = world.now
    world.step()
    assert (comparison(world).since, comparison(world).looks) == (began, 0)


def test_an_unresponsive_canary_is_restarted_once_and_nobody_else() -> None:
    world = by_canary()
    (name,) = canary_of(world)
    (pod,) = world.workloads[name].pods
    world.unresponsive, world.modes[pod.name] = {name}, (Mode.FP16, 1)
    others = {other: count for other, count in world.restarts.items() if other != name}
    timeout = world.policy.spec.rollback.ack_timeout_seconds
    until(world, lambda w: incident(w).escalated, seconds=15.0, passes=60)
    assert world.now - incident(world).decided_at > timeout
    world.run(20)
    assert world.restarts == {**others, name: 1}
    assert comparison(world).since is not None


def test_a_canary_that_only_a_restart_moves_waits_for_its_slot_however_long_that_takes() -> None:
    world = restart_only(6, rollback={**QUICK, "strategies": {"P2": "Canary"}})
    world.restart_slots = 0
    world.bad = dict.fromkeys(world.workloads, MILD)
    until(world, lambda w: w.state.by_canary, seconds=15.0)
    world.run(40, 15.0)
    assert (world.state.by_canary, world.restarts) == (True, {})


@pytest.mark.parametrize("verdict", [CanaryVerdict.OPEN, CanaryVerdict.NO_DIFFERENCE])
def test_a_new_pod_of_the_canary_starts_in_the_fallback_and_one_of_the_rest_does_not(verdict: CanaryVerdict) -> None:
    world = compared(by_canary())
    world.state = replace(world.state, comparison=replace(comparison(world), verdict=verdict))
    (name,) = canary_of(world)
    for other in world.workloads:
        world.replace_pods(other)
    world.run(3)
    assert verdict_of(world) is verdict
    assert world.really_in(Mode.FP32) == {name}
    assert world.really_in(Mode.FP16) == set(world.workloads) - {name}


def test_a_retry_of_a_held_canary_begins_at_the_first_step_and_brings_nobody_back_before_its_turn() -> None:
    world = compared(by_canary())
    world.state = replace(world.state, comparison=replace(comparison(world), verdict=CanaryVerdict.NO_DIFFERENCE))
    (name,) = canary_of(world)
    answer(world, "retry")
    until(world, lambda w: w.state.phase is not Phase.ROLLING_BACK, passes=4)
    world.bad = {}
    assert (world.state.phase, world.state.canary, world.state.failing) == (Phase.PENDING, (), ())
    assert name in world.really_in(Mode.FP32)
    assert world.state.assigned(key(name)) is Mode.FP32
    world.run(60)
    assert world.really_in(Mode.FP16) == set(world.workloads)

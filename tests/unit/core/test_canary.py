"""Who goes first in a rollback by canary, whom they are compared with, and what counts as trouble."""

import math
from dataclasses import replace

import pytest

from lab.model.world import World
from precision_operator.api.canary import CanaryVerdict, Comparison
from precision_operator.api.incident import Scope
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import DEFAULT_CRITERIA, Delivery, Severity, Strategy
from precision_operator.api.state import Phase
from precision_operator.api.workload import name_of
from precision_operator.core.calling import calls as told
from precision_operator.core.derive import derive_facts
from precision_operator.core.facts import Facts
from precision_operator.core.model import Request
from precision_operator.core.rollback.canary import choose, depth, difference, trouble
from precision_operator.core.rollback.triggers import Trigger
from precision_operator.reasons import Cause, Reason
from tests.support.fleets import answer, change, promoted, respec, until
from tests.support.rollbacks import MILD, QUICK, by_canary, canary_of, compared
from tests.support.views import key, keys, pod

ANSWERED = (Severity.P0, Severity.P1, Severity.P2)


def facts(world: World) -> Facts:
    return derive_facts(world.policy, world.state, world.observe(), world.now)


def calls(*breached: str) -> Trigger:
    """For a rollback by canary."""
    return Trigger(Severity.P2, Scope.FLEET, Reason.OVERFLOW_RATE_HIGH, "", keys(*breached), 0.0, Strategy.CANARY)


def reading(world: World) -> float | Cause:
    return difference(facts(world))


def why(world: World) -> str:
    found = reading(world)
    assert isinstance(found, Cause), found
    return found.reason


def begun(breached: int, **canary: object) -> World:
    """A promoted fleet of twenty in which so many are mildly breached."""
    rollback = {**QUICK, "strategies": {"P2": "Canary"}, "canary": canary, "fleetMinimum": 1, "fleetShare": 0.05}
    world = promoted(rollback=rollback)
    for index in range(14):
        world.add(f"more-{index}")
    world.run(20)
    assert len(world.really_in(Mode.FP16)) == 20
    world.bad = dict.fromkeys(sorted(world.workloads)[:breached], MILD)
    until(world, lambda w: w.state.phase is Phase.ROLLING_BACK, seconds=15.0)
    return world


@pytest.mark.parametrize(
    ("breached", "share", "expected"),
    [(20, 0.1, 2), (20, 0.04, 1), (20, 0.5, 10), (3, 0.5, 1), (2, 0.1, 1), (6, 0.1, 2)],
)
def test_the_canary_is_a_share_of_the_fleet_and_at_most_half_of_the_breached(
    breached: int, share: float, expected: int
) -> None:
    world = begun(breached, share=share)
    assert len(canary_of(world)) == expected
    assert canary_of(world) <= set(world.bad)


def test_the_same_policy_chooses_the_same_canary_again() -> None:
    assert canary_of(begun(20)) == canary_of(begun(20))


def test_labels_that_reach_all_of_the_breached_or_none_leave_the_choice_to_the_share() -> None:
    for nodes in ((), ("node",)):
        rollback = {**QUICK, "strategies": {"P2": "Canary"}, "canary": {"by": "NodeLabel"}}
        world = promoted(rollback=rollback)
        for name, workload in world.workloads.items():
            pods = tuple(replace(pod, node="node") for pod in workload.pods)
            world.workloads[name] = replace(workload, pods=pods)
        observe = world.observe
        world.observe = lambda observe=observe, nodes=nodes: replace(observe(), canary_nodes=nodes)  # type: ignore
        world.bad = dict.fromkeys(("hot-0", "hot-1", "hot-3"), MILD)
        until(world, lambda w: w.state.phase is Phase.ROLLING_BACK, seconds=15.0)
        assert len(canary_of(world)) == 1


def test_labelled_is_what_runs_on_labelled_nodes_and_on_no_others() -> None:
    world = promoted(rollback={**QUICK, "strategies": {"P2": "Canary"}, "canary": {"by": "NodeLabel"}})
    for name, nodes in (("hot-0", ("mine", "other")), ("hot-1", ("mine", "mine")), ("hot-2", ("other",))):
        (pod,) = world.workloads[name].pods
        change(world, name, pods=tuple(replace(pod, uid=str(n), node=node) for n, node in enumerate(nodes)))
    for node, name in (("mine", "hot-1"), ("other", "hot-2")):
        seen = replace(world.observe(), canary_nodes=(node,))
        found = derive_facts(world.policy, world.state, seen, world.now)
        assert choose(found, calls("hot-0", "hot-1", "hot-2")) == keys(name)


def test_nobody_is_a_canary_whose_running_pods_cannot_be_moved() -> None:
    world = promoted()
    respec(world, delivery=Delivery.NEW_ONLY)
    assert choose(facts(world), calls("hot-0", "hot-1")) == ()


@pytest.mark.parametrize(
    ("signal", "value", "expected"),
    [
        (Signal.OVERFLOW, 0.05, 0.0),
        (Signal.OVERFLOW, 0.075, 0.5),
        (Signal.OVERFLOW, 0.10, 1.0),
        (Signal.OVERFLOW, 0.90, 1.0),
        (Signal.DIVERGENCE, -0.5, 0.0),
        (Signal.DIVERGENCE, 0.125, 0.5),  # its warning is a P3, which no rollback answers: the ramp goes to enter
        (Signal.DIVERGENCE, 0.20, 1.0),
        (Signal.FAILURES, 0.275, 0.5),
        (Signal.NON_FINITE, 0.0, 0.0),
        (Signal.NON_FINITE, 1.0, 1.0),
        (Signal.SPEED, 2.5, 0.0),
        (Signal.SPEED, 0.9, 0.0),
        (Signal.SPEED, 0.85, 0.5),
        (Signal.SPEED, 0.5, 1.0),
    ],
)
def test_trouble_is_nothing_at_what_promotes_and_all_at_a_breach(signal: Signal, value: float, expected: float) -> None:
    criterion = next(c for c in DEFAULT_CRITERIA if c.signal is signal)
    assert depth(criterion, value, ANSWERED) == pytest.approx(expected)


def test_the_worst_signal_speaks_for_a_workload_and_one_unknown_signal_makes_it_unknown() -> None:
    world = compared(by_canary())
    view = {w.name: w for w in world.workloads.values()}
    rest = next(name for name in world.bad if name not in canary_of(world))
    world.bad[rest] = {Signal.OVERFLOW: 0.06, Signal.SPEED: 0.86}
    assert trouble(facts(world), view[rest]) == pytest.approx(0.4)
    world.bad[rest] = {Signal.DIVERGENCE: 0.125}
    assert trouble(facts(world), view[rest]) == pytest.approx(0.5), "a warning that no rollback answers is no breach"
    world.bad[rest] = {Signal.OVERFLOW: 0.06, Signal.SPEED: math.nan}
    assert trouble(facts(world), view[rest]) is None
    world.bad[rest] = {Signal.DIVERGENCE: math.nan}
    assert trouble(facts(world), view[rest]) == 1.0
    world.unobservable.add(rest)
    assert trouble(facts(world), view[rest]) is None


def test_the_rest_are_the_breached_that_still_train_in_reduced_precision() -> None:
    world = by_canary()
    compared(world)
    assert reading(world) == 1.0
    others = [found for found in world.state.breached if found not in world.state.canary]
    world.bad = {name_of(others[0]): MILD}
    assert reading(world) == pytest.approx(1.0 / len(others))
    world.state = replace(world.state, breached=(*world.state.canary, others[0]))
    assert reading(world) == 1.0
    world.state = replace(world.state, breached=world.state.canary)
    assert why(world) == "NothingToCompare"


def test_who_went_to_the_fallback_by_itself_is_none_of_the_rest_nor_is_a_canary_with_a_pod_that_is_leaving() -> None:
    world = compared(by_canary())
    world.state = replace(world.state, breached=(*world.state.canary, key("hot-3")))
    becomes(world, "hot-3", request=Request(99, Mode.FP32))
    going = pod("going", request=Request(1, Mode.FP16), terminating=True, gone_by=world.now + 30.0)
    (name,) = canary_of(world)
    assert name != "hot-3"
    change(world, name, pods=(*world.workloads[name].pods, going))
    assert why(world) == "NothingToCompare"


def test_every_canary_and_half_of_the_rest_must_be_known() -> None:
    world = compared(by_canary())
    rest = sorted(set(world.workloads) - canary_of(world))
    world.unobservable = set(rest[:2])
    assert reading(world) == 1.0
    known = world.state
    world.state = replace(known, breached=(*known.canary, *(world.workloads[name].key for name in rest[:4])))
    assert reading(world) == 1.0
    world.state, world.unobservable = known, set(rest[:3])
    found = reading(world)
    assert isinstance(found, Cause)
    assert found.reason == "CanaryUnknown"
    assert f"no believable data for {rest[0]}, {rest[1]}, {rest[2]}:" in found.message
    world.unobservable = canary_of(world)
    assert why(world) == "AwaitingAcknowledgement"


def test_without_a_pod_of_the_canary_nothing_is_compared() -> None:
    world = compared(by_canary())
    (name,), before = canary_of(world), world.state
    world.state = replace(before, canary=keys("gone"))
    assert why(world) == "CanaryGone"
    world.state = before
    change(world, name, pods=())
    assert why(world) == "CanaryGone"


def test_written_and_acknowledged_is_what_the_fleet_is_not_its_canary() -> None:
    world = compared(by_canary())
    incident = world.state.incident
    assert incident is not None
    assert (incident.last_patch_at, incident.last_ack_at) == (None, None)


def becomes(world: World, name: str, **fields: object) -> None:
    """Other pods of one workload, and its process in what they were asked for."""
    pods = tuple(replace(pod, **fields) for pod in world.workloads[name].pods)  # type: ignore[arg-type]
    change(world, name, pods=pods)
    world.modes.update({pod.name: (pod.effective_mode or Mode.FP32, 9) for pod in pods})


@pytest.mark.parametrize(
    ("breached", "fields", "compared_at_all"),
    [
        (("hot-0", "hot-1"), {}, True),
        (("hot-0",), {}, False),
        (("hot-0", "hot-1"), {"request": Request(9, Mode.FP32)}, False),
        (("hot-0", "hot-1"), {"terminating": True}, False),
    ],
    ids=["two", "one alone", "the other is in the fallback already", "the other's pods are leaving"],
)
def test_a_canary_needs_another_breached_workload_that_still_trains_in_reduced_precision(
    breached: tuple[str, ...], fields: dict[str, object], compared_at_all: bool
) -> None:
    world = promoted()
    becomes(world, "hot-1", **fields)
    chosen = choose(facts(world), calls(*breached))
    assert bool(chosen) is compared_at_all
    assert set(chosen) <= set(keys(*breached))


@pytest.mark.parametrize("verdict", [CanaryVerdict.OPEN, CanaryVerdict.BETTER])
def test_a_verdict_that_a_record_lost_ends_no_pass_and_the_canary_is_compared_anew(verdict: CanaryVerdict) -> None:
    world = by_canary()
    assert world.state.comparison is not None
    until(world, lambda w: w.state.comparison is not None and w.state.comparison.since is not None)
    comparison = replace(world.state.comparison, verdict=verdict, ended_at=world.now)
    world.state = replace(world.state, comparison=comparison)
    assert "RollbackCanaryHeld" not in [str(call.kind) for call in told(world.state, world.now)]
    world.step()
    assert world.state.comparison is not None
    assert (world.state.comparison.verdict, world.state.comparison.ended_at) == (CanaryVerdict.OPEN, None)


def test_two_kinds_with_the_same_name_are_compared_as_two() -> None:
    world = compared(by_canary())
    found = facts(world)
    other = next(w for w in found.workloads if w.key in world.state.breached and w.key not in world.state.canary)
    world.bad = {other.name: MILD}
    twin = replace(other, key=f"apps/StatefulSet/{other.name}")
    seen = world.observe()
    world.state = replace(world.state, breached=(*world.state.canary, other.key, twin.key))
    both = derive_facts(world.policy, world.state, replace(seen, workloads=(*seen.workloads, twin)), world.now)
    assert difference(both) == 1.0


def test_a_rollback_canary_leaves_those_alone_that_were_rolled_back_by_themselves_before() -> None:
    world = promoted(rollback={**QUICK, "strategies": {"P2": "Canary"}, "fleetShare": 0.5})
    world.bad = {"hot-2": {Signal.NON_FINITE: 3.0}}
    world.run(3)
    world.bad = dict.fromkeys(set(world.workloads) - {"hot-2"}, MILD)
    until(world, lambda w: w.state.phase is Phase.ROLLING_BACK, seconds=15.0)
    assert ([h.name for h in world.state.held], "hot-2" in canary_of(world)) == (["hot-2"], False)
    world.run(3)
    assert world.really_in(Mode.FP32) == {"hot-2", *canary_of(world)}
    compared(world).bad = {}
    assert world.state.comparison is not None
    world.state = replace(world.state, comparison=replace(world.state.comparison, verdict=CanaryVerdict.NO_DIFFERENCE))
    answer(world, "retry")
    until(world, lambda w: w.state.phase is not Phase.ROLLING_BACK)
    assert (world.state.phase, world.state.held) == (Phase.PENDING, ()), "a retry is one of all"


@pytest.mark.parametrize("began", [True, False])
def test_a_canary_that_is_compared_or_held_is_not_looked_at_in_a_hurry(began: bool) -> None:
    world = compared(by_canary())
    if not began:  # there was nothing to compare
        held = Comparison(verdict=CanaryVerdict.INCONCLUSIVE, ended_at=world.now)
        world.state = replace(world.state, comparison=held)
    assert world.decide().wake_at == world.now + 15.0

"""``unit: Pod``: pods of independent replicas move one by one; what cannot be divided moves as a whole, or not at all."""

from dataclasses import replace
from itertools import count

import pytest

from lab.model.cluster import Room
from lab.model.policies import FAST, policy
from lab.model.world import NAN, World
from precision_operator.api.mitigation import Rung
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import PolicyEnforcement, Unit
from precision_operator.api.state import Phase
from precision_operator.core.actions import DeletePod, EvictPod
from precision_operator.core.cohorts.order import rank
from tests.support.fleets import answer, at_next_step, change, condition, paused, phase_of, respec, until
from tests.support.unit_pods import STEPS, asked, pods, replicas
from tests.support.views import key


def test_a_step_moves_its_share_of_the_pods_and_new_pods_stay_in_the_fallback() -> None:
    world = paused(replicas())
    assert len(asked(world)) == 2
    assert world.state.shares == {key("a"): 2}
    assert (dict(world.state.modes), world.state.assigned(key("a"))) == ({}, Mode.FP32)


def test_the_pods_of_a_step_are_among_those_of_the_next() -> None:
    world = paused(replicas())
    before = asked(world)
    at_next_step(world, passes=3)
    assert before < asked(world)
    assert len(asked(world)) == 5


def test_more_pods_of_a_share_are_a_promotion_which_only_the_newest_policy_may_ask_for() -> None:
    world = paused(replicas())
    assert not world.decide().promotes
    answer(world, "promote")
    until(world, lambda w: w.decide().state.shares != w.state.shares)
    assert world.decide().promotes


def test_at_100_percent_the_workload_is_assigned_as_a_whole() -> None:
    world = paused(replicas())
    at_next_step(world, passes=3)
    at_next_step(paused(world), passes=3)
    assert (dict(world.state.shares), dict(world.state.modes)) == ({}, {key("a"): Mode.FP16})
    assert len(asked(world)) == 10
    until(world, lambda w: w.state.phase is Phase.HEALTHY)


def test_what_a_lost_pod_leaves_free_another_one_takes_and_nobody_moves_back() -> None:
    world = paused(replicas())
    gone = min(asked(world))
    stays = asked(world) - {gone}
    change(world, "a", pods=tuple(pod for pod in pods(world) if pod.uid != gone))
    world.run(4)
    assert len(pods(world)) == 10
    assert stays < asked(world)
    assert len(asked(world)) == 2


def test_what_is_asked_by_nobody_is_put_back() -> None:
    world = paused(replicas())
    moved = asked(world)
    other = next(pod for pod in pods(world) if pod.uid not in moved)
    forged = replace(other, request=replace(next(p.request for p in pods(world) if p.uid in moved and p.request)))
    change(world, "a", pods=tuple(forged if pod.uid == other.uid else pod for pod in pods(world)))
    world.run(3)
    assert len(asked(world)) == 2
    assert sum(mode is Mode.FP16 for mode, _ in world.processes("a")) == 2


def test_a_breach_in_a_moved_pod_takes_all_of_the_workload_back() -> None:
    world = paused(replicas())
    world.bad["a"] = NAN
    until(world, lambda w: w.state.phase is Phase.HELD)
    assert world.state.incident is not None
    assert world.state.breached == (key("a"),)
    assert (asked(world), {mode for mode, _ in world.processes("a")}) == (set(), {Mode.FP32})


def test_the_moved_pods_that_lack_memory_for_fp32_are_restarted_by_a_rollback() -> None:
    world = paused(replicas())
    world.crowded, moved = {"a"}, asked(world)
    answer(world, "abort")
    actions = [action for _ in range(4) for action in world.step().actions]
    assert {a.pod.uid for a in actions if isinstance(a, DeletePod | EvictPod)} == moved


def test_what_is_tried_against_overflow_is_asked_of_the_moved_pods_alone() -> None:
    world = paused(replicas())
    world.bad["a"] = {Signal.OVERFLOW: 0.25}
    until(world, lambda w: any(window.rung is Rung.HALVE_SCALE for window in w.state.mitigations), seconds=15.0)
    assert {pod.uid for pod in pods(world) if pod.request is not None} == asked(world)


def test_a_fault_that_the_other_pods_have_too_is_not_the_precisions() -> None:
    world = paused(replicas())
    world.everywhere[Signal.FAILURES] = 0.9
    respec(world, rollback=replace(world.policy.spec.rollback, fleet_minimum=1))
    world.run(5)
    assert phase_of(world) in (Phase.PROGRESSING, Phase.PAUSED)
    assert condition(world, "Progressing").reason == "CauseNotPrecision"


def test_after_a_rollback_another_attempt_counts_pods_again() -> None:
    world = paused(replicas())
    answer(world, "rollback")
    until(world, lambda w: w.state.phase is Phase.HELD)
    assert not asked(world)
    world.run(30)
    answer(world, "retry")
    until(world, lambda w: w.state.phase is Phase.PAUSED)
    assert len(asked(world)) == 2


def test_a_process_group_is_one_unit_and_never_split() -> None:
    world = replicas(4, world_size=4)
    world.add("b", pods=4)
    world.world_sizes["b"] = 4
    paused(world)
    assert sorted([len(asked(world, "a")), len(asked(world, "b"))]) == [0, 4]
    assert not world.state.shares


def test_a_rank_whose_request_was_lost_is_acknowledged_once_it_followed_its_first_one() -> None:
    world = replicas(2, world_size=2)
    decision = world.decide()
    world.commit(decision)
    world.act(decision.actions[0])
    world.train()
    paused(world)
    assert {generation for _, generation in world.processes("a")} == {world.state.generation} == {1}


def test_what_becomes_a_process_group_goes_back_and_is_not_split_any_more() -> None:
    world = paused(replicas())
    world.add("b", pods=10)
    world.world_sizes.update(a=10, b=1)
    world.run(4)
    assert key("a") not in world.state.shares
    assert len(asked(world, "a")) in (0, 10)


def test_what_nobody_says_of_its_process_group_is_not_moved_below_100_percent() -> None:
    world = replicas()
    del world.world_sizes["a"]
    world.run(5)
    assert (phase_of(world), asked(world)) == (Phase.PENDING, set())
    assert condition(world, "Progressing").reason == "ProcessGroupUnknown"
    assert "world_size" in condition(world, "Progressing").message


def test_what_nobody_says_moves_as_a_whole_at_100_percent() -> None:
    world = replicas(strategy={"steps": [{"setWeight": 100}]})
    del world.world_sizes["a"]
    world.run(5)
    assert len(asked(world)) == 10


def test_a_prometheus_that_is_away_moves_nothing() -> None:
    world = paused(replicas())
    before = asked(world)
    world.metrics_away = True
    world.run(5)
    assert asked(world) == before


def test_several_pods_that_only_a_restart_moves_are_refused_with_the_next_step() -> None:
    world = replicas()
    world.add("literal", hot=False, pods=3)
    world.world_sizes["literal"] = 1
    paused(world)
    found = condition(world, "Accepted")
    assert (found.status, found.reason) == ("True", "PodsIndivisible")
    assert "literal" in found.message
    assert "unit: Workload" in found.message
    at_next_step(at_next_step(world, passes=3), passes=3)
    assert key("literal") not in world.state.members


def test_a_fleet_of_nothing_else_does_not_begin() -> None:
    world = World(policy(**{**FAST, "unit": "Pod"}))
    world.add("literal", hot=False, pods=3)
    world.run(4)
    assert (phase_of(world), condition(world, "Progressing").reason) == (Phase.PENDING, "PodsIndivisible")
    assert condition(world, "Accepted").status == "False"


@pytest.mark.parametrize("says", [{}, {"x": 1, "y": 1}], ids=["unknown", "alone"])
def test_a_single_pod_that_only_a_restart_moves_is_one_unit(says: dict[str, int]) -> None:
    world = World(policy(**{**FAST, "unit": "Pod", "strategy": {"steps": [{"setWeight": 50}, {"pause": {}}]}}))
    for name in ("x", "y"):
        world.add(name, hot=False)
    world.world_sizes = says
    world.run(4)
    assert (len(world.state.members), condition(world, "Accepted").reason) == (1, "Accepted")


def test_who_has_moved_as_a_whole_takes_no_further_place_of_the_next_step() -> None:
    world = World(policy(**{**FAST, "unit": "Pod", "strategy": STEPS}))
    for name in ("w", "x", "y", "z"):
        world.add(name, hot=False)
    assert len(at_next_step(paused(world)).state.members) == 2


def test_a_single_pod_that_has_moved_takes_no_further_place_though_it_says_no_more_that_it_trains_alone() -> None:
    world = paused(replicas(1, strategy={"steps": [{"setWeight": 20}, {"pause": {}}, {"setWeight": 80}]}))
    for name in ("b", "c", "d", "e"):
        world.add(name)
        world.world_sizes[name] = 1
    del world.world_sizes["a"]
    assert len(at_next_step(world).state.members) == 4


def test_what_was_moved_before_the_unit_changed_is_still_taken_back_by_a_restart() -> None:
    world = World(policy(**{**FAST, "strategy": {"steps": [{"setWeight": 100}]}}))
    world.add("literal", hot=False, pods=3)
    until(world, lambda w: w.state.phase is Phase.HEALTHY)
    respec(world, unit=Unit.POD)
    world.run(2)
    answer(world, "abort")
    until(world, lambda w: w.state.phase is Phase.HELD)
    assert {mode for mode, _ in world.processes("literal")} == {Mode.FP32}


def test_a_unit_that_is_set_back_widens_no_share_before_its_step() -> None:
    world = paused(replicas())
    before = asked(world)
    respec(world, unit=Unit.WORKLOAD)
    world.run(3)
    assert asked(world) == before


def test_pods_of_several_workloads_are_counted_together() -> None:
    world = replicas(6)
    world.add("b", pods=4)
    world.world_sizes["b"] = 1
    paused(world)
    assert len(asked(world)) + len(asked(world, "b")) == 2


@pytest.mark.parametrize("remaining", [1, 3])
def test_fewer_pods_are_not_all_moved_because_more_were(remaining: int) -> None:
    world = paused(replicas(20))
    moved = asked(world)
    kept = [pod for pod in pods(world) if pod.uid not in moved][:remaining]
    change(world, "a", replicas=remaining, pods=tuple(kept))
    world.run(4)
    assert len(asked(world)) == 1, "a step moves one unit at least"


@pytest.mark.parametrize("template", [True, False], ids=["the template", "a pod"])
def test_what_lost_the_contract_takes_no_pod_of_a_share_away(template: bool) -> None:
    world = paused(replicas())
    if template:
        world.undeclare("a")
    else:
        left = next(pod for pod in pods(world) if pod.uid not in asked(world))
        change(world, "a", pods=tuple(replace(pod, hot=pod is not left) for pod in pods(world)))
    answer(world, "promote")
    decisions = [world.step() for _ in range(6)]
    assert not [a for d in decisions for a in d.actions if isinstance(a, DeletePod | EvictPod)]


def test_new_pods_of_a_share_are_moved_only_where_they_can_be_watched() -> None:
    world = paused(replicas())
    moved = asked(world)
    change(world, "a", pods=tuple(pod for pod in pods(world) if pod.uid not in moved))
    world.unobservable |= {pod.name for pod in pods(world)}
    world.run(3)
    assert asked(world) == set()


def replaced_in_the_fallback(world: World) -> World:
    """Pods that have not moved were replaced: they start in the fallback, and some have a lower hash than who has moved."""
    moved, fallback = asked(world), world.policy.spec.fallback
    lowest = min(rank(world.policy.uid, uid) for uid in moved)
    lower = (uid for number in count() if rank(world.policy.uid, uid := f"new-{number}") < lowest)
    kept, others = [p for p in pods(world) if p.uid in moved], [p for p in pods(world) if p.uid not in moved]
    new = [replace(pod, uid=uid, started_mode=fallback, request=None) for pod, uid in zip(others, lower, strict=False)]
    change(world, "a", pods=(*kept, *new))
    return world


def test_pods_that_have_not_moved_are_left_in_a_fallback_of_bf16() -> None:
    world = replaced_in_the_fallback(paused(replicas(fallback="bf16")))
    world.run(3)
    assert [pod.effective_mode for pod in pods(world)] == [Mode.FP16] * 2 + [Mode.BF16] * 8


def test_an_edit_to_a_safer_fallback_moves_no_pod_that_had_not_moved() -> None:
    world = replaced_in_the_fallback(paused(replicas(fallback="bf16")))
    moved = asked(world)
    respec(world, fallback=Mode.FP32)
    world.run(3)
    assert asked(world) == moved
    assert {pod.effective_mode for pod in pods(world) if pod.uid not in moved} == {Mode.FP32}


def test_an_observer_judges_those_that_have_moved_though_the_fallback_was_edited() -> None:
    world = replaced_in_the_fallback(paused(replicas(fallback="bf16")))
    respec(world, enforcement=PolicyEnforcement.OBSERVE)
    world.run(2)
    respec(world, fallback=Mode.FP32)
    world.bad["a"] = NAN
    world.run(4)
    would = condition(world, "WouldAct")
    assert (would.status, would.reason) == ("True", "LossNotFinite")


def test_a_less_safe_fallback_counts_once_it_is_assigned(monkeypatch: pytest.MonkeyPatch) -> None:
    world = replicas()
    paused(world)
    world.bad["a"] = {Signal.OVERFLOW: 0.3}
    until(world, lambda w: any(window.rung is Rung.BF16 for window in w.state.mitigations), seconds=15.0)
    world.bad.clear()
    world.run(3)
    moved = {pod.uid for pod in pods(world) if pod.effective_mode is Mode.BF16}
    assert len(moved) == 2
    monkeypatch.setattr(World, "echoed", property(lambda self: False))
    respec(world, fallback=Mode.BF16)
    world.run(3)
    assert world.state.fallback is Mode.FP32, "admission is not confirmed"
    assert {pod.uid for pod in pods(world) if pod.effective_mode is Mode.BF16} == moved
    world.bad["a"] = NAN
    world.run(4)
    assert phase_of(world) is Phase.HELD


def test_who_says_what_its_process_group_is_is_not_asked_for_it() -> None:
    world = replicas(4, world_size=4)
    world.add("silent", pods=4)
    world.run(2)
    accepted = condition(world, "Accepted")
    assert (accepted.status, accepted.reason) == ("True", "ProcessGroupUnknown")
    assert "the pods of silent are" in accepted.message


def test_a_process_group_that_only_a_restart_moves_joins_as_a_whole() -> None:
    world = World(policy(**{**FAST, "unit": "Pod", "strategy": STEPS}))
    world.add("group", hot=False, pods=3)
    world.world_sizes["group"] = 3
    paused(world)
    assert len(asked(world, "group")) == 3


@pytest.mark.parametrize(("says", "shares"), [({"a": 1}, {key("a"): 1}), ({}, {})])
def test_a_single_pod_moves_as_a_pod_where_it_is_known_to_train_alone_and_else_as_a_whole(
    says: dict[str, int], shares: dict[str, int]
) -> None:
    world = replicas(1)
    world.world_sizes = says
    assert (len(asked(paused(world))), dict(world.state.shares)) == (1, shares)


def test_a_workload_of_which_one_pod_is_there_is_no_single_one() -> None:
    world = replicas(2)
    world.world_sizes, world.room["a"] = {}, Room.QUOTA
    change(world, "a", pods=pods(world)[:1])
    world.run(4)
    assert (asked(world), condition(world, "Progressing").reason) == (set(), "ProcessGroupUnknown")


def test_steps_count_workloads_unless_they_are_to_count_pods() -> None:
    world = replicas(10, unit="Workload")
    world.add("b", pods=10)
    world.world_sizes["b"] = 1
    at_next_step(paused(world))
    assert world.state.message == "step 2 of 3: 1 of 2 to fp16"


def test_the_steps_of_the_way_to_fp32_count_workloads() -> None:
    world = World(policy(**{**FAST, "unit": "Pod", "strategy": STEPS, "target": "fp32"}))
    for name in ("a", "b"):
        world.add(name, pods=4, mode=Mode.FP16)
        world.world_sizes[name] = 1
    paused(world)
    assert sorted(len(asked(world, name)) for name in ("a", "b")) == [0, 4]

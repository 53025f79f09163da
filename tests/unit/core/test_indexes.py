"""``unit: Pod``, where a restart alone moves the pods: the lowest indexes move, and admission knows them."""

from dataclasses import replace

import pytest

from lab.model.cluster import Room
from lab.model.policies import FAST, policy
from lab.model.world import NAN, World
from precision_operator.api.modes import Mode
from precision_operator.api.spec import Delivery, Unit
from precision_operator.api.state import HeldWorkload, Phase
from precision_operator.core.actions import DeletePod, EvictPod, RequestPod, ResumeJob, SuspendJob
from precision_operator.core.cohorts.units import by_index
from precision_operator.core.model import PodView
from precision_operator.core.progress import live_pods
from tests.support.fleets import answer, at_next_step, change, condition, paused, phase_of, respec, until
from tests.support.unit_pods import STEPS
from tests.support.views import key

JOB = "batch/Job/a"


def fleet(*, job: bool = False, count: int = 10, world_size: int = 1, hot: bool = False, **spec: object) -> World:
    """One StatefulSet, or one Indexed Job, that only a restart moves; every step waits for a person."""
    world = World(policy(**{**FAST, "strategy": STEPS, "unit": "Pod", **spec}))
    (world.add_job if job else world.add)("a", hot=hot, pods=count)
    world.number("a")
    world.in_order = set() if job else {"a"}
    world.world_sizes["a"] = world_size
    return world


def moved(world: World, name: str = "a") -> set[int]:
    """The indexes whose processes train in FP16."""
    return {pod.index for pod in live_pods(world.workloads[name]) if world.modes[pod.name][0] is Mode.FP16}


@pytest.mark.parametrize("job", [False, True])
def test_a_step_moves_its_share_of_the_indexes_and_admission_knows_them(job: bool) -> None:
    world = paused(fleet(job=job))
    assert moved(world) == {0, 1}
    key_of = world.workloads["a"].key
    assert (dict(world.state.indexes), world.state.index_mode) == ({key_of: 2}, Mode.FP16)
    assert (dict(world.state.modes), world.state.assigned(key_of)) == ({}, Mode.FP32)
    world.run(2)
    assert world.state.restarts == {}, "none of the others is waited for"


def test_a_step_moves_its_share_of_what_is_found_in_a_safer_mode_than_the_fallback() -> None:
    world = paused(fleet(fallback="bf16"))
    assert moved(world) == {0, 1}
    assert (dict(world.state.modes), world.state.assigned(key("a"))) == ({}, Mode.BF16)


def test_a_share_is_rounded_down_and_is_one_at_least_as_it_is_of_hot_pods() -> None:
    assert moved(paused(fleet(count=3))) == {0}
    assert moved(paused(fleet(count=14))) == {0, 1}


def test_a_step_waits_for_as_many_new_pods_as_it_moves_and_not_for_the_rest() -> None:
    until(fleet(), lambda w: w.state.phase is Phase.PAUSED, passes=20)


def test_a_step_may_take_all_indexes_of_a_workload() -> None:
    world = fleet(count=2, strategy={"steps": [{"setWeight": 75}, {"pause": {}}, {"setWeight": 100}]})
    world.add("b", hot=False, pods=2)
    world.number("b")
    world.in_order.add("b")
    world.world_sizes["b"] = 1
    until(world, lambda w: w.state.phase is Phase.PROGRESSING)
    assert sorted(world.state.indexes.values()) == [1, 2]


def test_a_workload_takes_no_more_places_than_it_has_indexes() -> None:
    world = fleet(count=2, strategy={"steps": [{"setWeight": 80}, {"pause": {}}, {"setWeight": 100}]})
    for name in ("b", "c", "d", "e"):
        world.add(name, hot=False)
        world.unobservable.add(name)
    until(world, lambda w: w.state.phase is Phase.PROGRESSING)
    assert world.state.indexes == {key("a"): 2}


def test_steps_count_indexes_whether_their_pods_run_or_not() -> None:
    world = paused(fleet())
    world.room["a"] = Room.QUOTA
    change(world, "a", pods=world.workloads["a"].pods[:-1])
    assert at_next_step(world).state.indexes == {key("a"): 5}


def test_a_promotion_evicts_the_pods_alone_whose_index_changes() -> None:
    world = paused(fleet())
    before = {pod.uid for pod in world.workloads["a"].pods if pod.index in {0, 1, 5, 6, 7, 8, 9}}
    answer(world, "promote")
    decisions = [world.step() for _ in range(3)]
    gone = [a.pod.index for d in decisions for a in d.actions if isinstance(a, EvictPod)]
    assert sorted(gone) == [2, 3, 4]
    paused(world)
    assert moved(world) == {0, 1, 2, 3, 4}
    assert before < {pod.uid for pod in world.workloads["a"].pods}


def test_at_100_percent_the_workload_is_assigned_as_a_whole() -> None:
    world = paused(at_next_step(paused(fleet())))
    at_next_step(world)
    until(world, lambda w: w.state.phase is Phase.HEALTHY)
    assert moved(world) == set(range(10))
    assert (dict(world.state.indexes), world.state.index_mode) == ({}, None)
    assert dict(world.state.modes) == {key("a"): Mode.FP16}


def test_whoever_makes_a_pod_anew_it_starts_in_the_mode_of_its_index() -> None:
    world = paused(fleet())
    restarts = dict(world.restarts)
    world.replace_pods("a")
    world.run(3)
    assert moved(world) == {0, 1}
    assert world.restarts == restarts, "no pod had to be restarted for its mode"


def test_nothing_begins_before_every_index_can_be_watched() -> None:
    world = fleet()
    world.unobservable |= {pod.name for pod in world.workloads["a"].pods if pod.index == 1}
    world.run(4)
    assert (phase_of(world), moved(world)) == (Phase.PENDING, set())
    world.unobservable.clear()
    assert moved(paused(world)) == {0, 1}


def test_a_moved_process_that_does_not_report_the_target_holds_the_step() -> None:
    world = fleet()
    until(world, lambda w: moved(w) == {0, 1})
    silent = next(pod.name for pod in world.workloads["a"].pods if pod.index == 1)
    world.unobservable.add(silent)
    world.run(8)
    assert (phase_of(world), world.state.step_index) == (Phase.PROGRESSING, 0)
    world.unobservable.clear()
    paused(world)


@pytest.mark.parametrize("job", [False, True])
def test_a_breach_in_a_moved_pod_takes_the_whole_workload_into_the_fallback(job: bool) -> None:
    world = paused(fleet(job=job))
    world.bad["a"] = NAN
    until(world, lambda w: w.state.phase is Phase.HELD)
    assert world.state.breached == (world.workloads["a"].key,)
    assert (moved(world), dict(world.state.indexes)) == (set(), {})
    world.replace_pods("a")
    world.turn()
    assert moved(world) == set()


def test_a_rollback_takes_the_moved_pods_alone_away() -> None:
    world = paused(fleet())
    answer(world, "abort")
    decisions = [world.step() for _ in range(4)]
    assert {a.pod.index for d in decisions for a in d.actions if isinstance(a, DeletePod | EvictPod)} == {0, 1}
    assert phase_of(world) is Phase.HELD


def test_a_rollbacks_restart_has_not_ended_while_a_pod_that_had_not_moved_is_not_seen() -> None:
    world = paused(fleet())
    world.unobservable |= {pod.name for pod in world.workloads["a"].pods if pod.index == 7}
    answer(world, "abort")
    world.run(6)
    assert (phase_of(world), list(world.state.restarts)) == (Phase.ROLLING_BACK, [key("a")])


def test_after_a_rollback_another_attempt_moves_indexes_again() -> None:
    world = paused(fleet())
    answer(world, "abort")
    until(world, lambda w: w.state.phase is Phase.HELD)
    assert condition(world, "Accepted").reason != "PodsIndivisible"
    world.run(30)
    answer(world, "retry")
    until(world, lambda w: w.state.phase is Phase.PAUSED)
    assert moved(world) == {0, 1}


def test_a_step_of_an_indexed_job_suspends_it_and_takes_no_pod_away() -> None:
    world = fleet(job=True)
    decisions = [world.step() for _ in range(8)]
    actions = [action for decision in decisions for action in decision.actions]
    assert [type(a) for a in actions if isinstance(a, SuspendJob | ResumeJob)] == [SuspendJob, ResumeJob]
    assert not [a for a in actions if isinstance(a, DeletePod | EvictPod)]
    assert (moved(world), world.used_up, dict(world.state.suspensions)) == ({0, 1}, {}, {})


def test_a_budget_that_allows_no_eviction_moves_nobody() -> None:
    world = fleet()
    world.budgeted.add("a")
    world.run(6)
    assert (moved(world), phase_of(world)) == (set(), Phase.PROGRESSING)
    world.budgeted.clear()
    assert moved(paused(world)) == {0, 1}


def test_a_step_has_not_begun_while_a_budget_keeps_its_pods_though_those_of_the_last_step_are_younger() -> None:
    world = paused(fleet())
    world.budgeted.add("a")
    answer(world, "promote")
    asked = [a for _ in range(4) for a in world.step().actions if isinstance(a, EvictPod)]
    assert {a.follows for a in asked} == {False}
    change(world, "a", pending_revision=True)
    world.budgeted.clear()
    world.run(3)
    assert (moved(world), condition(world, "PendingRevision").status) == ({0, 1}, "True")


def test_what_has_moved_stays_moved_when_the_workload_is_scaled() -> None:
    world = paused(fleet())
    world.scale("a", 20)
    world.run(5)
    assert moved(world) == {0, 1, 2, 3}, "20 % of 20"
    world.scale("a", 10)
    world.run(4)
    assert moved(world) == {0, 1, 2, 3}
    world.scale("a", 3)
    world.run(4)
    assert moved(world) == {0, 1, 2}
    assert world.state.indexes == {key("a"): 3}


def test_indexes_that_begin_later_are_counted_from_there() -> None:
    world = fleet()
    pods = tuple(replace(pod, index=pod.index + 5) for pod in world.workloads["a"].pods)
    change(world, "a", first_index=5, pods=pods)
    world.now += 15.0
    decision = world.decide()
    assert decision.state.indexes == {key("a"): 7}
    assert [action.pod.index for action in decision.actions if isinstance(action, EvictPod)] == [5, 6]


def test_no_further_index_joins_while_a_pod_cannot_be_watched() -> None:
    world = paused(fleet())
    world.unobservable |= {pod.name for pod in world.workloads["a"].pods if pod.index == 7}
    world.scale("a", 20)
    world.run(4)
    assert moved(world) == {0, 1}
    world.unobservable.clear()
    world.run(4)
    assert moved(world) == {0, 1, 2, 3}


def test_who_can_save_a_checkpoint_is_asked_for_one_before_its_index_moves() -> None:
    world = fleet(hot=True, delivery="Restart")
    paused(world).replace_pods("a")  # the new ones carry the request that admission gave them
    world.run(3)
    answer(world, "promote")
    decisions = [world.step() for _ in range(4)]
    writes = [a for d in decisions for a in d.actions if isinstance(a, RequestPod | EvictPod)]
    assert [(type(a), a.pod.index) for a in writes] == [(kind, i) for kind in (RequestPod, EvictPod) for i in (2, 3, 4)]
    assert all(a.checkpoint for a in writes if isinstance(a, RequestPod))


def test_pods_of_several_workloads_are_counted_together() -> None:
    world = fleet(count=6)
    world.add("b", pods=4)
    world.world_sizes["b"] = 1
    paused(world)
    hot = sum(pod.effective_mode is Mode.FP16 for pod in world.workloads["b"].pods)
    assert len(moved(world)) + hot == 2


def test_a_process_group_is_never_divided() -> None:
    world = fleet(count=4, world_size=4)
    world.add("b", hot=False, pods=4)
    world.number("b")
    world.world_sizes["b"] = 4
    paused(world)
    assert sorted([len(moved(world, "a")), len(moved(world, "b"))]) == [0, 4]
    assert not world.state.indexes


def test_what_becomes_a_process_group_goes_back_whole() -> None:
    world = paused(fleet())
    world.add("b", pods=10)
    world.world_sizes.update(a=10, b=1)
    world.run(6)
    assert key("a") not in world.state.indexes
    assert len(moved(world)) in (0, 10)


def test_what_nobody_says_of_its_process_group_waits_for_100_percent() -> None:
    world = fleet()
    del world.world_sizes["a"]
    world.run(5)
    assert (phase_of(world), moved(world)) == (Phase.PENDING, set())
    assert condition(world, "Progressing").reason == "ProcessGroupUnknown"


def test_what_is_rolled_back_alone_leaves_the_indexes() -> None:
    world = fleet(count=4, evaluation={**FAST["evaluation"], "onNoData": "Rollback", "noDataLimit": "30s"})
    for name in ("b", "c", "d"):
        world.add(name, pods=4)
        world.world_sizes[name] = 1
    at_next_step(paused(world))
    paused(world)
    assert moved(world)
    world.unobservable |= {pod.name for pod in world.workloads["a"].pods}
    until(world, lambda w: key("a") in w.state.held_keys)
    world.unobservable.clear()
    world.run(8)
    assert (moved(world), dict(world.state.indexes)) == (set(), {})
    assert condition(world, "Accepted").reason != "PodsIndivisible"


def test_nothing_is_raised_while_admission_does_not_answer() -> None:
    world = paused(fleet())
    world.lagging, world.bypassed = True, True
    world.scale("a", 30)
    world.run(3)
    assert world.state.indexes == {key("a"): 2}
    settled = world.commits
    world.run(3)
    assert world.commits == settled
    world.catch_up()
    world.run(6)
    assert moved(world) == set(range(6))


def test_a_unit_that_is_set_back_keeps_the_indexes_until_the_next_step() -> None:
    world = paused(fleet())
    respec(world, unit=Unit.WORKLOAD)
    world.run(3)
    assert (moved(world), dict(world.state.indexes)) == ({0, 1}, {key("a"): 2})


def test_a_deleted_policy_leaves_no_index_behind() -> None:
    world = paused(fleet())
    world.bad["a"] = NAN
    until(world, lambda w: w.state.phase is Phase.HELD)
    world.delete_policy()
    world.run(3)
    assert (dict(world.state.indexes), world.state.index_mode, dict(world.state.shares)) == ({}, None, {})


@pytest.mark.parametrize(
    ("changes", "delivery", "divided"),
    [
        ({}, Delivery.RESTART, True),
        ({}, Delivery.NEW_ONLY, False),
        ({}, Delivery.HOT, False),
        ({"indexes": 0}, Delivery.RESTART, False),
        ({"indexes": 1}, Delivery.RESTART, False),
        ({"pods": (PodView("a-0", "uid-0"),)}, Delivery.RESTART, False),
    ],
)
def test_who_is_moved_by_index(changes: dict[str, object], delivery: Delivery, divided: bool) -> None:
    view = replace(fleet().workloads["a"], **changes)  # type: ignore[arg-type]
    assert by_index(view, delivery) is divided


def test_who_is_taken_in_again_by_its_indexes_is_promoted() -> None:
    """Only a policy that is certain to be the newest one may do that."""
    world = paused(fleet())
    held = HeldWorkload(key("a"), "LossNotFinite", world.now)
    world.state = replace(world.state, held=(held,), indexes={}, index_mode=None)
    assert not world.decide().promotes
    world.run(30)
    answer(world, "retry")
    decision = world.decide()
    assert (dict(decision.state.indexes), decision.promotes) == ({key("a"): 2}, True)


def test_with_admission_away_what_moves_as_a_whole_now_keeps_the_indexes_that_it_had() -> None:
    world = paused(fleet())
    respec(world, stages=policy(**{**FAST, "strategy": {"steps": [{"setWeight": 100}]}}).spec.stages)
    world.lagging = world.bypassed = True
    world.run(3)
    assert (dict(world.state.indexes), dict(world.state.modes)) == ({key("a"): 2}, {})


def test_with_admission_away_what_moves_as_a_whole_is_never_listed_with_a_mode_and_an_index() -> None:
    world = paused(fleet(fallback="bf16"))
    stages = policy(**{**FAST, "strategy": {"steps": [{"setWeight": 100}]}}).spec.stages
    respec(world, stages=stages, fallback=Mode.FP32)
    world.lagging = world.bypassed = True
    world.run(3)
    assert (dict(world.state.indexes), dict(world.state.modes)) == ({}, {key("a"): Mode.BF16})


def test_the_indexes_of_another_target_get_it_from_the_first_on() -> None:
    world = paused(fleet())
    respec(world, target=Mode.BF16)
    until(world, lambda w: not w.state.indexes)
    until(world, lambda w: w.state.indexes)
    assert world.state.index_mode is Mode.BF16


def test_with_admission_away_who_joins_has_no_index_yet_and_who_leaves_none_any_more() -> None:
    world = paused(fleet())
    world.lagging = world.bypassed = True
    world.add("b", hot=False, pods=20)
    world.number("b")
    world.world_sizes["b"] = 1
    world.run(3)
    assert dict(world.state.indexes) == {key("a"): 2}
    respec(world, target=Mode.BF16)
    world.run(2)
    assert (dict(world.state.shares), dict(world.state.indexes)) == ({}, {})

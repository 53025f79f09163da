"""An emergency waits for nothing that others wait for: budgets, lost nodes, a policy that is gone, a silent rank."""

from __future__ import annotations

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import NAN, World
from precision_operator.api.modes import Mode
from precision_operator.core.actions import DeletePod, EvictPod
from tests.support.fleets import condition, emergency, restart_only, until


def test_an_emergency_does_not_wait_for_restarts_that_wait_for_their_own_budget() -> None:
    world = restart_only(12, pods=4, rollback={"emergency": {"expectedRestart": "10s"}})
    world.budgeted = {f"new-{index}" for index in range(5)}
    for name in sorted(world.budgeted):
        world.add(name, hot=False, pods=4, mode=Mode.FP32)
    world.run(20, 15.0)
    assert len(world.state.restarts) == 5
    world.bad = {"old-03": NAN}
    until(world, lambda w: w.state.held)
    world.step(5.0)
    assert world.restarts["old-03"] == 4, "its pods go at once"


def test_an_emergency_that_respects_budgets_goes_on_with_whom_none_holds() -> None:
    emergency_rules = {"respectDisruptionBudgets": True, "maxConcurrentPods": 20}
    world = restart_only(6, pods=10, rollback={"emergency": emergency_rules})
    world.budgeted = {"old-00", "old-01"}
    free = set(world.workloads) - world.budgeted
    until(emergency(world), lambda w: w.really_in(Mode.FP32) == free, seconds=5.0, passes=60)
    assert world.state.incident is not None
    assert world.now < world.state.incident.deadline_at


@pytest.mark.parametrize("job", [False, True])
def test_pods_on_a_lost_node_hold_no_places_of_an_emergency(job: bool) -> None:
    world = World(policy(**{**FAST, "rollback": {"emergency": {"maxConcurrentPods": 2}}}))
    lost = {"old-0", "old-1"}
    for index in range(8):
        (world.add_job if job else world.add)(f"old-{index}", hot=False, mode=Mode.FP16)
    world.in_order |= set() if job else set(world.workloads)
    world.run(3)
    for name in sorted(lost):
        world.runs_on(name, "n7")
        world.unreachable.add(name)
    others = set(world.workloads) - lost
    until(emergency(world), lambda w: w.really_in(Mode.FP32) == others, seconds=5.0, passes=60)
    assert world.state.incident is not None
    assert world.now < world.state.incident.deadline_at
    assert condition(world, "Blocked").status == "True"


def test_a_rollback_of_one_workload_stays_an_emergency_when_its_policy_goes_before_its_pods_do() -> None:
    world = restart_only(8)
    world.budgeted, world.lagging, world.bad = {"old-03"}, True, {"old-03": NAN}
    until(world, lambda w: w.state.held, seconds=5.0)
    world.delete_policy()
    world.catch_up()
    actions = [action for _ in range(10) for action in world.step(5.0).actions]
    removed = [type(action) for action in actions if isinstance(action, DeletePod | EvictPod)]
    assert removed == [DeletePod]
    assert world.really_in(Mode.FP32) == {"old-03"}


def test_where_one_rank_is_silent_past_the_deadline_all_of_its_process_group_are_restarted() -> None:
    world = World(policy(**{**FAST, "strategy": {"steps": [{"setWeight": 100}]}}))
    for name in ("a", "b"):
        world.add(name, pods=4, mode=Mode.FP16)
        world.world_sizes[name] = 4
    world.run(3)
    ranks = {pod.name for pod in world.workloads["a"].pods}
    world.unobservable = {sorted(ranks)[2]}
    emergency(world)
    until(world, lambda w: w.restarts.get("a"), seconds=5.0, passes=120)
    assert ranks.isdisjoint({pod.name for pod in world.workloads["a"].pods if not pod.terminating})

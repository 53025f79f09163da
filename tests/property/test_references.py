"""Workloads whose mode stands in a ConfigMap: what cannot be known from here is not FP32."""

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import NAN, World
from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase
from tests.support.fleets import member_names

ALL_AT_ONCE = {**FAST, "strategy": {"steps": [{"setWeight": 100}]}}
HALF = {**FAST, "strategy": {"steps": [{"setWeight": 50}, {"pause": {}}, {"setWeight": 100}]}}


def fleet(mode: Mode, *, count: int = 2, **spec: object) -> World:
    world = World(policy(**{**FAST, **spec}))
    for index in range(count):
        world.add_referencing(f"w{index}", mode)
    return world


def outside(world: World) -> set[str]:
    return set(world.workloads) - member_names(world)


def test_admission_gives_new_pods_the_mode_in_place_of_the_reference() -> None:
    world = fleet(Mode.FP32, **ALL_AT_ONCE)
    world.run(8)
    assert world.state.phase is Phase.HEALTHY
    assert world.really_in(Mode.FP16) == {"w0", "w1"}
    assert world.restarts == {"w0": 1, "w1": 1}


def test_what_reports_the_target_already_is_adopted_without_a_restart() -> None:
    world = fleet(Mode.FP16, **ALL_AT_ONCE)
    world.run(8)
    assert world.state.phase is Phase.HEALTHY
    assert world.restarts == {}


def test_a_rollback_reaches_what_was_never_moved_and_reports_that_it_trains_in_fp16() -> None:
    world = fleet(Mode.FP16, count=4, **HALF)
    world.run(4)
    assert world.really_in(Mode.FP16) == set(world.workloads)
    world.bad = dict.fromkeys(world.workloads, NAN)
    world.run(5)
    assert world.state.phase is Phase.HELD
    assert world.really_in(Mode.FP32) == set(world.workloads)


def test_a_rollback_restarts_nothing_that_reports_fp32_itself() -> None:
    world = fleet(Mode.FP32, count=4, **HALF)
    world.run(4)
    unmoved = outside(world)
    assert len(unmoved) == 2
    world.bad = dict.fromkeys(member_names(world), NAN)
    world.run(5)
    assert world.state.phase is Phase.HELD
    assert not unmoved & set(world.restarts)


@pytest.mark.parametrize("mode", [Mode.FP16, Mode.FP32])
def test_nothing_begins_while_nobody_reports_what_it_trains_in(mode: Mode) -> None:
    world = fleet(mode, count=4, **HALF)
    world.unobservable = {"w3"}
    world.run(4)
    assert (world.state.phase, world.summary.reason, world.state.enforce) == (Phase.PENDING, "NoSamples", False)
    world.unobservable = set()
    world.run(4)
    assert world.state.phase is not Phase.PENDING


def test_a_process_that_reports_nothing_is_not_taken_for_fp32_in_a_rollback() -> None:
    world = fleet(Mode.FP32, count=4, **HALF)
    world.run(4)
    unmoved = outside(world)
    world.unobservable = set(unmoved)
    world.bad = dict.fromkeys(member_names(world), NAN)
    world.run(6)
    assert {name for name in unmoved if world.restarts.get(name)} == unmoved

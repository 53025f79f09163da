"""Workloads whose mode stands in a ConfigMap: what cannot be known from here is not FP32."""

import pytest

from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from tests.property.policies import FAST, policy
from tests.property.world import World

ALL_AT_ONCE = {**FAST, "strategy": {"steps": [{"setWeight": 100}]}}
HALF = {**FAST, "strategy": {"steps": [{"setWeight": 50}, {"pause": {}}, {"setWeight": 100}]}}


def fleet(mode: Mode, *, count: int = 2, **spec: object) -> World:
    world = World(policy(**spec))
    for index in range(count):
        world.add_referencing(f"w{index}", mode)
    return world


@pytest.mark.parametrize("mode", [Mode.FP32, Mode.FP16])
def test_a_rollout_writes_a_literal_over_the_reference_whatever_the_processes_say(mode: Mode) -> None:
    world = fleet(mode, **ALL_AT_ONCE)
    world.run(8)
    assert world.state.phase is Phase.HEALTHY
    assert {w.template_mode for w in world.workloads.values()} == {Mode.FP16}
    assert world.restarts == {"w0": 1, "w1": 1}


def test_a_rollback_takes_down_what_was_never_moved_and_says_that_it_trains_in_fp16() -> None:
    world = fleet(Mode.FP16, count=4, **HALF)
    world.run(4)
    unmoved = {w.name for w in world.workloads.values()} - {m.name for m in world.state.members}
    assert len(unmoved) == 2
    world.bad = {m.name: {Signal.NON_FINITE: 1.0} for m in world.state.members}
    world.run(4)
    assert world.state.phase is Phase.HELD
    assert world.really_in(Mode.FP32) == set(world.workloads)
    assert {world.workloads[name].template_mode for name in unmoved} == {Mode.FP32}


def test_a_rollback_restarts_nothing_that_says_itself_that_it_trains_in_fp32() -> None:
    world = fleet(Mode.FP32, count=4, **HALF)
    world.run(4)
    unmoved = {w.name for w in world.workloads.values()} - {m.name for m in world.state.members}
    world.bad = {m.name: {Signal.NON_FINITE: 1.0} for m in world.state.members}
    world.run(4)
    assert world.state.phase is Phase.HELD
    assert not unmoved & set(world.restarts)


def test_who_says_nothing_is_not_taken_for_fp32() -> None:
    world = fleet(Mode.FP16, count=4, **HALF)
    world.run(4)
    unmoved = {w.name for w in world.workloads.values()} - {m.name for m in world.state.members}
    world.blind = set(unmoved)
    world.bad = {m.name: {Signal.NON_FINITE: 1.0} for m in world.state.members}
    world.run(4)
    assert world.really_in(Mode.FP32) == set(world.workloads)

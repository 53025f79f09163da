"""What a decision costs, in calls: near-linear in the size of the fleet, whatever is in breach."""

import sys
from types import FrameType

import pytest

from lab.bench.decide import BREACH, PASSES, mid_rollout
from lab.model.world import World
from precision_operator.api.signals import Signal


def calls(world: World) -> int:
    """The calls of Python functions that the costliest of the passes makes."""
    counted = 0

    def profiled(frame: FrameType, event: str, arg: object) -> None:
        nonlocal counted
        counted += event == "call"

    most = 0
    for _ in range(PASSES):
        counted, before = 0, sys.getprofile()
        sys.setprofile(profiled)
        try:
            world.decide()
        finally:
            sys.setprofile(before)
        most = max(most, counted)
        world.step()
    return most


@pytest.mark.parametrize("signal", Signal)
def test_a_decision_about_four_times_the_fleet_costs_little_more_than_four_times_as_much(signal: Signal) -> None:
    cost = {}
    for size in (50, 200):
        world = mid_rollout(size)
        for key in world.state.members:
            world.bad[key.rpartition("/")[2]] = {signal: BREACH[signal]}
        cost[size] = calls(world)
    assert cost[200] < 4.5 * cost[50]

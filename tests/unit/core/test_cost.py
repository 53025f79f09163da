"""What a decision costs, in calls: near-linear in the size of the fleet, whatever is in breach."""

import sys
from types import FrameType

import pytest

from lab.bench.decide import BREACH, PASSES, mid_rollout
from lab.model.world import World
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Delivery, Unit
from precision_operator.core import fleet
from precision_operator.core.cohorts.units import by_index
from precision_operator.core.model import WorkloadView

pytestmark = pytest.mark.slow


def test_what_has_moved_in_part_costs_no_walk_over_the_whole_fleet_each(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0

    def counting(workload: WorkloadView, delivery: Delivery) -> bool:
        nonlocal looked
        looked += 1
        return by_index(workload, delivery)

    monkeypatch.setattr(fleet, "by_index", counting)
    walks = set()
    for size in (10, 40):
        world, looked = mid_rollout(size, unit=Unit.POD), 0
        world.decide()
        walks.add(looked / size)
    assert len(walks) == 1


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


@pytest.mark.parametrize(
    ("signal", "unit", "hot"),
    [
        *((signal, Unit.WORKLOAD, True) for signal in Signal),
        (Signal.OVERFLOW, Unit.POD, True),
        (Signal.OVERFLOW, Unit.POD, False),
    ],
)
def test_a_decision_about_four_times_the_fleet_costs_little_more_than_four_times_as_much(
    signal: Signal, unit: Unit, hot: bool
) -> None:
    cost = {}
    for size in (50, 200):
        world = mid_rollout(size, unit=unit, hot=hot)
        for key in world.state.members:
            world.bad[key.rpartition("/")[2]] = {signal: BREACH[signal]}
        cost[size] = calls(world)
    assert cost[200] < 4.5 * cost[50]

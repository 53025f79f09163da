"""A rollback is over when the processes say so, also of pods that nothing here may ask or restart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lab.model.cluster import Room
from lab.model.policies import FAST, policy
from lab.model.world import NAN, SLOW, World
from precision_operator.api.modes import Mode
from precision_operator.api.spec import Delivery
from precision_operator.api.state import Phase
from precision_operator.api.text import names
from tests.support.fleets import (
    answer,
    condition,
    emergency,
    paused,
    promoted,
    promoted_new_only,
    respec,
    restart_only,
    until,
)


def new_only() -> World:
    """All train in FP16, and a policy that waits until they finish finds NaN in them."""
    return emergency(promoted_new_only())


def new_only_without_memory() -> World:
    """The same, and FP32 would not fit into the memory that their processes leave."""
    world = new_only()
    world.crowded = set(world.workloads)
    return world


def edited_to_new_only() -> World:
    """The trainers take no request, and nobody may restart them any more."""
    world = promoted()
    world.unresponsive = {name for name in world.workloads if name.startswith("hot")}
    until(emergency(world), lambda w: w.state.phase is Phase.ROLLING_BACK)
    respec(world, delivery=Delivery.NEW_ONLY)
    return world


def edited_to_hot() -> World:
    """A pod that was taken away is on a lost node when restarts are forbidden."""
    world = restart_only(3)
    world.runs_on("old-00", "n7")
    world.unreachable = {"old-00"}
    until(emergency(world), lambda w: w.restarts.get("old-00"))
    respec(world, delivery=Delivery.HOT)
    return world


def without_the_switch() -> World:
    """In a gradual rollback the switch is taken out of the templates, and the new pods find no place."""
    rules = {"gradual": {"sustain": "15s", "inFlight": "10m"}, "mitigation": {"speed": {"window": "0s"}}}
    world = World(policy(**{**FAST, "strategy": {"steps": [{"setWeight": 100}]}, "rollback": rules}))
    for name in ("a", "b", "c"):
        world.add(name, hot=False, mode=Mode.FP16)
    until(world, lambda w: w.state.phase is Phase.HEALTHY)
    world.bad = dict.fromkeys(world.workloads, SLOW)
    until(world, lambda w: w.state.phase is Phase.ROLLING_BACK)
    for name, workload in world.workloads.items():
        world.room[name], world.templates[name] = Room.NONE, Mode.FP32
        world.workloads[name] = replace(workload, literal=False, replicas=2)
    return world


WORLDS = {
    "new pods only": new_only,
    "new pods only, without memory for FP32": new_only_without_memory,
    "edited to new pods only": edited_to_new_only,
    "edited to hot only, with a pod on a lost node": edited_to_hot,
    "the switch taken out of the templates": without_the_switch,
}


@pytest.mark.parametrize("begun", WORLDS.values(), ids=WORLDS)
def test_a_rollback_is_not_over_while_a_process_that_nobody_may_restart_trains_in_fp16(
    begun: Callable[[], World],
) -> None:
    world = begun()
    taken = dict(world.restarts)
    world.run(100)
    assert (world.state.phase, world.restarts) == (Phase.ROLLING_BACK, taken)
    in_fp16 = {name for name in world.workloads if any(mode is Mode.FP16 for mode, _ in world.processes(name))}
    assert in_fp16
    assert names(list(in_fp16)) in condition(world, "Progressing").message


def test_a_pod_that_falls_silent_is_not_back_though_it_was_none_of_those_that_had_moved() -> None:
    world = World(policy(**{**FAST, "unit": "Pod", "strategy": {"steps": [{"setWeight": 20}, {"pause": {}}]}}))
    world.add("a", pods=10)
    world.world_sizes["a"] = 1
    paused(world)
    still = next(pod.name for pod in world.workloads["a"].pods if pod.effective_mode is not Mode.FP16)
    world.unobservable = {still}
    answer(world, "abort")
    world.run(5)
    assert (world.state.phase, world.summary.unacknowledged) == (Phase.ROLLING_BACK, ("a",))


def test_a_workload_held_alone_has_not_acknowledged_while_nobody_may_restart_it() -> None:
    world = restart_only(8)
    world.bad, world.lagging = {"old-03": NAN}, True
    until(world, lambda w: w.state.alone)
    respec(world, delivery=Delivery.HOT)
    world.catch_up()
    world.run(5)
    assert world.state.incident is not None
    assert ("old-03" in world.really_in(Mode.FP16), world.state.incident.last_ack_at) == (True, None)


def test_a_pod_that_does_not_go_holds_back_nobody_whose_mode_is_its_own() -> None:
    world = promoted()
    world.runs_on("hot-1", "n7")
    world.unreachable = {"hot-1"}
    (one,) = world.workloads["hot-1"].pods
    world.take_away("hot-1", one.uid)
    world.unobservable = {one.name}
    world.run(20)
    assert any(pod.terminating for pod in world.workloads["hot-1"].pods)
    assert world.summary.unacknowledged == ()

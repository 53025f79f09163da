"""A breach in one place only is that place's: the rest of the fleet is not rolled back for it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.incident import Scope
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from precision_operator.core.actions import Notify
from precision_operator.reasons import Reason

BAD = {Signal.NON_FINITE: 1.0}


def healthy(nodes: dict[str, str], *, pools: dict[str, str] | None = None, **spec: object) -> World:
    """A promoted fleet; workload → node."""
    world = World(policy(**{**FAST, "strategy": {"steps": [{"setWeight": 100}]}, **spec}))
    for name, node in nodes.items():
        world.add(name)
        place(world, name, node=node, pool=(pools or {}).get(name, ""))
    world.run(8)
    assert world.state.phase is Phase.HEALTHY
    return world


def place(world: World, name: str, **where: str) -> None:
    view = world.workloads[name]
    pods = tuple(replace(pod, **where) for pod in view.pods)  # type: ignore[arg-type]
    world.workloads[name] = replace(view, pods=pods)


def spread(count: int, of: Callable[[int], str]) -> dict[str, str]:
    return {f"w{index}": of(index) for index in range(count)}


TWO_NODES = spread(6, lambda index: "sick" if index < 3 else f"n{index % 2}")


def breach(world: World, *names: str) -> None:
    world.bad = dict.fromkeys(names, BAD)


def test_a_breach_on_one_node_rolls_back_its_workloads_and_says_where_and_leaves_the_rest_guarded() -> None:
    world = healthy(TWO_NODES)
    breach(world, "w0", "w1", "w2")
    world.run(2)
    assert world.state.phase is Phase.DEGRADED
    assert {h.name for h in world.state.held} == {"w0", "w1", "w2"}
    assert world.really_in(Mode.FP16) == {"w3", "w4", "w5"}
    incident = world.state.incident
    assert incident is not None
    assert incident.scope is Scope.WORKLOAD
    assert "all on node sick, while 3 elsewhere are fine" in incident.message


@pytest.mark.parametrize(("minimum", "names"), [(1, ("w0",)), (3, ("w0", "w1"))])
def test_fewer_than_two_or_than_make_a_fleets_breach_say_nothing_of_their_node(
    minimum: int, names: tuple[str, ...]
) -> None:
    world = healthy(TWO_NODES, rollback={"fleetMinimum": minimum})
    breach(world, *names)
    world.run(2)
    assert world.state.incident is not None
    assert "elsewhere are fine" not in world.state.incident.message


def in_a_rollout() -> World:
    """All are in the target, and the last step soaks."""
    steps = {"steps": [{"setWeight": 100}, {"pause": {"duration": "1h"}}]}
    world = World(policy(**{**FAST, "strategy": steps}))
    for name, node in TWO_NODES.items():
        world.add(name)
        place(world, name, node=node)
    world.run(4)
    assert (world.state.phase, len(world.state.members)) == (Phase.PROGRESSING, 6)
    return world


def test_who_is_held_alone_and_does_not_acknowledge_in_a_rollout_is_restarted_and_told_of() -> None:
    world = in_a_rollout()
    world.unresponsive = {"w1"}
    breach(world, "w0", "w1", "w2")
    told = [a for _ in range(20) for a in world.step().actions if isinstance(a, Notify)]
    assert (world.state.phase, world.restarts) == (Phase.PROGRESSING, {"w1": 1})
    assert [a.message for a in told if a.reason is Reason.ROLLBACK_ESCALATED] == [
        "no acknowledgement from w1: restarting w1"
    ]


def test_a_breach_on_one_node_in_a_rollout_is_that_nodes_too() -> None:
    world = in_a_rollout()
    breach(world, "w0", "w1", "w2")
    world.step()
    assert {name for name, what in world.log if what.endswith("rewind")} == {"w0", "w1", "w2"}, "in this very pass"
    world.run(2)
    assert world.state.phase is Phase.PROGRESSING
    assert {h.name for h in world.state.held} == {"w0", "w1", "w2"}
    assert world.really_in(Mode.FP16) == {"w3", "w4", "w5"}


def test_a_breach_in_one_pool_is_that_pools_wherever_its_nodes_are() -> None:
    nodes = spread(6, lambda index: f"n{index}")
    pools = spread(6, lambda index: "gpu=t4" if index < 3 else "gpu=a100")
    world = healthy(nodes, pools=pools)
    breach(world, "w0", "w1", "w2")
    world.run(2)
    assert world.state.phase is Phase.DEGRADED
    assert "all on node pool gpu=t4" in world.state.message


def test_what_then_breaches_elsewhere_is_the_fleets_after_all() -> None:
    world = healthy(TWO_NODES)
    breach(world, "w0", "w1", "w2")
    world.run(2)
    breach(world, "w0", "w1", "w2", "w3")
    world.run(4)
    assert world.state.phase in (Phase.ROLLING_BACK, Phase.HELD)
    assert world.really_in(Mode.FP32) == set(world.workloads)
    assert world.state.held == (), "the fleet's rollback holds all of it"


@pytest.mark.parametrize(
    ("nodes", "broken", "unobservable"),
    [
        (spread(6, lambda index: "only"), ("w0", "w1"), ()),
        (spread(6, lambda index: ""), ("w0", "w1"), ()),
        (TWO_NODES, ("w0", "w1", "w4"), ()),
        (TWO_NODES, ("w0", "w1"), ("w3", "w4", "w5")),
    ],
    ids=["there is one node", "nodes are not known", "one elsewhere is in breach", "elsewhere nothing is known"],
)
def test_without_others_that_are_fine_elsewhere_it_is_the_fleets(
    nodes: dict[str, str], broken: tuple[str, ...], unobservable: tuple[str, ...]
) -> None:
    world = healthy(nodes)
    breach(world, *broken)
    world.unobservable = set(unobservable)
    world.step()
    assert world.state.phase is Phase.ROLLING_BACK
    assert world.state.incident is not None
    assert world.state.incident.scope is Scope.FLEET


def test_a_breach_elsewhere_that_is_not_confirmed_yet_speaks_against_it() -> None:
    world = healthy(TWO_NODES, evaluation={"interval": "15s", "failureLimit": 1, "minSamples": 1})
    breach(world, "w0", "w1")
    world.step()
    breach(world, "w0", "w1", "w4")
    world.step()
    assert world.state.incident is not None
    assert world.state.incident.scope is Scope.FLEET


def test_one_workload_alone_says_nothing_of_its_node() -> None:
    world = healthy(TWO_NODES)
    breach(world, "w0")
    world.run(2)
    assert world.state.phase is Phase.DEGRADED
    assert "all on" not in world.state.message


def test_workloads_that_are_bound_to_no_pool_are_in_no_pool_together() -> None:
    nodes = spread(6, lambda index: f"n{index}")
    world = healthy(nodes, pools=spread(6, lambda index: "" if index < 3 else "gpu=a100"))
    breach(world, "w0", "w1", "w2")
    world.step()
    assert world.state.phase is Phase.ROLLING_BACK
    assert world.state.incident is not None
    assert (world.state.incident.scope, "all on" in world.state.message) == (Scope.FLEET, False)

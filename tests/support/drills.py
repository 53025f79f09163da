"""Drills: a fleet whose rollbacks are quick, a person's order, and how far the drill has come."""

from copy import deepcopy
from dataclasses import replace
from functools import cache

from lab.model.world import World
from precision_operator.api.drill import Drill
from precision_operator.contract import DRILL
from tests.support import fleets
from tests.support.views import key

QUICK = {"deadlines": {"P0": "40s", "P1": "60s", "P2": "90s"}, "ackTimeout": "20s"}


@cache
def _promoted() -> World:
    return fleets.promoted(rollback=QUICK)


def promoted() -> World:
    """At rest, with a deadline of a few passes."""
    return deepcopy(_promoted())


def drill(world: World, what: str = "fleet allow-restarts") -> None:
    """A person's command to the transition that stands now."""
    annotations = {DRILL: f"{world.state.transition_id}: {what}", f"{DRILL}-by": "ada"}
    world.policy = replace(world.policy, annotations=annotations)


def of(world: World) -> Drill:
    """The last drill."""
    assert world.state.last_drill is not None
    return world.state.last_drill


def over(world: World) -> bool:
    """It has ended."""
    return world.state.last_drill is not None and not world.state.last_drill.running


def without_metrics() -> World:
    """At rest, and Prometheus does not answer."""
    world = promoted()
    world.metrics_away = True
    return world


def nothing_runs() -> World:
    """At rest, and hot-1 has no pods."""
    world = promoted()
    fleets.change(world, "hot-1", pods=())
    return world


def in_a_drill() -> World:
    """hot-1 is in its fallback."""
    world = promoted()
    drill(world, key("hot-1"))
    world.step(1.0)
    return world

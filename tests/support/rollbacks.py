"""Rollbacks that have just begun: gradual ones, and those by canary."""

from dataclasses import replace

from lab.model.world import World
from precision_operator.api.canary import CanaryVerdict
from precision_operator.api.commands import Prerequisite
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from tests.support.fleets import promoted, until

MILD = {Signal.OVERFLOW: 0.2}
SLOW = {Signal.SPEED: 0.7}
MINUTE = 60.0
QUICK = {
    "gradual": {"sustain": "30s", "inFlight": "60s", "batchShare": 0.34},
    "mitigation": {"overflow": {"window": "0s"}, "speed": {"window": "0s"}},
}
"""Of ``spec.rollback``: batches of a third, and no window of mitigation before them."""


def gradually(**spec: object) -> World:
    """A promoted fleet whose mild overflow has just begun a gradual rollback."""
    world = promoted(rollback={**QUICK, **spec})
    world.bad = dict.fromkeys(world.workloads, MILD)
    until(world, lambda w: w.state.phase is Phase.ROLLING_BACK, seconds=15.0)
    return world


def by_canary(canary: dict[str, object] | None = None, *, everywhere: bool = False, **spec: object) -> World:
    """A promoted fleet of six whose mild breach has just begun a rollback by canary."""
    rollback = {**QUICK, "strategies": {"P2": "Canary"}, "canary": canary or {}}
    world = promoted(rollback=rollback, **spec)
    if everywhere:
        world.everywhere = dict(SLOW)
    else:
        world.bad = dict.fromkeys(world.workloads, MILD)
    until(world, lambda w: w.state.phase is Phase.ROLLING_BACK, seconds=15.0)
    return world


def verdict_of(world: World) -> CanaryVerdict:
    """What the comparison has shown."""
    assert world.state.comparison is not None
    return world.state.comparison.verdict


def canary_of(world: World) -> set[str]:
    """The rollback canary, by name."""
    return {key.rpartition("/")[2] for key in world.state.canary}


def compared(world: World) -> World:
    """On to the first look."""
    until(world, lambda w: w.state.comparison is not None and w.state.comparison.looks > 0, seconds=MINUTE)
    return world


def annotate(world: World, *items: Prerequisite, retry: bool = True) -> None:
    """Acknowledge, and ask for another attempt, in answer to the transition that stands now."""
    number = str(world.state.transition_id)
    given = {item.annotation: f"{number}: because" for item in items}
    if retry:
        given["precision.genesis.ai/retry"] = number
    world.policy = replace(world.policy, annotations=given)

"""Fleets in which a mild breach has opened a window of mitigation."""

from typing import Any

from lab.model.world import World
from precision_operator.api.mitigation import Mitigation, Rung
from precision_operator.api.signals import Signal
from tests.support.fleets import promoted, until

MILD = {Signal.OVERFLOW: 0.25}
SLOW = {Signal.SPEED: 0.5}
EVALUATION = {"interval": "15s", "failureLimit": 0, "minSamples": 1, "window": "60s"}
GRADUAL = {"sustain": "30s", "inFlight": "60s", "batchShare": 0.34}
WINDOWS = {"overflow": {"window": "10m", "dwell": "60s"}, "speed": {"window": "5m"}}
RULES = {"gradual": GRADUAL, "mitigation": WINDOWS, "ackTimeout": "45s"}
QUICK: dict[str, Any] = {"evaluation": EVALUATION, "rollback": RULES}
"""A spec whose windows are a few minutes long."""

HOT = [f"hot-{index}" for index in range(5)]


def window(world: World, name: str = "hot-0") -> Mitigation:
    """The window of a workload."""
    return next(m for m in world.state.mitigations if m.name == name)


def breached(
    *names: str, values: dict[Signal, float] | None = None, cured_by: Rung | None = None, **spec: object
) -> World:
    """A promoted fleet in which a mild breach has stood for long enough: its window is open."""
    world = promoted(**{**QUICK, **spec})
    world.cured_by = {"hot-0": cured_by} if cured_by else {}
    world.bad = dict.fromkeys(names or ("hot-0",), values or MILD)
    until(world, lambda w: w.state.mitigations, seconds=15.0, passes=10)
    return world

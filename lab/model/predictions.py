"""How well an emergency's duration is predicted: fleets drawn at random, in which pods end and start in their own time.

Each fleet is rolled out first, so that restarts were measured; then all of it is rolled back.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from lab.model.cluster import Room
from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from precision_operator.core.model import PodView, RestartBy
from precision_operator.core.restart.pace import quantile
from precision_operator.workloads.kinds import table

COUNT = 60
"""Emergencies that are predicted, and then measured."""

KINDS = tuple(kind.kind for kind in table.KINDS if kind.restart_by is not RestartBy.NEVER)
MOMENT_SECONDS = 0.2
"""A pass takes so long, also where the next one follows at once."""

LIMIT_SECONDS = 86_400.0
"""Of a story in the simulator; none comes near."""


@dataclass
class Slowly(World):
    """A world in which a pod takes its time to end, and another one to start."""

    dice: random.Random = field(default_factory=random.Random)
    start_seconds: float = 30.0
    """Typical of this fleet: an image that is there, and a checkpoint that is read."""
    end_seconds: float = 5.0
    """Typical of this fleet: a step that is finished, and a checkpoint that is written."""
    spread: float = 0.3
    """Of the logarithm of both."""
    over_at: dict[str, float] = field(default_factory=dict)
    """Pod → when it has ended, or started."""

    def ends(self, pod: PodView) -> bool:
        """See Cluster."""
        return self._over(f"{pod.name} ends", self.end_seconds)

    def starts(self, pod: PodView) -> bool:
        """See Cluster: asked first when it has its place."""
        return self._over(f"{pod.name} starts", self.start_seconds)

    def _over(self, what: str, typical_seconds: float) -> bool:
        if what not in self.over_at:
            self.over_at[what] = self.now + typical_seconds * math.exp(self.dice.gauss(0.0, self.spread))
        return self.now >= self.over_at[what]

    def until(self, phase: Phase) -> None:
        """Passes when the operator wants them, and between two of them the world goes on, second by second.

        Raises:
            AssertionError: the phase never comes.
        """
        end = self.now + LIMIT_SECONDS
        while self.state.phase is not phase:
            assert self.now < end, f"{phase} never came: {self.state.phase}: {self.summary.message}"
            decision = self.decide()
            self.carry_out(decision)
            self.train()
            wake_at = round(max(decision.wake_at, self.now + MOMENT_SECONDS), 3)
            while self.now < wake_at:
                self.now = round(min(self.now + 1.0, wake_at), 3)
                self.turn()


@dataclass(frozen=True)
class Prediction:
    """One emergency."""

    predicted_seconds: float
    """When it was decided."""
    measured_seconds: float
    """Until the last trainer reported the fallback."""

    @property
    def error_ratio(self) -> float:
        """How far off, by what was measured."""
        return abs(self.predicted_seconds - self.measured_seconds) / self.measured_seconds


def drawn(seed: int) -> Slowly:
    """A fleet of restart-only workloads of mixed kinds, as nobody has touched it yet."""
    dice = random.Random(seed)
    interval, most = dice.choice(("5s", "15s", "30s")), dice.choice((20, 50, 500))
    patience = dice.choice(("90s", "5m"))
    spec = {
        **FAST,
        "evaluation": {**FAST["evaluation"], "interval": interval},
        "strategy": {"steps": [{"setWeight": 100}]},
        "rollback": {"ackTimeout": patience, "emergency": {"maxConcurrentPods": most}},
    }
    world = Slowly(
        policy=policy(**spec),
        dice=dice,
        start_seconds=dice.uniform(10.0, 90.0),
        end_seconds=dice.uniform(1.0, 15.0),
        restart_slots=dice.randint(3, 20),
    )
    for index in range(dice.randint(3, 60)):
        kind, name, pods = dice.choice(KINDS), f"old-{index:02}", dice.choice((1, 1, 1, 2, 4, 8))
        (world.add_job if kind == "batch/Job" else world.add)(name, hot=False, pods=pods)
        world.workloads[name] = replace(world.workloads[name], key=f"{kind}/{name}")
        world.room[name] = Room.FULL if kind == "apps/StatefulSet" else dice.choice((Room.FREE, Room.FULL))
    while any(pod.pending for workload in world.workloads.values() for pod in workload.pods):
        world.now += 1.0
        world.turn()
    return world


def predicted(seed: int) -> Prediction:
    """Roll a fleet out, and back."""
    world = drawn(seed)
    world.until(Phase.HEALTHY)
    assert world.really_in(Mode.FP16) == set(world.workloads)
    assert world.state.restart_seconds
    world.bad = {name: {Signal.NON_FINITE: 5.0} for name in world.workloads}
    world.until(Phase.HELD)
    incident = world.state.incident
    assert incident is not None
    assert incident.predicted_seconds is not None
    assert incident.last_ack_at is not None
    return Prediction(incident.predicted_seconds, incident.last_ack_at - incident.decided_at)


def figures(predictions: Iterable[Prediction]) -> dict[str, float]:
    """What goes into the report."""
    ratios = [prediction.error_ratio for prediction in predictions]
    return {"count": len(ratios), "p90_error_ratio": round(quantile(ratios, 0.9), 3)}


def all_of_them(seed: int = 0) -> list[Prediction]:
    """As many as the report holds: for one seed always the same ones, for another one none of them."""
    return [predicted(each) for each in range(seed * COUNT, (seed + 1) * COUNT)]

"""The steps of a rollout: ``spec.strategy.steps`` and ``spec.reenable.steps``."""

from dataclasses import dataclass

from precision_operator.api.wire import duration_seconds, integer, mapping, sequence


@dataclass(frozen=True, slots=True)
class Stage:
    """One rung of the rollout: a ``setWeight`` with the pauses that follow it."""

    weight: int
    """Percent of the fleet that has moved when this stage is done."""
    soak_seconds: float = 0.0
    """How long the evidence must have been good."""
    approval: bool = False
    """A ``pause: {}`` follows: a person must promote."""


DEFAULT_STAGES = (Stage(10, 600.0), Stage(25, 600.0), Stage(50, 600.0), Stage(100))


def parse_stages(raw: object) -> tuple[Stage, ...]:
    """Read a list of steps; empty where there is none."""
    stages: list[Stage] = []
    for entry in map(mapping, sequence(raw)):
        if "setWeight" in entry:
            stages.append(Stage(integer(entry["setWeight"], 100)))
        elif "pause" in entry and stages:
            last = stages[-1]
            seconds = mapping(entry["pause"]).get("duration")
            stages[-1] = Stage(
                last.weight,
                last.soak_seconds + duration_seconds(seconds, 0.0),
                last.approval or seconds is None,
            )
    return tuple(stages)

"""The steps of a rollout: ``spec.strategy.steps`` and ``spec.reenable.steps``."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated

from precision_operator.api.fields import Duration, Field, Rule, Via


@dataclass(frozen=True, slots=True)
class Stage:
    """One rung of the rollout: a ``setWeight`` with the pauses that follow it."""

    weight: int
    """Percent of the fleet that has moved when this stage is done."""
    soak_seconds: float = 0.0
    """How long the evidence must have been good."""
    approval: bool = False
    """A ``pause: {}`` follows: a person must promote."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause between two weights."""

    duration_seconds: Annotated[
        float | None,
        Duration(
            "How long, e.g. 90s, 10m or 1h30m; up to 720h. Absent: until a person promotes.",
            above="0s",
            most="720h",
            advice="drop the step to wait for nothing, use pause: {} to wait for a person",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Step:
    """One item of a list of steps: exactly one of its fields is there."""

    weight: Annotated[
        int | None,
        Field(
            "Percent of the selected workloads that this step moves, 1 to 100; at least one workload moves.",
            name="setWeight",
            least=1,
            most=100,
        ),
    ] = None
    pause: Annotated[
        Pause | None,
        Field(
            "Wait here for at least this long, and until the evidence is good. Empty: until a person answers with the "
            "annotation precision.genesis.ai/promote."
        ),
    ] = None


RULES = (
    Rule(
        "size(self) == 0 || has(self[0].setWeight)",
        "steps must begin with a setWeight: there is nothing to pause for yet, begin with e.g. {setWeight: 10}",
    ),
    Rule(
        "self.filter(s, has(s.setWeight)).map(s, s.setWeight).isSorted() && self.filter(s, has(s.setWeight))"
        ".all(s, self.exists_one(t, has(t.setWeight) && t.setWeight == s.setWeight))",
        "the weights of steps must rise strictly: order them and remove repeated ones; a rollout never goes back by a "
        "step",
    ),
)
STEP = Field(
    rules=(
        Rule(
            "has(self.setWeight) != has(self.pause)",
            "a step must be exactly one of setWeight and pause: split it into two items, e.g. "
            "[{setWeight: 10}, {pause: {duration: 10m}}]",
        ),
    )
)


def _stages(steps: Iterable[Step]) -> tuple[Stage, ...]:
    """A pause before the first weight counts for nothing."""
    stages: list[Stage] = []
    for step in steps:
        if step.weight is not None:
            stages.append(Stage(step.weight))
        elif step.pause is not None and stages:
            seconds, last = step.pause.duration_seconds, stages[-1]
            approval = last.approval or seconds is None
            stages[-1] = replace(last, soak_seconds=last.soak_seconds + (seconds or 0.0), approval=approval)
    return tuple(stages)


def _steps(stages: Iterable[Stage]) -> Iterator[Step]:
    for stage in stages:
        yield Step(stage.weight)
        if stage.soak_seconds:
            yield Step(pause=Pause(stage.soak_seconds))
        if stage.approval:
            yield Step(pause=Pause())


AS_STEPS = Via(tuple[Step, ...], read=_stages, write=_steps)
"""Stages, on the wire as steps."""

"""metav1 conditions."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated

from precision_operator.api.fields import Field, Time


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition; ``reason`` is the same CamelCase word as in events, metrics and logs."""

    type: Annotated[
        str,
        Field(
            "What is observed, e.g. Accepted, Progressing, AdmissionEnforced.",
            required=True,
            longest=316,
            pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
            "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
        ),
    ]
    status: Annotated[str, Field("Whether it holds.", required=True, only=("True", "False", "Unknown"))]
    reason: Annotated[
        str,
        Field(
            "Stable word for why.",
            required=True,
            shortest=1,
            longest=1024,
            pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        ),
    ]
    message: Annotated[str, Field("For a person: what is so, and what to do.", required=True, longest=32768)]
    observed_generation: Annotated[
        int, Field("metadata.generation that it was computed from.", least=0, format="int64")
    ] = 0
    last_transition_time: Annotated[float, Time("When status last changed.", required=True)] = 0.0


def condition_of(conditions: Iterable[Condition], kind: str) -> Condition | None:
    """The one of this type; None: it is not observed."""
    return next((condition for condition in conditions if condition.type == kind), None)


def if_true(conditions: Iterable[Condition], kind: str) -> Condition | None:
    """The one of this type, where it holds."""
    found = condition_of(conditions, kind)
    return found if found is not None and found.status == "True" else None


def merge_conditions(
    old: Iterable[Condition], new: Iterable[Condition], *, observed_generation: int, now: float
) -> tuple[Condition, ...]:
    """The new conditions, keeping the transition time of those whose status did not change."""
    before = {c.type: c for c in old}
    merged = []
    for condition in new:
        previous = before.get(condition.type)
        since = previous.last_transition_time if previous and previous.status == condition.status else now
        merged.append(replace(condition, observed_generation=observed_generation, last_transition_time=since))
    return tuple(merged)

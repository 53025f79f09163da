"""A drill: a rollback that is rehearsed on workloads in good health, as it was asked for and as it was measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from precision_operator.api.fields import Field, Time
from precision_operator.api.incident import Scope
from precision_operator.contract import DRILL

FLEET = "fleet"
"""What a command names to rehearse with every workload that was moved."""

ALLOW_RESTARTS = "allow-restarts"
"""What a command says where workloads may be restarted for it, which loses the steps since their last checkpoint."""


class DrillResult(StrEnum):
    """What came of a drill."""

    RUNNING = "Running"
    PASSED = "Passed"
    FAILED = "Failed"
    PREEMPTED = "Preempted"
    """A breach, a command or an edit ended it."""


@dataclass(frozen=True, slots=True)
class DrillOrder:
    """What a person asked for."""

    workload: str
    """Its key; empty: the fleet."""
    allow_restarts: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """The last drill, or the one in progress, with its measured stages; times are seconds since the epoch."""

    id: Annotated[str, Field("Names the drill in its PrecisionIncident.", longest=300, absent="")]
    workload: Annotated[str, Field("Key of the workload that it is about; absent: the fleet.", longest=571)] = ""
    by: Annotated[str, Field("Who asked for it; absent where nothing stamps commands.", longest=128)] = ""
    why: Annotated[str, Field("Why, in that person's words.", longest=200)] = ""
    began_at: Annotated[float, Time("When the fallback was assigned.", absent=0.0)]
    deadline_at: Annotated[float, Time("By when all must report the fallback: that of a P0.", absent=0.0)]
    workloads: Annotated[int, Field("Workloads that it is about.", least=0)] = 0
    restarted: Annotated[int, Field("Of these, how many were to be restarted; the others change hot.", least=0)] = 0
    requested_at: Annotated[float | None, Time("When the last pod had been requested, or deleted.")] = None
    half_at: Annotated[float | None, Time("When half of the workloads reported the fallback.")] = None
    ended_at: Annotated[float | None, Time("When it ended: if Passed, the last workload reported the fallback.")] = None
    result: Annotated[
        DrillResult,
        Field(
            "Passed: all reported the fallback in time. Failed: not all did. Preempted: a breach, a command or an edit "
            "ended it."
        ),
    ] = DrillResult.RUNNING
    message: Annotated[str, Field("The same for a person.", longest=4096)] = ""
    passed_at: Annotated[float | None, Time("When a drill passed last, this one or one before it.")] = None

    @property
    def running(self) -> bool:
        """It is not over."""
        return self.result is DrillResult.RUNNING

    @property
    def scope(self) -> Scope:
        """How far it reaches."""
        return Scope.WORKLOAD if self.workload else Scope.FLEET

    @property
    def seconds(self) -> float | None:
        """From its beginning to its end; None: it is not over."""
        return round(self.ended_at - self.began_at, 3) if self.ended_at is not None else None


def drill_value(order: DrillOrder) -> str:
    """What follows the transition id in the command's annotation."""
    what = " ".join(filter(None, (order.workload or FLEET, ALLOW_RESTARTS if order.allow_restarts else "")))
    return f"{what}: {order.why}" if order.why else what


def drill_order(annotations: Mapping[str, str], *, why_characters: int) -> DrillOrder | None:
    """What the annotation asks for: ``<transitionId>: <workload key or fleet>[ allow-restarts][: <why>]``.

    None where it is absent or written in another way. Which transition it answers is not looked at.
    """
    _, _, rest = annotations.get(DRILL, "").partition(":")
    what, _, why = rest.partition(":")
    words = what.split()
    if not words or words[1:] not in ([], [ALLOW_RESTARTS]):
        return None
    return DrillOrder("" if words[0] == FLEET else words[0], len(words) > 1, why.strip()[:why_characters])

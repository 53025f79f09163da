"""``status.incident``: the newest rollback, as decided and as measured."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from precision_operator.api.choices import Severity, Strategy
from precision_operator.api.fields import Field, Time
from precision_operator.api.verification import Checks

NAMES_LIMIT = 20
"""Names of workloads that an incident's summary lists: an object of thousands must stay small."""


class Scope(StrEnum):
    """How far a rollback reaches."""

    WORKLOAD = "Workload"
    COHORT = "Cohort"
    FLEET = "Fleet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """The newest rollback, with its measured stages; times are seconds since the epoch."""

    id: Annotated[str, Field("Names the incident in Events and notifications.", longest=300, absent="")]
    severity: Annotated[
        Severity,
        Field(
            "The highest of its breaches; it never falls within an incident.",
            only=(Severity.P0, Severity.P1, Severity.P2),
            absent=Severity.P0,
        ),
    ]
    scope: Annotated[Scope, Field("How far the rollback reaches.", absent=Scope.FLEET)]
    strategy: Annotated[Strategy, Field("How it is carried out.")] = Strategy.EMERGENCY
    reason: Annotated[str, Field("Stable word for the cause, e.g. OverflowRateHigh.", longest=256, absent="")]
    message: Annotated[str, Field("The same for a person, with numbers.", longest=4096, absent="")]
    workloads: Annotated[
        tuple[str, ...],
        Field(
            "Names of the breached workloads, the first 20.",
            longest=NAMES_LIMIT,
            topology="atomic",
            items=Field(longest=253),
            absent=(),
        ),
    ]
    detected_at: Annotated[float, Time("First breached evaluation.")]
    decided_at: Annotated[float, Time("When the rollback was decided.")]
    last_patch_at: Annotated[float | None, Time("When the last pod had been requested, or deleted.")] = None
    last_ack_at: Annotated[float | None, Time("When the last workload had acknowledged.")] = None
    deadline_at: Annotated[float, Time("When it must be over.")]
    recovered_at: Annotated[
        float | None,
        Time("When more than rollback.recoverySuccess of the runs ended well again, in every pod rolled back."),
    ] = None
    expedited_at: Annotated[
        float | None,
        Time("When it was last raised, or went on from its canary to the rest: answers are due from then on."),
    ] = None
    predicted_seconds: Annotated[
        float | None, Field("From the decision until all train in the fallback, as it was predicted then.")
    ] = None
    escalated: Annotated[bool, Field("A stronger means was used, because the deadline would have been missed.")] = False
    checks: Annotated[
        Checks | None, Field("The verification checklist, counted; its lines stand in the PrecisionIncident.")
    ] = None


def is_out_of_window(incident: Incident | None, *, at: float, window_seconds: float) -> bool:
    """Whether metrics read ``at`` a time no longer reach back into the last rollback: its breaches are not new ones."""
    return incident is None or at - (incident.last_ack_at or incident.decided_at) >= window_seconds


def predicted_late_seconds(incident: Incident) -> float:
    """By how much the restarts of a rollback under way were predicted to miss its deadline; 0: they were not."""
    if incident.predicted_seconds is None or incident.last_ack_at is not None:
        return 0.0
    begun = max(incident.decided_at, incident.expedited_at or incident.decided_at)
    late = begun + incident.predicted_seconds - incident.deadline_at
    return late if late > 0 else 0.0  # also where one of them is not a number

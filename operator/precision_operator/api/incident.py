"""``status.incident``: the newest rollback, as decided and as measured."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

from precision_operator.api.spec import Severity, Strategy
from precision_operator.api.verification import Checks, checks_to_wire, parse_checks
from precision_operator.api.wire import boolean, camel, choice, format_time, number, parse_time, text, texts

NAMES_LIMIT = 20
"""Names of workloads that an incident's summary lists: an object of thousands must stay small."""


class Scope(StrEnum):
    """How far a rollback reaches."""

    WORKLOAD = "Workload"
    COHORT = "Cohort"
    FLEET = "Fleet"


@dataclass(frozen=True, slots=True)
class Incident:
    """The newest rollback, with its measured stages; times are seconds since the epoch."""

    id: str
    severity: Severity
    scope: Scope
    reason: str
    message: str
    workloads: tuple[str, ...]
    """Names of those that it is about, for a person: the first NAMES_LIMIT."""
    detected_at: float
    decided_at: float
    deadline_at: float
    last_patch_at: float | None = None
    last_ack_at: float | None = None
    recovered_at: float | None = None
    """When enough runs of all that were rolled back ended well again (``rollback.recoverySuccess``)."""
    expedited_at: float | None = None
    """When it was last raised, or went on from its canary to the rest: answers are due from then on."""
    escalated: bool = False
    predicted_seconds: float | None = None
    """From the decision until all train in the fallback, as it was predicted then."""
    strategy: Strategy = Strategy.EMERGENCY
    checks: Checks | None = None
    """The checklist of its PrecisionIncident, counted."""


def incident_to_wire(incident: Incident) -> dict[str, object]:
    """As the CRD has it; empty fields are left out."""
    wire: dict[str, object] = {}
    for spec in fields(Incident):
        value = getattr(incident, spec.name)
        if spec.name.endswith("_at"):
            value = format_time(value)
        elif spec.name == "checks":
            value = checks_to_wire(value)
        elif isinstance(value, tuple):
            value = list(value)
        if value not in (None, []):
            wire[camel(spec.name)] = str(value) if isinstance(value, StrEnum) else value
    return wire


def parse_incident(raw: Mapping[str, object]) -> Incident | None:
    """Read what ``incident_to_wire`` wrote; None where it is absent, or lacks a time that every incident has."""
    detected, decided = parse_time(raw.get("detectedAt")), parse_time(raw.get("decidedAt"))
    deadline = parse_time(raw.get("deadlineAt"))
    if detected is None or decided is None or deadline is None:
        return None
    return Incident(
        id=text(raw.get("id")),
        severity=choice(raw.get("severity"), Severity.P0),
        scope=choice(raw.get("scope"), Scope.FLEET),
        reason=text(raw.get("reason")),
        message=text(raw.get("message")),
        workloads=texts(raw.get("workloads")),
        detected_at=detected,
        decided_at=decided,
        deadline_at=deadline,
        last_patch_at=parse_time(raw.get("lastPatchAt")),
        last_ack_at=parse_time(raw.get("lastAckAt")),
        recovered_at=parse_time(raw.get("recoveredAt")),
        expedited_at=parse_time(raw.get("expeditedAt")),
        escalated=boolean(raw.get("escalated"), False),
        predicted_seconds=number(raw.get("predictedSeconds"), math.nan) if "predictedSeconds" in raw else None,
        strategy=choice(raw.get("strategy"), Strategy.EMERGENCY),
        checks=parse_checks(raw.get("checks")),
    )

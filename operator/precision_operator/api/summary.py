"""``PrecisionPolicy.status``: a summary for people and tools, a few KiB whatever the fleet's size. No decision reads it.

The one exception: it names the assignment, so that one which vanished is noticed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from precision_operator.api.conditions import Condition
from precision_operator.api.incident import Incident, incident_to_wire, parse_incident
from precision_operator.api.modes import Mode, parse_mode
from precision_operator.api.state import Phase
from precision_operator.api.wire import choice, format_time, integer, mapping, parse_time, sequence, text, texts


@dataclass(frozen=True, slots=True)
class Summary:
    """What people and tools are shown."""

    observed_generation: int = 0
    phase: Phase = Phase.PENDING
    reason: str = ""
    message: str = ""
    precision: Mode | None = None
    fallback: Mode | None = None
    generation: int = 0
    """Of the assignment."""
    transition_id: int = 0
    """What a person's command answers."""
    step_index: int = 0
    step: str = ""
    weight: int = 0
    phase_since: float | None = None
    total: int = 0
    moved: int = 0
    breached: int = 0
    unknown: int = 0
    held: int = 0
    """Workloads that were rolled back by themselves."""
    unacknowledged: tuple[str, ...] = ()
    """Names of workloads whose own processes do not report what is wanted of them, the first of them."""
    attempts: int = 0
    incident: Incident | None = None
    conditions: tuple[Condition, ...] = ()
    assignment: str = ""
    """Name of the PrecisionAssignment; empty before there is one."""


def summary_to_wire(summary: Summary) -> dict[str, object]:
    """As the CRD has it; empty optional fields are left out."""
    wire: dict[str, object] = {
        "observedGeneration": summary.observed_generation,
        "phase": str(summary.phase),
        "reason": summary.reason,
        "message": summary.message,
        "precision": str(summary.precision) if summary.precision else None,
        "fallback": str(summary.fallback) if summary.fallback else None,
        "generation": summary.generation,
        "transitionId": summary.transition_id,
        "stepIndex": summary.step_index,
        "step": summary.step,
        "weight": summary.weight,
        "phaseSince": format_time(summary.phase_since),
        "total": summary.total,
        "moved": summary.moved,
        "progress": f"{summary.moved}/{summary.total}",
        "breached": summary.breached,
        "unknown": summary.unknown,
        "held": summary.held,
        "unacknowledged": list(summary.unacknowledged),
        "attempts": summary.attempts,
        "incident": incident_to_wire(summary.incident) if summary.incident else None,
        "conditions": [c.to_wire() for c in summary.conditions],
        "assignment": summary.assignment,
    }
    return {key: value for key, value in wire.items() if value not in (None, "", [])}


def parse_summary(raw: object) -> Summary:
    """Read ``status``; an absent one is a new policy's."""
    body = mapping(raw)
    return Summary(
        observed_generation=integer(body.get("observedGeneration"), 0),
        phase=choice(body.get("phase"), Phase.PENDING),
        reason=text(body.get("reason")),
        message=text(body.get("message")),
        precision=parse_mode(text(body.get("precision"))),
        fallback=parse_mode(text(body.get("fallback"))),
        generation=integer(body.get("generation"), 0),
        transition_id=integer(body.get("transitionId"), 0),
        step_index=integer(body.get("stepIndex"), 0),
        step=text(body.get("step")),
        weight=integer(body.get("weight"), 0),
        phase_since=parse_time(body.get("phaseSince")),
        total=integer(body.get("total"), 0),
        moved=integer(body.get("moved"), 0),
        breached=integer(body.get("breached"), 0),
        unknown=integer(body.get("unknown"), 0),
        held=integer(body.get("held"), 0),
        unacknowledged=texts(body.get("unacknowledged")),
        attempts=integer(body.get("attempts"), 0),
        incident=parse_incident(mapping(body.get("incident"))),
        conditions=tuple(Condition.from_wire(c) for c in map(mapping, sequence(body.get("conditions")))),
        assignment=text(body.get("assignment")),
    )


def lost_transition(raw: Mapping[str, object]) -> int | None:
    """The transition that a status shows which names an assignment; None where it names none."""
    summary = parse_summary(raw)
    return summary.transition_id if summary.assignment else None

"""``PrecisionPolicy.status``: the only state the operator has. Read tolerantly, written strictly."""

from dataclasses import dataclass
from enum import StrEnum

from precision_operator.api.canary import Comparison, comparison_to_wire, parse_comparison
from precision_operator.api.conditions import Condition
from precision_operator.api.incident import Incident, incident_to_wire, parse_incident
from precision_operator.api.mitigation import Mitigation, mitigations_to_wire, parse_mitigations
from precision_operator.api.modes import Mode, parse_mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity, Strategy
from precision_operator.api.wire import camel, choice, format_time, integer, mapping, parse_time, sequence, text, texts


class Phase(StrEnum):
    """Where the fleet stands."""

    PENDING = "Pending"
    PROGRESSING = "Progressing"
    PAUSED = "Paused"
    HEALTHY = "Healthy"
    DEGRADED = "Degraded"
    ROLLING_BACK = "RollingBack"
    HELD = "Held"


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """A workload of the frozen cohort."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class HeldWorkload:
    """A workload that was rolled back by itself."""

    name: str
    uid: str
    reason: str
    since: float


@dataclass(frozen=True, slots=True)
class Failing:
    """A breach that stands: since when, so that consecutive evaluations need no write each."""

    name: str
    uid: str
    signal: Signal
    severity: Severity
    since: float
    count: int = 1
    """Evaluations in a row that found it, counted until they are enough to act on."""
    evaluated_at: float = 0.0
    """The evaluation that was counted last: the same one never counts twice."""
    measured: str = ""
    """What that evaluation found, for a person."""


@dataclass(frozen=True, slots=True)
class Status:
    """Everything that survives a restart of the operator."""

    observed_generation: int = 0
    phase: Phase = Phase.PENDING
    reason: str = ""
    message: str = ""
    precision: Mode | None = None
    gate_closed: bool = False
    generation: int = 0
    fallback: Mode = Mode.FP32
    transition_id: int = 0
    step_index: int = 0
    step: str = ""
    weight: int = 0
    phase_since: float | None = None
    step_since: float | None = None
    evidence_since: float | None = None
    no_data_since: float | None = None
    total: int = 0
    moved: int = 0
    breached: int = 0
    unknown: int = 0
    unacknowledged: tuple[str, ...] = ()
    """Names of workloads whose own processes do not say that they are where the policy wants them, at most 100."""
    members: tuple[Member, ...] = ()
    held: tuple[HeldWorkload, ...] = ()
    failing: tuple[Failing, ...] = ()
    mitigations: tuple[Mitigation, ...] = ()
    """What is tried against mild breaches before they are rolled back, and what came of it."""
    attempts: int = 0
    """Rollbacks of the fleet since it last proved itself."""
    incident: Incident | None = None
    canary: tuple[Member, ...] = ()
    """Who goes first in a rollback by canary."""
    comparison: Comparison | None = None
    """How the canary fares against the rest."""
    conditions: tuple[Condition, ...] = ()
    writer: str = ""
    epoch: int = 0

    @property
    def by_canary(self) -> bool:
        """A rollback that has come no further than its canary: being compared, or held by what that has shown."""
        strategy = self.incident.strategy if self.incident is not None else None
        return self.phase is Phase.ROLLING_BACK and strategy is Strategy.CANARY


_TIMES = {"phase_since", "step_since", "evidence_since", "no_data_since"}


def status_to_wire(status: Status) -> dict[str, object]:
    """The status as the CRD has it; empty optional fields are left out."""
    wire: dict[str, object] = {
        "observedGeneration": status.observed_generation,
        "phase": str(status.phase),
        "reason": status.reason,
        "message": status.message,
        "precision": str(status.precision) if status.precision else None,
        "gate": "Closed" if status.gate_closed else "Open",
        "generation": status.generation,
        "fallback": str(status.fallback),
        "transitionId": status.transition_id,
        "stepIndex": status.step_index,
        "step": status.step,
        "weight": status.weight,
        "total": status.total,
        "moved": status.moved,
        "progress": f"{status.moved}/{status.total}",
        "breached": status.breached,
        "unknown": status.unknown,
        "attempts": status.attempts,
        "unacknowledged": list(status.unacknowledged),
        "members": [{"name": m.name, "uid": m.uid} for m in status.members],
        "held": [
            {"name": h.name, "uid": h.uid, "reason": h.reason, "since": format_time(h.since)} for h in status.held
        ],
        "failing": [
            {
                "name": f.name,
                "uid": f.uid,
                "signal": str(f.signal),
                "severity": str(f.severity),
                "since": format_time(f.since),
                "count": f.count,
                "evaluatedAt": format_time(f.evaluated_at),
                "measured": f.measured,
            }
            for f in status.failing
        ],
        "mitigations": mitigations_to_wire(status.mitigations),
        "incident": incident_to_wire(status.incident) if status.incident else None,
        "canary": [{"name": m.name, "uid": m.uid} for m in status.canary],
        "comparison": comparison_to_wire(status.comparison),
        "conditions": [c.to_wire() for c in status.conditions],
        "writer": {"holder": status.writer, "epoch": status.epoch},
    }
    for name in _TIMES:
        wire[camel(name)] = format_time(getattr(status, name))
    return {key: value for key, value in wire.items() if value not in (None, "", [])}


def parse_status(raw: object) -> Status:
    """Read ``status`` as the API server stored it; an absent one is a new policy's."""
    body = mapping(raw)
    signals = {s.value: s for s in Signal}
    writer = mapping(body.get("writer"))
    return Status(
        observed_generation=integer(body.get("observedGeneration"), 0),
        phase=choice(body.get("phase"), Phase.PENDING),
        reason=text(body.get("reason")),
        message=text(body.get("message")),
        precision=parse_mode(text(body.get("precision"))),
        gate_closed=body.get("gate") == "Closed",
        generation=integer(body.get("generation"), 0),
        fallback=parse_mode(text(body.get("fallback"))) or Mode.FP32,
        transition_id=integer(body.get("transitionId"), 0),
        step_index=integer(body.get("stepIndex"), 0),
        step=text(body.get("step")),
        weight=integer(body.get("weight"), 0),
        phase_since=parse_time(body.get("phaseSince")),
        step_since=parse_time(body.get("stepSince")),
        evidence_since=parse_time(body.get("evidenceSince")),
        no_data_since=parse_time(body.get("noDataSince")),
        total=integer(body.get("total"), 0),
        moved=integer(body.get("moved"), 0),
        breached=integer(body.get("breached"), 0),
        unknown=integer(body.get("unknown"), 0),
        attempts=integer(body.get("attempts"), 0),
        unacknowledged=texts(body.get("unacknowledged")),
        members=tuple(
            Member(text(m.get("name")), text(m.get("uid"))) for m in map(mapping, sequence(body.get("members")))
        ),
        held=tuple(
            HeldWorkload(
                text(h.get("name")), text(h.get("uid")), text(h.get("reason")), parse_time(h.get("since")) or 0.0
            )
            for h in map(mapping, sequence(body.get("held")))
        ),
        failing=tuple(
            Failing(
                name=text(f.get("name")),
                uid=text(f.get("uid")),
                signal=signals[text(f.get("signal"))],
                severity=choice(f.get("severity"), Severity.P1),
                since=parse_time(f.get("since")) or 0.0,
                count=integer(f.get("count"), 1),
                evaluated_at=parse_time(f.get("evaluatedAt")) or 0.0,
                measured=text(f.get("measured")),
            )
            for f in map(mapping, sequence(body.get("failing")))
            if text(f.get("signal")) in signals
        ),
        mitigations=parse_mitigations(body.get("mitigations")),
        incident=parse_incident(mapping(body.get("incident"))),
        canary=tuple(
            Member(text(m.get("name")), text(m.get("uid"))) for m in map(mapping, sequence(body.get("canary")))
        ),
        comparison=parse_comparison(body.get("comparison")),
        conditions=tuple(Condition.from_wire(c) for c in map(mapping, sequence(body.get("conditions")))),
        writer=text(writer.get("holder")),
        epoch=integer(writer.get("epoch"), 0),
    )

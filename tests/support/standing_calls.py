"""States in which something calls for a person: one of each kind of message."""

from dataclasses import replace

from precision_operator.api.canary import CanaryVerdict, Comparison
from precision_operator.api.choices import Severity, Strategy
from precision_operator.api.conditions import Condition
from precision_operator.api.drill import Drill, DrillResult
from precision_operator.api.incident import Incident, Scope
from precision_operator.api.mitigation import Mitigation, MitigationResult
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase, State
from precision_operator.core.calling import DRILL_SECONDS, NO_DATA_SECONDS, SETTLE_SECONDS
from precision_operator.reasons import Reason

NOW = 1_000_000.0
INCIDENT = Incident(
    id="fleet-1",
    severity=Severity.P1,
    scope=Scope.FLEET,
    reason="OverflowRateHigh",
    message="too many",
    workloads=("vit",),
    detected_at=NOW - 90,
    decided_at=NOW - 60,
    deadline_at=NOW + 600,
)
DRILL = Drill(
    id="fleet-drill", began_at=NOW - 90, deadline_at=NOW - 5, ended_at=NOW - 5, result=DrillResult.FAILED, message="vit"
)
WINDOW = Mitigation("apps/Deployment/vit", Signal.OVERFLOW, NOW - 60, NOW + 600)


def condition(kind: str, status: str, reason: str = "Blocked", *, seconds: float = 0.0) -> Condition:
    return Condition(kind, status, reason, "", last_transition_time=NOW - seconds)


def rolling(**changes: object) -> State:
    return State(phase=Phase.ROLLING_BACK, incident=replace(INCIDENT, **changes))  # type: ignore[arg-type]


def progressing(reason: str, status: str = "False") -> tuple[Condition, ...]:
    return (condition("Progressing", status, reason),)


STANDS: dict[str, tuple[State, float]] = {
    "DeadlineAtRisk": (rolling(predicted_seconds=900.0), 0.0),
    "DeadlineMissed": (rolling(deadline_at=NOW), 1.0),
    "Unresponsive": (rolling(escalated=True), 0.0),
    "WeightsSuspect": (State(conditions=(condition("WeightsSuspect", "True"),)), 0.0),
    "WorkloadBlocked": (State(conditions=(condition("Stuck", "True"),)), 0.0),
    "RollbackWaiting": (replace(rolling(), conditions=(condition("CapacityLost", "True"),)), 0.0),
    "CauseNotPrecision": (State(phase=Phase.HEALTHY, conditions=progressing(Reason.CAUSE_NOT_PRECISION)), 0.0),
    "RollbackCanaryHeld": (
        replace(
            rolling(strategy=Strategy.CANARY), comparison=Comparison(verdict=CanaryVerdict.WORSE, ended_at=NOW - 5)
        ),
        0.0,
    ),
    "ApprovalWanted": (State(phase=Phase.PAUSED, transition_id=4, phase_since=NOW), 0.0),
    "RolloutHeld": (
        State(phase=Phase.PROGRESSING, conditions=progressing(Reason.PROGRESS_DEADLINE_EXCEEDED)),
        0.0,
    ),
    "InvestigationBegun": (State(phase=Phase.HEALTHY, mitigations=(WINDOW,)), 0.0),
    "InvestigationOver": (
        State(phase=Phase.HEALTHY, mitigations=(replace(WINDOW, result=MitigationResult.MITIGATED),)),
        0.0,
    ),
    "MetricsMissing": (
        State(no_data_since=NOW, conditions=(condition("MetricsAvailable", "False", "NoSamples"),)),
        NO_DATA_SECONDS,
    ),
    "Attention": (State(conditions=(condition("FailSafe", "False"),)), SETTLE_SECONDS),
    "AcknowledgementsWanted": (State(phase=Phase.HELD, conditions=progressing(Reason.AWAITING_PREREQUISITES)), 0.0),
    "RetryPossible": (State(phase=Phase.HELD, conditions=progressing(Reason.AWAITING_RETRY)), 0.0),
    "ReleasePossible": (State(phase=Phase.HELD, reason=Reason.POLICY_DELETED, fallback=None), 0.0),
    "DrillFailed": (State(phase=Phase.HEALTHY, last_drill=DRILL), 0.0),
    "DrillProposed": (State(phase=Phase.HEALTHY, phase_since=NOW), DRILL_SECONDS),
}
"""Kind → a state in which it stands, after so many seconds."""

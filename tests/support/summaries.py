"""A policy's status with every field that the operator writes, and one as long as it can become."""

from __future__ import annotations

from dataclasses import replace

from precision_operator.api.conditions import Condition
from precision_operator.api.drill import Drill, DrillResult
from precision_operator.api.gain import Gain, Measured
from precision_operator.api.incident import NAMES_LIMIT, Incident, Scope
from precision_operator.api.modes import Mode
from precision_operator.api.spec import Severity, Strategy
from precision_operator.api.state import Phase
from precision_operator.api.summary import UNACKNOWLEDGED_LIMIT, Summary
from precision_operator.api.text import MESSAGE_CHARACTERS
from precision_operator.api.verification import Checks

AT = 1_795_255_200.0
CONDITIONS = (
    *("Accepted", "MetricsAvailable", "Progressing", "Healthy", "RolledBack"),
    *("AdmissionEnforced", "FailSafe", "WritesAccepted", "Stuck"),
    *("PendingRevision", "CapacityLost", "Blocked", "WeightsSuspect", "InjectionRefused", "KindsSupported", "Alerting"),
)
FULL = Summary(
    observed_generation=3,
    phase=Phase.ROLLING_BACK,
    reason="OverflowRateHigh",
    message="2 of 6 workloads overflow in more than 30 % of their steps",
    precision=Mode.FP32,
    fallback=Mode.FP32,
    generation=17,
    transition_id=9,
    step_index=2,
    step="2/4 25%",
    weight=25,
    phase_since=AT,
    total=6,
    moved=3,
    breached=2,
    unknown=1,
    held=1,
    unacknowledged=("a", "b"),
    attempts=1,
    incident=Incident(
        id="p-9",
        severity=Severity.P1,
        scope=Scope.FLEET,
        reason="OverflowRateHigh",
        message="two of six",
        workloads=("a", "b"),
        detected_at=AT,
        decided_at=AT,
        deadline_at=AT + 900,
        last_patch_at=AT + 1,
        last_ack_at=AT + 2,
        recovered_at=AT + 300,
        expedited_at=AT + 1,
        predicted_seconds=41.5,
        escalated=True,
        strategy=Strategy.EMERGENCY,
        checks=Checks(5, 1, 2, 4),
    ),
    gain=Gain(
        measured_at=AT,
        workloads=6,
        compared=5,
        speed=Measured(1.42, 5),
        memory=Measured(0.62, 4),
        loss=Measured(0.003, 5),
        gpu_hours=Measured(112.5, 3),
        gpu_rate=3.25,
        cpu_hours=Measured(-0.5, 1),
        cpu_rate=-0.1,
    ),
    last_drill=Drill(
        id="p-drill-8",
        workload="apps/Deployment/a",
        by="ada",
        why="before the release",
        began_at=AT,
        deadline_at=AT + 300,
        workloads=1,
        restarted=1,
        requested_at=AT + 1,
        half_at=AT + 2,
        ended_at=AT + 2,
        result=DrillResult.PASSED,
        message="1 workload reported fp32 within 2.0 s, and goes back to fp16",
        passed_at=AT + 2,
    ),
    conditions=tuple(Condition(kind, "False", "RollingBack", "so it is", 3, AT) for kind in CONDITIONS),
    assignment="p",
)
"""Nothing in it has its default."""

_NAME = "n" * 253
assert FULL.incident is not None
LONGEST = replace(
    FULL,
    message="m" * MESSAGE_CHARACTERS,
    unacknowledged=(_NAME,) * UNACKNOWLEDGED_LIMIT,
    assignment=_NAME,
    incident=replace(
        FULL.incident, id=f"{_NAME}-123456789", message="m" * MESSAGE_CHARACTERS, workloads=(_NAME,) * NAMES_LIMIT
    ),
)
"""Names and texts as long as they can be."""

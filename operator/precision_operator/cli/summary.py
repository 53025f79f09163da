"""A policy's status and its assignment in few words, for people and for programs."""

import math
import time

from precision_operator.api.codec import encode, entries
from precision_operator.api.commands import answers
from precision_operator.api.conditions import Condition, condition_of
from precision_operator.api.incident import Incident
from precision_operator.api.state import Failing, Phase, State
from precision_operator.api.summary import Summary
from precision_operator.api.wire import format_time
from precision_operator.api.workload import name_of, shown
from precision_operator.cli.attention import needing_attention
from precision_operator.cli.gain import gain_json
from precision_operator.cli.output import age
from precision_operator.cli.session import Target
from precision_operator.contract import SUSPEND_BY

ROLLED_BACK = frozenset({Phase.DEGRADED, Phase.ROLLING_BACK, Phase.HELD})
"""The fleet, or a part of it, is not where the policy wants it."""

CONCERNED_LIMIT = 20
"""Workloads that are named one by one."""

UNKNOWN_PERSON = "unknown"
"""Where nothing stamps commands (Kubernetes before 1.36), or it was given before something did."""


def placed(status: Summary) -> str:
    """What it says of a workload to be one of ``moved``: a rollback counts those that are back."""
    back = status.phase in (Phase.ROLLING_BACK, Phase.HELD)
    return f"in {status.fallback or 'fallback'}" if back else "moved"


_OF_STATUS = (
    *("phase", "phaseSince", "reason", "message", "precision", "fallback", "generation", "transitionId"),
    *("step", "moved", "total", "breached", "unknown", "attempts"),
)
"""What is shown as the status has it."""


def whole(model: Summary | Incident) -> dict[str, object]:
    """As the status has it, and what is not known as null."""
    return {entry.path[0]: entry.coder.write(getattr(model, entry.attribute)) for entry in entries(type(model))}


def summary(target: Target) -> dict[str, object]:
    """What `status -o json` gives. Times are RFC 3339; what is not known is null."""
    policy, status, state, waits = target.policy, target.status, target.state, waiting(target)
    return {
        "namespace": policy.namespace,
        "name": policy.name,
        **{name: value for name, value in whole(status).items() if name in _OF_STATUS},
        "suspended": policy.spec.suspend,
        "suspendBy": policy.annotations.get(SUSPEND_BY),
        "target": policy.spec.target,
        "enforce": state.enforce,
        "breaches": breaches(state),
        "held": [{"workload": h.key, "reason": h.reason, "since": format_time(h.since)} for h in state.held],
        "restarts": [
            {"workload": key, "round": restart.rounds, "since": format_time(restart.since)}
            for key, restart in sorted(state.restarts.items())
        ],
        "suspensions": [
            {"workload": key, "resuming": suspension.resuming, "since": format_time(suspension.since)}
            for key, suspension in sorted(state.suspensions.items())
        ],
        "attention": [
            {"condition": c.type, "reason": c.reason, "message": c.message}
            for c in needing_attention(status.conditions)
        ],
        "stepSince": format_time(state.step_since),
        "evidenceSince": format_time(state.evidence_since),
        "noDataSince": format_time(state.no_data_since),
        "mitigations": [encode(mitigation) for mitigation in state.mitigations],
        "incident": whole(status.incident) if status.incident else None,
        "gain": gain_json(status.gain, now=time.time()),
        "lastDrill": encode(status.last_drill) if status.last_drill else None,
        "canary": [name_of(key) for key in state.canary],
        "comparison": encode(state.comparison) if state.comparison else None,
        "waiting": {"reason": waits.reason, "message": waits.message} if waits else None,
        "commands": [
            {"command": a.name, "transitionId": a.transition_id, "message": a.message, "by": a.by}
            for a in answers(policy.annotations)
        ],
        "observed": status.observed_generation == policy.generation,
        "deleted": policy.deleted,
    }


def waiting(target: Target) -> Condition | None:
    """The promotion check that waits."""
    return condition_of(target.status.conditions, "Progressing")


def whose(failing: Failing) -> str:
    """The workload of a breach, by kind and name."""
    return shown(failing.key) if failing.key else "further workloads"


def breaches(state: State) -> list[dict[str, object]]:
    """The breaches that stand, for programs; without a workload: further ones, of which each is not recorded."""
    return [{"workload": failing.key or None, **breach_json(failing)} for failing in state.failing]


def breach_json(failing: Failing) -> dict[str, object]:
    """A breach that stands, for programs."""
    since = format_time(failing.since)
    return {"signal": failing.signal, "severity": failing.severity, "since": since, "measured": failing.measured}


def concerned(state: State) -> tuple[str, ...]:
    """What happens to single workloads, by kind and name: breached, held, restarting, suspended by the operator."""
    lines = [f"{whose(failing)}: breached by {failing.signal}" for failing in state.failing]
    lines += [f"{shown(held.key)}: held for {held.reason}" for held in state.held]
    for key in sorted({*state.restarts, *state.suspensions}):
        lines.append(f"{shown(key)}: {under_way(state, key)}")
    rest = len(lines) - CONCERNED_LIMIT
    return (*lines[:CONCERNED_LIMIT], *([f"and {rest} more: `get` shows all"] if rest > 0 else []))


def under_way(state: State, key: str) -> str:
    """How far the restart of a workload is; empty: it is not restarting."""
    from precision_operator.core.restart.rounds import ROUNDS

    restart, suspension = state.restarts.get(key), state.suspensions.get(key)
    if suspension is not None:
        step = "resumed" if suspension.resuming else "suspended"
        rest = "" if suspension.resuming else ", until none of its pods is left"
        return f"{step} by the operator {age(suspension.since)} ago{rest}"
    if restart is None:
        return ""
    return f"restarting for {max(0.0, time.time() - restart.counts_since):.0f} s, round {restart.rounds} of {ROUNDS}"


def stages(incident: Incident) -> tuple[tuple[str, float | None], ...]:
    """The stages of a rollback as they came, then those that have not (None); ``expeditedAt`` only where it came."""
    found: dict[str, float | None] = {
        "detectedAt": incident.detected_at,
        "decidedAt": incident.decided_at,
        "lastPatchAt": incident.last_patch_at,
        "lastAckAt": incident.last_ack_at,
        "recoveredAt": incident.recovered_at,
    }
    if incident.expedited_at is not None:
        found["expeditedAt"] = incident.expedited_at
    return tuple(sorted(found.items(), key=lambda stage: math.inf if stage[1] is None else stage[1]))

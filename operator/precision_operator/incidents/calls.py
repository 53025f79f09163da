"""The messages of what calls for a person, beside an incident's own. What was not measured is left out."""

from precision_operator.api.incident import predicted_late_seconds
from precision_operator.api.messages import MessageKind
from precision_operator.api.state import Phase
from precision_operator.api.text import names
from precision_operator.core.notifying import Owed
from precision_operator.core.observer import RecordedPass
from precision_operator.incidents.report import Message, stamp
from precision_operator.incidents.wording import Wording, lasted, listed, measured, message, steps_of

_ABOUT_A_ROLLBACK = (Phase.ROLLING_BACK, Phase.HELD, Phase.DEGRADED)


def told_of(owed: Owed, seen: RecordedPass, wording: Wording, *, now: float) -> Message:
    """The message of it, as the pass shows it.

    Args:
        owed: what calls for a person, and whether it is escalated.
        seen: the newest pass of the policy.
        wording: the admin's part.
        now: seconds since the epoch.
    """
    kind = MessageKind.ESCALATION if owed.level else owed.call.kind
    return message(kind, _fields(owed, seen, now), wording, now=now, about=owed.call.kind)


def facts_of(owed: Owed, seen: RecordedPass) -> dict[str, str]:
    """What goes along where a channel carries fields."""
    state = seen.decision.state
    incident = state.incident if state.phase in _ABOUT_A_ROLLBACK else None
    return {
        "topic": owed.call.topic,
        "incident": incident.id if incident is not None else "",
        "namespace": seen.policy.namespace,
        "policy": seen.policy.name,
        "severity": str(incident.severity) if incident is not None else "",
        "scope": str(incident.scope) if incident is not None else "",
        "reason": owed.call.reason,
        "phase": str(state.phase),
    }


def _fields(owed: Owed, seen: RecordedPass, now: float) -> dict[str, str]:
    call, state, summary = owed.call, seen.decision.state, seen.decision.summary
    policy, incident = seen.policy, state.incident
    rolling = state.phase is Phase.ROLLING_BACK and incident is not None
    status = _status(owed, seen)
    stood = lasted(max(0.0, now - call.since))
    facts = facts_of(owed, seen)
    steps = steps_of(call.reason, namespace=policy.namespace, name=policy.name)
    return {
        **facts,
        "severity": facts["severity"] or "notice",
        "impact": call.kind.meaning,
        "status": status or call.kind.meaning,
        "step": summary.step,
        "workloads": f"{summary.moved} of {summary.total} are where the policy wants them" if summary.total else "",
        "target": str(policy.spec.target),
        "fallback": str(policy.spec.fallback),
        "since": stamp(call.since),
        "duration": stood,
        "deadline": stamp(incident.deadline_at) if rolling and incident is not None else "",
        "eta": _eta(seen, now),
        "late": _late(seen),
        "root_cause": f"{incident.message} ({incident.reason})" if incident is not None else "",
        "next_steps": listed(steps, numbered=True),
        **measured(None, seen.observation.evaluation),
    }


def _status(owed: Owed, seen: RecordedPass) -> str:
    """The condition's own words, else those of what is waited for, or of the windows that are open."""
    state, summary = seen.decision.state, seen.decision.summary
    found = {condition.type: condition.message for condition in summary.conditions}
    if owed.call.condition:
        return f"{owed.call.condition}: {found.get(owed.call.condition, '')}"
    if owed.call.kind is MessageKind.UNRESPONSIVE and summary.unacknowledged:
        return f"not acknowledged: {names(list(summary.unacknowledged))}"
    if owed.call.kind is MessageKind.INVESTIGATION_BEGUN:
        windows = [f"{w.name}: {w.signal}, until {stamp(w.until)}" for w in state.mitigations if w.open]
        return "; ".join(windows[:5])
    return found.get("Progressing", "") or state.message


def _eta(seen: RecordedPass, now: float) -> str:
    state = seen.decision.state
    if state.phase is not Phase.ROLLING_BACK or state.incident is None or state.by_canary:
        return ""
    left = state.incident.deadline_at - now
    how = f"{lasted(left)} from now at the latest" if left >= 0 else f"{lasted(-left)} ago"
    return f"{stamp(state.incident.deadline_at)} ({how})"


def _late(seen: RecordedPass) -> str:
    state = seen.decision.state
    rolling = state.phase is Phase.ROLLING_BACK and state.incident is not None
    late = predicted_late_seconds(state.incident) if rolling and state.incident is not None else 0.0
    return lasted(late) if late > 0 else ""

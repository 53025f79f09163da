"""Workloads that are rolled back by themselves, while the rest of the fleet stays in the target or goes on towards it."""

from dataclasses import replace

from precision_operator.api.commands import Command
from precision_operator.api.state import HeldWorkload, Phase, State
from precision_operator.core.commands import allowed, carried_out
from precision_operator.core.facts import Facts
from precision_operator.core.mitigation.ladder import ended
from precision_operator.core.rollback.followup import Followed, awaited, follow
from precision_operator.core.rollback.retry import reenabled
from precision_operator.core.rollback.triggers import Trigger
from precision_operator.core.rollback.whole import joined, new_incident
from precision_operator.reasons import Cause, Reason


def hold(facts: Facts, trigger: Trigger) -> State:
    """Roll back the workloads of the trigger. A fleet that is guarded is Degraded; a rollout proves itself anew."""
    state = facts.state
    held = {h.key: h for h in state.held}
    for key in trigger.workloads:
        held.setdefault(key, HeldWorkload(key, trigger.reason, facts.now))
    before, incident = state.unacknowledged_alone, new_incident(facts, trigger)
    return replace(
        state,
        phase=Phase.DEGRADED if state.phase is Phase.HEALTHY else state.phase,
        reason=trigger.reason,
        message=trigger.message,
        held=tuple(sorted(held.values(), key=lambda h: h.key)),
        mitigations=ended(state, frozenset(held)),
        breached=tuple(sorted({*trigger.workloads, *(state.breached if before is not None else ())})),
        poisoned=tuple(sorted({*trigger.poisoned, *(frozenset(state.poisoned) & state.held_keys)})),
        incident=joined(before, incident) if before is not None else incident,
        evidence_since=None,
    )


def follow_held(facts: Facts) -> Followed | None:
    """Those that are held: acknowledged, escalated; None where there are none, or nothing is known of why."""
    incident = facts.state.incident
    if not facts.state.held or incident is None:
        return None
    followed = follow(facts, incident, awaited(facts, facts.state.awaited_keys))
    # Whose acknowledgement was seen and is missing later is unobservable, not unresponsive: it is not restarted.
    escalate = followed.escalate and incident.last_ack_at is None
    return replace(followed, escalate=escalate, force=followed.force and escalate)


def retried(facts: Facts) -> tuple[State, Cause | None]:
    """Held workloads join again when a person retries, as a fleet does: acknowledged, and after the back-off.

    A retry of nothing is over at once: it must not wait for what is mitigated or rolled back later.
    """
    state, asked = facts.state, facts.asked(Command.RETRY)
    if not allowed(Command.RETRY, facts.policy, state):
        return (carried_out(state, Command.RETRY) if asked is not None else state), None
    closed = reenabled(facts) or facts.advance_waits if state.held else None
    if asked is None or closed is not None or not facts.window_clear:
        return state, closed
    again = replace(
        state,
        held=(),
        breached=(),
        poisoned=(),
        mitigations=(),
        phase=Phase.HEALTHY if state.phase is Phase.DEGRADED else state.phase,
        reason=Reason.RETRIED,
        message=f"{asked.by or 'a person'} asked for another attempt: held workloads join again",
    )
    return carried_out(again, Command.RETRY), None

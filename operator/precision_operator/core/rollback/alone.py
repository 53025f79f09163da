"""Workloads that are rolled back by themselves, while the rest of the fleet stays in the target or goes on towards it."""

from collections.abc import Iterable
from dataclasses import replace

from precision_operator.api.commands import Command
from precision_operator.api.state import HeldWorkload, Phase, State
from precision_operator.core.commands import allowed, carried_out
from precision_operator.core.facts import Facts
from precision_operator.core.mitigation.ladder import ended
from precision_operator.core.rollback.followup import Followed, awaited, follow
from precision_operator.core.rollback.retry import reenabled
from precision_operator.core.rollback.triggers import Trigger
from precision_operator.core.rollback.whole import has_time, joined, new_incident
from precision_operator.reasons import Cause, Reason

HOLDS_LIMIT = 30
"""So many different times of holds are kept; beyond, they lie on two grids of about as many each."""


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
        held=tuple(sorted(_at_few_times(facts, held.values()), key=lambda h: h.key)),
        mitigations=ended(state, frozenset(held)),
        breached=tuple(sorted({*trigger.workloads, *(state.breached if before is not None else ())})),
        poisoned=tuple(sorted({*trigger.poisoned, *(frozenset(state.poisoned) & state.held_keys)})),
        incident=joined(before, incident) if before is not None else incident,
        evidence_since=None,
    )


def _at_few_times(facts: Facts, held: Iterable[HeldWorkload]) -> tuple[HeldWorkload, ...]:
    """The assignment keeps each time once, and thousands may be held one by one.

    No time becomes later, and a grid contains all coarser ones: nothing moves again until the grid's width doubles. Who
    still has time to acknowledge loses one part in ``HOLDS_LIMIT`` of it at most, or a second.
    """
    held = tuple(held)
    times = {h.since for h in held}
    if len(times) <= HOLDS_LIMIT:
        return held
    fine_seconds = max(1, int(facts.spec.rollback.ack_timeout_seconds) // HOLDS_LIMIT)
    wide = (max(times) - min(times)) // (fine_seconds * HOLDS_LIMIT)
    coarse_seconds = fine_seconds << int(wide).bit_length()
    grids = ((h, fine_seconds if has_time(facts, h) else coarse_seconds) for h in held)
    return tuple(replace(h, since=h.since // grid_seconds * grid_seconds) for h, grid_seconds in grids)


def follow_held(facts: Facts) -> Followed | None:
    """Those that are held: acknowledged, escalated; None where there are none, or nothing is known of why."""
    incident = facts.state.incident
    if not facts.state.held or incident is None:
        return None
    followed = follow(facts, incident, awaited(facts, facts.state.awaited_keys))
    # Whose acknowledgement was seen and is missing later is unobservable, not unresponsive: it is not restarted.
    escalate = followed.escalate and incident.last_ack_at is None
    return replace(followed, escalate=escalate)


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

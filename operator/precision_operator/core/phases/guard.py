"""Healthy and Degraded: everything is promoted, and watched for life."""

from dataclasses import replace

from precision_operator.api.commands import Command
from precision_operator.api.incident import Scope
from precision_operator.api.state import HeldWorkload, Phase, State
from precision_operator.core.actions import Notify
from precision_operator.core.alerting import alerts
from precision_operator.core.commands import carried_out, takes
from precision_operator.core.facts import Facts
from precision_operator.core.followup import follow
from precision_operator.core.gates import Closed
from precision_operator.core.gates.reenabled import reenabled
from precision_operator.core.outcome import Outcome
from precision_operator.core.phases.mitigation import ended, mitigate
from precision_operator.core.phases.rollback import begin_rollback, new_incident
from precision_operator.core.phases.rollout import assigned, target_changed
from precision_operator.core.triggers import Trigger, find_trigger
from precision_operator.core.windows import promotion_waits


def guard(facts: Facts) -> Outcome:
    """Roll back what breaches, take in new workloads, start again where the target was changed."""
    facts, notices = mitigate(facts)
    state = facts.state
    trigger = find_trigger(facts)
    if trigger is not None:
        if trigger.scope is Scope.WORKLOAD:
            return _hold_workloads(facts, trigger)
        return begin_rollback(facts, trigger)
    if state.precision is not facts.spec.target:
        return target_changed(facts)
    state, retry = _retried(facts)
    facts = replace(facts, state=state)
    window = promotion_waits(facts)
    if window is None and not alerts(facts) and facts.admission_waits is None and facts.too_large is None:
        state = replace(state, members=facts.in_cohort(len(facts.stages) - 1, state.members))
    outcome = _follow_held(replace(facts, state=state))
    return replace(outcome, waiting=outcome.waiting or retry or window, notices=(*notices, *outcome.notices))


def _retried(facts: Facts) -> tuple[State, Closed | None]:
    """Held workloads join again when a person retries, as a fleet does: acknowledged, and after the back-off.

    A retry of nothing is over at once: it must not wait for what is mitigated or rolled back later.
    """
    state, asked = facts.state, facts.asked(Command.RETRY)
    if not takes(Command.RETRY, state):
        return (carried_out(state, Command.RETRY) if asked is not None else state), None
    closed = reenabled(facts) if state.held else None
    if asked is None or closed is not None or not facts.window_clear:
        return state, closed
    again = replace(
        state,
        held=(),
        breached=(),
        poisoned=(),
        mitigations=(),
        phase=Phase.HEALTHY,
        reason="Retried",
        message=f"{asked.by or 'a person'} asked for another attempt: held workloads join again",
    )
    return carried_out(again, Command.RETRY), None


def _follow_held(facts: Facts) -> Outcome:
    """The workloads that were rolled back by themselves: acknowledged, escalated, made to last."""
    state, held = facts.state, facts.state.held_keys
    if not held or state.incident is None:
        return Outcome(state, assigned(facts))
    back = [(w, d) for w, d in (*facts.movable, *facts.rescuable) if w.key in held]
    answered_before = state.incident.last_ack_at is not None
    followed = follow(facts, state.incident, back)
    state = replace(state, incident=followed.incident)
    # Whose acknowledgement was seen and is missing later is unobservable, not unresponsive: it is not restarted.
    escalate = followed.escalate and not answered_before
    desired = assigned(facts, escalate=escalate, force=followed.force and escalate)
    return Outcome(state, desired, waiting=followed.waiting, notices=followed.notices)


def _hold_workloads(facts: Facts, trigger: Trigger) -> Outcome:
    """Roll back the breached workloads by themselves; the rest of the fleet stays, guarded."""
    state = facts.state
    held = {h.key: h for h in state.held}
    for key in trigger.workloads:
        held.setdefault(key, HeldWorkload(key, trigger.reason, facts.now))
    state = replace(
        state,
        phase=Phase.DEGRADED,
        reason=trigger.reason,
        message=trigger.message,
        held=tuple(sorted(held.values(), key=lambda h: h.key)),
        mitigations=ended(state, frozenset(held)),
        breached=trigger.workloads,
        poisoned=tuple(sorted({*trigger.poisoned, *(frozenset(state.poisoned) & state.held_keys)})),
        incident=new_incident(facts, trigger),
    )
    desired = assigned(replace(facts, state=state))
    return Outcome(state, desired, notices=(Notify(trigger.reason, trigger.message, warning=True),))

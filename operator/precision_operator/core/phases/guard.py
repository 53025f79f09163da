"""Healthy and Degraded: everything is promoted, and watched for life."""

from dataclasses import replace

from precision_operator.api.commands import answered
from precision_operator.api.incident import Scope
from precision_operator.api.status import HeldWorkload, Phase, Status
from precision_operator.contract import RETRY
from precision_operator.core.actions import Notify
from precision_operator.core.alerting import alerts
from precision_operator.core.facts import Facts
from precision_operator.core.followup import follow
from precision_operator.core.outcome import Outcome
from precision_operator.core.phases.mitigation import ended, mitigate
from precision_operator.core.phases.rollback import begin_rollback, new_incident
from precision_operator.core.phases.rollout import move_members, target_changed
from precision_operator.core.progress import accepted_modes
from precision_operator.core.triggers import Trigger, find_trigger
from precision_operator.core.windows import promotion_waits


def guard(facts: Facts) -> Outcome:
    """Roll back what breaches, take in new workloads, start again where the target was changed."""
    facts, notices = mitigate(facts)
    status = facts.status
    trigger = find_trigger(facts)
    if trigger is not None:
        if trigger.scope is Scope.WORKLOAD:
            return _hold_workloads(facts, trigger)
        return begin_rollback(facts, trigger)
    if status.precision is not facts.spec.target:
        return target_changed(facts)
    asked = answered(facts.policy.annotations, RETRY, status.transition_id) is not None and facts.window_clear
    if (status.held or status.mitigations) and asked:
        status = replace(
            status,
            held=(),
            mitigations=(),
            phase=Phase.HEALTHY,
            reason="Retried",
            message="held workloads join again",
            generation=facts.next_generation,
        )
    status = _without_gone(facts, status)
    # What a rollback of another policy still holds joins when a person says so, not because it was found.
    window = promotion_waits(replace(facts, status=status))
    if window is None and not alerts(facts):
        status = replace(status, members=facts.in_cohort(len(facts.stages) - 1, status.members, latched=asked))
    outcome = _follow_held(replace(facts, status=status))
    return replace(outcome, waiting=outcome.waiting or window, notices=(*notices, *outcome.notices))


def _without_gone(facts: Facts, status: Status) -> Status:
    """A held workload that was deleted is held no more."""
    alive = {w.uid for w in facts.observation.workloads}
    held = tuple(h for h in status.held if h.uid in alive)
    if held == status.held:
        return status
    if held:
        return replace(status, held=held)
    return replace(status, held=(), phase=Phase.HEALTHY, reason="Promoted", message="what was held is gone")


def _follow_held(facts: Facts) -> Outcome:
    """The workloads that were rolled back by themselves: acknowledged, escalated, made to last."""
    status, held = facts.status, {h.uid for h in facts.status.held}
    if not held or status.incident is None:
        return Outcome(status, move_members(facts), settle=True)
    safe = accepted_modes(facts.spec.fallback, rollback=True)
    down = [
        (w, d)
        for w, d in (*facts.movable, *facts.rescuable)
        if w.uid in held and (w.name in status.incident.workloads or w.template_mode not in safe)
    ]
    answered_before = status.incident.last_ack_at is not None
    followed = follow(facts, status.incident, down)
    status = replace(status, incident=followed.incident)
    # Who has answered once and falls silent later has gone blind, not deaf.
    desired = move_members(facts, escalate=followed.escalate, force=followed.force and not answered_before)
    return Outcome(status, desired, settle=True, waiting=followed.waiting, notices=followed.notices)


def _hold_workloads(facts: Facts, trigger: Trigger) -> Outcome:
    """Roll back the breached workloads by themselves; the rest of the fleet stays, guarded."""
    status = facts.status
    held = {h.uid: h for h in status.held}
    for name, uid in trigger.workloads:
        held.setdefault(uid, HeldWorkload(name, uid, trigger.reason, facts.now))
    status = replace(
        status,
        phase=Phase.DEGRADED,
        reason=trigger.reason,
        message=trigger.message,
        held=tuple(sorted(held.values(), key=lambda h: h.name)),
        mitigations=ended(status, frozenset(held)),
        generation=facts.next_generation,
        incident=new_incident(facts, trigger),
    )
    desired = move_members(replace(facts, status=status))
    return Outcome(status, desired, notices=(Notify(trigger.reason, trigger.message, warning=True),))

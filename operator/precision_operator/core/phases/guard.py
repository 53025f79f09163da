"""Healthy and Degraded: everything is promoted, and watched for life."""

from dataclasses import replace

from precision_operator.api.status import HeldWorkload, Phase, Scope
from precision_operator.contract import RETRY
from precision_operator.core.actions import Notify
from precision_operator.core.cohorts import extend_cohort
from precision_operator.core.facts import Facts
from precision_operator.core.outcome import Outcome
from precision_operator.core.phases.rollback import begin_rollback, new_incident
from precision_operator.core.phases.rollout import move_members
from precision_operator.core.triggers import Trigger, find_trigger


def guard(facts: Facts) -> Outcome:
    """Roll back what breaches, take in new workloads, start again where the target was changed."""
    status = facts.status
    trigger = find_trigger(facts)
    if trigger is not None:
        if trigger.scope is Scope.WORKLOAD:
            return _hold_workloads(facts, trigger)
        return begin_rollback(facts, trigger)
    if status.precision is not facts.spec.target:
        again = replace(status, phase=Phase.PENDING, reason="TargetChanged", message="", members=(), held=())
        return Outcome(again)
    asked = facts.policy.annotations.get(RETRY) == str(status.transition_id)
    if status.held and asked and facts.window_clear:
        status = replace(status, held=(), phase=Phase.HEALTHY, reason="Retried", message="held workloads join again")
    size = facts.cohort_size(len(facts.spec.stages) - 1)
    members = extend_cohort(facts.policy.uid, status.members, [w for w, _ in facts.movable], size=size)
    status = replace(status, members=members)
    return Outcome(status, move_members(replace(facts, status=status)), settle=True)


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
        generation=facts.next_generation,
        incident=new_incident(facts, trigger),
    )
    desired = move_members(replace(facts, status=status))
    return Outcome(status, desired, notices=(Notify(trigger.reason, trigger.message, warning=True),))

"""Healthy and Degraded: everything is promoted, and watched for life."""

from dataclasses import replace

from precision_operator.api.incident import Scope
from precision_operator.core.actions import Notify
from precision_operator.core.alerting import alerts
from precision_operator.core.breaches import not_precision
from precision_operator.core.facts import Facts
from precision_operator.core.mitigation.ladder import mitigate
from precision_operator.core.mitigation.windows import promotion_waits
from precision_operator.core.outcome import Outcome
from precision_operator.core.promotion.rollout import assigned, target_changed
from precision_operator.core.rollback.alone import follow_held, hold, retried
from precision_operator.core.rollback.drill import drilling, rehearse
from precision_operator.core.rollback.triggers import find_trigger
from precision_operator.core.rollback.whole import begin_rollback


def guard(facts: Facts) -> Outcome:
    """Roll back what breaches, take in new workloads, start again where the target was changed."""
    facts, rehearsed = rehearse(facts)
    if facts.state.drilled:
        return Outcome(facts.state, assigned(facts), waiting=drilling(facts), notices=rehearsed)
    outcome = _guard(facts)
    return replace(outcome, notices=(*rehearsed, *outcome.notices))


def _guard(facts: Facts) -> Outcome:
    facts, notices = mitigate(facts)
    state = facts.state
    trigger = find_trigger(facts)
    if trigger is not None:
        if trigger.scope is Scope.WORKLOAD:
            state = hold(facts, trigger)
            notice = Notify(trigger.reason, trigger.message)
            return Outcome(state, assigned(replace(facts, state=state)), notices=(notice,))
        return begin_rollback(facts, trigger)
    if state.precision is not facts.spec.target:
        return target_changed(facts)
    state, retry = retried(facts)
    facts = replace(facts, state=state)
    window = promotion_waits(facts)
    if window is None and not alerts(facts) and facts.admission_waits is None and facts.too_large is None:
        cohort = facts.places.in_cohort(len(facts.attempt.stages) - 1, state.members)
        state = replace(state, members=cohort.members, shares=cohort.shares)
    outcome = _follow_held(replace(facts, state=state))
    waiting = outcome.waiting or not_precision(facts) or retry or window
    return replace(outcome, waiting=waiting, notices=(*notices, *outcome.notices))


def _follow_held(facts: Facts) -> Outcome:
    """The workloads that were rolled back by themselves: acknowledged, escalated, made to last."""
    followed = follow_held(facts)
    if followed is None:
        return Outcome(facts.state, assigned(facts))
    state = replace(facts.state, incident=followed.incident)
    desired = assigned(facts, escalate=followed.escalate, force=followed.force)
    return Outcome(state, desired, waiting=followed.waiting, notices=followed.notices)

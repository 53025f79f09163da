"""Progressing and Paused: the cohort of the step moves, and is promoted by evidence."""

from dataclasses import replace

from precision_operator.api.incident import Scope
from precision_operator.api.spec import Delivery
from precision_operator.api.state import Phase
from precision_operator.api.text import names
from precision_operator.core.actions import Notify
from precision_operator.core.breaches import cause_elsewhere
from precision_operator.core.desired import Desired
from precision_operator.core.evidence.readings import promotes
from precision_operator.core.facts import Facts
from precision_operator.core.mitigation.ladder import mitigate
from precision_operator.core.mitigation.windows import promotion_waits, tuning_of
from precision_operator.core.model import WorkloadView
from precision_operator.core.outcome import Outcome
from precision_operator.core.progress import Progress, accepted_modes
from precision_operator.core.promotion.checks import CheckInput
from precision_operator.core.promotion.checks.chain import first_closed
from precision_operator.core.promotion.regression import (
    compared,
    newly_shown,
    overruled,
    regressed,
    regression,
)
from precision_operator.core.rollback.alone import follow_held, hold, retried
from precision_operator.core.rollback.triggers import find_trigger
from precision_operator.core.rollback.whole import begin_rollback, into_fallback, overdue
from precision_operator.reasons import Cause, Reason


def rollout(facts: Facts) -> Outcome:
    """Roll back, promote, or wait for the first check that does not pass."""
    facts, notices = mitigate(facts)
    trigger = find_trigger(facts)
    if trigger is not None and trigger.scope is Scope.WORKLOAD:
        state = hold(facts, trigger)
        notice = Notify(trigger.reason, trigger.message)
        return Outcome(state, assigned(replace(facts, state=state)), notices=(notice,))
    if trigger is not None:
        return begin_rollback(facts, trigger)
    if facts.state.precision is not facts.spec.target:
        return target_changed(facts)
    facts = replace(facts, state=retried(facts)[0])
    # A policy whose steps were shortened in mid-rollout goes on from the last one.
    index = min(facts.state.step_index, len(facts.attempt.stages) - 1)
    state = replace(facts.state, step_index=index)
    # The assignment of a fleet that has grown too large must not grow: who has moved stays, and nobody joins.
    if facts.too_large is None or not facts.spec.target.reduced:
        # A member that was deleted is replaced: a cohort without its canary has proved nothing.
        cohort = facts.places.in_cohort(index, state.members)
        state = replace(state, members=cohort.members, shares=cohort.shares)
    facts = replace(facts, state=state)
    before, state = facts, replace(facts.state, evidence_since=_evidence_since(facts), comparison=compared(facts))
    followed = follow_held(facts)
    state = replace(state, incident=followed.incident) if followed is not None else state
    facts = replace(facts, state=state)
    state = overruled(before, facts)
    facts = replace(facts, state=state)
    trigger = regression(facts)
    if trigger is not None:
        return begin_rollback(facts, trigger)
    notices = (*notices, *newly_shown(before, facts))
    closed = _waiting(facts)
    if followed is not None:
        notices = (*notices, *followed.notices)
    if closed is None:
        promoted = _promote(facts)
        return replace(promoted, notices=(*notices, *promoted.notices))
    phase = Phase.PAUSED if closed.reason == Reason.AWAITING_APPROVAL else Phase.PROGRESSING
    if phase is Phase.PAUSED and facts.state.phase is not Phase.PAUSED:
        notices = (*notices, Notify(closed.reason, closed.message))
    if followed is None:
        return Outcome(replace(state, phase=phase), assigned(facts), waiting=closed, notices=notices)
    desired = assigned(facts, escalate=followed.escalate, force=followed.force)
    return Outcome(replace(state, phase=phase), desired, waiting=closed, notices=notices)


def target_changed(facts: Facts) -> Outcome:
    """Another precision is another rollout: from its canary on. What was moved stays as it is, guarded, until its turn."""
    text = f"spec.target is {facts.spec.target} now: a new rollout begins"
    again = replace(
        facts.state,
        phase=Phase.PENDING,
        reason=Reason.TARGET_CHANGED,
        message=text,
        members=(),
        step_index=0,
        mitigations=(),
    )
    return Outcome(again, assigned(replace(facts, state=again)), notices=(Notify(Reason.TARGET_CHANGED, text),))


def assigned(facts: Facts, *, escalate: bool = False, force: bool = False) -> tuple[Desired, ...]:
    """Every workload in its mode: members in the target, the rest where they were found, all others in the fallback.

    Those that were rolled back by themselves are restarted where they do not answer.
    """
    held, late = facts.state.back_keys, overdue(facts)
    members = frozenset(facts.state.members) - held
    found = {w.key for w, _ in facts.fleet.residual}
    desired = []
    for workload, delivery in (*facts.movable, *facts.fleet.rescuable):
        key = workload.key
        if key in members:
            desired.append(_into_target(facts, workload, delivery))
        elif key in found:
            desired.append(Desired(workload, facts.state.modes[key], delivery))
        else:
            due = escalate and key in late
            desired.append(into_fallback(facts, workload, delivery, escalate=due, force=force))
    return tuple(desired)


def _into_target(facts: Facts, workload: WorkloadView, delivery: Delivery) -> Desired:
    tuning, generation = tuning_of(facts, workload)
    return Desired(workload, facts.wanted(workload), delivery, tuning=tuning, tuned_by=generation)


def _waiting(facts: Facts) -> Cause | None:
    if facts.observation.problem is not None:
        return facts.observation.problem
    inside = frozenset(facts.state.members)
    stranded = [w.name for w in facts.workloads if w.key in facts.fleet.stuck_keys and w.key in inside]
    if stranded:
        text = f"{names(stranded)} cannot be moved any more: declare the contract in their templates again, or abort"
        return Cause(Reason.UNDELIVERABLE, text)
    for signal in dict.fromkeys(f.signal for f in facts.failing):
        elsewhere = cause_elsewhere(facts, signal)
        if elsewhere is not None:
            return Cause(Reason.CAUSE_NOT_PRECISION, f"{elsewhere}: holding, a rollback would not help")
    window = promotion_waits(facts) or _learns_nothing(facts) or facts.too_large or facts.admission_waits
    window = window or regressed(facts)
    if window is not None:
        return window
    places = facts.places.cohort_size(facts.state.step_index) - facts.places.moved_units(facts.places.cohort)
    if places > 0 and facts.places.unwatched is not None:
        return facts.places.unwatched
    given = CheckInput(
        policy=facts.policy,
        state=facts.state,
        stage=facts.attempt.stages[facts.state.step_index],
        evaluation=facts.evaluation,
        progress=tuple((w, _progress(facts, w, d)) for w, d in facts.fleet.members),
        verdicts=facts.verdicts,
        promotion=facts.attempt.promotion,
        evidence_since=facts.state.evidence_since,
    )
    return first_closed(given) or _no_room(facts)


def _no_room(facts: Facts) -> Cause | None:
    """What holds back a step whose metrics are good: nobody may be promoted now, or not all of it."""
    index, places = facts.state.step_index, facts.places
    if index + 1 < len(facts.attempt.stages) and facts.advance_waits is not None:
        return facts.advance_waits
    missing = places.moved_units(places.uncapped(index, facts.state.members)) - places.moved_units(places.cohort)
    if missing <= 0 or facts.free_slots is None:
        return None
    return facts.advance_waits or Cause(Reason.PROMOTION_CAP, f"{missing} places of this step are not taken yet")


def _learns_nothing(facts: Facts) -> Cause | None:
    """A cohort of which BF16 had to help every member says nothing of the target."""
    running = [w for w, _ in facts.fleet.members if w.pods]
    if not running or any(facts.wanted(w) is facts.target for w in running):
        return None
    text = f"overflow ended only in BF16 in {names([w.name for w in running])}: set spec.target: bf16, or abort"
    return Cause(Reason.COHORT_IN_BF16, text)


def _progress(facts: Facts, workload: WorkloadView, delivery: Delivery) -> Progress:
    return facts.progress(workload, accepted_modes(facts.wanted(workload), rollback=False), delivery)


def _evidence_since(facts: Facts) -> float | None:
    """Since when everything that promotes has been good: set at an edge, so that steady evidence costs no write."""
    evaluation = facts.evaluation
    if evaluation is None:
        return facts.state.evidence_since
    members = {(w.key, len(w.pods)) for w, _ in facts.fleet.members if w.pods}
    judged = {(v.workload.key, len(v.workload.pods)) for v in facts.verdicts}
    good = members <= judged and all(
        promotes(facts.attempt.promotion[signal], reading)
        for verdict in facts.verdicts
        for signal, reading in verdict.readings.items()
    )
    if not good:
        return None
    since, at = facts.state.evidence_since, round(evaluation.at, 3)
    return at if since is None else min(since, at)  # a clock that was set back begins it anew


def _promote(facts: Facts) -> Outcome:
    state, stages = facts.state, facts.attempt.stages
    if state.step_index + 1 >= len(stages):
        done = replace(
            state,
            phase=Phase.DEGRADED if state.held else Phase.HEALTHY,
            reason=Reason.PROMOTED,
            message=f"every step is done: guarding {len(state.members)} workloads in {facts.spec.target}",
            step_since=facts.now,
            evidence_since=None,
            comparison=None,
        )
        return Outcome(done, assigned(facts), notices=(Notify(Reason.PROMOTED, done.message),))
    index = state.step_index + 1
    cohort = facts.places.in_cohort(index, state.members)
    moved = f"{facts.places.moved_units(cohort)} of {facts.places.total_units}"
    promoted = replace(
        state,
        phase=Phase.PROGRESSING,
        reason=Reason.STEP_PROMOTED,
        message=f"step {index + 1} of {len(stages)}: {moved} to {facts.spec.target}",
        step_index=index,
        step_since=facts.now,
        evidence_since=None,
        members=cohort.members,
        shares=cohort.shares,
    )
    facts = replace(facts, state=promoted)
    return Outcome(promoted, assigned(facts), notices=(Notify(Reason.STEP_PROMOTED, promoted.message),))

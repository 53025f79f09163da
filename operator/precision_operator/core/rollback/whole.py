"""RollingBack and Held: everything to the fallback, proven by the processes; then kept there until a person retries."""

from collections.abc import Container
from dataclasses import replace

from precision_operator.api.canary import Comparison
from precision_operator.api.commands import Answer, Command
from precision_operator.api.incident import NAMES_LIMIT, Incident, Scope
from precision_operator.api.modes import Mode
from precision_operator.api.spec import Delivery, Severity, Strategy
from precision_operator.api.state import HeldWorkload, Phase, State
from precision_operator.api.workload import name_of
from precision_operator.core.actions import Notify
from precision_operator.core.commands import allowed, carried_out
from precision_operator.core.desired import Desired
from precision_operator.core.facts import Facts
from precision_operator.core.mitigation.ladder import ended
from precision_operator.core.model import RestartBy, WorkloadView
from precision_operator.core.outcome import Outcome
from precision_operator.core.rollback.batches import under_way
from precision_operator.core.rollback.canary import choose
from precision_operator.core.rollback.comparing import canary_first, compare
from precision_operator.core.rollback.followup import awaited, follow, hurry_from, in_our_hands, not_in_fallback
from precision_operator.core.rollback.retry import reenabled
from precision_operator.core.rollback.triggers import Trigger, find_trigger
from precision_operator.reasons import Cause, Reason

URGENCY = (Strategy.HOLD, Strategy.CANARY, Strategy.GRADUAL, Strategy.EMERGENCY)
"""Strategies, the most urgent last: within an incident it only rises."""


def new_incident(facts: Facts, trigger: Trigger, *, canary: bool = False) -> Incident:
    """The incident of a rollback that is decided now; without a ``canary`` to compare, what asks for one is gradual."""
    strategy = Strategy.GRADUAL if trigger.strategy is Strategy.CANARY and not canary else trigger.strategy
    limit = round(facts.now + facts.spec.rollback.canary.limit_seconds, 3)
    return Incident(
        id=f"{facts.policy.name}-{facts.state.transition_id + 1}",
        severity=trigger.severity,
        scope=trigger.scope,
        reason=trigger.reason,
        message=trigger.message,
        workloads=tuple(name_of(key) for key in trigger.workloads[:NAMES_LIMIT]),
        detected_at=trigger.detected_at,
        decided_at=facts.now,
        deadline_at=limit if canary else _deadline(facts, trigger),
        strategy=strategy,
    )


def _deadline(facts: Facts, trigger: Trigger) -> float:
    since = trigger.detected_at if trigger.due_from is None else trigger.due_from
    return round(since + facts.spec.rollback.deadlines_seconds[trigger.severity], 3)


def joined(before: Incident, incident: Incident) -> Incident:
    """The unacknowledged incident of workloads that are held alone, when others join them.

    As in one of the fleet neither severity nor urgency falls, and no deadline moves later.
    """
    graver = incident if incident.severity < before.severity else before
    return replace(
        before,
        severity=graver.severity,
        strategy=max(before.strategy, incident.strategy, key=URGENCY.index),
        reason=graver.reason,
        message=graver.message,
        workloads=tuple(sorted({*before.workloads, *incident.workloads}))[:NAMES_LIMIT],
        deadline_at=min(before.deadline_at, incident.deadline_at),
    )


def begin_rollback(facts: Facts, trigger: Trigger) -> Outcome:
    """Assign the fleet, or its canary, the fallback, and ask for it in the same pass."""
    canary = choose(facts, trigger) if trigger.strategy is Strategy.CANARY else ()
    incident = new_incident(facts, trigger, canary=bool(canary))
    state = replace(
        facts.state,
        phase=Phase.ROLLING_BACK,
        reason=trigger.reason,
        message=trigger.message,
        precision=facts.spec.fallback,
        fallback=facts.spec.fallback,
        enforce=True,
        breached=trigger.workloads,
        poisoned=tuple(sorted({*trigger.poisoned, *facts.state.poisoned})),
        incident=incident,
        canary=canary,
        comparison=Comparison() if canary else None,
        evidence_since=None,
        step_since=facts.now,
        # A canary says nothing of those that were rolled back by themselves before.
        held=facts.state.held if canary else (),
        mitigations=ended(facts.state),
        attempts=_attempts(facts) + 1,
    )
    desired = _next_batch(replace(facts, state=state), incident)
    return Outcome(state, desired, notices=(Notify(trigger.reason, trigger.message),))


def _attempts(facts: Facts) -> int:
    """Failed attempts that still count: a fleet that stayed Healthy for long enough has proved itself."""
    state, since = facts.state, facts.state.step_since
    guarded = state.phase in (Phase.HEALTHY, Phase.DEGRADED)
    proved = guarded and since is not None and facts.now - since >= facts.spec.reenable.stable_seconds
    return 0 if proved else state.attempts


def _next_batch(
    facts: Facts, incident: Incident, *, escalate: bool = False, force: bool = False
) -> tuple[Desired, ...]:
    """Everything, or what a gradual rollback has come to."""
    all_of_it = everything(facts, escalate=escalate, force=force)
    if incident.strategy is Strategy.CANARY:
        return canary_first(facts, incident, all_of_it)
    if incident.strategy is not Strategy.GRADUAL or facts.now >= hurry_from(facts, incident):
        return all_of_it
    return under_way(facts, incident, all_of_it)


def _raise(facts: Facts, incident: Incident, trigger: Trigger | None) -> tuple[Incident, tuple[Notify, ...]]:
    """Neither severity nor urgency falls within an incident, and what they rise to is carried out at once."""
    if trigger is None:
        return incident, ()
    severity = min(trigger.severity, incident.severity)
    strategy = max(trigger.strategy, incident.strategy, key=URGENCY.index)
    if severity is incident.severity and strategy is incident.strategy:
        return incident, ()
    if severity is incident.severity:
        # The breach is not new, only the answer.
        trigger = replace(trigger, severity=severity, detected_at=facts.now, due_from=None)
    raised = replace(
        incident,
        severity=severity,
        strategy=strategy,
        reason=trigger.reason,
        message=trigger.message,
        workloads=tuple(sorted({*incident.workloads, *map(name_of, trigger.workloads)}))[:NAMES_LIMIT],
        deadline_at=min(incident.deadline_at, _deadline(facts, trigger)),
        expedited_at=facts.now,
    )
    if strategy is Strategy.CANARY:
        raised = replace(raised, deadline_at=incident.deadline_at)
    return raised, (Notify(Reason.ROLLBACK_EXPEDITED, f"{trigger.severity} now: {trigger.message}"),)


def everything(facts: Facts, *, escalate: bool = False, force: bool = False) -> tuple[Desired, ...]:
    """Every selected workload, moved or not: a fleet in FP32 means all of it. The breached come first."""
    breached = frozenset(facts.state.breached)
    found = sorted((*facts.movable, *facts.fleet.rescuable), key=lambda one: one[0].key not in breached)
    return tuple(into_fallback(facts, w, d, escalate=escalate, force=force) for w, d in found)


def into_fallback(facts: Facts, workload: WorkloadView, delivery: Delivery, *, escalate: bool, force: bool) -> Desired:
    """One workload in the fallback, back at a healthy checkpoint where the incident found its weights poisoned.

    Where FP32 would run out of memory it goes to BF16, if the policy allows that. Else it is restarted: a process that dies
    of a flip would have lost more. What nothing restarts, or would bring a change of its template in, is flipped.
    """
    fallback = facts.fallback_of(workload)
    starts_anew = delivery is Delivery.HOT and fallback is Mode.FP32 and facts.lacks_memory(workload)
    if starts_anew and workload.restart_by is not RestartBy.NEVER and not workload.pending_revision:
        delivery = Delivery.RESTART
    return Desired(
        workload,
        fallback,
        delivery,
        rollback=True,
        rewind=workload.key in facts.poisoned,
        escalate=escalate,
        force=force,
    )


def overdue(facts: Facts) -> frozenset[str]:
    """Keys of the awaited workloads that had their own time to acknowledge: others may have joined a moment ago."""
    late = frozenset(h.key for h in facts.state.held if not has_time(facts, h))
    return late & facts.state.awaited_keys


def has_time(facts: Facts, held: HeldWorkload) -> bool:
    """It was held a moment ago, and may take its time to acknowledge."""
    return 0 <= facts.now - held.since <= facts.spec.rollback.ack_timeout_seconds


def held_alone(
    facts: Facts, keys: Container[str], *, escalate: bool = False, force: bool = False
) -> tuple[Desired, ...]:
    """These in the fallback, and nothing of all others. Restarted is of them who is overdue."""
    late = overdue(facts)
    return tuple(
        into_fallback(facts, w, d, escalate=escalate and w.key in late, force=force)
        for w, d in in_our_hands(facts, keys)
    )


def rolling_back(facts: Facts) -> Outcome:
    """Write, wait for the processes' acknowledgement, escalate past its limit; Held when all are in the fallback."""
    state = replace(facts.state, precision=facts.spec.fallback)
    if state.incident is None:
        return Outcome(replace(state, phase=Phase.HELD), everything(facts))
    trigger = find_trigger(facts) if not facts.policy.deleted else None
    incident, raised = _raise(facts, state.incident, trigger)
    if trigger is not None and raised:
        breached = tuple(sorted({*state.breached, *trigger.workloads}))
        state = replace(state, breached=breached, poisoned=tuple(sorted({*state.poisoned, *trigger.poisoned})))
        state = carried_out(state, trigger.command) if trigger.command is not None else state
    if incident.strategy is Strategy.CANARY:
        if not_in_fallback(facts, _concerned(facts)):
            return _by_canary(replace(facts, state=replace(state, incident=incident)), incident, raised)
        incident = replace(incident, strategy=Strategy.GRADUAL)  # nothing is left to compare it with
    followed = follow(facts, incident, _concerned(facts))
    state = replace(state, incident=followed.incident)
    if raised:
        state = replace(state, reason=incident.reason, message=incident.message)
    facts = replace(facts, state=state)
    if followed.waiting is None:
        again = facts.command(Reason.ROLLED_BACK, "retry")
        text = f"all of the fleet trains in {facts.spec.fallback}; to start again: {again}"
        done = replace(state, phase=Phase.HELD, reason=followed.incident.reason, message=text, failing=())
        return Outcome(
            done, everything(facts), waiting=_waits_next(facts, done), notices=(Notify(Reason.ROLLED_BACK, text),)
        )
    if followed.waiting.reason in (Reason.DEADLINE_EXCEEDED, Reason.BLOCKED):
        state = replace(state, reason=followed.waiting.reason)
    desired = _next_batch(facts, followed.incident, escalate=followed.escalate, force=followed.force)
    return Outcome(state, desired, waiting=followed.waiting, notices=(*raised, *followed.notices))


def _by_canary(facts: Facts, incident: Incident, raised: tuple[Notify, ...]) -> Outcome:
    """The canary is compared; a verdict that holds it can be ended by a person's retry, as a finished rollback can."""
    state = facts.state
    outcome = compare(facts, incident, everything(facts))
    asked = facts.asked(Command.RETRY)
    if asked is not None and allowed(Command.RETRY, facts.policy, state):
        closed = reenabled(facts)
        if closed is None:
            return _start_again(state, asked)
        outcome = replace(outcome, waiting=closed)
    return replace(outcome, notices=(*raised, *outcome.notices))


def held(facts: Facts) -> Outcome:
    """Keep everything in the fallback; leave only when a person answers this very transition with retry, and that alone."""
    if not facts.state.enforce:
        return begin_rollback(facts, _record_lost(facts))
    state = replace(facts.state, precision=facts.spec.fallback)
    asked = facts.asked(Command.RETRY)
    safer = next((c for c in (Command.ABORT, Command.ROLLBACK) if facts.asked(c) is not None), None)
    if asked is not None and safer is not None:
        return _retry_withdrawn(facts, carried_out(state, safer))
    closed = reenabled(facts)
    if asked is not None and closed is None:
        return _start_again(state, asked)
    return Outcome(state, everything(facts), waiting=closed)


def _retry_withdrawn(facts: Facts, state: State) -> Outcome:
    """A rollback was asked for beside the retry: the safer of the two counts, and the next transition voids the other."""
    again = facts.command(Reason.ROLLED_BACK, "retry")
    text = f"a rollback was asked for beside a retry: the fleet stays in {facts.spec.fallback}; to start again: {again}"
    waiting = _waits_next(facts, state)
    return Outcome(state, everything(facts), waiting=waiting, notices=(Notify(Reason.ROLLED_BACK, text),))


def _waits_next(facts: Facts, state: State) -> Cause | None:
    """What the transition after this state waits for, at once: later it would be another write."""
    return reenabled(replace(facts, state=replace(state, transition_id=state.transition_id + 1)))


def _record_lost(facts: Facts) -> Trigger:
    """What is not enforced yet stands in the place of a record that was lost: nobody knows who was moved."""
    message = facts.state.message
    return Trigger(Severity.P0, Scope.FLEET, Reason.STATE_LOST, message, (), facts.now, Strategy.EMERGENCY)


def _start_again(state: State, asked: Answer) -> Outcome:
    """Another attempt, because a person retries. Everything stays in its mode until the first step."""
    text = f"{asked.by or 'a person'} asked for another attempt"
    again = replace(
        state,
        phase=Phase.PENDING,
        reason=Reason.RETRIED,
        message=text,
        members=(),
        held=(),
        failing=(),
        canary=(),
        breached=(),
        poisoned=(),
        comparison=None,
        mitigations=(),
    )
    return Outcome(again, notices=(Notify(Reason.RETRIED, text),))


def _concerned(facts: Facts) -> list[tuple[WorkloadView, Delivery]]:
    """Workloads that were moved, or are less safe than the fallback."""
    moved = frozenset(facts.state.members)
    return awaited(facts, {w.key for w in facts.workloads if w.key in moved or facts.reduced(w)})

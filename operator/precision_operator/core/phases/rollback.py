"""RollingBack and Held: everything to the fallback, proven by the processes; then kept there until a person retries."""

from collections.abc import Iterable
from dataclasses import replace

from precision_operator.api.canary import Comparison, Verdict
from precision_operator.api.commands import Answer, answered
from precision_operator.api.incident import Incident
from precision_operator.api.spec import Delivery, Strategy
from precision_operator.api.status import Phase, Status
from precision_operator.contract import RETRY
from precision_operator.core.actions import Notify
from precision_operator.core.batches import under_way
from precision_operator.core.canary import choose
from precision_operator.core.facts import Facts
from precision_operator.core.followup import follow, hurry_from, not_down
from precision_operator.core.gates import Closed
from precision_operator.core.gates.reenabled import reenabled
from precision_operator.core.model import WorkloadView
from precision_operator.core.outcome import Outcome
from precision_operator.core.phases.canary import compare, first_down
from precision_operator.core.phases.mitigation import ended
from precision_operator.core.plan import Desired
from precision_operator.core.progress import accepted_modes, progress_of
from precision_operator.core.triggers import Trigger, find_trigger

_URGENCY = (Strategy.HOLD, Strategy.CANARY, Strategy.GRADUAL, Strategy.EMERGENCY)


def new_incident(facts: Facts, trigger: Trigger, *, canary: bool = False) -> Incident:
    """The incident of a rollback that is decided now; without a ``canary`` to compare, what asks for one is gradual."""
    strategy = Strategy.GRADUAL if trigger.strategy is Strategy.CANARY and not canary else trigger.strategy
    limit = round(facts.now + facts.spec.rollback.canary.limit_seconds, 3)
    return Incident(
        id=f"{facts.policy.name}-{facts.status.transition_id + 1}",
        severity=trigger.severity,
        scope=trigger.scope,
        reason=trigger.reason,
        message=trigger.message,
        workloads=tuple(name for name, _ in trigger.workloads),
        detected_at=trigger.detected_at,
        decided_at=facts.now,
        deadline_at=limit if canary else _deadline(facts, trigger),
        strategy=strategy,
        poisoned=trigger.poisoned,
    )


def _deadline(facts: Facts, trigger: Trigger) -> float:
    return round(trigger.detected_at + facts.spec.rollback.deadlines_seconds[trigger.severity], 3)


def begin_rollback(facts: Facts, trigger: Trigger) -> Outcome:
    """Close the gate and turn the fleet, or its canary, to the fallback, in the same pass."""
    canary = choose(facts, trigger) if trigger.strategy is Strategy.CANARY else ()
    status = replace(
        facts.status,
        phase=Phase.ROLLING_BACK,
        reason=trigger.reason,
        message=trigger.message,
        precision=facts.spec.fallback,
        fallback=facts.spec.fallback,
        gate_closed=True,
        generation=facts.next_generation,
        incident=new_incident(facts, trigger, canary=bool(canary)),
        canary=canary,
        comparison=Comparison() if canary else None,
        evidence_since=None,
        step_since=facts.now,
        held=(),
        mitigations=ended(facts.status),
        attempts=_attempts(facts) + 1,
    )
    facts = replace(facts, status=status)
    return Outcome(status, _next_down(facts), notices=(Notify(trigger.reason, trigger.message, warning=True),))


def _attempts(facts: Facts) -> int:
    """Failed attempts that still count: a fleet that stayed Healthy for long enough has proved itself."""
    status, since = facts.status, facts.status.step_since
    guarded = status.phase in (Phase.HEALTHY, Phase.DEGRADED)
    proved = guarded and since is not None and facts.now - since >= facts.spec.reenable.stable_seconds
    return 0 if proved else status.attempts


def _next_down(facts: Facts, *, escalate: bool = False, force: bool = False) -> tuple[Desired, ...]:
    """Everything, or what a gradual rollback has come to."""
    everything, incident = everything_down(facts, escalate=escalate, force=force), facts.status.incident
    if incident is not None and incident.strategy is Strategy.CANARY:
        return first_down(facts, everything)
    gradual = incident is not None and incident.strategy is Strategy.GRADUAL
    if incident is None or not gradual or facts.now >= hurry_from(facts, incident):
        return everything
    return under_way(facts, incident, everything)


def _raise(facts: Facts, incident: Incident) -> tuple[Incident, tuple[Notify, ...]]:
    """Neither severity nor urgency falls within an incident, and what they rise to is carried out at once."""
    trigger = find_trigger(facts)
    if trigger is None:
        return incident, ()
    severity = min(trigger.severity, incident.severity)
    strategy = max(trigger.strategy, incident.strategy, key=_URGENCY.index)
    if severity is incident.severity and strategy is incident.strategy:
        return incident, ()
    if severity is incident.severity:
        trigger = replace(trigger, severity=severity, detected_at=facts.now)  # the breach is not new, only the answer
    raised = replace(
        incident,
        severity=severity,
        strategy=strategy,
        reason=trigger.reason,
        message=trigger.message,
        workloads=tuple(sorted({*incident.workloads, *(name for name, _ in trigger.workloads)})),
        poisoned=tuple(sorted({*incident.poisoned, *trigger.poisoned})),
        deadline_at=min(incident.deadline_at, _deadline(facts, trigger)),
        expedited_at=facts.now,
    )
    if strategy is Strategy.CANARY:
        raised = replace(raised, deadline_at=incident.deadline_at)
    return raised, (Notify("RollbackExpedited", f"{trigger.severity} now: {trigger.message}", warning=True),)


def everything_down(facts: Facts, *, escalate: bool = False, force: bool = False) -> tuple[Desired, ...]:
    """Every selected workload, moved or not: a fleet in FP32 means all of it."""
    moved = {m.uid for m in facts.status.members}
    return tuple(
        down(facts, w, d, latch=w.uid in moved or w.touched, escalate=escalate, force=force)
        for w, d in (*facts.movable, *facts.rescuable)
    )


def down(
    facts: Facts, workload: WorkloadView, delivery: Delivery, *, latch: bool, escalate: bool, force: bool
) -> Desired:
    """One workload in the fallback, back at a healthy checkpoint where the incident found its weights poisoned."""
    incident = facts.status.incident
    rewind = incident is not None and workload.name in incident.poisoned
    return Desired(
        workload,
        facts.spec.fallback,
        delivery,
        rollback=True,
        latch=latch,
        rewind=rewind,
        insist=facts.status.gate_closed,
        escalate=escalate,
        force=force,
    )


def rolling_back(facts: Facts) -> Outcome:
    """Write, wait for the processes' acknowledgement, escalate past its limit; Held when all are down."""
    status = _current(facts)
    if status.incident is None:
        return Outcome(replace(status, phase=Phase.HELD), everything_down(facts))
    incident, raised = _raise(facts, status.incident)
    if incident.strategy is Strategy.CANARY:
        if not_down(facts, _concerned(facts)):
            return _by_canary(replace(facts, status=replace(status, incident=incident)), incident, raised)
        incident = replace(incident, strategy=Strategy.GRADUAL)  # nothing is left to compare it with: all are down
    followed = follow(facts, incident, _concerned(facts))
    status = replace(status, incident=followed.incident)
    if raised:
        status = replace(status, reason=incident.reason, message=incident.message)
    facts = replace(facts, status=status)
    if followed.waiting is None:
        text = f"all of the fleet trains in {facts.spec.fallback}; annotate retry={status.transition_id + 1} to start again"
        done = replace(status, phase=Phase.HELD, reason=followed.incident.reason, message=text, failing=())
        return Outcome(done, everything_down(facts), settle=True, notices=(Notify("RolledBack", text),))
    if followed.waiting.reason == "DeadlineExceeded":
        status = replace(status, reason="DeadlineExceeded")
    desired = _next_down(facts, escalate=followed.escalate, force=followed.force)
    return Outcome(status, desired, waiting=followed.waiting, notices=(*raised, *followed.notices))


def _by_canary(facts: Facts, incident: Incident, raised: tuple[Notify, ...]) -> Outcome:
    """The canary is compared; a verdict that holds it can be ended by a person's retry, as a finished rollback can."""
    status, everything = facts.status, everything_down(facts)
    outcome = compare(facts, incident, everything)
    asked = answered(facts.policy.annotations, RETRY, status.transition_id)
    if asked is not None and status.comparison is not None and status.comparison.verdict is not Verdict.OPEN:
        closed = reenabled(facts)
        if closed is None:
            inside = {member.uid for member in status.canary}
            down = [d for d in everything if d.workload.uid in inside or d.workload.latch is not None]
            return _start_again(status, asked, down)
        outcome = replace(outcome, waiting=closed)
    return replace(outcome, notices=(*raised, *outcome.notices))


def held(facts: Facts) -> Outcome:
    """Make the rollback last; leave only when a person answers this very transition with retry."""
    status = _current(facts)
    incident = status.incident
    asked = answered(facts.policy.annotations, RETRY, status.transition_id)
    settled = _settled(facts)
    if incident is not None and incident.settled_at is None and settled:
        status = replace(status, incident=replace(incident, settled_at=facts.now))
    closed = reenabled(facts)
    if asked is not None and closed is None and not settled:
        closed = Closed("Settling", "the rollback is being made to last")
        return Outcome(status, everything_down(facts), settle=True, waiting=closed)
    if asked is not None and closed is None:
        return _start_again(status, asked, everything_down(facts))
    return Outcome(status, everything_down(facts), settle=True, waiting=closed)


def _start_again(status: Status, asked: Answer, down: Iterable[Desired]) -> Outcome:
    """Another attempt, at a person's word; the latches come off first: what is latched later, somebody else latched."""
    down = tuple(down)
    if any(desired.workload.latch is not None for desired in down):
        unlatched = tuple(replace(desired, unlatch=True, latch=False) for desired in down)
        # No names, no count: they change with every write, and the status would be written again for each change.
        waiting = Closed("Unlatching", "the latches of the rollback are coming off")
        return Outcome(status, unlatched, settle=True, waiting=waiting)
    text = f"{asked.by or 'a person'} asked for another attempt"
    again = replace(
        status,
        phase=Phase.PENDING,
        reason="Retried",
        message=text,
        members=(),
        held=(),
        failing=(),
        canary=(),
        comparison=None,
        mitigations=(),
        gate_closed=False,
    )
    return Outcome(again, notices=(Notify("Retried", text),))


def _current(facts: Facts) -> Status:
    """The status with the fallback that the policy asks for now: the gate reads it there."""
    fallback = facts.spec.fallback
    return replace(facts.status, precision=fallback, fallback=fallback)


def _concerned(facts: Facts) -> list[tuple[WorkloadView, Delivery]]:
    """Workloads that were moved, or are less safe than the fallback."""
    moved = {m.uid for m in facts.status.members}
    return [(w, d) for w, d in (*facts.movable, *facts.rescuable) if w.uid in moved or facts.reduced(w)]


def _settled(facts: Facts) -> bool:
    accepted = accepted_modes(facts.spec.fallback, rollback=True)
    return all(
        progress_of(w, accepted, facts.evaluation, d).settled
        for w, d in facts.movable
        if d is not Delivery.RESTART and not any(pod.crashing for pod in w.pods)
    )

"""RollingBack and Held: everything to the fallback, proven by the processes; then kept there until a person retries."""

from dataclasses import replace

from precision_operator.api.commands import answered
from precision_operator.api.spec import Delivery, Strategy
from precision_operator.api.status import Incident, Phase, Status
from precision_operator.contract import RETRY
from precision_operator.core.actions import Notify
from precision_operator.core.batches import under_way
from precision_operator.core.facts import Facts
from precision_operator.core.followup import follow, hurry_from
from precision_operator.core.gates import Closed, names
from precision_operator.core.gates.reenabled import reenabled
from precision_operator.core.model import WorkloadView
from precision_operator.core.outcome import Outcome
from precision_operator.core.plan import Desired
from precision_operator.core.progress import accepted_modes, progress_of
from precision_operator.core.triggers import Trigger, find_trigger


def new_incident(facts: Facts, trigger: Trigger) -> Incident:
    """The incident of a rollback that is decided now."""
    return Incident(
        id=f"{facts.policy.name}-{facts.status.transition_id + 1}",
        severity=trigger.severity,
        scope=trigger.scope,
        reason=trigger.reason,
        message=trigger.message,
        workloads=tuple(name for name, _ in trigger.workloads),
        detected_at=round(trigger.detected_at, 3),
        decided_at=facts.now,
        deadline_at=_deadline(facts, trigger),
        strategy=trigger.strategy,
        poisoned=trigger.poisoned,
    )


def _deadline(facts: Facts, trigger: Trigger) -> float:
    return round(trigger.detected_at + facts.spec.rollback.deadlines_seconds[trigger.severity], 3)


def begin_rollback(facts: Facts, trigger: Trigger) -> Outcome:
    """Close the gate and turn the whole fleet to the fallback, in the same pass."""
    status = replace(
        facts.status,
        phase=Phase.ROLLING_BACK,
        reason=trigger.reason,
        message=trigger.message,
        precision=facts.spec.fallback,
        fallback=facts.spec.fallback,
        gate_closed=True,
        generation=facts.next_generation,
        incident=new_incident(facts, trigger),
        evidence_since=None,
        step_since=facts.now,
        held=(),
        attempts=_attempts(facts) + 1,
    )
    facts = replace(facts, status=status)
    return Outcome(status, _next_down(facts), notices=(Notify(trigger.reason, trigger.message, warning=True),))


def _attempts(facts: Facts) -> int:
    """Failed attempts that still count: a fleet that stayed Healthy for long enough has proved itself."""
    status = facts.status
    guarded = status.phase in (Phase.HEALTHY, Phase.DEGRADED) and status.step_since is not None
    proved = guarded and facts.now - (status.step_since or 0.0) >= facts.spec.reenable.stable_seconds
    return 0 if proved else status.attempts


def _next_down(facts: Facts, *, escalate: bool = False, force: bool = False) -> tuple[Desired, ...]:
    """Everything, or what a gradual rollback has come to."""
    everything, incident = everything_down(facts, escalate=escalate, force=force), facts.status.incident
    gradual = incident is not None and incident.strategy is Strategy.GRADUAL
    if incident is None or not gradual or facts.now >= hurry_from(facts, incident):
        return everything
    return under_way(facts, incident, everything)


def _raise(facts: Facts, incident: Incident) -> tuple[Incident, tuple[Notify, ...]]:
    """Severity never falls within an incident, and what it rises to is carried out at once."""
    trigger = find_trigger(facts)
    if trigger is None or trigger.severity >= incident.severity:
        return incident, ()
    raised = replace(
        incident,
        severity=trigger.severity,
        strategy=trigger.strategy,
        reason=trigger.reason,
        message=trigger.message,
        workloads=tuple(sorted({*incident.workloads, *(name for name, _ in trigger.workloads)})),
        poisoned=tuple(sorted({*incident.poisoned, *trigger.poisoned})),
        deadline_at=min(incident.deadline_at, _deadline(facts, trigger)),
    )
    return raised, (Notify("RollbackExpedited", f"{trigger.severity} now: {trigger.message}", warning=True),)


def everything_down(facts: Facts, *, escalate: bool = False, force: bool = False) -> tuple[Desired, ...]:
    """Every selected workload, moved or not: a fleet in FP32 means all of it."""
    moved = {m.uid for m in facts.status.members}
    return tuple(
        down(facts, w, d, latch=w.uid in moved or w.touched, escalate=escalate, force=force)
        for w, d in (*facts.movable, *facts.rescuable)
    )


def unlatch(facts: Facts) -> tuple[Desired, ...]:
    """Everything as it is, without its latch."""
    return tuple(replace(desired, unlatch=True, latch=False) for desired in everything_down(facts))


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


def held(facts: Facts) -> Outcome:
    """Make the rollback last; leave only when a person answers this very transition with retry."""
    status = _current(facts)
    incident = status.incident
    asked = answered(facts.policy.annotations, RETRY, status.transition_id)
    settled = _settled(facts)
    if incident is not None and incident.settled_at is None and incident.last_ack_at is not None and settled:
        status = replace(status, incident=replace(incident, settled_at=facts.now))
    closed = reenabled(facts)
    if asked is not None and closed is None and not settled:
        closed = Closed("Settling", "the rollback is being made to last")
        return Outcome(status, everything_down(facts), settle=True, waiting=closed)
    latched = [w for w, _ in (*facts.movable, *facts.rescuable) if w.latch is not None]
    if asked is not None and closed is None and latched:
        # The person's word is carried out on the workloads first: what is latched later was latched by somebody else.
        waiting = Closed("Unlatching", names([w.name for w in latched]))
        return Outcome(status, unlatch(facts), settle=True, waiting=waiting)
    if asked is not None and closed is None:
        text = f"{asked.by or 'a person'} asked for another attempt"
        again = replace(
            status,
            phase=Phase.PENDING,
            reason="Retried",
            message=text,
            members=(),
            held=(),
            failing=(),
            gate_closed=False,
        )
        return Outcome(again, notices=(Notify("Retried", text),))
    return Outcome(status, everything_down(facts), settle=True, waiting=closed)


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

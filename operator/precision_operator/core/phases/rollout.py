"""Progressing and Paused: the cohort of the step moves, and is promoted by evidence."""

from dataclasses import replace

from precision_operator.api.spec import Delivery
from precision_operator.api.status import Phase
from precision_operator.core.actions import Notify
from precision_operator.core.facts import Facts
from precision_operator.core.gates import Closed, GateInput, names
from precision_operator.core.gates.chain import first_closed
from precision_operator.core.model import WorkloadView
from precision_operator.core.outcome import Outcome
from precision_operator.core.phases.mitigation import mitigate
from precision_operator.core.phases.rollback import begin_rollback, down
from precision_operator.core.plan import Desired, conflicted
from precision_operator.core.progress import Progress, accepted_modes, progress_of
from precision_operator.core.readings import promotes
from precision_operator.core.triggers import cause_elsewhere, find_trigger
from precision_operator.core.windows import promotion_waits, tuning_of


def rollout(facts: Facts) -> Outcome:
    """Roll back, promote, or wait for the first gate that is closed."""
    facts, notices = mitigate(facts)
    trigger = find_trigger(facts)
    if trigger is not None:
        return begin_rollback(facts, trigger)
    if facts.status.precision is not facts.spec.target:
        return target_changed(facts)
    # A policy whose steps were shortened in mid-rollout goes on from the last one.
    index = min(facts.status.step_index, len(facts.stages) - 1)
    # A member that was deleted is replaced: a cohort without its canary has proved nothing.
    members = facts.in_cohort(index, facts.status.members)
    facts = replace(facts, status=replace(facts.status, step_index=index, members=members))
    status = replace(facts.status, evidence_since=_evidence_since(facts))
    facts = replace(facts, status=status)
    closed = _waiting(facts)
    if closed is None:
        return _promote(facts)
    phase = Phase.PAUSED if closed.reason == "AwaitingApproval" else Phase.PROGRESSING
    if phase is Phase.PAUSED and facts.status.phase is not Phase.PAUSED:
        notices = (*notices, Notify(closed.reason, closed.message))
    status = replace(status, phase=phase, reason=closed.reason, message=closed.message)
    return Outcome(status, move_members(facts), settle=True, waiting=closed, notices=notices)


def target_changed(facts: Facts) -> Outcome:
    """Another precision is another rollout: from its canary on. What was moved stays as it is, guarded, until its turn."""
    text = f"spec.target is {facts.spec.target} now: a new rollout begins"
    again = replace(
        facts.status, phase=Phase.PENDING, reason="TargetChanged", message=text, members=(), held=(), step_index=0
    )
    again = replace(again, mitigations=())
    return Outcome(again, notices=(Notify("TargetChanged", text),))


def move_members(facts: Facts, *, escalate: bool = False, force: bool = False) -> tuple[Desired, ...]:
    """Members in the target; those rolled back by themselves in the fallback, restarted where they do not listen."""
    held = {h.uid for h in facts.status.held}
    up = tuple(_up(facts, w, d) for w, d in facts.members)
    back = tuple(
        down(facts, w, d, latch=True, escalate=escalate, force=force)
        for w, d in (*facts.movable, *facts.rescuable)
        if w.uid in held
    )
    return up + back


def _up(facts: Facts, workload: WorkloadView, delivery: Delivery) -> Desired:
    tuning, generation = tuning_of(facts, workload)
    return Desired(workload, facts.wanted(workload), delivery, tuning=tuning, tuned_by=generation)


def _waiting(facts: Facts) -> Closed | None:
    if facts.observation.problem is not None:
        return Closed(*facts.observation.problem)
    inside = {m.uid for m in facts.status.members}
    stranded = [w.name for w in facts.observation.workloads if w.name in facts.stuck and w.uid in inside]
    if stranded:
        text = f"{names(stranded)} cannot be moved any more: declare the contract in their templates again, or abort"
        return Closed("Undeliverable", text)
    ours = facts.status.generation
    fought = [w.name for w, d in facts.members if conflicted(_up(facts, w, d), ours)]
    if fought:
        text = f"somebody else writes the templates of {names(fought)} too: leave them out of what you apply, or abort"
        return Closed("ConflictedWriter", text)
    for failing in facts.failing:
        elsewhere = cause_elsewhere(facts, failing.signal)
        if elsewhere is not None:
            return Closed("CauseNotPrecision", f"{elsewhere}: holding, a rollback would not help")
    window = promotion_waits(facts) or _learns_nothing(facts)
    if window is not None:
        return window
    given = GateInput(
        policy=facts.policy,
        status=facts.status,
        stage=facts.stages[facts.status.step_index],
        evaluation=facts.evaluation,
        progress=tuple((w, _progress(facts, w, d)) for w, d in facts.members),
        fleet_runs=any(w.replicas > 0 for w, _ in facts.movable),
        verdicts=facts.verdicts,
        promotion=facts.promotion,
        evidence_since=facts.status.evidence_since,
    )
    return first_closed(given)


def _learns_nothing(facts: Facts) -> Closed | None:
    """A cohort of which BF16 had to help every member says nothing of the target."""
    running = [w for w, _ in facts.members if w.pods]
    if not running or any(facts.wanted(w) is facts.target for w in running):
        return None
    text = f"overflow ended only in BF16 in {names([w.name for w in running])}: set spec.target: bf16, or abort"
    return Closed("CohortInBF16", text)


def _progress(facts: Facts, workload: WorkloadView, delivery: Delivery) -> Progress:
    accepted = accepted_modes(facts.wanted(workload), rollback=False)
    return progress_of(workload, accepted, facts.evaluation, delivery)


def _evidence_since(facts: Facts) -> float | None:
    """Since when everything that promotes has been good: set at an edge, so that steady evidence costs no write."""
    evaluation = facts.evaluation
    if evaluation is None:
        return facts.status.evidence_since
    members = {w.uid for w, _ in facts.members if w.pods}
    judged = {v.workload.uid for v in facts.verdicts}
    good = members <= judged and all(
        promotes(facts.promotion[signal], reading)
        for verdict in facts.verdicts
        for signal, reading in verdict.readings.items()
    )
    if not good:
        return None
    return facts.status.evidence_since or round(evaluation.at, 3)


def _promote(facts: Facts) -> Outcome:
    status, stages = facts.status, facts.stages
    if status.step_index + 1 >= len(stages):
        done = replace(
            status,
            phase=Phase.HEALTHY,
            reason="Promoted",
            message=f"every step is done: guarding {len(status.members)} workloads in {facts.spec.target}",
            step_since=facts.now,
            evidence_since=None,
        )
        return Outcome(done, move_members(facts), settle=True, notices=(Notify("Promoted", done.message),))
    index = status.step_index + 1
    members = facts.in_cohort(index, status.members)
    promoted = replace(
        status,
        phase=Phase.PROGRESSING,
        reason="StepPromoted",
        message=f"step {index + 1} of {len(stages)}: {len(members)} of {len(facts.movable)} to {facts.spec.target}",
        step_index=index,
        step_since=facts.now,
        evidence_since=None,
        members=members,
    )
    facts = replace(facts, status=promoted)
    return Outcome(promoted, move_members(facts), settle=True, notices=(Notify("StepPromoted", promoted.message),))

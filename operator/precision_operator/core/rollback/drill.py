"""A drill: workloads in good health go into the fallback as a rollback takes them, are timed, and go back by themselves.

It is no breach: no incident of the state, no attempt and no back-off come of it. What calls for a rollback ends it.
"""

from dataclasses import replace

from precision_operator.api.commands import NAME_CHARACTERS, REASON_CHARACTERS, Command
from precision_operator.api.drill import ALLOW_RESTARTS, FLEET, Drill, DrillOrder, DrillResult, drill_order
from precision_operator.api.spec import Delivery, Severity
from precision_operator.api.state import Phase, State
from precision_operator.api.text import bounded, names
from precision_operator.api.workload import shown
from precision_operator.contract import STAMP
from precision_operator.core.actions import Notify
from precision_operator.core.commands import Refused, allowed, carried_out
from precision_operator.core.facts import Facts
from precision_operator.core.model import WorkloadView
from precision_operator.core.progress import live_pods
from precision_operator.core.rollback.followup import Movable, in_our_hands, not_in_fallback, unreadable
from precision_operator.core.rollback.triggers import find_trigger
from precision_operator.core.rollback.whole import into_fallback
from precision_operator.reasons import Cause, Reason

OVERDUE_SECONDS = 90 * 86400.0
"""A quarter: how old the last drill that passed may be (manifests/monitoring/alerts.yaml has it too)."""

Rehearsed = tuple[Facts, tuple[Notify, ...]]

REASONS = {
    DrillResult.RUNNING: Reason.DRILLING,
    DrillResult.PASSED: Reason.DRILL_PASSED,
    DrillResult.FAILED: Reason.DRILL_FAILED,
    DrillResult.PREEMPTED: Reason.DRILL_PREEMPTED,
}


def rehearse(facts: Facts) -> Rehearsed:
    """The facts with the drill where it stands after this pass, and what is to be said of that."""
    drill = facts.state.last_drill
    if drill is not None and drill.running:
        return _followed(facts, drill)
    return _asked(facts) if facts.asked(Command.DRILL) is not None else (facts, ())


def drilling(facts: Facts) -> Cause:
    """What a drill in progress waits for."""
    late = names([w.name for w, _ in not_in_fallback(facts, _targets(facts))])
    if unreadable(facts):
        return Cause(Reason.DRILLING, f"Prometheus gives no answer: whether {late} train in the fallback is not known")
    return Cause(Reason.DRILLING, f"waiting for the trainers of {late} to report the fallback")


def left(state: State, now: float) -> Drill | None:
    """The drill, which is over once the fleet is not Healthy any more."""
    drill = state.last_drill
    if drill is None or not drill.running or state.phase is Phase.HEALTHY:
        return drill
    return replace(drill, result=DrillResult.PREEMPTED, ended_at=now, message=f"the fleet is {state.phase}")


def passed_at(state: State) -> float | None:
    """When a drill passed last; seconds since the epoch."""
    return state.last_drill.passed_at if state.last_drill is not None else None


def due(state: State, now: float) -> str:
    """Why the way back should be rehearsed now; empty: it need not."""
    incident = state.incident
    if state.phase is not Phase.HEALTHY or state.drilled:
        return ""
    passed = passed_at(state)
    if incident is not None and (passed is None or incident.decided_at > passed):
        return "there was a rollback since the last drill"
    if passed is not None:
        age_seconds = now - passed
        return f"the last drill passed {age_seconds / 86400:.0f} days ago" if age_seconds > OVERDUE_SECONDS else ""
    return "no drill has passed yet"


def _targets(facts: Facts) -> list[tuple[WorkloadView, Delivery]]:
    return [(w, d) for w, d in in_our_hands(facts, facts.state.drilled) if live_pods(w)]


# ---- it begins


def _asked(facts: Facts) -> Rehearsed:
    """It begins, or is refused: either way the command is good for nothing else, so that it comes at no other time."""
    trigger = find_trigger(facts)
    facts = replace(facts, state=carried_out(facts.state, Command.DRILL))
    if trigger is not None:
        return facts, _refused(f"a rollback begins: {trigger.message}")
    order = drill_order(facts.policy.annotations, why_characters=REASON_CHARACTERS)
    if order is None:
        form = f"<transitionId>: <workload key or {FLEET}>[ {ALLOW_RESTARTS}][: <why>]"
        return facts, _refused(f"the annotation names no workload: write it as {form}")
    found = allowed(Command.DRILL, facts.policy, replace(facts.state, failing=facts.failing))
    if isinstance(found, Refused):
        return facts, _refused(f"the policy {found.message}")
    begun = replace(facts, state=replace(facts.state, last_drill=_new(facts, order)))
    against = _against(facts, begun, order)
    if against:
        return facts, _refused(against)
    restarted = [w.name for w, d in _targets(begun) if _restarts(begun, w, d)]
    drill = _new(facts, order, workloads=len(_targets(begun)), restarted=len(restarted))
    who = shown(order.workload) if order.workload else f"all {drill.workloads} workloads"
    text = f"{drill.by or 'a person'} asked for a drill: {who} to {facts.spec.fallback} and back"
    state = replace(facts.state, last_drill=drill, reason=Reason.DRILLING, message=text)
    return replace(facts, state=state), (Notify(Reason.DRILLING, text),)


def _new(facts: Facts, order: DrillOrder, *, workloads: int = 0, restarted: int = 0) -> Drill:
    asked, before = facts.policy.annotations, facts.state.last_drill
    return Drill(
        id=f"{facts.policy.name}-drill-{facts.state.transition_id + 1}",
        workload=order.workload,
        by=bounded(asked.get(f"{Command.DRILL}{STAMP}", ""), NAME_CHARACTERS),
        why=order.why,
        began_at=facts.now,
        deadline_at=round(facts.now + facts.spec.rollback.deadlines_seconds[Severity.P0], 3),
        workloads=workloads,
        restarted=restarted,
        passed_at=before.passed_at if before is not None else None,
    )


def _against(facts: Facts, begun: Facts, order: DrillOrder) -> str:
    """What stands against a drill as this pass sees the fleet; empty: nothing."""
    if facts.admission_waits is not None:
        return f"admission is not certain to give new pods their mode: {facts.admission_waits.message}"
    if unreadable(facts):
        return "Prometheus gives no answer: no acknowledgement could be read"
    if order.workload and order.workload not in facts.state.members:
        found = names([shown(key) for key in facts.state.members])
        return f"{shown(order.workload)} is no workload that was moved; expected one of {found}"
    targets = _targets(begun)
    if not targets:
        return "nothing that was moved runs"
    moving = [w.name for w, _ in targets if w.key in facts.promoting]
    if moving:
        return f"{names(moving)} do not report {facts.target} yet"
    fixed = [w.name for w, d in targets if d is Delivery.NEW_ONLY]
    if fixed:
        return f"running pods of {names(fixed)} cannot be moved (delivery: NewOnly)"
    restarted = [w.name for w, d in targets if _restarts(begun, w, d)]
    if restarted and not order.allow_restarts:
        return f"{names(restarted)} can only be restarted, which loses steps: allow it with {ALLOW_RESTARTS}"
    return ""


def _restarts(facts: Facts, workload: WorkloadView, delivery: Delivery) -> bool:
    return into_fallback(facts, workload, delivery, escalate=False, force=False).delivery is Delivery.RESTART


def _refused(why: str) -> tuple[Notify, ...]:
    return (Notify(Reason.DRILL_REFUSED, f"no drill: {why}"),)


# ---- it goes on, and ends


def _followed(facts: Facts, drill: Drill) -> Rehearsed:
    preempted = _preempted(facts)
    if preempted:
        return _ended(facts, drill, DrillResult.PREEMPTED, preempted)
    targets = _targets(facts)
    if not targets:
        return _ended(facts, drill, DrillResult.FAILED, "nothing of it runs any more")
    waiting = not_in_fallback(facts, targets)
    if facts.now > drill.deadline_at:
        return _ended(facts, drill, DrillResult.FAILED, _late(facts, drill, targets))
    if drill.requested_at is None and all(progress.requested for _, progress in waiting):
        drill = replace(drill, requested_at=facts.now)
    if drill.half_at is None and 2 * len(waiting) <= len(targets):
        drill = replace(drill, half_at=facts.now)
    if waiting or len(targets) < drill.workloads:
        return replace(facts, state=replace(facts.state, last_drill=drill)), ()
    seconds = facts.now - drill.began_at
    text = (
        f"{len(targets)} workloads reported {facts.spec.fallback} within {seconds:.1f} s, and go back to {facts.target}"
    )
    return _ended(facts, drill, DrillResult.PASSED, text)


def _late(facts: Facts, drill: Drill, targets: Movable) -> str:
    """Who has not reported it. What has no pods counts: absent data is no success."""
    late = [w.name for w, _ in not_in_fallback(facts, targets)]
    gone = drill.workloads - sum(1 for _ in targets)
    said = [f"no acknowledgement from {names(late)}"] if late else []
    said += [f"{gone} workloads without a running pod"] if gone > 0 else []
    said += ["Prometheus gives no answer"] if unreadable(facts) else []
    limit = drill.deadline_at - drill.began_at
    return f"{'; '.join(said) or 'the deadline had passed'}, after {limit:g} s: all go back to {facts.target}"


def _preempted(facts: Facts) -> str:
    """What ends a drill: whatever else is to be done with the fleet."""
    trigger = find_trigger(facts)
    if trigger is not None:
        return f"{trigger.reason}: {trigger.message}"
    return "spec.target was edited" if facts.state.precision is not facts.spec.target else ""


def _ended(facts: Facts, drill: Drill, result: DrillResult, text: str) -> Rehearsed:
    reason, text = REASONS[result], bounded(text)
    passed_at = facts.now if result is DrillResult.PASSED else drill.passed_at
    drill = replace(drill, result=result, ended_at=facts.now, message=text, passed_at=passed_at)
    state = replace(facts.state, last_drill=drill, reason=reason, message=text)
    return replace(facts, state=state), (Notify(reason, text),)

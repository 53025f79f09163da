"""Pending: nothing has been moved. Leaves for the first step as soon as the policy can be carried out."""

from dataclasses import replace

from precision_operator.api.spec import Delivery
from precision_operator.api.status import Phase
from precision_operator.core.actions import Notify
from precision_operator.core.facts import Facts
from precision_operator.core.gates import Closed, names
from precision_operator.core.model import WorkloadView
from precision_operator.core.outcome import Outcome
from precision_operator.core.phases.rollback import begin_rollback
from precision_operator.core.progress import accepted_modes, live_pods
from precision_operator.core.triggers import find_trigger, unfinished_rollback


def pending(facts: Facts) -> Outcome:
    """Start the first step, or say what is missing; workloads that an earlier rollback latched are Held first."""
    status = facts.status
    trigger = find_trigger(facts)
    if trigger is not None:
        return begin_rollback(facts, trigger)
    closed = _missing(facts)
    if closed is not None:
        return Outcome(status, settle=True, waiting=closed)
    rolled_back = _rolled_back(facts) if status.transition_id == 0 else []
    left = _left_up(facts) if rolled_back else []
    if left:
        return begin_rollback(facts, unfinished_rollback(facts, left))
    if rolled_back:
        held = replace(
            status,
            phase=Phase.HELD,
            reason="LatchedWorkloads",
            message=f"an earlier rollback still holds {names(rolled_back)}; annotate retry to start",
            gate_closed=True,
            precision=facts.spec.fallback,
            generation=facts.next_generation,
            fallback=facts.spec.fallback,
        )
        return Outcome(held, notices=(Notify("LatchedWorkloads", held.message, warning=True),))
    behind = [w.name for w, _ in facts.movable if facts.lags(w) and not any(pod.crashing for pod in w.pods)]
    if behind:
        text = f"the templates of {names(behind)} still follow the last rollback"
        return Outcome(status, settle=True, waiting=Closed("Settling", text))
    members = facts.in_cohort(0, ())
    if not members:
        text = f"a rollback still holds {names([w.name for w, _ in facts.movable])}; abort, then retry to start"
        return Outcome(status, waiting=Closed("LatchedWorkloads", text))
    unseen = _unseen(facts, {m.uid for m in members})
    if unseen:
        text = f"Prometheus has no samples of {names(unseen)}: nothing is moved that could not be watched"
        return Outcome(status, waiting=Closed("NoSamples", text))
    started = replace(
        status,
        phase=Phase.PROGRESSING,
        reason="RolloutStarted",
        message=f"step 1 of {len(facts.stages)}: {names([m.name for m in members])} to {facts.spec.target}",
        gate_closed=False,
        precision=facts.spec.target,
        fallback=facts.spec.fallback,
        generation=facts.next_generation,
        members=members,
        step_index=0,
        step_since=facts.now,
        evidence_since=None,
        failing=(),
        mitigations=(),
    )
    return Outcome(started, notices=(Notify("RolloutStarted", started.message),))


def _rolled_back(facts: Facts) -> list[str]:
    """Workloads that an earlier policy's rollback holds: by their latch, or by their pods' request, if it got no further."""
    safe = accepted_modes(facts.spec.fallback, rollback=True)
    return [
        w.name
        for w, _ in facts.movable
        if w.latch is not None or any(p.request is not None and p.request.mode in safe for p in live_pods(w))
    ]


def _left_up(facts: Facts) -> list[WorkloadView]:
    """Workloads that we moved, and that are told, or say themselves, that they train in less than the fallback."""
    return [w for w, d in facts.movable if w.touched and d is not Delivery.NEW_ONLY and facts.reduced(w)]


def _unseen(facts: Facts, members: set[str]) -> list[str]:
    """Members of which a pod has no metrics."""
    seen = facts.evaluation.pods if facts.evaluation else {}
    return [w.name for w, _ in facts.movable if w.uid in members and any(p.name not in seen for p in live_pods(w))]


def _missing(facts: Facts) -> Closed | None:
    if facts.observation.problem is not None:
        return Closed(*facts.observation.problem)
    if facts.observation.contested and not facts.observation.workloads:
        return Closed("PolicyConflict", "an older policy selects all of these workloads; make the selectors disjoint")
    if not facts.observation.workloads:
        return Closed("NoWorkloads", "no workload's pod template carries the labels of spec.selector")
    if not facts.movable:
        return Closed(
            "Undeliverable",
            f"{names(list(facts.stuck))}: cannot be moved by delivery {facts.spec.delivery}; "
            "declare the contract (docs/contract.md) or a literal ENABLE_FP16_TRAINING in the pod template",
        )
    if facts.evaluation is None:
        return Closed("AwaitingEvaluation", "the metrics have not been read yet")
    if not facts.window_clear:
        return Closed("WindowNotClear", "the metrics' window still reaches back into the last rollback")
    if "ack" in facts.evaluation.errors:
        return Closed("MetricsUnavailable", "Prometheus gives no answer: nothing is moved that could not be watched")
    return None

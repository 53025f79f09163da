"""Who goes first in a rollback by canary, and how much better they fare than the rest.

Like is compared with like: both sides are breached workloads. A canary of healthy ones would look cured, and a rest of
healthy ones would hide the cure.
"""

from collections.abc import Container
from statistics import fmean

from precision_operator.api.canary import Choice
from precision_operator.api.modes import Mode
from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.spec import Criterion, Delivery, Severity
from precision_operator.api.text import names
from precision_operator.core.cohorts.order import canary_order
from precision_operator.core.cohorts.shares import at_most
from precision_operator.core.evidence.assessment import assess, trains_in
from precision_operator.core.evidence.readings import Breach, Reading, Unknown
from precision_operator.core.facts import Facts
from precision_operator.core.model import WorkloadView
from precision_operator.core.progress import live_pods
from precision_operator.core.rollback.followup import not_in_fallback
from precision_operator.core.rollback.triggers import Trigger
from precision_operator.reasons import Cause, Reason

KNOWN_SHARE = 0.5
"""Of the rest that must be known in a look; of the canary, all."""


def choose(facts: Facts, trigger: Trigger) -> tuple[str, ...]:
    """The keys of a rollback canary; empty where fewer than two breached workloads could be compared."""
    rules, breached = facts.spec.rollback.canary, frozenset(trigger.workloads)
    pool = [
        w
        for w, d in (*facts.fleet.members, *facts.fleet.residual)
        if w.key in breached and d is not Delivery.NEW_ONLY and live_pods(w) and facts.reduced(w)
    ]
    chosen = _labelled(facts, pool)
    if not 0 < len(chosen) < len(pool):
        size = max(1, at_most(rules.share, facts.fleet.moved_count))
        chosen = canary_order(facts.policy.uid, pool)[: min(size, len(pool) // 2)]
    return tuple(sorted(w.key for w in chosen))


def _labelled(facts: Facts, pool: list[WorkloadView]) -> list[WorkloadView]:
    """Those that run on labelled nodes only. Where the nodes could not be read there are none: the share decides."""
    nodes = facts.observation.canary_nodes
    if facts.spec.rollback.canary.by is not Choice.NODE_LABEL:
        return []
    return [w for w in pool if all(pod.node in nodes for pod in live_pods(w))]


def difference(facts: Facts) -> float | Cause:
    """How much more trouble the rest is in than the canary, -1 to 1; or why that is not known."""
    inside = frozenset(facts.state.canary)
    fleet = [(w, d) for w, d in (*facts.movable, *facts.fleet.rescuable) if live_pods(w)]
    canary = [(w, d) for w, d in fleet if w.key in inside]
    if not canary:
        return Cause(Reason.CANARY_GONE, "no workload of the canary has a pod: there is nothing to compare")
    late = [w.name for w, _ in not_in_fallback(facts, canary) if not any(pod.stopped for pod in live_pods(w))]
    if late:
        return Cause(
            Reason.AWAITING_ACKNOWLEDGEMENT, f"waiting for {names(late)} to report {facts.spec.fallback} again"
        )
    known = frozenset(facts.state.breached)
    rest = [w for w, _ in fleet if w.key in known and w.key not in inside and facts.reduced(w)]
    if not rest:
        return Cause(Reason.NOTHING_TO_COMPARE, "none of the breached workloads is left in reduced precision")
    first = [(w.name, trouble(facts, w)) for w, _ in canary]
    others = [(w.name, trouble(facts, w)) for w in rest]
    unknown = [name for name, found in first if found is None]
    known_rest = [found for _, found in others if found is not None]
    if len(known_rest) < KNOWN_SHARE * len(others):
        unknown += [name for name, found in others if found is None]
    if unknown:
        return Cause(Reason.CANARY_UNKNOWN, f"no believable data for {names(unknown)}: this look is not counted")
    return fmean(known_rest) - fmean(found for _, found in first if found is not None)


def trouble(facts: Facts, workload: WorkloadView) -> float | None:
    """How near a workload is to a breach, of any signal: 0 as good as what promotes, 1 a breach; None where not known.

    Loss and speed are relative to the workload's own FP32 baseline, on both sides: that FP32 is slower and needs more
    memory is its price, never trouble. In FP32 there is no loss scale that could overflow.
    """
    evaluation = facts.evaluation
    if evaluation is None:
        return None
    # As if in reduced precision: for FP32 the signals that are relative to its baseline would be left out.
    readings = dict(assess(workload, facts.spec, evaluation, mode=Mode.FP16, failing=frozenset()).readings)
    if trains_in(workload, evaluation.pods, Mode.FP32):
        readings = {signal: reading for signal, reading in readings.items() if not SIGNALS[signal].price}
    answered = facts.spec.rollback.strategies
    judged = [(facts.spec.criterion(signal), reading) for signal, reading in readings.items()]
    levels = [_level(c, reading, answered) for c, reading in judged if c.severity in answered]
    if 1.0 in levels:
        return 1.0
    known = [level for level in levels if level is not None]
    return max(known, default=None) if len(known) == len(levels) else None


def _level(criterion: Criterion, reading: Reading, answered: Container[Severity]) -> float | None:
    if isinstance(reading, Unknown):
        return None
    if isinstance(reading, Breach) and reading.severity in answered:
        return 1.0  # also of a loss that is not a number
    return depth(criterion, reading.value, answered)


def depth(criterion: Criterion, value: float, answered: Container[Severity]) -> float:
    """How deep a value is in trouble: 0 at what promotes, 1 at a breach of a severity that a rollback answers."""
    good = criterion.leave if criterion.promote_below is None else criterion.promote_below
    bad = criterion.warn if criterion.warn is not None and criterion.warn_severity in answered else criterion.enter
    if good == bad:
        return float(value > bad)
    return min(1.0, max(0.0, (value - good) / (bad - good)))

"""The breaches that call for an answer: confirmed, seen now, and maybe the precision's fault."""

from precision_operator.api.modes import Mode
from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.signals import Signal
from precision_operator.api.state import Failing
from precision_operator.core.cohorts.shares import at_least
from precision_operator.core.evidence.assessment import cohort_breached, trains_in
from precision_operator.core.evidence.confirmation import confirmed
from precision_operator.core.facts import Facts
from precision_operator.reasons import Cause, Reason


def standing(facts: Facts) -> list[Failing]:
    """The breaches that call for an answer: confirmed, seen now, and maybe the precision's fault."""
    elsewhere = _elsewhere(facts)
    return [f for f in _confirmed(facts) if f.signal not in elsewhere]


def not_precision(facts: Facts) -> Cause | None:
    """What is in breach, and would be rolled back if that helped; without figures, so that what stands costs no write."""
    found = _elsewhere(facts)
    text = f"{', '.join(found)} is in breach on FP32 workloads too: nothing is rolled back, because it would not help"
    return Cause(Reason.CAUSE_NOT_PRECISION, text) if found else None


def _elsewhere(facts: Facts) -> list[Signal]:
    signals = sorted({f.signal for f in _confirmed(facts)})
    return [signal for signal in signals if cause_elsewhere(facts, signal) is not None]


def _confirmed(facts: Facts) -> tuple[Failing, ...]:
    """What is confirmed, and seen now: a breach that stands through silence calls for nothing before it is seen again."""
    seen = {(verdict.workload.key, signal) for verdict in facts.verdicts for signal in verdict.breaches}
    found = confirmed(facts.failing, facts.spec, limit=facts.attempt.failure_limit, stood_seconds=facts.stood_seconds)
    return tuple(f for f in found if (f.key, f.signal) in seen)


def cause_elsewhere(facts: Facts, signal: Signal) -> str | None:
    """Why a breach of ``signal`` is not the precision's fault, or None where it may be.

    Only signals that FP32 workloads have too can tell: where they breach on the FP32 cohort in the same share that makes a
    fleet emergency, changing precision would not help.
    """
    if not SIGNALS[signal].of_fp32 or facts.evaluation is None:
        return None
    # What was moved by us and is back in FP32 proves nothing: its metrics still show what the precision did to it.
    others = [w for w in facts.fleet.unmoved if trains_in(w, facts.evaluation.pods, Mode.FP32)]
    breached, judged = cohort_breached(others, facts.spec, facts.evaluation, signal)
    rollback = facts.spec.rollback
    if breached >= max(rollback.fleet_minimum, at_least(rollback.fleet_share, judged)):
        return f"{signal} is in breach on {breached} of {judged} FP32 workloads too"
    return None

"""Whether the rollout canary does worse than what still trains in the fallback, beside the thresholds.

The thresholds ask whether a workload is good enough; this asks whether the moved ones are worse than the others, also where
both are good enough. The test is the rollback canary's (``sequential``). It can hold a promotion and never gives one.

**Shortfall** is a workload's worst signal: 0 as good as its own FP32 baseline, 1 at the level that promotes. Compared are
signals that both precisions have; overflow and memory belong to one side alone, and have their thresholds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from precision_operator.api.canary import CanaryVerdict, Comparison, OnRegression
from precision_operator.api.commands import Command
from precision_operator.api.incident import Scope
from precision_operator.api.modes import Mode
from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Criterion, Severity, Strategy
from precision_operator.api.state import State
from precision_operator.api.text import names
from precision_operator.core.actions import Notify
from precision_operator.core.commands import carried_out
from precision_operator.core.evidence.assessment import Assessment, assess, trains_in
from precision_operator.core.evidence.readings import Unknown
from precision_operator.core.facts import Facts
from precision_operator.core.model import Evaluation
from precision_operator.core.progress import live_pods
from precision_operator.core.rollback.canary import KNOWN_SHARE
from precision_operator.core.rollback.sequential import look, verdict
from precision_operator.core.rollback.triggers import Trigger
from precision_operator.reasons import Cause, Reason

COMPARED = tuple(signal for signal, record in SIGNALS.items() if record.compared)
"""Signals that mean the same in both precisions."""


def compared(facts: Facts) -> Comparison | None:
    """The comparison after this pass: one look in a window of the metrics, in which nobody was on the way."""
    rules, known, evaluation = facts.spec.comparison, facts.state.comparison, facts.evaluation
    if rules.on_regression is OnRegression.IGNORE:
        return None
    before = known or Comparison()
    if evaluation is None or before.verdict is not CanaryVerdict.OPEN:
        return known
    watched_since = max(before.looked_at or 0.0, facts.state.step_since or 0.0, evaluation.continuous_since)
    if evaluation.at - watched_since < facts.spec.evaluation.window_seconds:
        return known
    found = difference(facts, evaluation)
    if found is None:
        return known
    seen = replace(look(before, found, margin=rules.margin), looked_at=round(evaluation.at, 3))
    # One side alone is asked for, and gets all of the rate.
    worse = verdict(seen, alpha=2.0 * rules.false_alarm_rate) is CanaryVerdict.WORSE
    return replace(seen, verdict=CanaryVerdict.WORSE, ended_at=facts.now) if worse else seen


def regressed(facts: Facts) -> Cause | None:
    """Closed once the canary was shown to do worse, until a person promotes all the same."""
    if not _shown(facts):
        return None
    on, back = (facts.command(Reason.CANARY_REGRESSED, verb) for verb in ("promote", "rollback"))
    how = f"To go on all the same: {on}; to take the moved ones back: {back}"
    return Cause(Reason.CANARY_REGRESSED, f"{_found(facts)}; a person decides. {how}")


def overruled(before: Facts, after: Facts) -> State:
    """The state after a person's promote, which begins the comparison anew and is good for nothing else.

    One that was given before this pass showed the regression is no answer to it: it is void.
    """
    if not _shown(after) or after.asked(Command.PROMOTE) is None:
        return after.state
    state = carried_out(after.state, Command.PROMOTE)
    return replace(state, comparison=None) if _shown(before) else state


def newly_shown(before: Facts, after: Facts) -> tuple[Notify, ...]:
    """The Event of a regression, once."""
    if _shown(before) or not _shown(after):
        return ()
    return (Notify(Reason.CANARY_REGRESSED, _found(after)),)


def regression(facts: Facts) -> Trigger | None:
    """The rollback that a regression calls for, where the policy wants one."""
    strategy = facts.spec.rollback.strategies[Severity.P2]
    wanted = facts.spec.comparison.on_regression is OnRegression.ROLLBACK and strategy is not Strategy.HOLD
    if not wanted or regressed(facts) is None:
        return None
    return Trigger(
        severity=Severity.P2,
        scope=Scope.COHORT,
        reason=Reason.CANARY_REGRESSED,
        message=_found(facts),
        workloads=facts.state.members,
        detected_at=facts.now,
        # It was compared already, for longer than a rollback canary would be.
        strategy=Strategy.GRADUAL if strategy is Strategy.CANARY else strategy,
    )


def difference(facts: Facts, evaluation: Evaluation) -> float | None:
    """How much more the rest falls short than the canary, -1 to 1; None where one side is on the way, or not known."""
    target = facts.target
    moved = [w for w, _ in facts.fleet.members if live_pods(w) and facts.wanted(w) is target]
    if not all(trains_in(w, evaluation.pods, target) for w in moved):
        return None
    rest = [w for w in facts.fleet.unmoved if trains_in(w, evaluation.pods, facts.spec.fallback)]
    # As if in reduced precision: for FP32 the signals that are relative to its baseline would be left out.
    canary, others = (
        [assess(w, facts.spec, evaluation, mode=Mode.FP16, failing=frozenset()) for w in side] for side in (moved, rest)
    )
    signals = [s for s in COMPARED if _known(canary, s) == 1.0 and _known(others, s) >= KNOWN_SHARE]
    if not signals:
        return None
    criteria = {signal: facts.spec.criterion(signal) for signal in signals}
    known = [v for v in others if all(not isinstance(v.readings[s], Unknown) for s in signals)]
    if not known:
        return None
    return fmean(_worst(v, criteria) for v in known) - fmean(_worst(v, criteria) for v in canary)


def _known(side: Sequence[Assessment], signal: Signal) -> float:
    """The share of workloads of which the signal is known; 0 of none, and where it is switched off."""
    found = [not isinstance(v.readings.get(signal, Unknown(Reason.NOT_JUDGED)), Unknown) for v in side]
    return sum(found) / len(found) if found else 0.0


def _worst(assessed: Assessment, criteria: Mapping[Signal, Criterion]) -> float:
    readings = ((criterion, assessed.readings[signal]) for signal, criterion in criteria.items())
    return max(shortfall(c, reading.value) for c, reading in readings if not isinstance(reading, Unknown))


def shortfall(criterion: Criterion, value: float) -> float:
    """How far a value falls short of FP32's: 0 as good, 1 at the level that promotes, or where a breach ends."""
    level = criterion.leave if criterion.promote_below is None else criterion.promote_below
    ideal = 1.0 if criterion.lower_is_worse else 0.0
    if math.isnan(value):
        return 1.0
    if level == ideal:
        return float(value < ideal if criterion.lower_is_worse else value > ideal)
    return min(1.0, max(0.0, (value - ideal) / (level - ideal)))


def _shown(facts: Facts) -> bool:
    return facts.state.comparison is not None and facts.state.comparison.verdict is CanaryVerdict.WORSE


def _found(facts: Facts) -> str:
    comparison = facts.state.comparison
    assert comparison is not None
    mean = comparison.mean or 0.0
    who = names([w.name for w, _ in facts.fleet.members])
    return (
        f"{who} do worse than what trains in {facts.spec.fallback}: a mean shortfall of {-mean:+.2f} in "
        f"{comparison.looks} looks"
    )

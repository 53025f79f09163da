"""A rollback by canary: the first go to the fallback and are compared with the rest, until a verdict ends it."""

import math
from collections.abc import Iterable
from dataclasses import replace

from precision_operator.api.canary import CanaryVerdict, Comparison, OnNoDifference
from precision_operator.api.commands import Command
from precision_operator.api.incident import Incident
from precision_operator.api.spec import Strategy
from precision_operator.api.state import State
from precision_operator.core.actions import Notify
from precision_operator.core.commands import carried_out
from precision_operator.core.desired import Desired
from precision_operator.core.facts import Facts
from precision_operator.core.outcome import Outcome
from precision_operator.core.rollback.batches import under_way
from precision_operator.core.rollback.canary import difference
from precision_operator.core.rollback.followup import follow, in_our_hands
from precision_operator.core.rollback.sequential import look, verdict
from precision_operator.reasons import Cause, Reason

_HOLDS = {
    CanaryVerdict.NO_DIFFERENCE: "the canary fares neither better nor worse than the rest",
    CanaryVerdict.WORSE: "the canary fares worse than the rest",
    CanaryVerdict.INCONCLUSIVE: "there was not enough data to tell the canary from the rest",
}

HELD_FOR = {
    CanaryVerdict.NO_DIFFERENCE: Reason.CANARY_NO_DIFFERENCE,
    CanaryVerdict.WORSE: Reason.CANARY_WORSE,
    CanaryVerdict.INCONCLUSIVE: Reason.CANARY_INCONCLUSIVE,
}
"""Verdict → the reason for which the canary is held; any other is open, or the rest follows."""


def canary_first(facts: Facts, incident: Incident, everything: Iterable[Desired]) -> tuple[Desired, ...]:
    """The canary, asked as in a gradual rollback; and, to keep them there, those that were held alone before."""
    inside, everything = frozenset(facts.state.canary), tuple(everything)
    own = [desired for desired in everything if desired.workload.key in inside]
    before = (desired for desired in everything if desired.workload.key in facts.state.held_keys - inside)
    return (*under_way(facts, incident, own), *before)


def compare(facts: Facts, incident: Incident, everything: tuple[Desired, ...]) -> Outcome:
    """One pass of a rollback by canary that nothing more urgent has taken over."""
    comparison = facts.state.comparison or Comparison()
    asked = facts.asked(Command.PROMOTE)
    if asked is not None:
        facts = replace(facts, state=carried_out(facts.state, Command.PROMOTE))
        return _promote(facts, incident, everything, comparison, f"{asked.by or 'a person'} promoted the canary")
    if comparison.verdict in HELD_FOR:
        return _held(facts, incident, everything, comparison)
    comparison = replace(comparison, verdict=CanaryVerdict.OPEN, ended_at=None)  # a record may have lost the one it had
    if comparison.since is None:
        return _await(facts, incident, everything)
    comparison, waiting = _look(facts, comparison, before=comparison.looked_at or comparison.since)
    found = _found(facts, incident, comparison)
    helped = (
        found is CanaryVerdict.NO_DIFFERENCE and facts.spec.rollback.canary.on_no_difference is OnNoDifference.PROMOTE
    )
    if found is CanaryVerdict.BETTER or helped:
        comparison = replace(comparison, verdict=found, ended_at=facts.now)
        text = (
            "the canary fares better than the rest"
            if found is CanaryVerdict.BETTER
            else f"{_HOLDS[found]}, and Promote is set"
        )
        return _promote(facts, incident, everything, comparison, f"{text} ({_figures(facts, comparison)})")
    if found is not CanaryVerdict.OPEN:
        return _hold(facts, incident, everything, replace(comparison, verdict=found, ended_at=facts.now))
    state = replace(facts.state, comparison=comparison)
    return Outcome(state, canary_first(facts, incident, everything), waiting=waiting)


def _await(facts: Facts, incident: Incident, everything: tuple[Desired, ...]) -> Outcome:
    """Until every canary says that it trains in the fallback, or only crashes there."""
    followed = follow(facts, incident, in_our_hands(facts, frozenset(facts.state.canary)))
    desired = tuple(replace(d, escalate=followed.escalate) for d in canary_first(facts, incident, everything))
    # Written and acknowledged is what the whole fleet is, not its canary.
    kept = replace(followed.incident, last_patch_at=None, last_ack_at=None)
    state = replace(facts.state, incident=kept)
    if followed.waiting is None and facts.evaluation is not None:
        state = replace(state, comparison=Comparison(since=round(facts.evaluation.at, 3)))
        waiting = Cause(Reason.COMPARING_CANARY, "the canary is back in the fallback; its first window has begun")
        return Outcome(state, desired, waiting=waiting, notices=followed.notices)
    if facts.now >= incident.deadline_at:
        return _hold(facts, incident, everything, Comparison(verdict=CanaryVerdict.INCONCLUSIVE, ended_at=facts.now))
    return Outcome(state, desired, waiting=followed.waiting, notices=followed.notices)


def _look(facts: Facts, comparison: Comparison, *, before: float) -> tuple[Comparison, Cause]:
    """Look once a window of the metrics: readings of windows that overlap are no two observations."""
    rules, evaluation = facts.spec.rollback.canary, facts.evaluation
    if evaluation is not None and before > round(evaluation.at, 3):
        before = round(evaluation.at, 3)  # the clock was set back
        comparison = replace(comparison, looked_at=before)
    if evaluation is None or facts.stood_seconds(before) < facts.spec.evaluation.window_seconds:
        return comparison, Cause(Reason.COMPARING_CANARY, _figures(facts, comparison))
    found = difference(facts)
    if isinstance(found, Cause):
        return comparison, found
    seen = replace(look(comparison, found, margin=rules.margin), looked_at=round(evaluation.at, 3))
    return seen, Cause(Reason.COMPARING_CANARY, _figures(facts, seen))


def _found(facts: Facts, incident: Incident, comparison: Comparison) -> CanaryVerdict:
    """Time without data does not count towards the window, only towards the limit."""
    shown = verdict(comparison, alpha=facts.spec.rollback.canary.false_alarm_rate)
    if shown is CanaryVerdict.OPEN and comparison.looks >= _planned(facts):
        return CanaryVerdict.NO_DIFFERENCE
    over = facts.now >= incident.deadline_at
    return CanaryVerdict.INCONCLUSIVE if shown is CanaryVerdict.OPEN and over else shown


def _planned(facts: Facts) -> int:
    """The looks after which the comparison has run its window."""
    return max(1, math.ceil(facts.spec.rollback.canary.window_seconds / facts.spec.evaluation.window_seconds))


def _figures(facts: Facts, comparison: Comparison) -> str:
    mean = comparison.mean
    said = f"mean difference {mean:+.2f}" if mean is not None else "nothing known yet"
    return f"{comparison.looks} of {_planned(facts)} looks, {said}"


def _promote(
    facts: Facts, incident: Incident, everything: tuple[Desired, ...], comparison: Comparison, why: str
) -> Outcome:
    """The rest follows in batches. Its deadline begins here, as if it had been decided now."""
    text = f"{why}: the rest of the fleet follows in batches"
    incident = replace(
        incident,
        strategy=Strategy.GRADUAL,
        expedited_at=facts.now,
        deadline_at=round(facts.now + facts.spec.rollback.deadlines_seconds[incident.severity], 3),
    )
    state = replace(facts.state, incident=incident, comparison=comparison, reason=Reason.CANARY_PROMOTED, message=text)
    return Outcome(state, under_way(facts, incident, everything), notices=(Notify(Reason.CANARY_PROMOTED, text),))


def _hold(facts: Facts, incident: Incident, everything: tuple[Desired, ...], comparison: Comparison) -> Outcome:
    """The verdict is no reason to go on. The canary stays where it is, the rest too, until a person decides."""
    state: State = replace(facts.state, comparison=comparison, reason=HELD_FOR[comparison.verdict])
    state = replace(
        state, message=f"{_HOLDS[comparison.verdict]} ({_figures(facts, comparison)}): nothing more is moved"
    )
    outcome = _held(replace(facts, state=state), incident, everything, comparison)
    return replace(outcome, notices=(Notify(HELD_FOR[comparison.verdict], state.message),))


def _held(facts: Facts, incident: Incident, everything: tuple[Desired, ...], comparison: Comparison) -> Outcome:
    reason = HELD_FOR[comparison.verdict]
    rest, at_once, end = (facts.command(reason, verb) for verb in ("promote", "rollback", "retry"))
    how = f"To roll back the rest: {rest}; at once: {at_once}; to end the rollback: {end}"
    waiting = Cause(reason, f"{_HOLDS[comparison.verdict]}; a person decides. {how}")
    return Outcome(facts.state, canary_first(facts, incident, everything), waiting=waiting)

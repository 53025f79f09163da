"""When a breach counts: once more than ``failureLimit`` evaluations in a row have found it. Nobody else knows this rule."""

from dataclasses import replace

from precision_operator.api.evaluation import EvaluationSpec
from precision_operator.api.state import Failing

TURN_SHARE = 0.8
"""Evaluations closer than this share of an interval count as one."""


def counted(found: Failing | None, now: Failing, spec: EvaluationSpec, *, clock_since: float) -> Failing:
    """The breach after this evaluation, which is counted while that is of use: one that goes on costs no writes.

    What another clock dated, before ``clock_since``, counts again an interval after this one's first evaluation.
    """
    if found is None:
        return now
    if found.since > now.since:
        found = replace(found, since=now.since)  # the clock was set back
    if clock_since and not (
        believed(found, spec.failure_limit) or clock_since <= found.evaluated_at <= now.evaluated_at
    ):
        found = replace(found, evaluated_at=now.evaluated_at)
    # Alerts wake evaluations out of turn: they must not shorten the row that a rollback needs.
    again = 0 <= now.evaluated_at - found.evaluated_at < TURN_SHARE * spec.interval_seconds
    if again or believed(found, spec.failure_limit):
        return replace(found, key=now.key)
    return replace(now, since=found.since, count=found.count + 1)


def unseen(found: Failing) -> Failing:
    """The breach after an evaluation without data, which has seen nothing: it neither counts nor ends a breach.

    By time instead of by count, one breach that silence follows would confirm itself.
    """
    return found


def believed(found: Failing, limit: int) -> bool:
    """Whether the breach counts, where so many evaluations in a row are not enough."""
    return found.count > limit


def believed_seconds(spec: EvaluationSpec) -> float:
    """How long it takes at most from the first evaluation in breach until it counts."""
    return (spec.failure_limit + 1) * spec.interval_seconds

"""Readings out of Prometheus' past, as the evaluator would have taken them, chunk by chunk."""

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from precision_operator.api.policy import Policy
from precision_operator.api.signals import Signal
from precision_operator.core.model import Evaluation
from precision_operator.errors import SignalError, SourceUnavailable
from precision_operator.reasons import Cause
from precision_operator.signals.grouping import group, split
from precision_operator.signals.plan import plan_of
from precision_operator.signals.port import Labels, MetricHistory, Sample
from precision_operator.signals.queries import ACK, STEPS

CHUNK_POINTS = 2000
"""Points of one series in one answer; Prometheus refuses more than 11,000."""
SMALLEST_CHUNK = 50
"""A chunk that fails is halved down to this many points, and counts as unanswered then."""


@dataclass(frozen=True, slots=True)
class Span:
    """What part of the past, and how often a decision is taken in it. Whole seconds since the epoch."""

    start: int
    end: int
    step_seconds: int

    @property
    def decisions(self) -> int:
        """How many."""
        return (self.end - self.start) // self.step_seconds + 1


def queries_for(policy: Policy, catalogue: Mapping[str, str]) -> dict[str, str]:
    """PromQL by query name, as the evaluator asks it for this policy.

    Raises:
        QueryInvalid: a query cannot be rendered.
        KeyError: the policy names a query that is not in the catalogue.
    """
    plan = plan_of(policy)
    return {name: plan.promql(name, catalogue) for name in (ACK, STEPS, *(signal for signal, _ in plan.queries))}


async def readings(source: MetricHistory, queries: Mapping[str, str], span: Span) -> AsyncIterator[Evaluation]:
    """The readings of a span, in the order of time. A query that fails is an error of the readings it is missing in.

    Raises:
        SourceUnavailable: nothing was answered at all.
    """
    at, points = span.start, CHUNK_POINTS
    while at <= span.end:
        last = min(span.end, at + (points - 1) * span.step_seconds)
        answers, errors = await _chunk(source, queries, Span(at, last, span.step_seconds))
        if errors and points > SMALLEST_CHUNK:
            points //= 2  # too large an answer, or too slow: ask for less
            continue
        if errors.keys() == queries.keys():
            raise SourceUnavailable(f"no query was answered; the first: {next(iter(errors.values()))}")
        for moment in range(at, last + 1, span.step_seconds):
            vectors = {name: split(name, answers[name].get(moment, ())) for name in queries if name in answers}
            signals = {name: Signal(name) for name in vectors if name in set(Signal)}
            grouped = group(vectors, signals, at=float(moment))
            yield Evaluation(
                at=float(moment), continuous_since=0.0, pods=grouped.pods, errors={**errors, **grouped.errors}
            )
        at, points = last + span.step_seconds, CHUNK_POINTS


async def _chunk(
    source: MetricHistory, queries: Mapping[str, str], span: Span
) -> tuple[dict[str, dict[int, Sequence[Sample]]], dict[str, Cause]]:
    """Samples by query name and time, and the queries that gave none."""
    answers: dict[str, dict[int, Sequence[Sample]]] = {}
    errors: dict[str, Cause] = {}
    for name, query in queries.items():
        try:
            found = await source.history(query, span.start, span.end, span.step_seconds)
        except SignalError as error:
            errors[name] = Cause(error.reason, str(error))
            continue
        by_time: dict[int, list[Sample]] = {}
        for series in found:
            labels = msgspec.convert(series.labels, Labels)
            for moment, value in series.points:
                by_time.setdefault(math.floor(moment + 0.5), []).append(Sample(labels, value))
        answers[name] = dict(by_time)
    return answers, errors

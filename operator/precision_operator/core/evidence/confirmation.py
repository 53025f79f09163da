"""When a breach counts: once more than ``failureLimit`` evaluations in a row have found it. Nobody else knows this rule."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from precision_operator.api.assignment import failing_bytes
from precision_operator.api.evaluation import EvaluationSpec
from precision_operator.api.signals import Signal
from precision_operator.api.spec import PolicySpec, Severity, Strategy
from precision_operator.api.state import Failing
from precision_operator.core.evidence.assessment import Assessment
from precision_operator.core.evidence.readings import Breach, Unknown

TURN_SHARE = 0.8
"""Evaluations closer than this share of an interval count as one."""

FAILING_BYTES = 48 * 1024
"""What the list of standing breaches may take in the assignment."""


def update_failing(
    old: tuple[Failing, ...], verdicts: Iterable[Assessment], spec: PolicySpec, *, at: float, clock_since: float = 0.0
) -> tuple[Failing, ...]:
    """The breaches that stand after this evaluation.

    An evaluation that finds one counts, one without data neither counts nor ends any, and any other ends it. Breaches of
    workloads that are not judged any more (rolled back, gone) end. ``clock_since``: what is dated before was dated by
    another clock.
    """
    before = {(f.key, f.signal, f.severity): f for f in old}
    known_of = {(f.key, f.signal): f for f in old}
    rest = {signal: [f for f in old if f.signal is signal and not f.key] for signal in Signal}
    at = round(at, 3)
    standing: list[Failing] = []
    for verdict in verdicts:
        for signal, reading in verdict.readings.items():
            key = verdict.workload.key
            known = known_of.get((key, signal))
            if isinstance(reading, Breach):
                # Another severity is another breach: five mild evaluations are not one severe one.
                found = before.get((key, signal, reading.severity)) or before.get(("", signal, reading.severity))
                now = Failing(key, signal, reading.severity, at, 1, at, f"{reading.value:.3g}")
                standing.append(_counted(found, now, spec.evaluation, clock_since=clock_since))
            elif isinstance(reading, Unknown):
                # Not counted either: one breach that silence follows would confirm itself. Where too many were in breach to
                # list them all, it may be one of the rest.
                standing += [known] if known else rest[signal]
    return tuple(sorted(set(standing), key=lambda f: (f.key, f.signal, f.severity)))


def _counted(found: Failing | None, now: Failing, spec: EvaluationSpec, *, clock_since: float) -> Failing:
    """The breach after this evaluation, which is counted while that is of use: one that goes on costs no writes.

    What another clock dated, before ``clock_since``, counts again an interval after this one's first evaluation.
    """
    if found is None:
        return now
    if found.since > now.since:
        found = replace(found, since=now.since)  # the clock was set back
    if not (believed(found, spec.failure_limit) or clock_since <= found.evaluated_at <= now.evaluated_at):
        found = replace(found, evaluated_at=now.evaluated_at)
    # Alerts wake evaluations out of turn: they must not shorten the row that a rollback needs.
    again = 0 <= now.evaluated_at - found.evaluated_at < TURN_SHARE * spec.interval_seconds
    if again or believed(found, spec.failure_limit):
        return replace(found, key=now.key)
    return replace(now, since=found.since, count=found.count + 1)


def believed(found: Failing, limit: int) -> bool:
    """Whether the breach counts, where so many evaluations in a row are not enough."""
    return found.count > limit


def believed_seconds(spec: EvaluationSpec) -> float:
    """How long it takes at most from the first evaluation in breach until it counts."""
    return (spec.failure_limit + 1) * spec.interval_seconds


def confirmed(
    failing: Iterable[Failing], spec: PolicySpec, *, limit: int, stood_seconds: Callable[[float], float]
) -> tuple[Failing, ...]:
    """The breaches that are believed, where ``limit`` evaluations in a row are not enough, and that call for a rollback.

    What is answered gradually, or by canary, must have stood for its time besides (``stood_seconds``: since then).
    """
    rules, unhurried = spec.rollback, (Strategy.GRADUAL, Strategy.CANARY)
    return tuple(
        f
        for f in failing
        if believed(f, limit)
        and f.severity is not Severity.P3
        and rules.strategies[f.severity] is not Strategy.HOLD
        and (rules.strategies[f.severity] not in unhurried or stood_seconds(f.since) >= rules.gradual.sustain_seconds)
    )


def listed(failing: Sequence[Failing]) -> tuple[Failing, ...]:
    """What is kept of the breaches from one pass to the next: the worst, and one entry for all others of a kind.

    Bounded by bytes: a rollback is never refused because too much is in breach.
    """
    kept: list[Failing] = []
    rest: dict[tuple[Signal, Severity], Failing] = {}
    room = FAILING_BYTES
    for found in sorted(failing, key=lambda f: (f.severity, f.since, f.key, f.signal)):
        if found.key and room > 0:
            room -= failing_bytes(found)
            if room >= 0:
                kept.append(found)
                continue
        others = rest.get((found.signal, found.severity))
        if others is None or found.count > others.count:
            rest[found.signal, found.severity] = replace(found, key="", measured="")
    return tuple(sorted((*kept, *rest.values()), key=lambda f: (f.key, f.signal, f.severity)))

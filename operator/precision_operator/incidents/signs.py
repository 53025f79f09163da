"""The warning signs before a breach: each signal against a share of its own threshold, whatever signal breached. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from precision_operator.api.criteria import Criterion
from precision_operator.api.signals import Signal
from precision_operator.api.spec import PolicySpec
from precision_operator.api.wire import parse_time
from precision_operator.incidents.changes import by_workload
from precision_operator.incidents.evidence import OF_A_DAY
from precision_operator.incidents.report import Evidence, Report
from precision_operator.incidents.wording import lasted

_WARNING_SHARE = 0.5
"""A signal that passes this share of its threshold warns."""


@dataclass(frozen=True, slots=True)
class Sign:
    """What the evidence says of one signal before the breach."""

    signal: Signal
    level: str = ""
    """Beyond what it warns, in words."""
    read_seconds: float = 0.0
    """How far before the breach it was read; 0: it was not."""
    warned_seconds: float | None = None
    """How long before the breach it first warned; None: never."""
    error: str = ""
    """Why it was not read."""

    def __str__(self) -> str:
        """For a person."""
        if not self.read_seconds:
            return f"{self.signal}: {self.error}"
        if self.warned_seconds is None:
            return f"{self.signal} was never {self.level} in {lasted(self.read_seconds)}"
        return (
            f"{self.signal} was {self.level} from {self.warned_seconds:.0f} s before, "
            f"of {lasted(self.read_seconds)} that were read"
        )


def sign_of(
    signal: Signal, report: Report, spec: PolicySpec, *, concerned: Collection[str], fleet: Collection[str]
) -> Sign:
    """One signal, of the workloads that the incident is about.

    Args:
        signal: to look at.
        report: with its evidence.
        spec: with the thresholds.
        concerned: names of the workloads that the incident is about.
        fleet: names of all that the policy selects.
    """
    criterion = spec.criterion(signal)
    asked = [e for e in report.evidence if e.name in _asked(criterion)]
    began = parse_time(report.stages.detected_at) or 0.0
    read = {e.name: _values(e, began, concerned, fleet) for e in asked}
    starts = [parse_time(e.start) or began for e in asked if read[e.name]]
    if not starts:
        return Sign(signal, error=next((e.error for e in asked if e.error), "no samples were found"))
    level, below = _level(criterion), criterion.lower_is_worse
    early = [t for points in read.values() for t, value in points if (value < level if below else value > level)]
    return Sign(
        signal,
        level=f"{'below' if below else 'above'} {level:g}",
        read_seconds=began - min(starts),
        warned_seconds=began - min(early) if early else None,
    )


def _asked(criterion: Criterion) -> tuple[str, ...]:
    """Names of its evidence; that of a day is of the built-in query, and says nothing of another one."""
    own = criterion.query or criterion.promql
    return (criterion.signal.value, *(() if own else (f"{criterion.signal}{OF_A_DAY}",)))


def _level(criterion: Criterion) -> float:
    if criterion.lower_is_worse:
        return min(criterion.enter / _WARNING_SHARE, (1 + criterion.enter) / 2)
    return criterion.enter * _WARNING_SHARE


def _values(
    evidence: Evidence, began: float, concerned: Collection[str], fleet: Collection[str]
) -> Sequence[tuple[float, float]]:
    """Samples from before the breach; NaN is none, as of failures where no run has ended."""
    own = by_workload(evidence, concerned, fleet).values()
    return [(t, value) for series in own for one in series for t, value in one.points if t < began and value == value]

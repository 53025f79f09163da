"""Series for people to look at: their names, which of them matter most, and few enough points. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median

from precision_operator.api.criteria import Criterion
from precision_operator.api.signals import Signal
from precision_operator.api.text import bounded
from precision_operator.core.model import Evaluation
from precision_operator.signals.port import Series

NAME_CHARACTERS = 40
"""Of a series' name that are shown: the beginning and the end, for pods differ at the end."""
_END = 24
_GAP = 2.5
"""Times the usual distance between two points that is no data, not a straight line."""

Points = tuple[tuple[float, float], ...]


def name_of(series: Series) -> str:
    """What it is called: the pod, else its labels; clean."""
    raw = series.labels.get("pod") or ", ".join(f"{k}={v}" for k, v in sorted(series.labels.items())) or "all"
    return bounded(raw, 256)


def shortened(names: Iterable[str]) -> list[str]:
    """The names as a legend has room for them, cut in the middle, each another."""
    found: dict[str, None] = {}
    for name in names:
        short = name if len(name) <= NAME_CHARACTERS else f"{name[: NAME_CHARACTERS - _END - 1]}…{name[-_END:]}"
        while short in found:
            short += "′"
        found[short] = None
    return list(found)


def worst_first(series: Iterable[Series], *, lower_is_worse: bool) -> list[Series]:
    """Those that came nearest to a breach first; those without a value last."""

    def rank(one: Series) -> float:
        known = [value for _, value in one.points if math.isfinite(value)]
        if not known:
            return math.inf
        return min(known) if lower_is_worse else -max(known)

    return sorted(series, key=rank)


def levels_of(criterion: Criterion) -> list[tuple[str, float]]:
    """Its thresholds in words, the breach first; one that is no other than a breach's is left out."""
    beyond, back = ("below", "above") if criterion.lower_is_worse else ("above", "below")
    named = (
        (f"breach {beyond}", criterion.enter),
        (f"recovered {back}", criterion.leave if criterion.leave != criterion.enter else None),
        (f"promoted {back}", criterion.promote_above if criterion.lower_is_worse else criterion.promote_below),
        (f"warned {beyond}", criterion.warn),
    )
    return [(name, level) for name, level in named if level is not None]


def with_gaps(points: Points) -> Points:
    """The points with a NaN where data is missing: a line through it would be invented."""
    between = [after - before for (before, _), (after, _) in pairwise(points)]
    usual = median(between) if between else 0.0
    found: list[tuple[float, float]] = []
    for index, (at, value) in enumerate(points):
        if index and between[index - 1] > _GAP * usual:
            found.append((at - usual, math.nan))
        found.append((at, value))
    return tuple(found)


class Thinned:
    """Readings, thinned while they are taken: of each few, the worst value a pod and signal. No breach is lost."""

    def __init__(self, criteria: Sequence[Criterion], *, every: int) -> None:
        self._lower = {c.signal: c.lower_is_worse for c in criteria if c.enabled}
        self._every = max(1, every)
        self._taken = 0
        self._points: dict[Signal, dict[str, list[tuple[float, float]]]] = {signal: {} for signal in self._lower}
        self._round: dict[tuple[Signal, str], int] = {}
        """In which group of readings the last point of a series lies."""

    def take(self, reading: Evaluation) -> None:
        """One more, later than the others."""
        group = self._taken // self._every
        self._taken += 1
        for pod, signals in reading.pods.items():
            for signal, lower in self._lower.items():
                if signal in signals.values:
                    self._add(signal, pod, reading.at, signals.values[signal], group=group, lower=lower)

    def _add(self, signal: Signal, pod: str, at: float, value: float, *, group: int, lower: bool) -> None:
        points = self._points[signal].setdefault(pod, [])
        if self._round.get((signal, pod)) != group:
            self._round[signal, pod] = group
            points.append((at, value))
        elif _worse(value, points[-1][1], lower=lower):
            points[-1] = (at, value)

    def series(self) -> Mapping[Signal, list[Series]]:
        """What was kept, by signal."""
        return {
            signal: [Series({"pod": pod}, tuple(points)) for pod, points in sorted(found.items())]
            for signal, found in self._points.items()
        }


def _worse(value: float, than: float, *, lower: bool) -> bool:
    if math.isnan(than) or math.isnan(value):
        return math.isnan(than) and not math.isnan(value)
    return value < than if lower else value > than

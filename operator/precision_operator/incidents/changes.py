"""What changed before a breach, by what the workloads' trainers reported of themselves. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from precision_operator.api.text import bounded, names
from precision_operator.api.wire import parse_time
from precision_operator.incidents.evidence import RUN_LABELS, series_of
from precision_operator.incidents.report import Evidence, Report, stamp
from precision_operator.incidents.wording import lasted
from precision_operator.signals.port import Series


@dataclass(frozen=True, slots=True)
class LabelChange:
    """Of one label, alike in some workloads."""

    label: str
    before: frozenset[str]
    after: frozenset[str]
    seen_at: float
    """The first sample that shows it, of the workload where it came first."""
    workloads: tuple[str, ...] = ()


def owner(series: Series, workloads: Collection[str]) -> str:
    """The workload of a series' pod, by the longest name that fits; empty: of none. Pods of the past are known by name."""
    pod = series.labels.get("pod", "")
    return max((name for name in workloads if pod == name or pod.startswith(f"{name}-")), key=len, default="")


def by_workload(evidence: Evidence, wanted: Collection[str], fleet: Collection[str]) -> dict[str, list[Series]]:
    """The series of the wanted workloads' pods.

    Args:
        evidence: by pod.
        wanted: names of workloads.
        fleet: names of all that the policy selects: one may begin as another one.
    """
    found: dict[str, list[Series]] = {}
    for series in series_of(evidence):
        name = owner(series, {*wanted, *fleet})
        if name in wanted and series.points:
            found.setdefault(name, []).append(series)
    return found


def times_before(series: Sequence[Series], began: float, step_seconds: float) -> list[float]:
    """When one workload reported, up to the breach: its first sample after it counts too, for it may show what began it."""
    times = sorted({t for one in series for t, _ in one.points})
    after = next((t for t in times if began <= t <= began + step_seconds + 1), began)
    return [t for t in times if t <= after]


def changes(report: Report, known: Mapping[str, Sequence[Series]], step_seconds: float) -> list[LabelChange]:
    """What differs at the breach from a day before, workload by workload; the labels in their order, the model first."""
    began = parse_time(report.stages.detected_at) or 0.0
    found: dict[tuple[str, frozenset[str], frozenset[str]], LabelChange] = {}
    for label in RUN_LABELS:
        for name, series in sorted(known.items()):
            change = _of_label(label, series, times_before(series, began, step_seconds), step_seconds)
            if change is None:
                continue
            same = found.setdefault((label, change.before, change.after), change)
            workloads, seen_at = (*same.workloads, name), min(same.seen_at, change.seen_at)
            found[label, change.before, change.after] = replace(same, workloads=workloads, seen_at=seen_at)
    return list(found.values())


def _of_label(label: str, series: Sequence[Series], times: Sequence[float], step_seconds: float) -> LabelChange | None:
    """Its pods may differ from each other: that is no change."""
    if not times:
        return None
    first, last = times[0], times[-1]
    reported: dict[str, list[float]] = {}
    for one in series:
        reported.setdefault(one.labels.get(label, ""), []).extend(t for t, _ in one.points if t <= last)
    reported = {value: sorted(at) for value, at in reported.items() if at}
    now = frozenset(value for value, at in reported.items() if at[-1] == last)
    gone = frozenset(reported) - now
    joined = frozenset(value for value in now if reported[value][0] > first + 1.5 * step_seconds)
    if gone:
        left_at = max(reported[value][-1] for value in gone)
        return LabelChange(label, gone, joined or now, min(t for t in times if t > left_at))
    if joined and now - joined:
        return LabelChange(label, now - joined, now, min(reported[value][0] for value in joined))
    return None


def in_words(found: Sequence[LabelChange], began: float) -> str:
    """For a person."""
    texts = [
        f"{c.label}: {listed(c.before)} → {listed(c.after)} ({names(list(c.workloads), limit=3)}; first seen "
        f"{stamp(c.seen_at)}, {lasted(max(0.0, began - c.seen_at))} before the breach)"
        for c in found
    ]
    return bounded("; ".join(texts))


def listed(values: Collection[str]) -> str:
    """Values that trainers reported."""
    return ", ".join(sorted(value or "unknown" for value in values))

"""Small charts of a policy's signals, as JSON. Pure: the points were measured and kept elsewhere."""

import math
from collections.abc import Iterable, Sequence

from precision_operator.api.policy import Policy
from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.signals import Signal
from precision_operator.api.wire import parse_time
from precision_operator.incidents.evidence import criterion_of, series_of, title_of, unit_of
from precision_operator.incidents.report import Evidence, Report
from precision_operator.replay.curves import name_of, worst_first
from precision_operator.replay.recording import Recording
from precision_operator.signals.port import Series

LINES = 5
"""Series that a chart shows: those that came nearest to a breach. More hide each other."""
POINTS = 240
"""Of one series; of more, each n-th."""
COUNTS = ("as wanted", "breached", "unknown")
"""What of the status is counted."""

Chart = dict[str, object]
Criteria = Policy | None
"""Whose thresholds are drawn."""


def of_counts(kept: Sequence[tuple[float, dict[str, int]]]) -> Chart:
    """Workloads by what the status counts, since the dashboard began to look."""
    lines: list[Chart] = [{"name": name, "points": [[at, counts[name]] for at, counts in kept]} for name in COUNTS]
    return _chart("workloads", "workloads", source="status", lines=lines)


def of_recordings(recordings: Sequence[Recording], report: Report) -> list[Chart]:
    """Each signal, as the passes around a rollback read it."""
    found: dict[Signal, dict[str, dict[float, float]]] = {}
    for recording in recordings:
        reading = recording.observation.evaluation
        for pod, said in reading.pods.items() if reading is not None else ():
            for signal, value in said.values.items():
                found.setdefault(signal, {}).setdefault(pod, {})[reading.at if reading else 0.0] = value
    policy = recordings[-1].policy if recordings else None
    return [
        of_series(
            signal,
            [Series({"pod": pod}, tuple(sorted(points.items()))) for pod, points in found[signal].items()],
            policy,
            source=f"recording {report.id}",
            moments=moments(report),
        )
        for signal in Signal
        if signal in found
    ]


def of_evidence(evidence: Evidence, report: Report, policy: Criteria) -> Chart:
    """The answer of one query that an incident keeps."""
    found = of_series(
        evidence.name, series_of(evidence), policy, source=f"incident {report.id}", moments=moments(report)
    )
    return {**found, "note": evidence.error, "query": evidence.query, "dropped": evidence.dropped}


def of_series(
    name: str, series: Sequence[Series], policy: Criteria, *, source: str, moments: Sequence[Chart] = ()
) -> Chart:
    """A signal by its series, the worst first, with the threshold of the policy."""
    criterion = criterion_of(policy, name)
    lower = criterion is not None and criterion.lower_is_worse
    ranked = worst_first(series, lower_is_worse=lower)
    lines: list[Chart] = [{"name": name_of(one), "points": _points(one.points)} for one in ranked[:LINES]]
    levels = [{"name": "breached " + ("below" if lower else "above"), "value": criterion.enter}] if criterion else []
    more = len(series) - len(lines)
    return _chart(name, unit_of(name), source=source, lines=lines, levels=levels, moments=moments, more=more)


def failed(name: str, why: str, *, source: str) -> Chart:
    """A chart of which there is only why it is empty."""
    return _chart(name, "", source=source, lines=[], note=why)


def moments(report: Report) -> list[Chart]:
    """What is marked on the time axis of an incident."""
    stages = (("detected", report.stages.detected_at), ("in fallback", report.stages.last_ack_at))
    return [{"name": name, "at": at} for name, stamp in stages if (at := parse_time(stamp)) is not None]


def _chart(
    name: str,
    unit: str,
    *,
    source: str,
    lines: Sequence[Chart],
    levels: Sequence[Chart] = (),
    moments: Sequence[Chart] = (),
    more: int = 0,
    note: str = "",
) -> Chart:
    return {
        "name": name,
        "title": title_of(name),
        "meaning": SIGNALS[Signal(name)].text if name in set(Signal) else "",
        "unit": unit,
        "source": source,
        "lines": list(lines),
        "levels": list(levels),
        "moments": list(moments),
        "more": more,
        "note": note,
    }


def _points(points: Iterable[tuple[float, float]]) -> list[list[float | None]]:
    """JSON has no NaN: what is not finite is a gap."""
    kept = list(points)
    every = max(1, math.ceil(len(kept) / POINTS))
    return [[at, value if math.isfinite(value) else None] for at, value in kept[::every]]

"""What a mitigation leaves behind: a closed report of the windows that ended well, and its part of a rollback's timeline."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from precision_operator.api.incident import Scope
from precision_operator.api.mitigation import Mitigation, MitigationResult
from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity
from precision_operator.api.state import State
from precision_operator.api.text import names
from precision_operator.core.observer import RecordedPass
from precision_operator.incidents.report import WORKLOADS_LIMIT, IncidentPhase, Moment, Report, Stages, stamp
from precision_operator.reasons import Reason

Group = tuple[Signal, float]
"""The windows of one signal that opened in one pass, by that signal and time: one incident."""

MOMENTS = 10
"""Windows that a timeline lists."""


def ended_well(state: State) -> dict[Group, list[Mitigation]]:
    """The groups of which no window is open any more, with those that were mitigated."""
    groups: dict[Group, list[Mitigation]] = {}
    for window in state.mitigations:
        groups.setdefault((window.signal, window.since), []).append(window)
    over = {group: windows for group, windows in groups.items() if not any(w.open for w in windows)}
    good = {group: [w for w in windows if w.result is MitigationResult.MITIGATED] for group, windows in over.items()}
    return {group: windows for group, windows in good.items() if windows}


def closed_report(seen: RecordedPass, windows: Sequence[Mitigation]) -> Report:
    """The report of a group that ended well, in this pass or before."""
    spec, first = seen.policy.spec, windows[0]
    tried = sorted({str(w.rung) for w in windows if w.rung})
    what = f"{' or '.join(tried)} helped" if tried else "it passed while it was investigated"
    last = max((w.good_since or w.since for w in windows), default=first.since)
    moments = [*moments_of(windows), Moment(stamp(last), "Good", f"{first.signal} is good from here on")]
    moments.append(Moment(stamp(seen.now), MitigationResult.MITIGATED, what))
    return Report(
        id=f"{seen.policy.name}-{first.signal.lower()}-{first.since:.0f}",
        policy=seen.policy.name,
        policy_uid=seen.policy.uid,
        severity=Severity.P2,
        scope=Scope.WORKLOAD,
        reason=SIGNALS[first.signal].reason,
        message=f"mitigated, not rolled back: {what} in {names([w.name for w in windows])}",
        target=spec.target,
        fallback=spec.fallback,
        phase_before=seen.before.phase,
        since_before=stamp(seen.before.phase_since),
        workloads=tuple(w.name for w in windows)[:WORKLOADS_LIMIT],
        phase=IncidentPhase.CLOSED,
        stages=Stages(detected_at=stamp(first.since), decided_at=stamp(first.since), deadline_at=stamp(first.until)),
        timeline=tuple(moments),
    )


def with_windows(report: Report, state: State) -> Report:
    """The report of a rollback, with what was tried before it on the workloads that it is about."""
    failed = [w for w in state.mitigations if w.result is MitigationResult.FAILED and w.name in report.workloads]
    moments = sorted((*moments_of(failed), *report.timeline), key=lambda moment: moment.at)
    return replace(report, timeline=tuple(moments))


def moments_of(windows: Iterable[Mitigation]) -> list[Moment]:
    """When each window opened and came to its last rung, and what those before it read."""
    moments = []
    for window in list(windows)[:MOMENTS]:
        text = f"{window.name}: window of {window.signal} until {stamp(window.until)}"
        moments.append(Moment(stamp(window.since), Reason.MITIGATING if window.rung else Reason.INVESTIGATING, text))
        if window.rung is not None and window.rung_since is not None and window.found:
            tried = f"{window.name}: {window.rung}; before it {', '.join(window.found)}"
            moments.append(Moment(stamp(window.rung_since), Reason.MITIGATING, tried))
    return sorted(moments, key=lambda moment: moment.at)

"""The five questions of the root-cause analysis, answered from data as far as data goes; else ``unknown``, and why."""

from collections.abc import Sequence

from precision_operator.api.incident import Scope
from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.signals import Signal
from precision_operator.api.spec import PolicySpec
from precision_operator.api.state import Phase
from precision_operator.api.text import bounded
from precision_operator.api.wire import parse_time
from precision_operator.incidents.evidence import OF_A_DAY, RUN_INFO, RUN_LABELS, series_of
from precision_operator.incidents.report import Evidence, Report, ReviewAnswer
from precision_operator.incidents.wording import lasted
from precision_operator.reasons import Reason
from precision_operator.signals.port import Series

TRIGGERED = "What triggered the rollback?"
INITIALLY = "Was low precision working initially?"
CHANGED = "What changed recently?"
WARNINGS = "Were there warning signs?"
AGAIN = "Can it be re-enabled safely?"

_CLASSES: dict[str, str] = {
    Reason.TRAINING_FAILING: "Training failures",
    Reason.LOSS_NOT_FINITE: "Training failures (non-finite losses)",
    Reason.OVERFLOW_RATE_HIGH: "High overflow rate",
    Reason.LOSS_DIVERGED: "Loss divergence",
    Reason.TRAINING_SLOW: "Performance regression",
    Reason.ABORTED: "A person asked for it",
    Reason.NO_DATA: "Monitoring lost",
}
_WARNING_SHARE = 0.5
"""A signal that passes this share of its threshold warns."""


def answer(report: Report, spec: PolicySpec) -> tuple[ReviewAnswer, ...]:
    """All five."""
    changed = _changed(report)
    return (
        ReviewAnswer(TRIGGERED, _CLASSES.get(report.reason, report.reason), report.message),
        _initially(report),
        changed,
        _warnings(report, spec),
        _again(report, changed),
    )


def _initially(report: Report) -> ReviewAnswer:
    since = f"{report.phase_before} since {report.since_before or 'unknown'}"
    if report.phase_before in (Phase.HEALTHY, Phase.DEGRADED):
        return ReviewAnswer(
            INITIALLY, "Yes: look for a change of model, data or hardware", f"the whole fleet was {since}"
        )
    if report.phase_before in (Phase.PROGRESSING, Phase.PAUSED):
        text = "No: the rollout was not through; look for configuration or incompatible hardware"
        return ReviewAnswer(INITIALLY, text, f"it was {since}")
    return ReviewAnswer(INITIALLY, "unknown", f"it was {since}")


def _find(report: Report, name: str) -> Evidence | None:
    return next((e for e in report.evidence if e.name == name), None)


def _series(report: Report, name: str) -> Sequence[Series]:
    found = _find(report, name)
    return series_of(found) if found is not None else ()


def _changed(report: Report) -> ReviewAnswer:
    evidence = _find(report, RUN_INFO)
    if evidence is None or evidence.error or not evidence.series:
        why = evidence.error if evidence is not None and evidence.error else "no genesis_run_info was found"
        return ReviewAnswer(CHANGED, "unknown", why)
    began = parse_time(report.stages.detected_at) or 0.0
    before: dict[str, set[str]] = {label: set() for label in RUN_LABELS}
    after: dict[str, set[str]] = {label: set() for label in RUN_LABELS}
    for series in series_of(evidence):
        times = [t for t, _ in series.points]
        for label in RUN_LABELS:
            value = series.labels.get(label, "")
            if times[0] <= began - evidence.step_seconds * 2:
                before[label].add(value)
            if times[-1] >= began:
                after[label].add(value)
    if not any(before.values()):
        return ReviewAnswer(CHANGED, "unknown", "the trainers are not older than the breach")
    news = {label: after[label] - before[label] for label in RUN_LABELS if after[label] - before[label]}
    if not news:
        return ReviewAnswer(
            CHANGED, "Nothing that trainers report: " + ", ".join(RUN_LABELS), "genesis_run_info of 24 h"
        )
    text = "; ".join(f"{k}: {_words(before[k])} → {_words(v)}" for k, v in news.items())
    return ReviewAnswer(CHANGED, bounded(text), "genesis_run_info of 24 h")


def _warnings(report: Report, spec: PolicySpec) -> ReviewAnswer:
    signal = next((s for s, record in SIGNALS.items() if record.reason == report.reason), None)
    if signal is None:
        return ReviewAnswer(WARNINGS, "unknown", "no metric called for this rollback")
    evidence = _find(report, signal.value)
    if evidence is None or evidence.error or not evidence.series:
        return ReviewAnswer(
            WARNINGS, "unknown", evidence.error if evidence and evidence.error else "no samples were found"
        )
    criterion = spec.criterion(signal)
    day = _find(report, f"{signal.value}{OF_A_DAY}")
    asked = [evidence]
    if day is not None and day.series and not (criterion.query or criterion.promql):
        asked.append(day)  # of another query than the built-in one it says nothing
    level = criterion.enter / _WARNING_SHARE if criterion.lower_is_worse else criterion.enter * _WARNING_SHARE
    level = min(level, (1 + criterion.enter) / 2) if criterion.lower_is_worse else level
    began = parse_time(report.stages.detected_at) or 0.0
    read_s = began - min(parse_time(each.start) or began for each in asked)
    early = [
        t
        for each in asked
        for series in series_of(each)
        for t, value in series.points
        if t < began and (value < level if criterion.lower_is_worse else value > level)
    ]
    side = "below" if criterion.lower_is_worse else "above"
    if not early:
        return ReviewAnswer(
            WARNINGS,
            f"No, in the {lasted(read_s)} before: it came at once",
            f"{signal} was never {side} {level:g} in that time",
        )
    text = (
        f"Yes: {signal} was {side} {level:g} from {began - min(early):.0f} s before, of {lasted(read_s)} that were read"
    )
    return ReviewAnswer(WARNINGS, text, evidence.query)


def _again(report: Report, changed: ReviewAnswer) -> ReviewAnswer:
    """A verdict only where the data points to one of the options."""
    devices = {s.labels.get("device", "") for s in _series(report, RUN_INFO)}
    bad = {s.labels.get("device", "") for s in _series(report, RUN_INFO) if _breached(s, report)}
    if len(devices) > 1 and bad and bad < devices and report.scope is not Scope.WORKLOAD:
        return ReviewAnswer(
            AGAIN, "Only on specific hardware", bounded(f"breached on {_words(bad)} of {_words(devices)}")
        )
    if " → " in changed.answer:
        kind = (
            "architecture modifications"
            if changed.answer.startswith(("model:", "model_hash:"))
            else "configuration changes"
        )
        return ReviewAnswer(AGAIN, f"With {kind}", f"the breach began after: {changed.answer}")
    if report.reason == SIGNALS[Signal.SPEED].reason:
        return ReviewAnswer(
            AGAIN, "Not recommended (stay on FP32)", "it is slower than FP32 here, so nothing is gained"
        )
    return ReviewAnswer(AGAIN, "unknown", "the data points to no single cause; see the signals and the runbook")


def _breached(series: Series, report: Report) -> bool:
    pod = series.labels.get("pod", "")
    return any(pod == name or pod.startswith(f"{name}-") for name in report.workloads)


def _words(values: set[str]) -> str:
    return ", ".join(sorted(v or "unknown" for v in values))

"""The five questions of the root-cause analysis, answered from data as far as data goes; else ``unknown``, and why."""

from collections.abc import Collection

from precision_operator.api.incident import Scope
from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.signals import Signal
from precision_operator.api.spec import PolicySpec
from precision_operator.api.state import Phase
from precision_operator.api.text import bounded, names
from precision_operator.api.wire import parse_time
from precision_operator.incidents.changes import by_workload, changes, in_words, listed, times_before
from precision_operator.incidents.evidence import RUN_INFO, RUN_LABELS, SIGNS
from precision_operator.incidents.report import Evidence, Report, ReviewAnswer
from precision_operator.incidents.signs import sign_of
from precision_operator.incidents.wording import lasted
from precision_operator.reasons import Reason

TRIGGERED = "What triggered the rollback?"
INITIALLY = "Was low precision working initially?"
CHANGED = "What changed recently?"
WARNINGS = "Were there warning signs?"
AGAIN = "Can it be re-enabled safely?"

_CLASSES: dict[str, str] = {
    **{record.reason: record.fault for record in SIGNALS.values()},
    Reason.ABORTED: "A person asked for it",
    Reason.NO_DATA: "Monitoring lost",
}
_NOT_COMPARED = "images are not compared"
"""What a change of code shows in: neither trainers nor recordings name it."""


def answer(report: Report, spec: PolicySpec, fleet: Collection[str]) -> tuple[ReviewAnswer, ...]:
    """All five; ``fleet`` are the names of all workloads that the policy selects."""
    changed = _changed(report, fleet)
    return (
        ReviewAnswer(TRIGGERED, _CLASSES.get(report.reason, report.reason), report.message),
        _initially(report),
        changed,
        _warnings(report, spec, fleet),
        _again(report, changed, fleet),
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


def _concerned(report: Report, fleet: Collection[str]) -> set[str]:
    """Names of the workloads that the incident is about."""
    return {*report.workloads, *(fleet if report.scope is Scope.FLEET else ())}


def _changed(report: Report, fleet: Collection[str]) -> ReviewAnswer:
    evidence = _find(report, RUN_INFO)
    if evidence is None or evidence.error or not evidence.series:
        why = evidence.error if evidence is not None and evidence.error else "no genesis_run_info was found"
        return ReviewAnswer(CHANGED, "unknown", why)
    began, step_seconds = parse_time(report.stages.detected_at) or 0.0, evidence.step_seconds
    concerned = _concerned(report, fleet)
    known = {
        name: series
        for name, series in by_workload(evidence, concerned, fleet).items()
        if len(times_before(series, began, step_seconds)) > 1
    }
    if not known:
        return ReviewAnswer(CHANGED, "unknown", f"no trainer of {names(list(concerned))} is older than the breach")
    missing = concerned - set(known)
    rests_on = f"genesis_run_info of 24 h of {names(list(known))}"
    rests_on += f"; unknown: {names(list(missing))}" if missing else ""
    found = changes(report, known, step_seconds)
    text = in_words(found, began) if found else "Nothing that trainers report: " + ", ".join(RUN_LABELS)
    return ReviewAnswer(CHANGED, bounded(f"{text}; {_NOT_COMPARED}"), rests_on)


def _warnings(report: Report, spec: PolicySpec, fleet: Collection[str]) -> ReviewAnswer:
    breached = [s for s, record in SIGNALS.items() if record.reason == report.reason]
    concerned = _concerned(report, fleet)
    signs = [
        sign_of(signal, report, spec, concerned=concerned, fleet=fleet) for signal in dict.fromkeys((*breached, *SIGNS))
    ]
    read = [sign for sign in signs if sign.read_seconds]
    warned = [sign for sign in read if sign.warned_seconds is not None]
    others = "; ".join(str(sign) for sign in signs if sign not in warned)
    if warned:
        return ReviewAnswer(WARNINGS, "Yes: " + "; ".join(map(str, warned)), others)
    if not read:
        return ReviewAnswer(WARNINGS, "unknown", others)
    unknown = ", ".join(sign.signal for sign in signs if sign not in read)
    text = f"No, in the {lasted(min(sign.read_seconds for sign in read))} before"
    return ReviewAnswer(WARNINGS, f"{text}; unknown: {unknown}" if unknown else text, others)


def _again(report: Report, changed: ReviewAnswer, fleet: Collection[str]) -> ReviewAnswer:
    """A verdict only where the data points to one of the options."""
    evidence = _find(report, RUN_INFO)
    known = by_workload(evidence, {*report.workloads, *fleet}, fleet) if evidence is not None else {}
    on = {name: {s.labels.get("device", "") for s in series} for name, series in known.items()}
    devices = set().union(*on.values())
    bad = set().union(*(on.get(name, set()) for name in report.workloads))
    if len(devices) > 1 and bad and bad < devices and report.scope is not Scope.WORKLOAD:
        return ReviewAnswer(
            AGAIN, "Only on specific hardware", bounded(f"breached on {listed(bad)} of {listed(devices)}")
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

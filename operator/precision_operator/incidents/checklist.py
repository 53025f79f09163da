"""The verification checklist of a rollback, worked through by the operator, in three windows.

A line is Passed, Failed or Unknown, judged on what the pods' own processes report. It follows the newest reading while its
window is open and keeps what it had when the window closed.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from precision_operator.api.incident import Scope
from precision_operator.api.signals import Signal
from precision_operator.api.verification import Checks
from precision_operator.core.model import Evaluation, PodSignals, PodView, WorkloadView
from precision_operator.core.observer import RecordedPass
from precision_operator.core.progress import accepted_modes, live_pods, pod_acknowledged
from precision_operator.incidents.report import Check, CheckResult, Report, stamp
from precision_operator.settings import IncidentSettings

NEAR_BASELINE = 0.05
"""How far the loss may lie above its FP32 baseline; also the share of failed runs that a recovery allows."""
NEAR_SPEED = 0.9
"""Throughput relative to the FP32 baseline that counts as back to it."""
NEAR_MEMORY = 1.1
"""The same of device memory: more than FP32's own peak is not what a rollback costs."""
ACCURATE = 0.02
"""How much worse a model may be that counts as accurate: trainers export no validation metric, the loss stands for it."""

Outcome = tuple[CheckResult, str]


@dataclass(frozen=True, slots=True)
class View:
    """What a line is judged on."""

    workloads: tuple[WorkloadView, ...]
    evaluation: Evaluation | None
    report: Report
    window_clear: bool
    """The metrics' window no longer reaches back to before all were in the fallback: before that, rates show the breach."""

    @property
    def pods(self) -> tuple[PodView, ...]:
        """All pods that are not on their way out."""
        return tuple(pod for workload in self.workloads for pod in live_pods(workload))


def _running(view: View) -> Outcome:
    missing = [w.name for w in view.workloads if len(live_pods(w)) < w.replicas]
    bad = [*missing, *(p.name for p in view.pods if p.crashing or not p.ready)]
    return _outcome(bad, [], f"{len(view.pods)} pods run")


def _stable(view: View) -> Outcome:
    crashing = [p.name for p in view.pods if p.crashing]
    return _outcome(crashing, [], "no container is crashing")


def _in_fallback(view: View) -> Outcome:
    accepted = accepted_modes(view.report.fallback, rollback=True)
    return _judged(
        view, "ack", lambda pod, signals: pod_acknowledged(pod, signals, accepted), "every process reports it"
    )


def _no_reduced_steps(view: View) -> Outcome:
    """The built-in ratio exists only while low-precision steps are made."""
    if not view.window_clear:
        return CheckResult.PENDING, ""
    return _judged(view, "overflow", lambda _, s: not s.values.get(Signal.OVERFLOW), "no low-precision step overflows")


def _stepping(view: View) -> Outcome:
    return _judged(view, "steps", lambda _, s: None if s.steps is None else s.steps > 0, "every pod makes steps")


def _value(signal: Signal, good: Callable[[float], bool], said: str) -> Callable[[View], Outcome]:
    def probe(_: PodView, signals: PodSignals) -> bool | None:
        value = signals.values.get(signal)
        if value is None or (signal is Signal.FAILURES and math.isnan(value)):
            return None  # no run has ended
        return good(value)

    def line(view: View) -> Outcome:
        if signal is not Signal.DIVERGENCE and not view.window_clear:
            return CheckResult.PENDING, ""
        return _judged(view, signal.value, probe, said)

    return line


def _memory(view: View) -> Outcome:
    def probe(_: PodView, signals: PodSignals) -> bool | None:
        return None if signals.fp32_memory is None else signals.fp32_memory <= NEAR_MEMORY

    return _judged(view, "fp32Memory", probe, f"at most {NEAR_MEMORY:g} times FP32's own peak")


_FAILURES = _value(Signal.FAILURES, lambda v: v <= NEAR_BASELINE, "over 95 % of the runs end well")
_LOSS = _value(Signal.DIVERGENCE, lambda v: v <= NEAR_BASELINE, "within 5 % of the FP32 baseline")
_ACCURACY = _value(Signal.DIVERGENCE, lambda v: v <= ACCURATE, "the loss is within 2 % of the FP32 baseline")
_SPEED = _value(Signal.SPEED, lambda v: v >= NEAR_SPEED, "at 90 % of the FP32 baseline or above")

_LINES: Mapping[str, Mapping[str, Callable[[View], Outcome]]] = {
    "Immediate": {
        "Services restarted": _running,
        "Fallback confirmed by the processes": _in_fallback,
        "No low-precision statistics": _no_reduced_steps,
        "Training jobs starting": _stepping,
    },
    "Short": {
        "Training completion rate above 95 %": _FAILURES,
        "Loss matches the FP32 baseline": _LOSS,
        "No overflow": _no_reduced_steps,
        "Performance matches the FP32 baseline": _SPEED,
    },
    "Long": {
        "System stability": _stable,
        "Model accuracy": _ACCURACY,
        "Throughput at the FP32 level": _SPEED,
        "Memory at the FP32 level": _memory,
    },
}


def blank() -> tuple[Check, ...]:
    """The checklist before anything was looked at."""
    return tuple(Check(name, window) for window, lines in _LINES.items() for name in lines)


def counted(checklist: tuple[Check, ...]) -> Checks:
    """How many lines have which result."""
    counts = Counter(check.result for check in checklist)
    return Checks(
        counts[CheckResult.PASSED], counts[CheckResult.FAILED], counts[CheckResult.UNKNOWN], counts[CheckResult.PENDING]
    )


def concerned(report: Report, seen: RecordedPass) -> tuple[WorkloadView, ...]:
    """The workloads that the rollback was about: of a single workload's only itself, else the whole fleet."""
    everything = seen.observation.workloads
    return tuple(w for w in everything if report.scope is not Scope.WORKLOAD or w.name in report.workloads)


def verify(report: Report, seen: RecordedPass, settings: IncidentSettings, *, now: float) -> tuple[Check, ...]:
    """The checklist after a look at ``now``; the clock starts when all trainers were in the fallback.

    Until then a trainer that restarts, or has not acknowledged yet, is no failure of the rollback. One that takes longer
    than the first window is looked at as it stands, its clock starting with the decision.
    """
    elapsed = now - (report.in_fallback_at or report.decided_at)
    if report.in_fallback_at is None and elapsed < settings.immediate_seconds:
        return report.checklist or blank()
    spans = {
        "Immediate": (0.0, settings.immediate_seconds),
        "Short": (settings.immediate_seconds, settings.short_seconds),
        "Long": (settings.short_seconds, settings.long_seconds),
    }
    evaluation = seen.observation.evaluation
    read_at = evaluation.at if evaluation is not None else now
    clear = read_at - (report.in_fallback_at or read_at) >= seen.policy.spec.evaluation.window_seconds
    view = View(concerned(report, seen), evaluation, report, window_clear=clear)
    checks: list[Check] = []
    for check in report.checklist or blank():
        begin, end = spans[check.window]
        # Past its end a line is looked at once more only where nobody had looked before.
        if begin <= elapsed and (elapsed < end or check.result is CheckResult.PENDING):
            result, observed = _LINES[check.window][check.name](view)
            if result is not check.result:
                check = replace(check, result=result, observed=observed, at=stamp(now))
        checks.append(check)
    return tuple(checks)


def _judged(view: View, query: str, probe: Callable[[PodView, PodSignals], bool | None], said: str) -> Outcome:
    evaluation = view.evaluation
    if evaluation is None:
        return CheckResult.UNKNOWN, "no metrics were read"
    error = evaluation.errors.get(query) or evaluation.errors.get("ack")
    if error is not None:
        return CheckResult.UNKNOWN, error.reason
    bad: list[str] = []
    missing: list[str] = []
    for pod in view.pods:
        signals = evaluation.pods.get(pod.name)
        verdict = probe(pod, signals) if signals is not None else None
        if verdict is None:
            missing.append(pod.name)
        elif not verdict:
            bad.append(pod.name)
    if not view.pods:
        return CheckResult.UNKNOWN, "no pods run"
    return _outcome(bad, missing, said)


def _outcome(bad: list[str], missing: list[str], said: str) -> Outcome:
    if bad:
        return CheckResult.FAILED, f"not so in {_few(bad)}"
    if missing:
        return CheckResult.UNKNOWN, f"no data from {_few(missing)}"
    return CheckResult.PASSED, said


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(sorted(names)[:3])}{more}"

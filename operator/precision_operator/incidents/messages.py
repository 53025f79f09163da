"""The three messages of a rollback, and its escalation, as text for people. What was not measured is said to be unknown."""

from dataclasses import dataclass
from statistics import median

from precision_operator.api.incident import Scope
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity
from precision_operator.api.text import bounded
from precision_operator.api.wire import parse_time
from precision_operator.core.model import Evaluation
from precision_operator.incidents.report import Check, CheckResult, Message, Report, stamp

SUBJECT_CHARACTERS, BODY_CHARACTERS = 512, 16384
"""What the schema takes."""


@dataclass(frozen=True, slots=True)
class Wording:
    """What the admin adds to the messages."""

    dashboard_url: str = ""
    """Base URL of the dashboard; the policy's namespace and name are appended as variables."""
    postmortem_after_seconds: float = 86400.0
    """When to propose the post-mortem, after the decision."""
    escalate_after_seconds: tuple[float, ...] = (900.0, 1800.0)
    """When a rollback of which not every trainer has acknowledged is escalated, after the decision."""


def notice(report: Report, wording: Wording, *, namespace: str, now: float) -> Message:
    """The first message: what happened, what is being done, until when."""
    label = "Action Required" if report.severity is Severity.P0 else "Rollback"
    whole = report.scope is not Scope.WORKLOAD
    steps = [
        f"New pods start in {report.fallback}" if whole else "The rest of the fleet stays, and is watched",
        f"Running trainers are asked for {report.fallback} at their next step boundary",
        "Pods that cannot change while they run are asked for a checkpoint, then deleted; their controllers replace them",
    ]
    following = [
        "Trainers that do not acknowledge are restarted",
        "Success rate above 95 %, loss and throughput against the FP32 baseline are checked for 2 hours",
        f"Post-mortem proposed for {stamp(report.decided_at + wording.postmortem_after_seconds)}",
    ]
    body = [
        f"IMPACT: {report.message} ({report.reason})",
        f"STATUS: rollback of {_reach(report)} to {report.fallback} in progress",
        f"ETA: {report.stages.deadline_at} ({_minutes(_seconds_left(report, now))} from now at the latest)",
        *_numbered("ACTIONS TAKEN", steps),
        *_numbered("NEXT STEPS", following),
        *_links(report, wording, namespace),
    ]
    return _message("Notice", now, f"[{report.severity}] {namespace}/{report.policy}: {label}: {report.reason}", body)


def escalation(report: Report, wording: Wording, *, namespace: str, now: float) -> Message:
    """A rollback of which not every trainer has acknowledged."""
    late = _minutes(now - report.decided_at)
    body = [
        f"IMPACT: {report.message} ({report.reason})",
        f"STATUS: decided {late} ago, and not every trainer has reported {report.fallback}",
        f"DEADLINE: {report.stages.deadline_at}",
        *[f"- {moment.at} {moment.what}: {moment.message}" for moment in report.timeline[-5:]],
        *_links(report, wording, namespace),
    ]
    return _message(
        "Escalation", now, f"[{report.severity}] {namespace}/{report.policy}: unresolved after {late}", body
    )


def all_clear(
    report: Report, wording: Wording, *, namespace: str, now: float, before: Evaluation | None, after: Evaluation | None
) -> Message:
    """The last message: all are in the fallback, and nothing that was checked has failed."""
    marks = {
        CheckResult.PASSED: "ok",
        CheckResult.UNKNOWN: "unknown",
        CheckResult.FAILED: "FAILED",
        CheckResult.PENDING: "pending",
    }
    checks = [f"- {marks[c.result]}: {c.name}{f' ({c.observed})' if c.observed else ''}" for c in report.checklist]
    verdict = "met" if report.met_deadline else "missed"
    body = [
        f"STATUS: {report.fallback} confirmed by the processes of {_reach(report)}",
        f"DURATION: {_minutes((report.in_fallback_at or now) - report.decided_at)}; deadline {verdict}",
        "VERIFICATION:",
        *checks,
        "PERFORMANCE:",
        *performance(before, after),
        f"ROOT CAUSE: {report.message} ({report.reason}); see the incident's questions",
        f"FOLLOW-UP: post-mortem proposed for {stamp(report.decided_at + wording.postmortem_after_seconds)}",
        *_links(report, wording, namespace),
    ]
    return _message("AllClear", now, f"[RESOLVED] {namespace}/{report.policy}: {report.fallback} confirmed", body)


def performance(before: Evaluation | None, after: Evaluation | None) -> list[str]:
    """Throughput and time against the time before the rollback, by the speed signal (relative to the FP32 baseline)."""
    was, is_ = _speed(before), _speed(after)
    if not was or not is_:
        return ["- throughput and time per sample: unknown (no speed signal on both sides)", "- memory: unknown"]
    return [
        f"- throughput: {is_ / was:.2f}x of before, {is_:.2f}x of the FP32 baseline",
        f"- time per sample: {was / is_:.2f}x of before",
        "- memory: unknown (read genesis_cuda_memory_allocated_bytes where there is CUDA)",
    ]


def unresolved(checks: tuple[Check, ...], window: str) -> bool:
    """Whether a line of the window, or of one before it, is failed or not looked at."""
    order = ("Immediate", "Short", "Long")
    looked = [c for c in checks if order.index(c.window) <= order.index(window)]
    return any(c.result in (CheckResult.FAILED, CheckResult.PENDING) for c in looked)


def _speed(evaluation: Evaluation | None) -> float | None:
    values = (
        [s.values[Signal.SPEED] for s in evaluation.pods.values() if Signal.SPEED in s.values] if evaluation else []
    )
    return median(values) if values else None


def _reach(report: Report) -> str:
    if report.scope is Scope.WORKLOAD:
        return ", ".join(report.workloads[:3]) + (" and more" if len(report.workloads) > 3 else "")
    return "the whole fleet"


def _seconds_left(report: Report, now: float) -> float:
    return max(0.0, (parse_time(report.stages.deadline_at) or now) - now)


def _minutes(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"


def _numbered(title: str, lines: list[str]) -> list[str]:
    return [f"{title}:", *(f"{number}. {line}" for number, line in enumerate(lines, 1))]


def _links(report: Report, wording: Wording, namespace: str) -> list[str]:
    links = [f"DETAILS: kubectl precision incident show -n {namespace} {report.id}"]
    if wording.dashboard_url:
        sign = "&" if "?" in wording.dashboard_url else "?"
        links.append(f"DASHBOARD: {wording.dashboard_url}{sign}var-namespace={namespace}&var-policy={report.policy}")
    return links


def _message(kind: str, now: float, subject: str, body: list[str]) -> Message:
    return Message(kind, stamp(now), bounded(subject, SUBJECT_CHARACTERS), "\n".join(body)[:BODY_CHARACTERS])

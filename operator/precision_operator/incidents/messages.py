"""The messages of a rollback, its escalation and its verification. What was not measured is said to be unknown."""

from dataclasses import replace

from precision_operator.api.canary import OnNoDifference
from precision_operator.api.choices import Severity, Strategy
from precision_operator.api.incident import Scope, predicted_late_seconds
from precision_operator.api.messages import MessageKind
from precision_operator.api.text import names
from precision_operator.api.wire import parse_time
from precision_operator.api.workload import name_of
from precision_operator.core.model import Evaluation
from precision_operator.core.observer import RecordedPass
from precision_operator.incidents.questions import CHANGED
from precision_operator.incidents.report import Check, CheckResult, Message, Report, stamp
from precision_operator.incidents.wording import Wording, expected, lasted, listed, measured, message, steps_of


def notice(report: Report, seen: RecordedPass, wording: Wording, *, now: float, before: Evaluation | None) -> Message:
    """The first message, and each one after it has grown: what happened, what is done, until when, and what it will cost.

    Args:
        report: of the incident.
        seen: the newest pass: by its strategy the rollback is told of.
        wording: the admin's part.
        now: seconds since the epoch.
        before: the reading that the rollback was decided on.
    """
    incident = seen.decision.state.incident
    strategy = incident.strategy if incident is not None else Strategy.EMERGENCY
    by_canary = strategy is Strategy.CANARY
    late_seconds = predicted_late_seconds(incident) if incident is not None else 0.0
    eta = f"{report.stages.deadline_at} ({lasted(_seconds_left(report, now))} from now at the latest)"
    fields = _fields(report, wording, seen.policy.namespace)
    following = [
        *_followed_by(strategy, seen),
        "Success rate above 95 %, loss and throughput against the FP32 baseline are checked for 2 hours",
        f"Post-mortem proposed for {fields['postmortem']}",
    ]
    fields |= {
        "status": "Action Required" if report.severity is Severity.P0 else _LABELS.get(strategy, "Rollback"),
        "eta": f"the canary is judged by {eta}" if by_canary else eta,
        "late": lasted(late_seconds) if late_seconds > 0 else "",
        "actions": listed(_actions(report, strategy, seen), numbered=True),
        "next_steps": listed(following, numbered=True),
        "expected": listed(f"of the canary: {line}" if by_canary else line for line in expected(before)),
    }
    if by_canary:
        fields["workloads"] = f"a canary ({names(list(map(name_of, seen.decision.state.canary)))})"
    told = message(MessageKind.NOTICE, fields, wording, now=now)
    return replace(told, severity=report.severity, strategy=strategy)


_LABELS = {Strategy.GRADUAL: "Gradual Rollback", Strategy.CANARY: "Rollback Canary"}


def _actions(report: Report, strategy: Strategy, seen: RecordedPass) -> list[str]:
    rest = (
        "New pods start in"
        if report.scope is not Scope.WORKLOAD
        else "The rest of the fleet stays; new pods of these start in"
    )
    rules = seen.policy.spec.rollback.gradual
    patience = lasted(rules.in_flight_seconds)
    if strategy is Strategy.CANARY:
        return [
            f"New pods of the canary start in {report.fallback}; those of the rest start as before",
            f"The canary changes at a step boundary, or after its next checkpoint, waited for at most {patience}",
            f"It is compared with breached workloads that stay in {report.target}",
        ]
    if strategy is Strategy.GRADUAL:
        return [
            f"{rest} {report.fallback}",
            f"Work in flight ends first: to the next checkpoint or the end of a Job, for at most {patience}. What can "
            "change at a step boundary need not wait",
            f"Workloads follow in batches of {100 * rules.batch_share:g} %, each acknowledged before the next",
        ]
    return [
        f"{rest} {report.fallback}",
        f"Running trainers are asked for {report.fallback} at their next step boundary",
        "Pods that cannot change while they run are asked for a checkpoint, then deleted; their controllers replace them",
    ]


def _followed_by(strategy: Strategy, seen: RecordedPass) -> list[str]:
    if strategy is not Strategy.CANARY:
        hurried = ["What would miss the deadline waits for no turn"] if strategy is Strategy.GRADUAL else []
        return [*hurried, "Trainers that do not acknowledge are restarted"]
    promotes = seen.policy.spec.rollback.canary.on_no_difference is OnNoDifference.PROMOTE
    helped = "If it does better, or no worse," if promotes else "If it does better,"
    policy = seen.policy
    return [
        f"{helped} the rest follows in batches; else it is held, and a person decides",
        f"To wait no longer: kubectl precision rollback -n {policy.namespace} {policy.name} --emergency",
    ]


def escalation(report: Report, wording: Wording, *, namespace: str, now: float) -> Message:
    """A rollback of which not every trainer has acknowledged."""
    late = lasted(now - report.decided_at)
    fields = {
        **_fields(report, wording, namespace),
        "status": f"decided {late} ago, and not every trainer has reported {report.fallback}",
        "duration": late,
        "timeline": listed(f"{moment.at} {moment.what}: {moment.message}" for moment in report.timeline[-5:]),
        "next_steps": listed(steps_of("RollbackEscalated", namespace=namespace, name=report.policy), numbered=True),
    }
    return message(MessageKind.ESCALATION, fields, wording, now=now)


def all_clear(
    report: Report, wording: Wording, *, namespace: str, now: float, before: Evaluation | None, after: Evaluation | None
) -> Message:
    """The last message: all are in the fallback, and nothing that was checked has failed."""
    fields = {
        **_fields(report, wording, namespace),
        "status": f"{report.fallback} confirmed",
        "duration": lasted((report.in_fallback_at or now) - report.decided_at),
        "deadline_result": "met" if report.met_deadline else "missed",
        "verification": _verification(report),
        **measured(before, after),
    }
    return message(MessageKind.ALL_CLEAR, fields, wording, now=now)


def verification_failed(
    report: Report, wording: Wording, *, namespace: str, now: float, before: Evaluation | None, after: Evaluation | None
) -> Message:
    """All are in the fallback, and it is not well: for people to look at."""
    failed = [check.name for check in report.checklist if check.result is CheckResult.FAILED]
    steps = [
        "Look at what the checks found, and at the workloads: a rollback does not mend what FP32 does not cause",
        *steps_of(report.reason, namespace=namespace, name=report.policy),
    ]
    fields = {
        **_fields(report, wording, namespace),
        "status": ", ".join(failed),
        "duration": lasted(now - report.decided_at),
        "verification": _verification(report),
        "next_steps": listed(steps, numbered=True),
        **measured(before, after),
    }
    return message(MessageKind.VERIFICATION_FAILED, fields, wording, now=now)


def unresolved(checks: tuple[Check, ...], window: str) -> bool:
    """Whether a line of the window, or of one before it, is failed or not looked at."""
    looked = _until(checks, window)
    return any(c.result in (CheckResult.FAILED, CheckResult.PENDING) for c in looked)


def has_failed(checks: tuple[Check, ...], window: str) -> bool:
    """Whether a line of the window, or of one before it, is failed."""
    return any(c.result is CheckResult.FAILED for c in _until(checks, window))


def _until(checks: tuple[Check, ...], window: str) -> list[Check]:
    order = ("Immediate", "Short", "Long")
    return [c for c in checks if order.index(c.window) <= order.index(window)]


_MARKS = {
    CheckResult.PASSED: "ok",
    CheckResult.UNKNOWN: "unknown",
    CheckResult.FAILED: "FAILED",
    CheckResult.PENDING: "pending",
}


def _verification(report: Report) -> str:
    return listed(f"{_MARKS[c.result]}: {c.name}{f' ({c.observed})' if c.observed else ''}" for c in report.checklist)


def _fields(report: Report, wording: Wording, namespace: str) -> dict[str, str]:
    return {
        "namespace": namespace,
        "policy": report.policy,
        "incident": report.id,
        "severity": str(report.severity),
        "scope": str(report.scope),
        "reason": report.reason,
        "impact": report.message,
        "workloads": _reach(report),
        "target": str(report.target),
        "fallback": str(report.fallback),
        "since": report.stages.decided_at,
        "deadline": report.stages.deadline_at,
        "root_cause": _root_cause(report),
        "postmortem": stamp(report.decided_at + wording.settings.postmortem_after_seconds),
    }


def _root_cause(report: Report) -> str:
    """What called for it, and what the questions of the analysis found to have changed."""
    answers = {answer.question: answer.answer for answer in report.questions}
    changed = answers.get(CHANGED, "unknown")
    return f"{report.message} ({report.reason}); changed recently: {changed}"


def _reach(report: Report) -> str:
    if report.scope is Scope.WORKLOAD:
        return ", ".join(report.workloads[:3]) + (" and more" if len(report.workloads) > 3 else "")
    return "the whole fleet"


def _seconds_left(report: Report, now: float) -> float:
    return max(0.0, (parse_time(report.stages.deadline_at) or now) - now)

"""How a report ripens with time: checks, messages, escalation, the end. Pure."""

import math
from collections.abc import Sequence
from dataclasses import replace

from precision_operator.api.messages import MessageKind
from precision_operator.core.model import Evaluation
from precision_operator.core.notifying import ESCALATE_SECONDS
from precision_operator.core.observer import RecordedPass
from precision_operator.core.rollback.whole import URGENCY
from precision_operator.incidents.checklist import verify
from precision_operator.incidents.messages import (
    all_clear,
    escalation,
    has_failed,
    notice,
    unresolved,
    verification_failed,
)
from precision_operator.incidents.passes import close
from precision_operator.incidents.report import CheckResult, IncidentPhase, Message, Milestone, Report
from precision_operator.incidents.wording import Wording
from precision_operator.replay.recording import Recording
from precision_operator.settings import IncidentSettings

FAILED = MessageKind.VERIFICATION_FAILED


def ripen(
    report: Report,
    seen: RecordedPass,
    settings: IncidentSettings,
    *,
    wording: Wording,
    now: float,
    first: Evaluation | None,
) -> Report:
    """The report at ``now``, by the newest pass; ``first`` is the reading that the rollback was decided on."""
    if report.phase is IncidentPhase.CLOSED:
        return report
    report = replace(report, checklist=verify(report, seen, settings, now=now))
    namespace, after = seen.policy.namespace, seen.observation.evaluation
    if _is_news(report, seen):
        report = _say(report, notice(report, seen, wording, now=now, before=first))
    if report.phase is IncidentPhase.ACTIVE:
        due = sum(now - _asked_at(report, seen) >= seconds for seconds in ESCALATE_SECONDS)
        if sum(message.kind == "Escalation" for message in report.messages) < due:
            report = _say(report, escalation(report, wording, namespace=namespace, now=now))
        return report
    elapsed = now - (report.in_fallback_at or report.decided_at)
    over = elapsed >= settings.long_seconds
    clear = elapsed >= settings.short_seconds and not unresolved(report.checklist, "Long" if over else "Short")
    if clear and not report.said("AllClear"):
        message = all_clear(report, wording, namespace=namespace, now=now, before=first, after=after)
        report = _say(report, message)
    looked = "Long" if over else "Short"
    if elapsed >= settings.short_seconds and has_failed(report.checklist, looked) and not report.said(FAILED):
        message = verification_failed(report, wording, namespace=namespace, now=now, before=first, after=after)
        report = _say(report, message)
    if over:
        failed = [c.name for c in report.checklist if c.result is CheckResult.FAILED]
        what = Milestone.VERIFICATION_FAILED if failed else Milestone.VERIFIED
        report = close(report, what, ", ".join(failed) or "no check has failed", now=now)
    return report


def _is_news(report: Report, seen: RecordedPass) -> bool:
    """Nobody was told of it, or not of what it has become: graver or, while it is under way, more urgent."""
    told, incident = [m for m in report.messages if m.kind == MessageKind.NOTICE], seen.decision.state.incident
    if not told:
        return True
    severity, strategy = told[-1].severity, told[-1].strategy
    if incident is None or severity is None or strategy is None:
        return False
    hastened = URGENCY.index(incident.strategy) > URGENCY.index(strategy)
    return incident.severity < severity or (hastened and report.phase is IncidentPhase.ACTIVE)


def _asked_at(report: Report, seen: RecordedPass) -> float:
    """From when on all must reach the fallback: not while a canary is compared, but from when the rest follows it."""
    state = seen.decision.state
    if state.by_canary:
        return math.inf
    expedited = state.incident.expedited_at if state.incident is not None else None
    return report.decided_at if expedited is None else expedited


def next_due(report: Report, settings: IncidentSettings, *, now: float) -> float | None:
    """When time alone changes the report; None: never."""
    if report.phase is IncidentPhase.CLOSED:
        return None
    began = report.in_fallback_at or report.decided_at
    moments = [began + s for s in (settings.immediate_seconds, settings.short_seconds, settings.long_seconds)]
    if report.phase is IncidentPhase.ACTIVE:
        moments += [report.decided_at + s for s in ESCALATE_SECONDS]
    return min((moment for moment in moments if moment > now), default=None)


def worth_keeping(report: Report, seen: RecordedPass) -> bool:
    """Whether a pass belongs on the tape: all while the rollback runs, later those with a change, none once it is over."""
    if report.phase is IncidentPhase.CLOSED:
        return False
    return report.phase is IncidentPhase.ACTIVE or seen.before != seen.decision.state or bool(seen.decision.actions)


def first_reading(recordings: Sequence[Recording]) -> Evaluation | None:
    """The earliest reading on the tape: from before the rollback."""
    return next((r.observation.evaluation for r in recordings if r.observation.evaluation is not None), None)


def _say(report: Report, message: Message) -> Report:
    return replace(report, messages=(*report.messages, message))

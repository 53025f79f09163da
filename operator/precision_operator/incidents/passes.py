"""How each pass carries a report on: it is opened, follows its incident, and is closed. Pure."""

from collections.abc import Iterable
from dataclasses import replace

from precision_operator.api.commands import Prerequisite, answered
from precision_operator.api.incident import Incident
from precision_operator.api.state import Phase
from precision_operator.api.text import bounded
from precision_operator.api.workload import name_of
from precision_operator.core.actions import DeleteAssignment, Notify
from precision_operator.core.observer import RecordedPass
from precision_operator.incidents.cost import restarted
from precision_operator.incidents.report import (
    TIMELINE_LIMIT,
    WORKLOADS_LIMIT,
    CheckResult,
    IncidentPhase,
    Milestone,
    Moment,
    Report,
    Stages,
    stamp,
)
from precision_operator.reasons import Reason


def open_report(seen: RecordedPass, incident: Incident) -> Report:
    """The report of an incident that this pass knows of."""
    spec, before = seen.policy.spec, seen.before
    breached = tuple(dict.fromkeys(map(name_of, seen.decision.state.breached)))
    report = Report(
        id=incident.id,
        policy=seen.policy.name,
        policy_uid=seen.policy.uid,
        severity=incident.severity,
        scope=incident.scope,
        reason=incident.reason,
        message=bounded(incident.message),
        target=spec.target,
        fallback=spec.fallback,
        phase_before=before.phase,
        since_before=stamp(before.phase_since),
        workloads=(breached or incident.workloads)[:WORKLOADS_LIMIT],
        stages=Stages(decided_at=stamp(incident.decided_at)),
    )
    first = (
        Moment(stamp(incident.detected_at), Milestone.DETECTED, bounded(incident.message)),
        Moment(
            stamp(incident.decided_at), Milestone.DECIDED, f"{incident.severity} {incident.scope} {incident.reason}"
        ),
    )
    return replace(report, timeline=first)


def carry_on(report: Report, seen: RecordedPass) -> Report:
    """What a pass adds: stages reached, its notices and edges, the end of the incident."""
    state = seen.decision.state
    incident = state.incident
    if report.phase is IncidentPhase.CLOSED:
        leaves = incident is not None and incident.id == report.id and retried(seen) and not report.stages.left_at
        return replace(report, stages=replace(report.stages, left_at=stamp(seen.now))) if leaves else report
    if incident is None or incident.id != report.id:
        return superseded(report, incident, now=seen.now)
    moments = _acknowledged(report, seen)
    for action in seen.decision.actions:
        if isinstance(action, Notify):
            moments.append(Moment(stamp(seen.now), action.reason, bounded(action.message)))
    stages = Stages(
        detected_at=stamp(incident.detected_at),
        decided_at=stamp(incident.decided_at),
        deadline_at=stamp(incident.deadline_at),
        last_patch_at=stamp(incident.last_patch_at),
        last_ack_at=stamp(incident.last_ack_at),
        left_at=stamp(seen.now) if retried(seen) else "",
    )
    moments += _reached(report, replace(report, stages=stages))
    timeline = extended(report.timeline, moments)
    report = replace(report, stages=stages, timeline=timeline, cost=restarted(report.cost, seen))
    report = _as_grave(report, seen, incident)
    if report.phase is IncidentPhase.ACTIVE and report.in_fallback_at is not None:
        report = replace(report, phase=IncidentPhase.VERIFYING)
    if _released(seen):
        return close(report, Reason.POLICY_DELETED, "its policy was deleted: the rest is not verified", now=seen.now)
    if _left(seen):
        return close(report, state.reason, "the policy left the rollback: the rest is not verified", now=seen.now)
    return report


def _as_grave(report: Report, seen: RecordedPass, incident: Incident) -> Report:
    """What the incident has become: it may grow graver, and reach workloads that breached later."""
    breached = map(name_of, seen.decision.state.breached)
    return replace(
        report,
        severity=incident.severity,
        reason=incident.reason,
        message=bounded(incident.message),
        workloads=tuple(dict.fromkeys((*report.workloads, *breached, *incident.workloads)))[:WORKLOADS_LIMIT],
    )


def retried(seen: RecordedPass) -> bool:
    """In this pass the policy goes back to the target after a rollback."""
    return _left(seen) and seen.before.phase in (Phase.ROLLING_BACK, Phase.HELD, Phase.DEGRADED)


def _left(seen: RecordedPass) -> bool:
    phase = seen.decision.state.phase
    away = phase in (Phase.PENDING, Phase.PROGRESSING, Phase.PAUSED, Phase.HEALTHY)
    return away and seen.before.phase is not phase


def _released(seen: RecordedPass) -> bool:
    """The policy is gone, and nothing of the rollback is under way any more: what is held stays held, and is not watched."""
    ended = any(isinstance(action, DeleteAssignment) for action in seen.decision.actions)
    return seen.policy.deleted and (ended or seen.decision.state.fallback is None)


def _acknowledged(report: Report, seen: RecordedPass) -> list[Moment]:
    """Prerequisites of a retry, with who acknowledged each and why: those of the next rollback overwrite the annotations."""
    known = {replace(moment, at="") for moment in report.timeline}
    found: list[Moment] = []
    for item in Prerequisite:
        given = answered(seen.policy.annotations, item.annotation, seen.before.transition_id)
        if given is not None:
            text = bounded(f"{item} by {given.by or 'unknown'}" + (f": {given.message}" if given.message else ""))
            moment = Moment("", Milestone.ACKNOWLEDGED, text)
            found += [] if moment in known else [replace(moment, at=stamp(seen.now))]
    return found


def superseded(report: Report, newer: Incident | None, *, now: float) -> Report:
    """The report of an incident that another one followed; None: its policy has none any more."""
    by = newer.id if newer is not None else "a policy without an incident"
    return close(report, Milestone.SUPERSEDED, f"by {by}", now=now)


def close(report: Report, what: str, message: str, *, now: float) -> Report:
    """No more is written; checks that have no result yet are Unknown."""
    checks = tuple(
        replace(check, result=CheckResult.UNKNOWN, observed=f"not looked at: {what}", at=stamp(now))
        if check.result is CheckResult.PENDING
        else check
        for check in report.checklist
    )
    timeline = extended(report.timeline, [Moment(stamp(now), what, message)])
    return replace(report, phase=IncidentPhase.CLOSED, checklist=checks, timeline=timeline)


def _reached(before: Report, after: Report) -> list[Moment]:
    moments: list[Moment] = []
    if after.stages.last_patch_at and not before.stages.last_patch_at:
        moments.append(
            Moment(after.stages.last_patch_at, Milestone.REQUESTED, "every pod has been asked for it, or taken away")
        )
    if after.stages.last_ack_at and not before.stages.last_ack_at:
        held = "within" if after.met_deadline else "past"
        text = f"every trainer reports {after.fallback}, {held} the deadline {after.stages.deadline_at}"
        moments.append(Moment(after.stages.last_ack_at, Milestone.IN_FALLBACK, text))
    return moments


def extended(timeline: tuple[Moment, ...], moments: Iterable[Moment]) -> tuple[Moment, ...]:
    """In the order of time, each once, the middle thinned."""
    found = list(dict.fromkeys((*timeline, *moments)))
    found.sort(key=lambda moment: moment.at)
    while len(found) > TIMELINE_LIMIT:
        del found[len(found) // 2]
    return tuple(found)

"""The report of one rollback, as a value, and how each pass carries it on. Pure: what is done with it is the controller's.

A report is what stands in a PrecisionIncident under ``report``. Times are RFC 3339, for people read it with kubectl.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from precision_operator.api.commands import Prerequisite, answered
from precision_operator.api.incident import Incident, Scope
from precision_operator.api.modes import Mode
from precision_operator.api.policy import Policy
from precision_operator.api.spec import Severity
from precision_operator.api.state import Phase, State
from precision_operator.api.text import bounded
from precision_operator.api.wire import format_time, parse_time
from precision_operator.api.workload import name_of
from precision_operator.core.actions import DeleteAssignment, Notify
from precision_operator.core.decide import Decision
from precision_operator.core.model import Observation
from precision_operator.reasons import Reason

TIMELINE_LIMIT = 100
"""Entries of a timeline; the ones in the middle go first."""

WORKLOADS_LIMIT = 100
"""Names of workloads that a report lists."""


class IncidentPhase(StrEnum):
    """Where an incident stands."""

    ACTIVE = "Active"
    """Not every trainer reports the fallback yet."""
    VERIFYING = "Verifying"
    """Every trainer reports the fallback; the checklist is being worked through."""
    CLOSED = "Closed"
    """Nothing more will be written."""


class Result(StrEnum):
    """Of one check. Absent data is Unknown, never Passed."""

    PENDING = "Pending"
    PASSED = "Passed"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Windows:
    """Until how many seconds after the rollback the checks of each window are looked at."""

    immediate_seconds: float = 300.0
    short_seconds: float = 1800.0
    long_seconds: float = 7200.0


@dataclass(frozen=True, slots=True)
class Pass:
    """One decision with everything that went into it, after the deletion of its policy too."""

    policy: Policy
    before: State
    observation: Observation
    decision: Decision
    now: float
    """Seconds since the epoch, as given to ``decide``."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One entry of the timeline."""

    at: str
    what: str
    """A reason: one CamelCase word, the same as in Events."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the verification checklist."""

    name: str
    window: str
    """``Immediate``, ``Short`` or ``Long``."""
    result: Result = Result.PENDING
    observed: str = ""
    at: str = ""
    """When the result last changed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One question of the root-cause analysis; ``unknown`` where no data answers it."""

    question: str
    answer: str
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One text for people."""

    kind: str
    """``Notice``, ``Escalation`` or ``AllClear``."""
    at: str
    subject: str
    body: str
    delivered: tuple[str, ...] = ()
    """Names of the channels that took it."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The answer of one range query."""

    name: str
    query: str
    start: str
    end: str
    step_seconds: float = 0.0
    series: int = 0
    dropped: int = 0
    """Series left out to stay within the limit."""
    data: str = ""
    """``[[labels, [[seconds, value], …]], …]`` as gzip in base64."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Stages:
    """When what was reached; absent: not yet, or not known."""

    detected_at: str = ""
    decided_at: str = ""
    deadline_at: str = ""
    last_patch_at: str = ""
    last_ack_at: str = ""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The tape of the decisions (report/recording.py)."""

    count: int = 0
    dropped: int = 0
    tape: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that is kept of one rollback."""

    id: str
    policy: str
    policy_uid: str
    severity: Severity
    scope: Scope
    reason: str
    message: str
    target: Mode
    fallback: Mode
    phase_before: Phase
    since_before: str
    """Since when the policy had been in that phase."""
    workloads: tuple[str, ...] = ()
    """Names of the breached ones, at most WORKLOADS_LIMIT."""
    phase: IncidentPhase = IncidentPhase.ACTIVE
    stages: Stages = Stages()
    timeline: tuple[Moment, ...] = ()
    checklist: tuple[Check, ...] = ()
    questions: tuple[Answer, ...] = ()
    messages: tuple[Message, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    recordings: Recorded = Recorded()

    @property
    def decided_at(self) -> float:
        """Seconds since the epoch."""
        return parse_time(self.stages.decided_at) or 0.0

    @property
    def in_fallback_at(self) -> float | None:
        """When the last trainer reported the fallback; None: not yet."""
        return parse_time(self.stages.last_ack_at)

    @property
    def met_deadline(self) -> bool | None:
        """Whether all reported it in time; None: not all do yet."""
        deadline, reached = parse_time(self.stages.deadline_at), self.in_fallback_at
        return None if reached is None or deadline is None else reached <= deadline

    def said(self, kind: str) -> bool:
        """Whether a message of the kind was rendered already."""
        return any(message.kind == kind for message in self.messages)


def stamp(seconds: float) -> str:
    """RFC 3339 with milliseconds."""
    return format_time(seconds) or ""


def open_report(seen: Pass, incident: Incident) -> Report:
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
        since_before=stamp(before.phase_since) if before.phase_since is not None else "",
        workloads=(breached or incident.workloads)[:WORKLOADS_LIMIT],
        stages=Stages(decided_at=stamp(incident.decided_at)),
    )
    first = (
        Moment(stamp(incident.detected_at), "Detected", bounded(incident.message)),
        Moment(stamp(incident.decided_at), "Decided", f"{incident.severity} {incident.scope} {incident.reason}"),
    )
    return replace(report, timeline=first)


def carry_on(report: Report, seen: Pass) -> Report:
    """What a pass adds: stages reached, its notices and edges, the end of the incident."""
    state = seen.decision.state
    incident = state.incident
    if report.phase is IncidentPhase.CLOSED:
        return report
    if incident is None or incident.id != report.id:
        newer = incident.id if incident is not None else "a policy without an incident"
        return close(report, "Superseded", f"by {newer}", now=seen.now)
    moments = _acknowledged(report, seen)
    for action in seen.decision.actions:
        if isinstance(action, Notify):
            moments.append(Moment(stamp(seen.now), action.reason, bounded(action.message)))
    stages = Stages(
        detected_at=stamp(incident.detected_at),
        decided_at=stamp(incident.decided_at),
        deadline_at=stamp(incident.deadline_at),
        last_patch_at=format_time(incident.last_patch_at) or "",
        last_ack_at=format_time(incident.last_ack_at) or "",
    )
    moments += _reached(report, replace(report, stages=stages))
    report = replace(report, stages=stages, timeline=extended(report.timeline, moments))
    if report.phase is IncidentPhase.ACTIVE and report.in_fallback_at is not None:
        report = replace(report, phase=IncidentPhase.VERIFYING)
    if _released(seen):
        return close(report, Reason.POLICY_DELETED, "its policy was deleted: the rest is not verified", now=seen.now)
    left = state.phase in (Phase.PENDING, Phase.PROGRESSING, Phase.PAUSED, Phase.HEALTHY)
    if left and seen.before.phase is not state.phase:
        return close(report, state.reason, "the policy left the rollback: the rest is not verified", now=seen.now)
    return report


def _released(seen: Pass) -> bool:
    """The policy is gone, and nothing of the rollback is under way any more: what is held stays held, and is not watched."""
    ended = any(isinstance(action, DeleteAssignment) for action in seen.decision.actions)
    return seen.policy.deleted and (ended or seen.decision.state.fallback is None)


def _acknowledged(report: Report, seen: Pass) -> list[Moment]:
    """Prerequisites of a retry, with who acknowledged each and why: those of the next rollback overwrite the annotations."""
    known = {moment.message for moment in report.timeline if moment.what == "Acknowledged"}
    found: list[Moment] = []
    for item in Prerequisite:
        given = answered(seen.policy.annotations, item.annotation, seen.before.transition_id)
        if given is not None:
            text = bounded(f"{item} by {given.by or 'unknown'}" + (f": {given.message}" if given.message else ""))
            found += [] if text in known else [Moment(stamp(seen.now), "Acknowledged", text)]
    return found


def close(report: Report, what: str, message: str, *, now: float) -> Report:
    """No more is written; checks that have no result yet are Unknown."""
    checks = tuple(
        replace(check, result=Result.UNKNOWN, observed=f"not looked at: {what}", at=stamp(now))
        if check.result is Result.PENDING
        else check
        for check in report.checklist
    )
    timeline = extended(report.timeline, [Moment(stamp(now), what, message)])
    return replace(report, phase=IncidentPhase.CLOSED, checklist=checks, timeline=timeline)


def _reached(before: Report, after: Report) -> list[Moment]:
    moments: list[Moment] = []
    if after.stages.last_patch_at and not before.stages.last_patch_at:
        moments.append(
            Moment(after.stages.last_patch_at, "Requested", "every pod has been asked for it, or taken away")
        )
    if after.stages.last_ack_at and not before.stages.last_ack_at:
        held = "within" if after.met_deadline else "past"
        text = f"every trainer reports {after.fallback}, {held} the deadline {after.stages.deadline_at}"
        moments.append(Moment(after.stages.last_ack_at, "InFallback", text))
    return moments


def extended(timeline: tuple[Moment, ...], moments: Iterable[Moment]) -> tuple[Moment, ...]:
    """In the order of time, each once, the middle thinned."""
    found = list(dict.fromkeys((*timeline, *moments)))
    found.sort(key=lambda moment: moment.at)
    while len(found) > TIMELINE_LIMIT:
        del found[len(found) // 2]
    return tuple(found)

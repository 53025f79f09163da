"""The report of one rollback, as a value, and how each pass carries it on. Pure: what is done with it is the controller's.

A report is what stands in a PrecisionIncident under ``report``. Times are RFC 3339, for people read it with kubectl.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from precision_operator.api.commands import Prerequisite, answered
from precision_operator.api.fields import Field
from precision_operator.api.incident import Incident, Scope
from precision_operator.api.messages import MessageKind
from precision_operator.api.modes import Mode
from precision_operator.api.spec import Severity
from precision_operator.api.state import Phase
from precision_operator.api.text import bounded
from precision_operator.api.wire import format_time, parse_time
from precision_operator.api.workload import name_of
from precision_operator.core.actions import DeleteAssignment, Notify
from precision_operator.core.observer import RecordedPass
from precision_operator.incidents.cost import NO_COST, Cost, restarted
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


class Milestone(StrEnum):
    """What a timeline tells beside reasons: stages of the incident itself, which call for nobody."""

    DETECTED = "Detected"
    DECIDED = "Decided"
    REQUESTED = "Requested"
    IN_FALLBACK = "InFallback"
    ACKNOWLEDGED = "Acknowledged"
    """A prerequisite of a retry was."""
    VERIFIED = "Verified"
    VERIFICATION_FAILED = "VerificationFailed"
    SUPERSEDED = "Superseded"
    """The policy has a newer incident."""


class IncidentKind(StrEnum):
    """What the report is about."""

    INCIDENT = "Incident"
    """Something called for a rollback, or for a mitigation."""
    DRILL = "Drill"
    """A rollback was rehearsed: nothing was wrong."""


class CheckResult(StrEnum):
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


OF_INCIDENTS = tuple(
    kind.value
    for kind in (MessageKind.NOTICE, MessageKind.ESCALATION, MessageKind.ALL_CLEAR, MessageKind.VERIFICATION_FAILED)
)
"""Kinds of messages that stand in an incident."""
AT = Field("When.", format="date-time")
NAME = Field(longest=253)


@dataclass(frozen=True, slots=True)
class Moment:
    """One entry of the timeline."""

    at: Annotated[str, AT]
    what: Annotated[str, Field("Stable word.", longest=128)]
    """A reason, the same word as in Events, or a milestone."""
    message: Annotated[str, Field("In words.", longest=4096)] = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the verification checklist."""

    name: Annotated[str, Field("What is checked.", longest=256)]
    window: Annotated[str, Field("When it is looked at.", only=("Immediate", "Short", "Long"))]
    result: Annotated[CheckResult, Field("Absent while pending. Absent data is Unknown.")] = CheckResult.PENDING
    observed: Annotated[str, Field("What was seen.", longest=4096)] = ""
    at: Annotated[str, Field("When the result last changed.", format="date-time")] = ""


@dataclass(frozen=True, slots=True)
class ReviewAnswer:
    """One question of the root-cause analysis; ``unknown`` where no data answers it."""

    question: Annotated[str, Field("The question.", longest=256)]
    answer: Annotated[str, Field("The answer.", longest=4096)]
    evidence: Annotated[str, Field("What it rests on.", longest=8192)] = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One text for people."""

    kind: Annotated[str, Field("Which of them.", only=OF_INCIDENTS)]
    at: Annotated[str, Field("When it was written.", format="date-time")]
    subject: Annotated[str, Field("Subject.", longest=512)]
    body: Annotated[str, Field("Body.", longest=16384)]
    delivered: Annotated[
        tuple[str, ...], Field("Names of the admin's channels that took it.", longest=32, items=Field(longest=63))
    ] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """The answer of one range query."""

    name: Annotated[str, Field("Signal.", longest=64, pattern="^[A-Za-z0-9_]+$")]
    query: Annotated[str, Field("PromQL.", longest=8192)]
    start: Annotated[str, Field("First point.", format="date-time")]
    end: Annotated[str, Field("Last point.", format="date-time")]
    step_seconds: Annotated[float, Field("Seconds between two points.")] = 0.0
    series: Annotated[int, Field("Series kept.")] = 0
    dropped: Annotated[int, Field("Series left out.")] = 0
    data: Annotated[str, Field("Series as JSON, gzip, base64.", longest=262144)] = ""
    """``[[labels, [[seconds, value], …]], …]``."""
    error: Annotated[str, Field("Why there is none.", longest=512)] = ""


@dataclass(frozen=True, slots=True)
class Stages:
    """When what was reached; absent: not yet, or not known."""

    detected_at: Annotated[str, Field("The breach was first read.", format="date-time")] = ""
    decided_at: Annotated[str, Field("The rollback was decided.", format="date-time")] = ""
    deadline_at: Annotated[str, Field("By when all had to be in the fallback.", format="date-time")] = ""
    last_patch_at: Annotated[str, Field("The last pod was requested, or deleted.", format="date-time")] = ""
    last_ack_at: Annotated[str, Field("The last process reported the fallback.", format="date-time")] = ""
    left_at: Annotated[str, Field("The policy left the rollback: it was retried.", format="date-time")] = ""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The tape of the decisions (replay/recording.py)."""

    count: Annotated[int, Field("Passes kept.")] = 0
    dropped: Annotated[int, Field("Passes left out of the middle.")] = 0
    tape: Annotated[str, Field("The tape (gzip, base64).", longest=786432)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that is kept of one rollback."""

    id: Annotated[
        str,
        Field("The policy's name and the transition that began the rollback.", required=True, longest=300),
    ]
    policy: Annotated[str, Field("Name of the policy.", required=True, longest=253)]
    policy_uid: Annotated[str, Field("Its uid.", required=True, longest=64)]
    severity: Annotated[
        Severity | None,
        Field("How urgent it was; absent of a drill.", only=(Severity.P0, Severity.P1, Severity.P2)),
    ] = None
    scope: Annotated[Scope, Field("How far it reached.", required=True)]
    reason: Annotated[str, Field("Stable word for what called for it.", required=True, longest=128)]
    message: Annotated[str, Field("The same in words.", longest=4096)]
    target: Annotated[Mode, Field("Mode that the fleet was to train in.")]
    fallback: Annotated[Mode, Field("Mode that it went back to.", only=(Mode.FP32, Mode.BF16))]
    phase_before: Annotated[Phase, Field("Phase of the policy when it was decided.")]
    since_before: Annotated[str, Field("Since when the policy had been in it; absent where unknown.", longest=40)]
    kind: Annotated[
        IncidentKind, Field("Incident: something called for it. Drill: a rollback was rehearsed, nothing was wrong.")
    ] = IncidentKind.INCIDENT
    workloads: Annotated[
        tuple[str, ...], Field("The breached workloads, at most 100.", longest=WORKLOADS_LIMIT, items=NAME)
    ] = ()
    phase: Annotated[
        IncidentPhase,
        Field(
            "Active: not every trainer reports the fallback. Verifying: the checklist is worked through. Closed: nothing "
            "more is written.",
            required=True,
        ),
    ] = IncidentPhase.ACTIVE
    stages: Annotated[Stages, Field("When what was reached; absent where it was not, or is not known.")] = Stages()
    cost: Annotated[Cost, Field("What it has cost in steps and hours; what was not measured is absent.")] = NO_COST
    timeline: Annotated[
        tuple[Moment, ...],
        Field("What happened, in the order of time; at most 100 entries, the middle thinned.", longest=TIMELINE_LIMIT),
    ] = ()
    checklist: Annotated[
        tuple[Check, ...], Field("The verification, in three windows after all were in the fallback.", longest=32)
    ] = ()
    questions: Annotated[
        tuple[ReviewAnswer, ...],
        Field("The questions of the root-cause analysis; `unknown` where no data answers.", longest=16),
    ] = ()
    messages: Annotated[
        tuple[Message, ...], Field("Texts for people, as they were or would have been sent.", longest=16)
    ] = ()
    evidence: Annotated[tuple[Evidence, ...], Field("Metrics around the breach.", longest=32)] = ()
    recordings: Annotated[
        Recorded, Field("The decisions with their inputs; `kubectl precision replay` decides them again.")
    ] = Recorded()

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
        since_before=stamp(before.phase_since) if before.phase_since is not None else "",
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
        newer = incident.id if incident is not None else "a policy without an incident"
        return close(report, Milestone.SUPERSEDED, f"by {newer}", now=seen.now)
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
        left_at=stamp(seen.now) if retried(seen) else "",
    )
    moments += _reached(report, replace(report, stages=stages))
    timeline = extended(report.timeline, moments)
    report = replace(report, stages=stages, timeline=timeline, cost=restarted(report.cost, seen))
    if report.phase is IncidentPhase.ACTIVE and report.in_fallback_at is not None:
        report = replace(report, phase=IncidentPhase.VERIFYING)
    if _released(seen):
        return close(report, Reason.POLICY_DELETED, "its policy was deleted: the rest is not verified", now=seen.now)
    if _left(seen):
        return close(report, state.reason, "the policy left the rollback: the rest is not verified", now=seen.now)
    return report


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

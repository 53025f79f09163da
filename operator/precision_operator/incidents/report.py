"""The report of one rollback, as a value.

A report is what stands in a PrecisionIncident under ``report``. Times are RFC 3339, for people read it with kubectl.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from precision_operator.api.fields import Field
from precision_operator.api.incident import Scope
from precision_operator.api.messages import MessageKind
from precision_operator.api.modes import Mode
from precision_operator.api.spec import Severity, Strategy
from precision_operator.api.state import Phase
from precision_operator.api.wire import format_time, parse_time
from precision_operator.incidents.cost import NO_COST, Cost

TIMELINE_LIMIT = 100
"""Entries of a timeline; the ones in the middle go first."""

WORKLOADS_LIMIT = 100
"""Names of workloads that a report lists."""

DATA_CHARACTERS = 262144
"""Of one answer of a range query, packed."""


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
    severity: Annotated[
        Severity | None,
        Field("Of a notice: the severity that it told of.", only=(Severity.P0, Severity.P1, Severity.P2)),
    ] = None
    strategy: Annotated[Strategy | None, Field("Of a notice: the strategy that it told of.")] = None


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
    data: Annotated[str, Field("Series as JSON, gzip, base64.", longest=DATA_CHARACTERS)] = ""
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
        Field("How urgent it was, at its gravest; absent of a drill.", only=(Severity.P0, Severity.P1, Severity.P2)),
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


def stamp(seconds: float | None) -> str:
    """RFC 3339 with milliseconds; empty where there is no time."""
    return format_time(seconds) or ""

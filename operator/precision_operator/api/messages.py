"""Messages for people: every kind once, with what it is about, and the memory of what was told."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Self

from precision_operator.api.fields import Field, Time


class Tone(StrEnum):
    """How a message sounds; the words are Apprise's."""

    FAILURE = "failure"
    WARNING = "warning"
    INFO = "info"
    SUCCESS = "success"


class MessageKind(StrEnum):
    """One row a kind: its word, tone, meaning, the command that its message ends with, and its section of the runbooks."""

    tone: Tone
    meaning: str
    command: str
    """After ``kubectl precision``; {name}, {namespace} and {incident} are filled in."""
    runbook: str
    escalates: bool
    """Whether it goes to the next role too, where it stands for long."""

    def __new__(
        cls, word: str, tone: Tone, meaning: str, command: str, runbook: str = "", escalates: bool = False
    ) -> Self:
        member = str.__new__(cls, word)
        member._value_ = word
        member.tone, member.meaning, member.command = tone, meaning, command
        member.runbook, member.escalates = runbook or word.lower(), escalates
        return member

    @classmethod
    def known(cls, word: str) -> "MessageKind | None":
        """The kind with this word; None: another version of the operator wrote it."""
        return cls._value2member_map_.get(word)  # type: ignore[return-value]

    # Of an incident, kept in it.
    NOTICE = (
        "Notice",
        Tone.FAILURE,
        "a rollback was decided, or has become graver or more urgent",
        "incident show -n {namespace} {incident}",
    )
    ESCALATION = (
        "Escalation",
        Tone.WARNING,
        "a rollback, or what calls for a person, has not come to its end in time",
        "explain -n {namespace} {name}",
    )
    ALL_CLEAR = (
        "AllClear",
        Tone.SUCCESS,
        "all trainers are in the fallback, and no check has failed",
        "incident show -n {namespace} {incident}",
    )
    VERIFICATION_FAILED = (
        "VerificationFailed",
        Tone.FAILURE,
        "a check of a rollback has failed when its window ended",
        "incident show -n {namespace} {incident}",
    )

    # Of a policy, remembered in its assignment.
    ROLLBACK_WAITING = (
        "RollbackWaiting",
        Tone.WARNING,
        "a rollback under way waits for something that others must give",
        "explain -n {namespace} {name}",
    )
    DEADLINE_AT_RISK = (
        "DeadlineAtRisk",
        Tone.FAILURE,
        "a rollback is predicted to end after its deadline",
        "status -n {namespace} {name}",
        "rollbackdeadlineunreachable",
    )
    DEADLINE_MISSED = (
        "DeadlineMissed",
        Tone.FAILURE,
        "the deadline of a rollback has passed, and not every trainer reports the fallback",
        "status -n {namespace} {name}",
        "rollbackdeadlineexceeded",
    )
    UNRESPONSIVE = (
        "Unresponsive",
        Tone.WARNING,
        "trainers did not acknowledge a rollback in time, and are restarted",
        "get -n {namespace} {name}",
    )
    WORKLOAD_BLOCKED = (
        "WorkloadBlocked",
        Tone.FAILURE,
        "pods do not go, or came back in another mode than the assigned one, and the operator cannot help it",
        "get -n {namespace} {name}",
        "",
        True,
    )
    WEIGHTS_SUSPECT = (
        "WeightsSuspect",
        Tone.FAILURE,
        "weights may be poisoned, and no rewind was acknowledged",
        "explain -n {namespace} {name}",
        "",
        True,
    )
    CAUSE_NOT_PRECISION = (
        "CauseNotPrecision",
        Tone.FAILURE,
        "workloads are in breach, and workloads in FP32 too: nothing is rolled back, because it would not help",
        "explain -n {namespace} {name}",
    )
    ROLLBACK_CANARY_HELD = (
        "RollbackCanaryHeld",
        Tone.WARNING,
        "the rollback canary was compared, and a person decides what becomes of the rest",
        "promote -n {namespace} {name}",
    )
    APPROVAL_WANTED = (
        "ApprovalWanted",
        Tone.INFO,
        "the evidence of a step is good; a person approves the next one",
        "promote -n {namespace} {name}",
    )
    ROLLOUT_HELD = (
        "RolloutHeld",
        Tone.WARNING,
        "a promotion check has not passed for long, or will not pass without a person",
        "explain -n {namespace} {name}",
    )
    INVESTIGATION_BEGUN = (
        "InvestigationBegun",
        Tone.WARNING,
        "a mild breach is mitigated, or may be investigated, before it is rolled back",
        "status -n {namespace} {name}",
    )
    INVESTIGATION_OVER = (
        "InvestigationOver",
        Tone.SUCCESS,
        "the signal became good again within its window: nothing is rolled back for it",
        "status -n {namespace} {name}",
        "investigationbegun",
    )
    METRICS_MISSING = (
        "MetricsMissing",
        Tone.WARNING,
        "metrics have been missing for long: no breach of those workloads is seen, and nothing is promoted",
        "explain -n {namespace} {name}",
        "workloadswithoutdata",
    )
    ATTENTION = (
        "Attention",
        Tone.WARNING,
        "a condition has been bad news for long",
        "explain -n {namespace} {name}",
    )
    ACKNOWLEDGEMENTS_WANTED = (
        "AcknowledgementsWanted",
        Tone.INFO,
        "the rollback is over; a retry needs its prerequisites acknowledged",
        "ack -n {namespace} {name}",
        "heldtoolong",
    )
    RETRY_POSSIBLE = (
        "RetryPossible",
        Tone.INFO,
        "the rollback is over, and a person may retry",
        "retry -n {namespace} {name}",
        "heldtoolong",
    )
    RELEASE_POSSIBLE = (
        "ReleasePossible",
        Tone.INFO,
        "the policy was deleted, and what its rollback put into the fallback stays there until a person releases it",
        "release -n {namespace} {name}",
        "heldtoolong",
    )
    DRILL_FAILED = (
        "DrillFailed",
        Tone.FAILURE,
        "a rehearsed rollback did not reach all its workloads in time, so a real one would not either",
        "get -n {namespace} {name}",
        "drill",
    )
    DRILL_PROPOSED = (
        "DrillProposed",
        Tone.INFO,
        "the fleet has been healthy for a week, and no drill has passed yet, since its last rollback, or for a quarter",
        "doctor -n {namespace}",
        "drill",
    )


@dataclass(frozen=True, slots=True)
class Notified:
    """One message that people got about a policy, so that no leader sends it again."""

    topic: Annotated[str, Field(longest=80)]
    """The kind, and where several of one may stand, which: ``Attention/FailSafe``."""
    occasion: Annotated[str, Field(longest=64)]
    """Which time it was: another occasion is another message."""
    at: Annotated[float, Time(absent=0.0)]
    """When it was written first."""
    level: Annotated[int, Field()] = 0
    """How often it was escalated since."""

"""Every reason: the one word of a condition, an Event, a metric label and a log line, with all that follows from it.

It stands below every package, because errors and the API types name reasons too. A row stands in the
module of its topic: word, severity, meaning, next steps.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from precision_operator.reasons import admission, commands, evidence, fleet, process, promotion, restarts, rollback
from precision_operator.reasons.row import LOOK_AT_PODS, ReasonSeverity

__all__ = ["LOOK_AT_PODS", "Cause", "Reason", "ReasonSeverity"]


class Reason(StrEnum):
    """One row a reason."""

    severity: ReasonSeverity
    meaning: str
    steps: tuple[str, ...]
    """What to do; ``{name}`` is the policy. ``!`` stands before a verb of ours, or before kubectl. None: only wait."""

    def __new__(cls, word: str, severity: ReasonSeverity, meaning: str, *steps: str) -> Self:
        member = str.__new__(cls, word)
        member._value_ = word
        member.severity, member.meaning, member.steps = severity, meaning, steps
        return member

    @property
    def warns(self) -> bool:
        """Whether an Event of it is a Warning."""
        return self.severity in (ReasonSeverity.ATTENTION, ReasonSeverity.STUCK)

    @property
    def stuck(self) -> bool:
        """Whether what is waited for does not come nearer by itself."""
        return self.severity is ReasonSeverity.STUCK

    def command(self, verb: str, *, name: str, namespace: str, missing: str = "") -> str:
        """The fullest command with this verb of ours that the steps name, as it can be pasted.

        ``missing``: what must be acknowledged.

        Raises:
            LookupError: no step names one.
        """
        named = [part.partition("`")[0] for step in self.steps for part in step.split("`!")[1:]]
        found = max((words for words in named if words.split()[0] == verb), key=len, default=None)
        if found is None:
            raise LookupError(f"{self}: expected a step with `!{verb} …`, found {named}; add one to its row")
        return f"kubectl precision {found.replace('{name}', name).replace('{missing}', missing)} -n {namespace}"

    @classmethod
    def known(cls, word: str) -> "Reason | None":
        """The reason with this word, as a status or an object has it; None: another version of the operator wrote it."""
        return cls._value2member_map_.get(word)  # type: ignore[return-value]

    SUSPENDED = commands.SUSPENDED
    HALTED = commands.HALTED
    OBSERVING = commands.OBSERVING
    WOULD_ACT = commands.WOULD_ACT
    ROLLBACK_REQUESTED = commands.ROLLBACK_REQUESTED
    AWAITING_PREREQUISITES = commands.AWAITING_PREREQUISITES
    BACKING_OFF = commands.BACKING_OFF
    AWAITING_RETRY = commands.AWAITING_RETRY
    RETRIED = commands.RETRIED
    TARGET_CHANGED = commands.TARGET_CHANGED
    ROLLBACK_EXPEDITED = commands.ROLLBACK_EXPEDITED
    PENDING = commands.PENDING
    NOT_ACKNOWLEDGED = commands.NOT_ACKNOWLEDGED
    NOTHING_TO_RETRY = commands.NOTHING_TO_RETRY
    NOT_AWAITING_APPROVAL = commands.NOT_AWAITING_APPROVAL
    DRILLING = commands.DRILLING
    DRILL_PASSED = commands.DRILL_PASSED
    DRILL_FAILED = commands.DRILL_FAILED
    DRILL_PREEMPTED = commands.DRILL_PREEMPTED
    DRILL_REFUSED = commands.DRILL_REFUSED
    REFUSED = commands.REFUSED

    OUTSIDE_SCHEDULE = promotion.OUTSIDE_SCHEDULE
    UNKNOWN_TIME_ZONE = promotion.UNKNOWN_TIME_ZONE
    PROMOTION_CAP = promotion.PROMOTION_CAP
    AWAITING_APPROVAL = promotion.AWAITING_APPROVAL
    SOAKING = promotion.SOAKING
    AWAITING_EVALUATION = promotion.AWAITING_EVALUATION
    AWAITING_ACKNOWLEDGEMENT = promotion.AWAITING_ACKNOWLEDGEMENT
    PROGRESS_DEADLINE_EXCEEDED = promotion.PROGRESS_DEADLINE_EXCEEDED
    EVIDENCE_INSUFFICIENT = promotion.EVIDENCE_INSUFFICIENT
    CANARY_REGRESSED = promotion.CANARY_REGRESSED
    PREFLIGHT_FAILED = promotion.PREFLIGHT_FAILED
    NO_STAGING_NODES = promotion.NO_STAGING_NODES
    PODS_INDIVISIBLE = promotion.PODS_INDIVISIBLE
    PROCESS_GROUP_UNKNOWN = promotion.PROCESS_GROUP_UNKNOWN
    SPEEDUP_LOW = promotion.SPEEDUP_LOW
    MEMORY_TOO_SMALL = promotion.MEMORY_TOO_SMALL
    NOT_REPORTED = promotion.NOT_REPORTED
    PREFLIGHT_PASSED = promotion.PREFLIGHT_PASSED
    ROLLOUT_STARTED = promotion.ROLLOUT_STARTED
    STEP_PROMOTED = promotion.STEP_PROMOTED
    PROMOTED = promotion.PROMOTED
    COHORT_IN_BF16 = promotion.COHORT_IN_BF16
    COHORT_NOT_RUNNING = promotion.COHORT_NOT_RUNNING

    NO_SAMPLES = evidence.NO_SAMPLES
    SAMPLES_TOO_OLD = evidence.SAMPLES_TOO_OLD
    TOO_FEW_STEPS = evidence.TOO_FEW_STEPS
    NO_PODS = evidence.NO_PODS
    NO_DATA = evidence.NO_DATA
    METRICS_UNAVAILABLE = evidence.METRICS_UNAVAILABLE
    ENDPOINT_NOT_ANSWERING = evidence.ENDPOINT_NOT_ANSWERING
    EVALUATION_TIMEOUT = evidence.EVALUATION_TIMEOUT
    EVALUATION_LATE = evidence.EVALUATION_LATE
    QUERY_INVALID = evidence.QUERY_INVALID
    UNKNOWN_ENDPOINT = evidence.UNKNOWN_ENDPOINT
    RAW_QUERY_NOT_ALLOWED = evidence.RAW_QUERY_NOT_ALLOWED
    UNKNOWN_QUERY = evidence.UNKNOWN_QUERY
    NOT_A_NUMBER = evidence.NOT_A_NUMBER
    DUPLICATE_SERIES = evidence.DUPLICATE_SERIES
    METRICS_AVAILABLE = evidence.METRICS_AVAILABLE
    SIGNAL_ERROR = evidence.SIGNAL_ERROR
    NOT_OBSERVED = evidence.NOT_OBSERVED
    NOT_JUDGED = evidence.NOT_JUDGED
    MISSING_POD_LABEL = evidence.MISSING_POD_LABEL

    DEADLINE_EXCEEDED = rollback.DEADLINE_EXCEEDED
    CAUSE_NOT_PRECISION = rollback.CAUSE_NOT_PRECISION
    WINDOW_NOT_CLEAR = rollback.WINDOW_NOT_CLEAR
    OVERFLOW_RATE_HIGH = rollback.OVERFLOW_RATE_HIGH
    LOSS_DIVERGED = rollback.LOSS_DIVERGED
    LOSS_NOT_FINITE = rollback.LOSS_NOT_FINITE
    MITIGATING = rollback.MITIGATING
    INVESTIGATING = rollback.INVESTIGATING
    MITIGATION_EXHAUSTED = rollback.MITIGATION_EXHAUSTED
    MITIGATED = rollback.MITIGATED
    MITIGATION_FAILED = rollback.MITIGATION_FAILED
    COMPARING_CANARY = rollback.COMPARING_CANARY
    CANARY_UNKNOWN = rollback.CANARY_UNKNOWN
    CANARY_GONE = rollback.CANARY_GONE
    NOTHING_TO_COMPARE = rollback.NOTHING_TO_COMPARE
    CANARY_PROMOTED = rollback.CANARY_PROMOTED
    CANARY_NO_DIFFERENCE = rollback.CANARY_NO_DIFFERENCE
    CANARY_WORSE = rollback.CANARY_WORSE
    CANARY_INCONCLUSIVE = rollback.CANARY_INCONCLUSIVE
    TRAINING_FAILING = rollback.TRAINING_FAILING
    TRAINING_SLOW = rollback.TRAINING_SLOW
    LOSS_DIVERGING = rollback.LOSS_DIVERGING
    MEMORY_RATIO_HIGH = rollback.MEMORY_RATIO_HIGH
    ABORTED = rollback.ABORTED
    ROLLED_BACK = rollback.ROLLED_BACK
    NOTHING_SUSPECT = rollback.NOTHING_SUSPECT
    ROLLBACK_ESCALATED = rollback.ROLLBACK_ESCALATED
    INVESTIGATION_CHECKS = rollback.INVESTIGATION_CHECKS

    BLOCKED = restarts.BLOCKED
    NODE_UNREACHABLE = restarts.NODE_UNREACHABLE
    FOREIGN_FINALIZER = restarts.FOREIGN_FINALIZER
    NOT_TERMINATED = restarts.NOT_TERMINATED
    TEMPLATE_CHANGED = restarts.TEMPLATE_CHANGED
    REPLACEMENT_PENDING = restarts.REPLACEMENT_PENDING
    DISRUPTION_BUDGET = restarts.DISRUPTION_BUDGET
    DEADLINE_UNREACHABLE = restarts.DEADLINE_UNREACHABLE
    ALL_CAN_BE_RESTARTED = restarts.ALL_CAN_BE_RESTARTED
    HOT_ONLY = restarts.HOT_ONLY
    NOTHING_STUCK = restarts.NOTHING_STUCK
    NOTHING_BLOCKED = restarts.NOTHING_BLOCKED

    NOT_CHECKED = admission.NOT_CHECKED
    NOT_ENFORCING = admission.NOT_ENFORCING
    ADMISSION_NOT_INSTALLED = admission.ADMISSION_NOT_INSTALLED
    ADMISSION_DIFFERS = admission.ADMISSION_DIFFERS
    ADMISSION_NOT_CONFIRMED = admission.ADMISSION_NOT_CONFIRMED
    ADMISSION_BEHIND = admission.ADMISSION_BEHIND
    WEBHOOK_UNREACHABLE = admission.WEBHOOK_UNREACHABLE
    UNFENCED = admission.UNFENCED
    TEMPLATE_STARTS_MIXED = admission.TEMPLATE_STARTS_MIXED
    NOT_REWOUND = admission.NOT_REWOUND
    PODS_IN_WRONG_MODE = admission.PODS_IN_WRONG_MODE
    FORBIDDEN = admission.FORBIDDEN
    LABELS_DISAGREE = admission.LABELS_DISAGREE
    UNSUPPORTED_KIND = admission.UNSUPPORTED_KIND
    CONTAINER_ABSENT = admission.CONTAINER_ABSENT
    STATIC_POD = admission.STATIC_POD
    WINDOWS = admission.WINDOWS
    HOST_NETWORK = admission.HOST_NETWORK
    TOO_LARGE = admission.TOO_LARGE
    REQUEST_FILE_ELSEWHERE = admission.REQUEST_FILE_ELSEWHERE
    MOUNT_PATH_TAKEN = admission.MOUNT_PATH_TAKEN
    VOLUME_NAME_TAKEN = admission.VOLUME_NAME_TAKEN
    PORT_TAKEN = admission.PORT_TAKEN
    PORT_NAME_TAKEN = admission.PORT_NAME_TAKEN
    ENFORCING = admission.ENFORCING
    TEMPLATES_START_IN_FP32 = admission.TEMPLATES_START_IN_FP32
    TEMPLATE_READS_REFERENCE = admission.TEMPLATE_READS_REFERENCE
    CERTIFICATE_INVALID = admission.CERTIFICATE_INVALID
    CERTIFICATES_ROTATED = admission.CERTIFICATES_ROTATED
    FENCED = admission.FENCED
    ADMISSION_MODE_CHOSEN = admission.ADMISSION_MODE_CHOSEN
    REVIEW_FAILED = admission.REVIEW_FAILED

    NO_WORKLOADS = fleet.NO_WORKLOADS
    UNDELIVERABLE = fleet.UNDELIVERABLE
    POLICY_CONFLICT = fleet.POLICY_CONFLICT
    FLEET_TOO_LARGE = fleet.FLEET_TOO_LARGE
    SELECTOR_PENDING = fleet.SELECTOR_PENDING
    STATE_LOST = fleet.STATE_LOST
    POLICY_DELETED = fleet.POLICY_DELETED
    POLICY_RECREATED = fleet.POLICY_RECREATED
    ACCEPTED = fleet.ACCEPTED
    WRITES_ACCEPTED = fleet.WRITES_ACCEPTED
    KINDS_SUPPORTED = fleet.KINDS_SUPPORTED
    NOTHING_PENDING = fleet.NOTHING_PENDING
    NOTHING_LOST = fleet.NOTHING_LOST
    NOTHING_REFUSED = fleet.NOTHING_REFUSED
    NOTHING_TO_TELL = fleet.NOTHING_TO_TELL
    POLICY_GONE = fleet.POLICY_GONE

    OPERATOR_ERROR = process.OPERATOR_ERROR
    CONFIGURATION_INVALID = process.CONFIGURATION_INVALID
    KUBERNETES_API_ERROR = process.KUBERNETES_API_ERROR
    NOT_FOUND = process.NOT_FOUND
    CONFLICT = process.CONFLICT
    LEASE_LOST = process.LEASE_LOST
    HISTORY_REWOUND = process.HISTORY_REWOUND
    PRECONDITION_FAILED = process.PRECONDITION_FAILED
    TOO_MANY_REQUESTS = process.TOO_MANY_REQUESTS
    UNAVAILABLE = process.UNAVAILABLE
    NEWER_VERSION = process.NEWER_VERSION
    INTERNAL_ERROR = process.INTERNAL_ERROR
    RECORDING_INVALID = process.RECORDING_INVALID
    FIGURES_MISSING = process.FIGURES_MISSING
    NOT_DELIVERED = process.NOT_DELIVERED
    TEMPLATE_INVALID = process.TEMPLATE_INVALID
    WATCH_LOST = process.WATCH_LOST
    LEASE_ACQUIRED = process.LEASE_ACQUIRED
    LEADING = process.LEADING
    NOT_LEADING = process.NOT_LEADING
    LEASE_NOT_RELEASED = process.LEASE_NOT_RELEASED
    RECEIVER_OFF = process.RECEIVER_OFF
    RECEIVER_MISCONFIGURED = process.RECEIVER_MISCONFIGURED
    ACCEPT_FAILED = process.ACCEPT_FAILED
    ALERT_FAILED = process.ALERT_FAILED


@dataclass(frozen=True, slots=True, order=True)
class Cause:
    """Why something is as it is: a reason, and what it is about in this case."""

    reason: Reason
    message: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"

"""Every reason: the one word of a condition, an Event, a metric label and a log line, with all that follows from it.

It stands below every package, because errors and the API types name reasons too. The words stand here. A row stands in the
module of its topic: severity, meaning, next steps.
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

    SUSPENDED = "Suspended", *commands.SUSPENDED
    HALTED = "Halted", *commands.HALTED
    OBSERVING = "Observing", *commands.OBSERVING
    WOULD_ACT = "WouldAct", *commands.WOULD_ACT
    ROLLBACK_REQUESTED = "RollbackRequested", *commands.ROLLBACK_REQUESTED
    AWAITING_PREREQUISITES = "AwaitingPrerequisites", *commands.AWAITING_PREREQUISITES
    BACKING_OFF = "BackingOff", *commands.BACKING_OFF
    AWAITING_RETRY = "AwaitingRetry", *commands.AWAITING_RETRY
    RETRIED = "Retried", *commands.RETRIED
    TARGET_CHANGED = "TargetChanged", *commands.TARGET_CHANGED
    ROLLBACK_EXPEDITED = "RollbackExpedited", *commands.ROLLBACK_EXPEDITED
    PENDING = "Pending", *commands.PENDING
    NOT_ACKNOWLEDGED = "NotAcknowledged", *commands.NOT_ACKNOWLEDGED
    NOTHING_TO_RETRY = "NothingToRetry", *commands.NOTHING_TO_RETRY
    NOT_AWAITING_APPROVAL = "NotAwaitingApproval", *commands.NOT_AWAITING_APPROVAL
    DRILLING = "Drilling", *commands.DRILLING
    DRILL_PASSED = "DrillPassed", *commands.DRILL_PASSED
    DRILL_FAILED = "DrillFailed", *commands.DRILL_FAILED
    DRILL_PREEMPTED = "DrillPreempted", *commands.DRILL_PREEMPTED
    DRILL_REFUSED = "DrillRefused", *commands.DRILL_REFUSED
    REFUSED = "Refused", *commands.REFUSED

    OUTSIDE_SCHEDULE = "OutsideSchedule", *promotion.OUTSIDE_SCHEDULE
    UNKNOWN_TIME_ZONE = "UnknownTimeZone", *promotion.UNKNOWN_TIME_ZONE
    PROMOTION_CAP = "PromotionCap", *promotion.PROMOTION_CAP
    AWAITING_APPROVAL = "AwaitingApproval", *promotion.AWAITING_APPROVAL
    SOAKING = "Soaking", *promotion.SOAKING
    AWAITING_EVALUATION = "AwaitingEvaluation", *promotion.AWAITING_EVALUATION
    AWAITING_ACKNOWLEDGEMENT = "AwaitingAcknowledgement", *promotion.AWAITING_ACKNOWLEDGEMENT
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded", *promotion.PROGRESS_DEADLINE_EXCEEDED
    EVIDENCE_INSUFFICIENT = "EvidenceInsufficient", *promotion.EVIDENCE_INSUFFICIENT
    CANARY_REGRESSED = "CanaryRegressed", *promotion.CANARY_REGRESSED
    PREFLIGHT_FAILED = "PreflightFailed", *promotion.PREFLIGHT_FAILED
    NO_STAGING_NODES = "NoStagingNodes", *promotion.NO_STAGING_NODES
    PODS_INDIVISIBLE = "PodsIndivisible", *promotion.PODS_INDIVISIBLE
    PROCESS_GROUP_UNKNOWN = "ProcessGroupUnknown", *promotion.PROCESS_GROUP_UNKNOWN
    SPEEDUP_LOW = "SpeedupLow", *promotion.SPEEDUP_LOW
    MEMORY_TOO_SMALL = "MemoryTooSmall", *promotion.MEMORY_TOO_SMALL
    NOT_REPORTED = "NotReported", *promotion.NOT_REPORTED
    PREFLIGHT_PASSED = "PreflightPassed", *promotion.PREFLIGHT_PASSED
    ROLLOUT_STARTED = "RolloutStarted", *promotion.ROLLOUT_STARTED
    STEP_PROMOTED = "StepPromoted", *promotion.STEP_PROMOTED
    PROMOTED = "Promoted", *promotion.PROMOTED
    COHORT_IN_BF16 = "CohortInBF16", *promotion.COHORT_IN_BF16
    COHORT_NOT_RUNNING = "CohortNotRunning", *promotion.COHORT_NOT_RUNNING

    NO_SAMPLES = "NoSamples", *evidence.NO_SAMPLES
    SAMPLES_TOO_OLD = "SamplesTooOld", *evidence.SAMPLES_TOO_OLD
    TOO_FEW_STEPS = "TooFewSteps", *evidence.TOO_FEW_STEPS
    NO_PODS = "NoPods", *evidence.NO_PODS
    NO_DATA = "NoData", *evidence.NO_DATA
    METRICS_UNAVAILABLE = "MetricsUnavailable", *evidence.METRICS_UNAVAILABLE
    ENDPOINT_NOT_ANSWERING = "EndpointNotAnswering", *evidence.ENDPOINT_NOT_ANSWERING
    EVALUATION_TIMEOUT = "EvaluationTimeout", *evidence.EVALUATION_TIMEOUT
    EVALUATION_LATE = "EvaluationLate", *evidence.EVALUATION_LATE
    QUERY_INVALID = "QueryInvalid", *evidence.QUERY_INVALID
    UNKNOWN_ENDPOINT = "UnknownEndpoint", *evidence.UNKNOWN_ENDPOINT
    RAW_QUERY_NOT_ALLOWED = "RawQueryNotAllowed", *evidence.RAW_QUERY_NOT_ALLOWED
    UNKNOWN_QUERY = "UnknownQuery", *evidence.UNKNOWN_QUERY
    NOT_A_NUMBER = "NotANumber", *evidence.NOT_A_NUMBER
    DUPLICATE_SERIES = "DuplicateSeries", *evidence.DUPLICATE_SERIES
    METRICS_AVAILABLE = "MetricsAvailable", *evidence.METRICS_AVAILABLE
    SIGNAL_ERROR = "SignalError", *evidence.SIGNAL_ERROR
    NOT_OBSERVED = "NotObserved", *evidence.NOT_OBSERVED
    NOT_JUDGED = "NotJudged", *evidence.NOT_JUDGED
    MISSING_POD_LABEL = "MissingPodLabel", *evidence.MISSING_POD_LABEL

    DEADLINE_EXCEEDED = "DeadlineExceeded", *rollback.DEADLINE_EXCEEDED
    CAUSE_NOT_PRECISION = "CauseNotPrecision", *rollback.CAUSE_NOT_PRECISION
    WINDOW_NOT_CLEAR = "WindowNotClear", *rollback.WINDOW_NOT_CLEAR
    OVERFLOW_RATE_HIGH = "OverflowRateHigh", *rollback.OVERFLOW_RATE_HIGH
    LOSS_DIVERGED = "LossDiverged", *rollback.LOSS_DIVERGED
    LOSS_NOT_FINITE = "LossNotFinite", *rollback.LOSS_NOT_FINITE
    MITIGATING = "Mitigating", *rollback.MITIGATING
    INVESTIGATING = "Investigating", *rollback.INVESTIGATING
    MITIGATION_EXHAUSTED = "MitigationExhausted", *rollback.MITIGATION_EXHAUSTED
    MITIGATED = "Mitigated", *rollback.MITIGATED
    MITIGATION_FAILED = "MitigationFailed", *rollback.MITIGATION_FAILED
    COMPARING_CANARY = "ComparingCanary", *rollback.COMPARING_CANARY
    CANARY_UNKNOWN = "CanaryUnknown", *rollback.CANARY_UNKNOWN
    CANARY_GONE = "CanaryGone", *rollback.CANARY_GONE
    NOTHING_TO_COMPARE = "NothingToCompare", *rollback.NOTHING_TO_COMPARE
    CANARY_PROMOTED = "CanaryPromoted", *rollback.CANARY_PROMOTED
    CANARY_NO_DIFFERENCE = "CanaryNoDifference", *rollback.CANARY_NO_DIFFERENCE
    CANARY_WORSE = "CanaryWorse", *rollback.CANARY_WORSE
    CANARY_INCONCLUSIVE = "CanaryInconclusive", *rollback.CANARY_INCONCLUSIVE
    TRAINING_FAILING = "TrainingFailing", *rollback.TRAINING_FAILING
    TRAINING_SLOW = "TrainingSlow", *rollback.TRAINING_SLOW
    LOSS_DIVERGING = "LossDiverging", *rollback.LOSS_DIVERGING
    MEMORY_RATIO_HIGH = "MemoryRatioHigh", *rollback.MEMORY_RATIO_HIGH
    ABORTED = "Aborted", *rollback.ABORTED
    ROLLED_BACK = "RolledBack", *rollback.ROLLED_BACK
    NOTHING_SUSPECT = "NothingSuspect", *rollback.NOTHING_SUSPECT
    ROLLBACK_ESCALATED = "RollbackEscalated", *rollback.ROLLBACK_ESCALATED
    INVESTIGATION_CHECKS = "InvestigationChecks", *rollback.INVESTIGATION_CHECKS

    BLOCKED = "Blocked", *restarts.BLOCKED
    NODE_UNREACHABLE = "NodeUnreachable", *restarts.NODE_UNREACHABLE
    FOREIGN_FINALIZER = "ForeignFinalizer", *restarts.FOREIGN_FINALIZER
    NOT_TERMINATED = "NotTerminated", *restarts.NOT_TERMINATED
    TEMPLATE_CHANGED = "TemplateChanged", *restarts.TEMPLATE_CHANGED
    REPLACEMENT_PENDING = "ReplacementPending", *restarts.REPLACEMENT_PENDING
    DISRUPTION_BUDGET = "DisruptionBudget", *restarts.DISRUPTION_BUDGET
    DEADLINE_UNREACHABLE = "DeadlineUnreachable", *restarts.DEADLINE_UNREACHABLE
    ALL_CAN_BE_RESTARTED = "AllCanBeRestarted", *restarts.ALL_CAN_BE_RESTARTED
    HOT_ONLY = "HotOnly", *restarts.HOT_ONLY
    NOTHING_STUCK = "NothingStuck", *restarts.NOTHING_STUCK
    NOTHING_BLOCKED = "NothingBlocked", *restarts.NOTHING_BLOCKED

    NOT_CHECKED = "NotChecked", *admission.NOT_CHECKED
    NOT_ENFORCING = "NotEnforcing", *admission.NOT_ENFORCING
    ADMISSION_NOT_INSTALLED = "AdmissionNotInstalled", *admission.ADMISSION_NOT_INSTALLED
    ADMISSION_DIFFERS = "AdmissionDiffers", *admission.ADMISSION_DIFFERS
    ADMISSION_NOT_CONFIRMED = "AdmissionNotConfirmed", *admission.ADMISSION_NOT_CONFIRMED
    ADMISSION_BEHIND = "AdmissionBehind", *admission.ADMISSION_BEHIND
    WEBHOOK_UNREACHABLE = "WebhookUnreachable", *admission.WEBHOOK_UNREACHABLE
    UNFENCED = "Unfenced", *admission.UNFENCED
    TEMPLATE_STARTS_MIXED = "TemplateStartsMixed", *admission.TEMPLATE_STARTS_MIXED
    NOT_REWOUND = "NotRewound", *admission.NOT_REWOUND
    PODS_IN_WRONG_MODE = "PodsInWrongMode", *admission.PODS_IN_WRONG_MODE
    FORBIDDEN = "Forbidden", *admission.FORBIDDEN
    LABELS_DISAGREE = "LabelsDisagree", *admission.LABELS_DISAGREE
    UNSUPPORTED_KIND = "UnsupportedKind", *admission.UNSUPPORTED_KIND
    CONTAINER_ABSENT = "ContainerAbsent", *admission.CONTAINER_ABSENT
    STATIC_POD = "StaticPod", *admission.STATIC_POD
    WINDOWS = "Windows", *admission.WINDOWS
    HOST_NETWORK = "HostNetwork", *admission.HOST_NETWORK
    TOO_LARGE = "TooLarge", *admission.TOO_LARGE
    REQUEST_FILE_ELSEWHERE = "RequestFileElsewhere", *admission.REQUEST_FILE_ELSEWHERE
    MOUNT_PATH_TAKEN = "MountPathTaken", *admission.MOUNT_PATH_TAKEN
    VOLUME_NAME_TAKEN = "VolumeNameTaken", *admission.VOLUME_NAME_TAKEN
    PORT_TAKEN = "PortTaken", *admission.PORT_TAKEN
    PORT_NAME_TAKEN = "PortNameTaken", *admission.PORT_NAME_TAKEN
    ENFORCING = "Enforcing", *admission.ENFORCING
    TEMPLATES_START_IN_FP32 = "TemplatesStartInFP32", *admission.TEMPLATES_START_IN_FP32
    TEMPLATE_READS_REFERENCE = "TemplateReadsReference", *admission.TEMPLATE_READS_REFERENCE
    CERTIFICATE_INVALID = "CertificateInvalid", *admission.CERTIFICATE_INVALID
    CERTIFICATES_ROTATED = "CertificatesRotated", *admission.CERTIFICATES_ROTATED
    FENCED = "Fenced", *admission.FENCED
    ADMISSION_MODE_CHOSEN = "AdmissionModeChosen", *admission.ADMISSION_MODE_CHOSEN
    REVIEW_FAILED = "ReviewFailed", *admission.REVIEW_FAILED

    NO_WORKLOADS = "NoWorkloads", *fleet.NO_WORKLOADS
    UNDELIVERABLE = "Undeliverable", *fleet.UNDELIVERABLE
    POLICY_CONFLICT = "PolicyConflict", *fleet.POLICY_CONFLICT
    FLEET_TOO_LARGE = "FleetTooLarge", *fleet.FLEET_TOO_LARGE
    SELECTOR_PENDING = "SelectorPending", *fleet.SELECTOR_PENDING
    STATE_LOST = "StateLost", *fleet.STATE_LOST
    POLICY_DELETED = "PolicyDeleted", *fleet.POLICY_DELETED
    POLICY_RECREATED = "PolicyRecreated", *fleet.POLICY_RECREATED
    ACCEPTED = "Accepted", *fleet.ACCEPTED
    WRITES_ACCEPTED = "WritesAccepted", *fleet.WRITES_ACCEPTED
    KINDS_SUPPORTED = "KindsSupported", *fleet.KINDS_SUPPORTED
    NOTHING_PENDING = "NothingPending", *fleet.NOTHING_PENDING
    NOTHING_LOST = "NothingLost", *fleet.NOTHING_LOST
    NOTHING_REFUSED = "NothingRefused", *fleet.NOTHING_REFUSED
    NOTHING_TO_TELL = "NothingToTell", *fleet.NOTHING_TO_TELL
    POLICY_GONE = "PolicyGone", *fleet.POLICY_GONE

    OPERATOR_ERROR = "OperatorError", *process.OPERATOR_ERROR
    CONFIGURATION_INVALID = "ConfigurationInvalid", *process.CONFIGURATION_INVALID
    KUBERNETES_API_ERROR = "KubernetesApiError", *process.KUBERNETES_API_ERROR
    NOT_FOUND = "NotFound", *process.NOT_FOUND
    CONFLICT = "Conflict", *process.CONFLICT
    LEASE_LOST = "LeaseLost", *process.LEASE_LOST
    HISTORY_REWOUND = "HistoryRewound", *process.HISTORY_REWOUND
    PRECONDITION_FAILED = "PreconditionFailed", *process.PRECONDITION_FAILED
    TOO_MANY_REQUESTS = "TooManyRequests", *process.TOO_MANY_REQUESTS
    UNAVAILABLE = "Unavailable", *process.UNAVAILABLE
    NEWER_VERSION = "NewerVersion", *process.NEWER_VERSION
    INTERNAL_ERROR = "InternalError", *process.INTERNAL_ERROR
    RECORDING_INVALID = "RecordingInvalid", *process.RECORDING_INVALID
    FIGURES_MISSING = "FiguresMissing", *process.FIGURES_MISSING
    NOT_DELIVERED = "NotDelivered", *process.NOT_DELIVERED
    TEMPLATE_INVALID = "TemplateInvalid", *process.TEMPLATE_INVALID
    WATCH_LOST = "WatchLost", *process.WATCH_LOST
    LEASE_ACQUIRED = "LeaseAcquired", *process.LEASE_ACQUIRED
    LEADING = "Leading", *process.LEADING
    NOT_LEADING = "NotLeading", *process.NOT_LEADING
    LEASE_NOT_RELEASED = "LeaseNotReleased", *process.LEASE_NOT_RELEASED
    RECEIVER_OFF = "ReceiverOff", *process.RECEIVER_OFF
    RECEIVER_MISCONFIGURED = "ReceiverMisconfigured", *process.RECEIVER_MISCONFIGURED
    ACCEPT_FAILED = "AcceptFailed", *process.ACCEPT_FAILED
    ALERT_FAILED = "AlertFailed", *process.ALERT_FAILED


@dataclass(frozen=True, slots=True, order=True)
class Cause:
    """Why something is as it is: a reason, and what it is about in this case."""

    reason: Reason
    message: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"

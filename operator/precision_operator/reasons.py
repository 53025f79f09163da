"""Every reason: the one word of a condition, an Event, a metric label and a log line, with all that follows from it.

It stands below every package, because errors and the API types name reasons too.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class ReasonSeverity(StrEnum):
    """What a reason asks of a person."""

    asks: str

    def __new__(cls, word: str, asks: str) -> Self:
        member = str.__new__(cls, word)
        member._value_ = word
        member.asks = asks
        return member

    STUCK = ("Stuck", "What is waited for does not come nearer by itself. Its Event is a Warning.")
    ATTENTION = ("Attention", "A person should look. Its Event is a Warning.")
    DECISION = ("Decision", "A person decides when it goes on; nothing is wrong.")
    WAITING = ("Waiting", "Nothing to do: it goes on by itself.")
    NORMAL = ("Normal", "Nothing to do.")


_STUCK, _ATTENTION, _DECISION, _WAITING, _NORMAL = ReasonSeverity

LOOK_AT_PODS = "look at the pods named above: kubectl describe, kubectl logs"
_CHECK_SCRAPE = (
    "check that Prometheus scrapes the trainers' port 9400 and attaches the labels namespace and pod (docs/contract.md)"
)
_INSTALL_ADMISSION = (
    "ask the cluster's admin to upgrade the chart, or to apply manifests/admission",
    "see what is installed: `!kubectl get mutatingadmissionpolicies,validatingadmissionpolicies`",
    "by webhook: `!kubectl get mutatingwebhookconfigurations`, and the operator's log",
)
_RELEASE = "end what it holds, so that new pods start as their templates have them: `!release {name}`"
_AFTER_BREACH = (
    "find the cause: `!history {name}`, `!get {name}`, `!incident list {name}`, the trainers' logs and dashboards",
    "see what must be acknowledged before a retry: `!ack {name}`",
    "then start again: `!retry {name}`",
)
_AFTER_CANARY = (
    "look for another cause: data, nodes, a change of the trainers; `!get {name}` shows each workload",
    "then roll back the rest: `!promote {name}`, or at once: `!rollback {name} --emergency`",
    "or end the rollback and begin again: `!ack {name}`, `!retry {name}`",
)
_ENFORCE = 'let it act: `!kubectl patch precisionpolicy {name} --type=merge -p={"spec":{"enforcement":"Enforce"}}`'
_READ_LOG = "read the operator's log: `kubectl logs` of its pods, in its namespace"
_WHERE = "see which pods, and where they run: `!kubectl get pods -o wide`"
_EMERGENCY = "or do not wait: `!rollback {name} --emergency`"
_BY_HAND = "declare the contract by hand and take the label off (docs/onboarding.md)"


class Reason(StrEnum):
    """One row a reason."""

    severity: ReasonSeverity
    meaning: str
    steps: tuple[str, ...]
    """What to do; ``{name}`` is the policy, ``{missing}`` what a retry still needs.

    ``!`` stands before a verb of ours, or before kubectl. None: only wait.
    """

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

    @classmethod
    def known(cls, word: str) -> "Reason | None":
        """The reason with this word, as a status or an object has it; None: another version of the operator wrote it."""
        return cls._value2member_map_.get(word)  # type: ignore[return-value]

    SUSPENDED = (
        "Suspended",
        _DECISION,
        "a person paused the policy: nothing is moved, judged or watched",
        "go on: `!resume {name}`",
    )
    HALTED = (
        "Halted",
        _DECISION,
        "somebody halted the operator on the whole cluster: nothing is moved, judged or watched, forward or back",
        "ask who halted it; go on: `kubectl delete configmap precision-halt` in the operator's namespace",
    )
    OBSERVING = (
        "Observing",
        _DECISION,
        "the policy only observes: metrics are judged and decisions reported, and nothing is changed",
        _ENFORCE,
    )
    WOULD_ACT = (
        "WouldAct",
        _DECISION,
        "the policy only observes; were it enforced, the operator would act now",
        "see what it would do: `!get {name}`",
        _ENFORCE,
    )
    OUTSIDE_SCHEDULE = (
        "OutsideSchedule",
        _WAITING,
        "the rollout advances inside of the windows of spec.schedule alone; rollbacks do not wait for them",
    )
    UNKNOWN_TIME_ZONE = (
        "UnknownTimeZone",
        _STUCK,
        "spec.schedule names a time zone that the operator does not know: the rollout does not advance",
        "name one of the IANA database, e.g. `Europe/Berlin`",
    )
    PROMOTION_CAP = (
        "PromotionCap",
        _WAITING,
        "as many workloads of the whole cluster are being promoted as the admin allows (config.maxPromotingWorkloads)",
    )
    AWAITING_APPROVAL = (
        "AwaitingApproval",
        _DECISION,
        "the step ends with `pause: {}`",
        "approve it: `!promote {name}`",
    )
    SOAKING = ("Soaking", _WAITING, "the evidence is good and must stay so for a while")
    AWAITING_EVALUATION = ("AwaitingEvaluation", _WAITING, "the metrics have not been read, or not judged, yet")
    AWAITING_ACKNOWLEDGEMENT = (
        "AwaitingAcknowledgement",
        _WAITING,
        "the mode was requested; the trainers' own metrics do not report it yet",
    )
    PROGRESS_DEADLINE_EXCEEDED = (
        "ProgressDeadlineExceeded",
        _STUCK,
        "a step takes longer than spec.progressDeadlineSeconds",
        LOOK_AT_PODS,
        "or go back: `!rollback {name}`",
    )
    DEADLINE_EXCEEDED = (
        "DeadlineExceeded",
        _STUCK,
        "the rollback takes longer than its deadline",
        LOOK_AT_PODS,
        "see which are late: `!get {name}`; the operator restarts by itself what does not answer",
    )
    EVIDENCE_INSUFFICIENT = (
        "EvidenceInsufficient",
        _ATTENTION,
        "a signal is neither in breach nor good enough to promote",
        "wait for better metrics, raise criteria.<signal>.promoteBelow, or go back: `!rollback {name}`",
    )
    CANARY_REGRESSED = (
        "CanaryRegressed",
        _STUCK,
        "what was moved does worse than what still trains in the fallback, though every threshold is met",
        "compare them: `!get {name}`, the dashboards; then take them back: `!rollback {name}`",
        "or go on all the same: `!promote {name}`",
    )
    PREFLIGHT_FAILED = (
        "PreflightFailed",
        _ATTENTION,
        "a workload could not train in the target, or could not come back: torch, the device or a dry run say so",
        "mend what the message names, or take the workload out of the selector",
    )
    NO_STAGING_NODES = (
        "NoStagingNodes",
        _ATTENTION,
        "strategy.canary.by is NodeLabel, and no workload runs on labelled nodes alone",
        "label nodes: `!kubectl label node NODE fp16=enabled`; the operator needs rbac.nodes of the chart to read them",
    )
    PODS_INDIVISIBLE = (
        "PodsIndivisible",
        _ATTENTION,
        "spec.unit is Pod, and these workloads of several pods can be moved by a restart only, which takes all of them",
        "declare the contract in their pod template, by hand or by one label (docs/onboarding.md)",
        "or select them by another policy, with spec.unit: Workload",
    )
    PROCESS_GROUP_UNKNOWN = (
        "ProcessGroupUnknown",
        _ATTENTION,
        "spec.unit is Pod, and nobody says whether the pods of these workloads train together: they move at 100 % only",
        "have the trainer export world_size in genesis_run_info (docs/contract.md), or set spec.unit: Workload",
    )
    CAUSE_NOT_PRECISION = (
        "CauseNotPrecision",
        _ATTENTION,
        "workloads that train in FP32 are in breach too, so that a rollback would not help",
        "look for what they share: data, storage, network, a node",
    )
    NO_SAMPLES = (
        "NoSamples",
        _ATTENTION,
        "Prometheus has no samples of these workloads: missing data never promotes",
        _CHECK_SCRAPE,
    )
    SAMPLES_TOO_OLD = (
        "SamplesTooOld",
        _ATTENTION,
        "the newest samples are older than evaluation.maxSampleAge",
        _CHECK_SCRAPE,
    )
    TOO_FEW_STEPS = (
        "TooFewSteps",
        _ATTENTION,
        "the window holds fewer training steps than evaluation.minSteps",
        "wait, lengthen evaluation.window, or lower evaluation.minSteps",
    )
    NO_PODS = (
        "NoPods",
        _ATTENTION,
        "the workload has no pods to judge",
        "kubectl get pods, kubectl describe: why do they not run?",
    )
    NO_DATA = (
        "NoData",
        _ATTENTION,
        "evidence was missing for evaluation.noDataLimit, and onNoData is Rollback",
        _CHECK_SCRAPE,
        *_AFTER_BREACH,
    )
    METRICS_UNAVAILABLE = (
        "MetricsUnavailable",
        _ATTENTION,
        "Prometheus does not answer: nothing is promoted, and nothing is rolled back for it",
        "check the metric source of spec.prometheusRef; its address stands in the operator's configuration",
    )
    ENDPOINT_NOT_ANSWERING = (
        "EndpointNotAnswering",
        _ATTENTION,
        "Prometheus failed several times in a row and is asked less often until it answers again",
        "check the metric source of spec.prometheusRef; its address stands in the operator's configuration",
    )
    EVALUATION_TIMEOUT = (
        "EvaluationTimeout",
        _ATTENTION,
        "Prometheus was asked, and did not answer in time",
        "see whether Prometheus is slow, or is asked for too much (its own query durations)",
    )
    EVALUATION_LATE = (
        "EvaluationLate",
        _ATTENTION,
        "the newest evaluation is too old to decide by",
        "see whether the operator lacks CPU: `kubectl top pods` in its namespace",
    )
    QUERY_INVALID = (
        "QueryInvalid",
        _ATTENTION,
        "a query cannot be asked as it is written",
        "correct criteria.<signal>.promql, where it is the policy's own; else ask the operator's admin",
    )
    UNKNOWN_ENDPOINT = (
        "UnknownEndpoint",
        _ATTENTION,
        "spec.prometheusRef names a metric source that the operator's configuration lacks",
        "correct the name, or ask the operator's admin to add it (config.prometheus of the chart)",
    )
    RAW_QUERY_NOT_ALLOWED = (
        "RawQueryNotAllowed",
        _ATTENTION,
        "a criterion brings PromQL of its own, which this operator's admin does not allow",
        "name a query of the catalogue, or ask the admin for it (config.allowRawQueries of the chart)",
    )
    UNKNOWN_QUERY = (
        "UnknownQuery",
        _ATTENTION,
        "a criterion names a query that the operator's catalogue lacks",
        "correct the name, or ask the operator's admin to add it (config.queries of the chart)",
    )
    NO_WORKLOADS = (
        "NoWorkloads",
        _ATTENTION,
        "no workload's pod template carries the labels of spec.selector",
        "compare: `!kubectl get deployments,replicasets,statefulsets,jobs "
        "-o custom-columns=KIND:.kind,NAME:.metadata.name,LABELS:.spec.template.metadata.labels`; of bare pods: "
        "`!kubectl get pods --show-labels`",
    )
    UNDELIVERABLE = (
        "Undeliverable",
        _ATTENTION,
        "these workloads can be moved in no way that spec.delivery allows",
        "declare the contract in their pod template, by hand or by one label (docs/onboarding.md), or name "
        "ENABLE_FP16_TRAINING there, or choose another delivery",
        "what cannot be restarted changes precision only by the contract, or as new pods (spec.delivery: NewOnly)",
        "where it has the label precision.genesis.ai/inject already, see whether the policy that obeys it is installed: "
        "`!kubectl get mutatingadmissionpolicy precision-inject.precision.genesis.ai`",
    )
    POLICY_CONFLICT = (
        "PolicyConflict",
        _ATTENTION,
        "a workload of two policies belongs to the one that holds it, else to the older one",
        "make the selectors disjoint: `!get`",
    )
    FLEET_TOO_LARGE = (
        "FleetTooLarge",
        _ATTENTION,
        "the record of so many workloads would not fit into one PrecisionAssignment: nothing is moved",
        "divide the fleet among several policies with disjoint selectors",
    )
    SELECTOR_PENDING = (
        "SelectorPending",
        _ATTENTION,
        "spec.selector was edited; the one before stays in force while a rollback holds workloads under it",
        "retry what is held: `!retry {name}`",
        "or put the old selector back",
    )
    STATE_LOST = (
        "StateLost",
        _ATTENTION,
        "the PrecisionAssignment was deleted: which workload was in which mode is not known any more, so that all of them "
        "went to the fallback",
        "find out who deleted it: `!history {name}`, the API server's audit log",
        "see what must be acknowledged before a retry: `!ack {name}`",
        "then start again: `!retry {name}`",
    )
    POLICY_DELETED = (
        "PolicyDeleted",
        _DECISION,
        "the policy was deleted; what a rollback put into the fallback stays there, and no other pod is changed",
        "apply the policy again to go on from here",
        _RELEASE,
    )
    POLICY_RECREATED = (
        "PolicyRecreated",
        _WAITING,
        "a new policy of this name goes on from what the one before it left behind",
    )
    NOT_CHECKED = ("NotChecked", _WAITING, "no API server was asked yet whether it gives new pods their mode")
    NOT_ENFORCING = (
        "NotEnforcing",
        _ATTENTION,
        "an API server does not give new pods the mode that is assigned to their workload",
        *_INSTALL_ADMISSION,
        "in kube-system and in the operator's own namespace nothing is enforced: keep the workloads and their policy "
        "in another one",
    )
    ADMISSION_NOT_INSTALLED = (
        "AdmissionNotInstalled",
        _ATTENTION,
        "an admission policy of the operator is missing",
        *_INSTALL_ADMISSION,
    )
    ADMISSION_DIFFERS = (
        "AdmissionDiffers",
        _ATTENTION,
        "an installed admission policy is not the one that this operator was shipped with",
        *_INSTALL_ADMISSION,
    )
    ADMISSION_NOT_CONFIRMED = (
        "AdmissionNotConfirmed",
        _ATTENTION,
        "it could not be confirmed that every API server knows the newest assignment; no pod is deleted before that",
        "see whether the operator reaches each API server: its log, `!kubectl get endpointslices -n default`",
    )
    ADMISSION_BEHIND = (
        "AdmissionBehind",
        _WAITING,
        "an API server, or a replica of the webhook, does not know the newest assignment yet; it is asked again",
    )
    WEBHOOK_UNREACHABLE = (
        "WebhookUnreachable",
        _ATTENTION,
        "a replica of the operator's webhook cannot be asked which assignment it knows; no pod is deleted before that",
        "see whether the operator's pods run and are ready, and whether they reach each other on the webhook's port",
        "a replica that is gone leaves the endpoints of the webhook's Service by itself",
    )
    UNFENCED = (
        "Unfenced",
        _ATTENTION,
        "the admission policy that limits the operator's own writes is missing: it requests no mode and deletes no pod",
        *_INSTALL_ADMISSION,
    )
    TEMPLATE_STARTS_MIXED = (
        "TemplateStartsMixed",
        _ATTENTION,
        "templates of these workloads start new pods in a mixed mode; while admission works, the assigned mode replaces it",
        "take ENABLE_FP16_TRAINING out of the templates, or set it to false: a pod that admission does not see then "
        "starts in FP32",
    )
    NOT_REWOUND = (
        "NotRewound",
        _ATTENTION,
        "they were rolled back for losses that were not finite or diverged, and did not go back to a healthy checkpoint",
        "see in the trainers' logs and dashboards whether their losses are finite again",
        "if they are not, start them from a checkpoint that was saved before the incident",
    )
    PODS_IN_WRONG_MODE = (
        "PodsInWrongMode",
        _ATTENTION,
        "replaced pods came back in another mode than the assigned one, twice: they are not deleted again",
        "compare what is assigned with what they report: `!get {name}`",
        "see whether another webhook, or the template, sets ENABLE_FP16_TRAINING after admission",
    )
    FORBIDDEN = (
        "Forbidden",
        _ATTENTION,
        "the API server refuses a write of the operator: its role, or an admission policy, forbids it",
        "see which: `!status {name}`; then upgrade the chart, or ask the cluster's admin",
    )
    LABELS_DISAGREE = (
        "LabelsDisagree",
        _ATTENTION,
        "a workload's own labels and its template's answer the selector differently; the template's count",
        "give both the same labels",
    )
    WINDOW_NOT_CLEAR = (
        "WindowNotClear",
        _WAITING,
        "the metrics' window still reaches back into the last rollback: its breaches are not new ones",
    )
    OVERFLOW_RATE_HIGH = (
        "OverflowRateHigh",
        _ATTENTION,
        "too many steps overflowed; they were skipped, weights are intact",
        *_AFTER_BREACH,
    )
    LOSS_DIVERGED = ("LossDiverged", _ATTENTION, "the loss rose above the workload's own FP32 baseline", *_AFTER_BREACH)
    LOSS_NOT_FINITE = (
        "LossNotFinite",
        _ATTENTION,
        "a loss was NaN or infinite: weights may be poisoned",
        "check the newest checkpoint before it is used: precision-trainer checkpoint verify",
        *_AFTER_BREACH,
    )
    MITIGATING = (
        "Mitigating",
        _ATTENTION,
        "something milder than a rollback is being tried against overflow, for a while; nothing is promoted meanwhile",
        "see each workload's rung: `!status {name}`",
        "or go back now: `!rollback {name}`",
    )
    INVESTIGATING = (
        "Investigating",
        _ATTENTION,
        "training is slow, which harms no weights: there is time to look for the cause before a rollback",
        "are the batch and the layers multiples of 8, which tensor cores need? (genesis_run_info, the model's sizes)",
        "are the tensor cores busy? (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE, where a DCGM exporter runs)",
        "is the CPU throttled? (container_cpu_cfs_throttled_periods_total)",
        "or go back now: `!rollback {name}`",
    )
    MITIGATION_EXHAUSTED = (
        "MitigationExhausted",
        _ATTENTION,
        "what was tried is over; since then neither a breach that is rolled back was seen, nor good metrics",
        "lower the overflow, or restore the metrics, or go back: `!rollback {name}`",
    )
    MITIGATED = ("Mitigated", _WAITING, "the signal became good again within its window: nothing is rolled back")
    MITIGATION_FAILED = (
        "MitigationFailed",
        _ATTENTION,
        "the signal did not become good again within its window, or something more severe came: it is rolled back",
        *_AFTER_BREACH,
    )
    COHORT_IN_BF16 = (
        "CohortInBF16",
        _ATTENTION,
        "overflow ended only in BF16 in every workload of the cohort, so that nothing is learnt about the target",
        "set spec.target: bf16, or go back: `!rollback {name}`",
    )
    COMPARING_CANARY = (
        "ComparingCanary",
        _ATTENTION,
        "some breached workloads went to the fallback first; whether that helps them is being watched",
        "wait, or send the rest after them: `!promote {name}`, `!rollback {name}`",
    )
    CANARY_UNKNOWN = (
        "CanaryUnknown",
        _ATTENTION,
        "a look at the canary is not counted, because data is missing",
        _CHECK_SCRAPE,
    )
    CANARY_GONE = (
        "CanaryGone",
        _ATTENTION,
        "no workload of the canary runs any more: nothing can be compared",
        *_AFTER_CANARY,
    )
    NOTHING_TO_COMPARE = (
        "NothingToCompare",
        _ATTENTION,
        "no breached workload is left in reduced precision",
        *_AFTER_CANARY,
    )
    CANARY_PROMOTED = (
        "CanaryPromoted",
        _WAITING,
        "the rest of the fleet follows its canary to the fallback, in batches",
    )
    CANARY_NO_DIFFERENCE = (
        "CanaryNoDifference",
        _STUCK,
        "the fallback helped the canary no more than waiting helped the rest",
        *_AFTER_CANARY,
    )
    CANARY_WORSE = (
        "CanaryWorse",
        _STUCK,
        "the canary is in worse health in the fallback than the rest",
        *_AFTER_CANARY,
    )
    CANARY_INCONCLUSIVE = (
        "CanaryInconclusive",
        _STUCK,
        "there was too little data to say whether the fallback helps",
        *_AFTER_CANARY,
    )
    TRAINING_FAILING = ("TrainingFailing", _ATTENTION, "too many training runs failed or crashed", *_AFTER_BREACH)
    TRAINING_SLOW = (
        "TrainingSlow",
        _ATTENTION,
        "training is slower than its FP32 baseline by more than criteria.speed allows",
        *_AFTER_BREACH,
    )
    LOSS_DIVERGING = (
        "LossDiverging",
        _ATTENTION,
        "the loss lies mildly above the workload's own FP32 baseline: nothing is promoted, and nothing rolled back for it",
        "compare the loss curves; raise criteria.divergence.warn, or go back: `!rollback {name}`",
    )
    MEMORY_RATIO_HIGH = (
        "MemoryRatioHigh",
        _ATTENTION,
        "low precision saves less device memory than criteria.memory asks",
        "look at what holds memory (precision-trainer env, the batch size), or raise criteria.memory.enter",
    )
    ABORTED = ("Aborted", _ATTENTION, "a person asked for an emergency rollback", *_AFTER_BREACH[1:])
    ROLLBACK_REQUESTED = ("RollbackRequested", _ATTENTION, "a person asked for a rollback", *_AFTER_BREACH[1:])
    ROLLED_BACK = ("RolledBack", _DECISION, "the rollback is over", *_AFTER_BREACH)
    AWAITING_PREREQUISITES = (
        "AwaitingPrerequisites",
        _DECISION,
        "a retry needs spec.reenable.prerequisites acknowledged since this rollback",
        "see which, and acknowledge them: `!ack {name}`, `!ack {name} {missing}`",
    )
    BACKING_OFF = ("BackingOff", _WAITING, "repeated rollbacks: a retry must wait for spec.reenable.backoff")
    AWAITING_RETRY = ("AwaitingRetry", _DECISION, "waiting for a manual retry", "start again: `!retry {name}`")
    NOT_A_NUMBER = (
        "NotANumber",
        _ATTENTION,
        "a ratio could not be worked out, for one because there is no FP32 baseline",
        _CHECK_SCRAPE,
    )
    DUPLICATE_SERIES = (
        "DuplicateSeries",
        _ATTENTION,
        "Prometheus holds several series of one pod, and it is not known which of them is right",
        "look for a pod that is scraped twice, or for a query without `by (pod)`",
    )
    COHORT_NOT_RUNNING = (
        "CohortNotRunning",
        _ATTENTION,
        "no workload of the cohort runs, so nothing can be learnt from it",
        LOOK_AT_PODS,
    )
    BLOCKED = (
        "Blocked",
        _ATTENTION,
        "pods that are deleted do not go, so that what runs in them is not known; no deadline is about them",
        _WHERE,
        LOOK_AT_PODS,
    )
    NODE_UNREACHABLE = (
        "NodeUnreachable",
        _ATTENTION,
        "a node does not answer, so that what runs on it cannot be ended from here; no deadline is about its pods",
        "see which nodes do not answer: `!kubectl get nodes`",
        _WHERE,
        "bring the node back, or power it off and then delete its object: `!kubectl delete node NODE`",
        "do not delete the object of a node that may still run: its processes may still write checkpoints",
    )
    FOREIGN_FINALIZER = (
        "ForeignFinalizer",
        _ATTENTION,
        "another program's finalizer keeps pods that should be gone; no deadline is about them",
        "see which: `!kubectl get pods "
        "-o custom-columns=POD:.metadata.name,DELETED:.metadata.deletionTimestamp,FINALIZERS:.metadata.finalizers`",
        "ask whoever runs that program; take its finalizer away by hand only where the program is gone",
    )
    NOT_TERMINATED = (
        "NotTerminated",
        _ATTENTION,
        "a node that answers has not ended pods that were deleted with a grace of one second, half a minute ago",
        _WHERE,
        "look at their events, and at the kubelet and the container runtime of that node: `!kubectl describe pods`",
        "a process that waits for storage or for a device ends with a reboot of its node; deleting the pod by --force "
        "would only hide it",
    )
    TEMPLATE_CHANGED = (
        "TemplateChanged",
        _ATTENTION,
        "a change of the pod template has not reached the running pods; a restart would bring it in, so there is none",
        "see which workloads: `!get {name}`",
        "roll the change out, or take it back: `!kubectl rollout status KIND/NAME`, `!kubectl rollout undo KIND/NAME`",
        "or let an emergency bring it in: `!kubectl patch precisionpolicy {name} --type=merge "
        '-p={"spec":{"rollback":{"onPendingRevision":"Restart"}}}`',
    )
    REPLACEMENT_PENDING = (
        "ReplacementPending",
        _ATTENTION,
        "a replacement finds no place though its old pod is gone: that capacity is lost, and nothing that can wait is "
        "restarted",
        "see why: `!kubectl get events --field-selector=reason=FailedScheduling`, and which pods: "
        "`!kubectl get pods --field-selector=status.phase=Pending`",
        "give them room: nodes, devices, quota, volumes; restarts go on by themselves then",
    )
    DISRUPTION_BUDGET = (
        "DisruptionBudget",
        _ATTENTION,
        "a PodDisruptionBudget does not allow these pods to go; they are asked for again until it does",
        "see what each allows: `!kubectl get poddisruptionbudgets`",
        "wait until more of its pods are ready, or lower its minAvailable: one that allows no disruption never lets "
        "them go",
        f"{_EMERGENCY}, which asks no budget unless rollback.emergency.respectDisruptionBudgets is true",
    )
    DEADLINE_UNREACHABLE = (
        "DeadlineUnreachable",
        _ATTENTION,
        "the restarts of this rollback are predicted to take longer than its deadline leaves",
        "raise rollback.emergency.maxConcurrentPods, if the cluster can start so many pods at once",
        "for the next time: declare the contract, and such workloads change without a restart (docs/onboarding.md)",
    )
    UNSUPPORTED_KIND = (
        "UnsupportedKind",
        _ATTENTION,
        "spec.selector matches pods whose controller is of no supported kind (Deployment, ReplicaSet, StatefulSet, Job, or "
        "none): their new pods get the assigned mode, and running ones are left alone",
        "see who owns them: `!kubectl get pods "
        "-o custom-columns=POD:.metadata.name,KIND:.metadata.ownerReferences[*].kind,"
        "OWNER:.metadata.ownerReferences[*].name`",
        "restart them as their own controller wants it, to bring them into the assigned mode; or narrow spec.selector",
    )
    CONTAINER_ABSENT = (
        "ContainerAbsent",
        _ATTENTION,
        "spec.containers has none of the name that the label precision.genesis.ai/inject says; init containers do not count",
        "set the label in the pod template to the name of the trainer's container",
    )
    STATIC_POD = (
        "StaticPod",
        _ATTENTION,
        "the pod is the mirror of a static pod, which runs as its node's file says",
        "declare the contract by hand in the node's file, or run the trainer from a Deployment",
    )
    WINDOWS = ("Windows", _ATTENTION, "spec.os.name is windows, and the trainer runs on Linux", "take the label off")
    HOST_NETWORK = (
        "HostNetwork",
        _ATTENTION,
        "with spec.hostNetwork the metrics port would be taken on the node, and two trainers cannot share one",
        f"take spec.hostNetwork away, or {_BY_HAND}",
    )
    TOO_LARGE = (
        "TooLarge",
        _ATTENTION,
        "the pod has more than 100 containers, or more than 1,000 env entries, ports, mounts and volumes together",
        _BY_HAND,
    )
    REQUEST_FILE_ELSEWHERE = (
        "RequestFileElsewhere",
        _ATTENTION,
        "PRECISION_REQUEST_FILE of the container is not /etc/precision/request",
        f"remove the variable, or {_BY_HAND}",
    )
    MOUNT_PATH_TAKEN = (
        "MountPathTaken",
        _ATTENTION,
        "the container mounts another volume or a device at, above or below /etc/precision",
        f"mount it elsewhere, or {_BY_HAND} with another path in PRECISION_REQUEST_FILE",
    )
    VOLUME_NAME_TAKEN = (
        "VolumeNameTaken",
        _ATTENTION,
        "the pod has another volume with the name precision",
        f"rename that volume, or {_BY_HAND} with another volume name",
    )
    PORT_TAKEN = (
        "PortTaken",
        _ATTENTION,
        "another container of the pod has TCP port 9400",
        f"give that container another port, or {_BY_HAND} with another --metrics-port",
    )
    PORT_NAME_TAKEN = (
        "PortNameTaken",
        _ATTENTION,
        "another port of the pod has the name metrics",
        f"rename that port, or {_BY_HAND} with another port name",
    )
    ACCEPTED = ("Accepted", _NORMAL, "the policy can be carried out")
    WRITES_ACCEPTED = ("WritesAccepted", _NORMAL, "the API server takes every write of the operator")
    KINDS_SUPPORTED = ("KindsSupported", _NORMAL, "every selected pod belongs to a workload of a supported kind")
    METRICS_AVAILABLE = ("MetricsAvailable", _NORMAL, "every metric was read")
    ENFORCING = ("Enforcing", _NORMAL, "every API server gives new pods the mode of their workload")
    TEMPLATES_START_IN_FP32 = (
        "TemplatesStartInFP32",
        _NORMAL,
        "new pods start in FP32 also where admission does not see them",
    )
    TEMPLATE_READS_REFERENCE = (
        "TemplateReadsReference",
        _ATTENTION,
        "a ConfigMap or a Secret decides what new pods start in where admission does not see them",
        "write ENABLE_FP16_TRAINING into the template itself, so that its start does not depend on another object",
    )
    ALL_CAN_BE_RESTARTED = ("AllCanBeRestarted", _NORMAL, "every workload can be restarted")
    HOT_ONLY = (
        "HotOnly",
        _ATTENTION,
        "these workloads change precision while they answer, and are never restarted",
        "declare how they are started again by a controller that this operator knows (docs/reference/kinds.md)",
    )
    NOTHING_STUCK = ("NothingStuck", _NORMAL, "no pod came back in a wrong mode")
    NOTHING_PENDING = ("NothingPending", _NORMAL, "no change of a template waits for a restart")
    NOTHING_LOST = ("NothingLost", _NORMAL, "every replacement found a place")
    NOTHING_BLOCKED = ("NothingBlocked", _NORMAL, "no terminating pod is kept")
    NOTHING_SUSPECT = ("NothingSuspect", _NORMAL, "no weights may be poisoned")
    NOTHING_REFUSED = ("NothingRefused", _NORMAL, "the contract was written into every pod that asks for it")
    NOTHING_TO_TELL = ("NothingToTell", _NORMAL, "there is no alert")
    SPEEDUP_LOW = (
        "SpeedupLow",
        _ATTENTION,
        "training gained less speed than expected",
        "see whether tensor cores are used: sizes and batches are best multiples of 8",
    )
    MEMORY_TOO_SMALL = (
        "MemoryTooSmall",
        _ATTENTION,
        "FP32 needs more device memory than these workloads have left",
        "free device memory, or move them to larger devices, before a rollback needs FP32",
    )
    NOT_REPORTED = ("NotReported", _WAITING, "the trainers have not reported a preflight check")
    PREFLIGHT_PASSED = ("PreflightPassed", _NORMAL, "every workload can train in the target and come back")
    ROLLOUT_STARTED = ("RolloutStarted", _NORMAL, "the rollout began")
    STEP_PROMOTED = ("StepPromoted", _NORMAL, "the next step of the rollout began")
    PROMOTED = ("Promoted", _NORMAL, "every step of the rollout is done")
    RETRIED = ("Retried", _NORMAL, "a person asked for another rollout")
    TARGET_CHANGED = ("TargetChanged", _NORMAL, "spec.target was edited: the rollout begins again")
    ROLLBACK_ESCALATED = (
        "RollbackEscalated",
        _ATTENTION,
        "the workloads that did not acknowledge are restarted",
        "see why they do not answer: `!get {name}`, `!kubectl logs`",
    )
    ROLLBACK_EXPEDITED = (
        "RollbackExpedited",
        _ATTENTION,
        "a rollback under way was made faster",
        "see what remains: `!status {name}`",
    )
    PENDING = ("Pending", _WAITING, "nothing has been decided yet")
    POLICY_GONE = (
        "PolicyGone",
        _ATTENTION,
        "the policy was deleted before it was judged",
        "apply the policy again, if it was deleted by mistake",
    )
    OPERATOR_ERROR = ("OperatorError", _ATTENTION, "the operator cannot go on with this", _READ_LOG)
    CONFIGURATION_INVALID = (
        "ConfigurationInvalid",
        _ATTENTION,
        "the operator's settings cannot be used",
        "correct the field that the message names (config of the chart), and roll the operator out again",
    )
    KUBERNETES_API_ERROR = ("KubernetesApiError", _ATTENTION, "the API server refused a request", _READ_LOG)
    NOT_FOUND = ("NotFound", _WAITING, "the object does not exist any more")
    CONFLICT = ("Conflict", _WAITING, "another writer was first: the operator reads again")
    LEASE_LOST = ("LeaseLost", _WAITING, "another replica may lead: this one writes nothing more")
    HISTORY_REWOUND = ("HistoryRewound", _WAITING, "etcd was restored: the operator starts again and reads everything")
    PRECONDITION_FAILED = (
        "PreconditionFailed",
        _WAITING,
        "the object is not the one that was decided on: the operator reads again",
    )
    TOO_MANY_REQUESTS = ("TooManyRequests", _WAITING, "the API server asks the operator to slow down")
    UNAVAILABLE = ("Unavailable", _WAITING, "the API server is away, slow or broken")
    NEWER_VERSION = (
        "NewerVersion",
        _ATTENTION,
        "a newer operator wrote the state: this one writes nothing",
        "end the older operator, or finish the upgrade: `kubectl get pods` in its namespace shows each version",
    )
    SIGNAL_ERROR = ("SignalError", _WAITING, "a metric query gave no usable answer")
    NOT_OBSERVED = ("NotObserved", _WAITING, "the operator has not read the newest spec")
    INTERNAL_ERROR = (
        "InternalError",
        _ATTENTION,
        "the operator has a defect: its log holds the trace",
        _READ_LOG,
        "report it with that trace",
    )
    NOT_ACKNOWLEDGED = (
        "NotAcknowledged",
        _ATTENTION,
        "the trainers did not acknowledge a mitigation in time",
        LOOK_AT_PODS,
    )
    CERTIFICATE_INVALID = (
        "CertificateInvalid",
        _ATTENTION,
        "the webhook's certificate cannot be used",
        "delete the Secret that the message names: a new one is made; with cert-manager, look at its Certificate",
    )
    CERTIFICATES_ROTATED = ("CertificatesRotated", _NORMAL, "the webhook has a new certificate")
    NOT_JUDGED = ("NotJudged", _WAITING, "the workload has not been judged yet")
    MISSING_POD_LABEL = (
        "MissingPodLabel",
        _ATTENTION,
        "no series of a query's answer names its pod",
        "group the query by (pod), and have Prometheus attach pod from its service discovery",
    )
    NOTHING_TO_RETRY = ("NothingToRetry", _DECISION, "a retry was asked for, and nothing was rolled back")
    NOT_AWAITING_APPROVAL = (
        "NotAwaitingApproval",
        _DECISION,
        "a promotion was asked for, and no step waits for one",
        "see what it waits for: `!explain {name}`",
    )
    REFUSED = ("Refused", _DECISION, "what was asked for cannot be done now")
    RECORDING_INVALID = (
        "RecordingInvalid",
        _ATTENTION,
        "a recording of evidence cannot be read",
        "look at the incident's ConfigMap: another program may have written it, or a newer operator",
    )
    FIGURES_MISSING = ("FiguresMissing", _DECISION, "matplotlib is not installed, so no figures are drawn")
    NOT_DELIVERED = (
        "NotDelivered",
        _ATTENTION,
        "a channel did not take a message",
        "check the channel's address and secret in the operator's configuration (docs/notifications.md)",
    )
    WATCH_LOST = ("WatchLost", _WAITING, "a watch ended unasked: the operator starts again and reads everything")
    INVESTIGATION_CHECKS = ("InvestigationChecks", _NORMAL, "what is known of the causes of slow training")
    LEASE_ACQUIRED = ("LeaseAcquired", _NORMAL, "this replica leads now, and begins to act")
    LEADING = ("Leading", _NORMAL, "this replica holds the Lease")
    NOT_LEADING = ("NotLeading", _WAITING, "this replica does not hold the Lease any more")
    LEASE_NOT_RELEASED = ("LeaseNotReleased", _WAITING, "the Lease could not be given back: it expires by itself")
    FENCED = ("Fenced", _NORMAL, "the API server denies the operator every write that it does not need")
    ADMISSION_MODE_CHOSEN = ("AdmissionModeChosen", _NORMAL, "how new pods are given their mode was chosen")
    REVIEW_FAILED = ("ReviewFailed", _ATTENTION, "the webhook could not judge a pod, which passes unchanged", _READ_LOG)
    RECEIVER_OFF = ("ReceiverOff", _NORMAL, "no alerts are received, because receiver.tokenFile is not set")
    RECEIVER_MISCONFIGURED = (
        "ReceiverMisconfigured",
        _ATTENTION,
        "alerts may be refused",
        "correct receiver in the operator's configuration (docs/alertmanager.md)",
    )
    ACCEPT_FAILED = (
        "AcceptFailed",
        _ATTENTION,
        "the receiver cannot accept connections",
        "raise the limit of open files of the operator's pod",
    )
    ALERT_FAILED = (
        "AlertFailed",
        _ATTENTION,
        "an alert could not be taken: the operator's log holds the trace",
        _READ_LOG,
    )


@dataclass(frozen=True, slots=True, order=True)
class Cause:
    """Why something is as it is: a reason, and what it is about in this case."""

    reason: Reason
    message: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"

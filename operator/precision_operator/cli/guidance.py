"""What each phase and each reason means, and what a person does about it."""

from collections.abc import Mapping

from precision_operator.api.canary import REGRESSED
from precision_operator.api.injection import REMEDIES
from precision_operator.api.state import Phase
from precision_operator.cli.reason import LOOK_AT_PODS, Guidance
from precision_operator.cli.restart_reasons import RESTART_REASONS

PHASES: Mapping[Phase, str] = {
    Phase.PENDING: "nothing has been moved yet",
    Phase.PROGRESSING: "a step is being carried out or judged",
    Phase.PAUSED: "the evidence of the step is good; a person must approve the next one",
    Phase.HEALTHY: "every step is done; the fleet is watched",
    Phase.DEGRADED: "some workloads were rolled back by themselves; the rest is watched",
    Phase.ROLLING_BACK: "all of the fleet is on its way to the fallback; new pods start in it",
    Phase.HELD: "the fleet was rolled back and stays so until a person retries; new pods start in the fallback",
}

BY_CANARY = "a few breached workloads are in the fallback; the rest follows only if that helps"
"""Of RollingBack, as long as it has come no further than its canary."""

LEFT_BEHIND = "its policy was deleted; what a rollback put into the fallback stays there, new pods included"
"""Of Held, after the policy's deletion."""


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
    "see what must be acknowledged before a retry: `!ack --policy {name}`",
    "then start again: `!retry {name}`",
)
_AFTER_CANARY = (
    "look for another cause: data, nodes, a change of the trainers; `!get {name}` shows each workload",
    "then roll back the rest: `!promote {name}`, or at once: `!rollback --emergency {name}`",
    "or end the rollback and begin again: `!ack --policy {name}`, `!retry {name}`",
)

REASONS: Mapping[str, Guidance] = {
    "Suspended": Guidance(
        "a person paused the policy: nothing is moved, judged or watched", ("go on: `!resume {name}`",)
    ),
    "AwaitingApproval": Guidance("the step ends with `pause: {}`", ("approve it: `!promote {name}`",)),
    "Soaking": Guidance("the evidence is good and must stay so for a while"),
    "AwaitingEvaluation": Guidance("the metrics have not been read, or not judged, yet"),
    "AwaitingAcknowledgement": Guidance("the mode was requested; the trainers' own metrics do not report it yet"),
    "ProgressDeadlineExceeded": Guidance(
        "a step takes longer than spec.progressDeadlineSeconds", (LOOK_AT_PODS, "or go back: `!rollback {name}`")
    ),
    "DeadlineExceeded": Guidance(
        "the rollback takes longer than its deadline",
        (
            LOOK_AT_PODS,
            "see which are late: `!get {name}`; the operator restarts by itself what does not answer",
        ),
    ),
    "EvidenceInsufficient": Guidance(
        "a signal is neither in breach nor good enough to promote",
        ("wait for better metrics, raise criteria.<signal>.promoteBelow, or go back: `!rollback {name}`",),
    ),
    REGRESSED: Guidance(
        "what was moved does worse than what still trains in the fallback, though every threshold is met",
        (
            "compare them: `!get {name}`, the dashboards; then take them back: `!rollback {name}`",
            "or go on all the same: `!promote {name}`",
        ),
    ),
    "PreflightFailed": Guidance(
        "a workload could not train in the target, or could not come back: torch, the device or a dry run say so",
        ("mend what the message names, or take the workload out of the selector",),
    ),
    "NoStagingNodes": Guidance(
        "strategy.canary.by is NodeLabel, and no workload runs on labelled nodes alone",
        (
            "label nodes: `!kubectl label node NODE fp16=enabled`; the operator needs rbac.nodes of the chart to read them",
        ),
    ),
    "PodsIndivisible": Guidance(
        "spec.unit is Pod, and these workloads of several pods can be moved by a restart only, which takes all of them",
        (
            "declare the contract in their pod template, by hand or by one label (docs/onboarding.md)",
            "or select them by another policy, with spec.unit: Workload",
        ),
    ),
    "ProcessGroupUnknown": Guidance(
        "spec.unit is Pod, and nobody says whether the pods of these workloads train together: they move at 100 % only",
        ("have the trainer export world_size in genesis_run_info (docs/contract.md), or set spec.unit: Workload",),
    ),
    "CauseNotPrecision": Guidance(
        "workloads that train in FP32 are in breach too, so that a rollback would not help",
        ("look for what they share: data, storage, network, a node",),
    ),
    "NoSamples": Guidance(
        "Prometheus has no samples of these workloads: missing data never promotes", (_CHECK_SCRAPE,)
    ),
    "SamplesTooOld": Guidance("the newest samples are older than evaluation.maxSampleAge", (_CHECK_SCRAPE,)),
    "TooFewSteps": Guidance(
        "the window holds fewer training steps than evaluation.minSteps",
        ("wait, lengthen evaluation.window, or lower evaluation.minSteps",),
    ),
    "NoPods": Guidance(
        "the workload has no pods to judge", ("kubectl get pods, kubectl describe: why do they not run?",)
    ),
    "NoData": Guidance(
        "evidence was missing for evaluation.noDataLimit, and onNoData is Rollback", (_CHECK_SCRAPE, *_AFTER_BREACH)
    ),
    "MetricsUnavailable": Guidance(
        "Prometheus does not answer: nothing is promoted, and nothing is rolled back for it",
        ("check the metric source of spec.prometheusRef; its address stands in the operator's configuration",),
    ),
    "EndpointNotAnswering": Guidance(
        "Prometheus failed several times in a row and is asked less often until it answers again",
        ("check the metric source of spec.prometheusRef; its address stands in the operator's configuration",),
    ),
    "EvaluationTimeout": Guidance(
        "Prometheus was asked, and did not answer in time",
        ("see whether Prometheus is slow, or is asked for too much (its own query durations)",),
    ),
    "EvaluationLate": Guidance(
        "the newest evaluation is too old to decide by",
        ("see whether the operator lacks CPU: `kubectl top pods` in its namespace",),
    ),
    "QueryInvalid": Guidance(
        "a query cannot be asked as it is written",
        ("correct criteria.<signal>.promql, where it is the policy's own; else ask the operator's admin",),
    ),
    "UnknownEndpoint": Guidance(
        "spec.prometheusRef names a metric source that the operator's configuration lacks",
        ("correct the name, or ask the operator's admin to add it (config.prometheus of the chart)",),
    ),
    "RawQueryNotAllowed": Guidance(
        "a criterion brings PromQL of its own, which this operator's admin does not allow",
        ("name a query of the catalogue, or ask the admin for it (config.allowRawQueries of the chart)",),
    ),
    "UnknownQuery": Guidance(
        "a criterion names a query that the operator's catalogue lacks",
        ("correct the name, or ask the operator's admin to add it (config.queries of the chart)",),
    ),
    "NoWorkloads": Guidance(
        "no workload's pod template carries the labels of spec.selector",
        (
            "compare: `!kubectl get deployments,replicasets,statefulsets,jobs "
            "-o custom-columns=KIND:.kind,NAME:.metadata.name,LABELS:.spec.template.metadata.labels`; of bare pods: "
            "`!kubectl get pods --show-labels`",
        ),
    ),
    "Undeliverable": Guidance(
        "these workloads can be moved in no way that spec.delivery allows",
        (
            "declare the contract in their pod template, by hand or by one label (docs/onboarding.md), or name "
            "ENABLE_FP16_TRAINING there, or choose another delivery",
            "what cannot be restarted changes precision only by the contract, or as new pods (spec.delivery: NewOnly)",
            "where it has the label precision.genesis.ai/inject already, see whether the policy that obeys it is installed: "
            "`!kubectl get mutatingadmissionpolicy precision-inject.precision.genesis.ai`",
        ),
    ),
    "PolicyConflict": Guidance(
        "a workload of two policies belongs to the one that holds it, else to the older one",
        ("make the selectors disjoint: `!get`",),
    ),
    "FleetTooLarge": Guidance(
        "the record of so many workloads would not fit into one PrecisionAssignment: nothing is moved",
        ("divide the fleet among several policies with disjoint selectors",),
    ),
    "SelectorPending": Guidance(
        "spec.selector was edited; the one before stays in force while a rollback holds workloads under it",
        ("retry what is held: `!retry {name}`", "or put the old selector back"),
    ),
    "StateLost": Guidance(
        "the PrecisionAssignment was deleted: which workload was in which mode is not known any more, so that all of them "
        "went to the fallback",
        (
            "find out who deleted it: `!history {name}`, the API server's audit log",
            "see what must be acknowledged before a retry: `!ack --policy {name}`",
            "then start again: `!retry {name}`",
        ),
    ),
    "PolicyDeleted": Guidance(
        "the policy was deleted; what a rollback put into the fallback stays there, and no other pod is changed",
        ("apply the policy again to go on from here", _RELEASE),
    ),
    "PolicyRecreated": Guidance("a new policy of this name goes on from what the one before it left behind"),
    "NotChecked": Guidance("no API server was asked yet whether it gives new pods their mode"),
    "NotEnforcing": Guidance(
        "an API server does not give new pods the mode that is assigned to their workload",
        (
            *_INSTALL_ADMISSION,
            "in kube-system and in the operator's own namespace nothing is enforced: keep the workloads and their policy "
            "in another one",
        ),
    ),
    "AdmissionNotInstalled": Guidance("an admission policy of the operator is missing", _INSTALL_ADMISSION),
    "AdmissionDiffers": Guidance(
        "an installed admission policy is not the one that this operator was shipped with", _INSTALL_ADMISSION
    ),
    "AdmissionNotConfirmed": Guidance(
        "it could not be confirmed that every API server knows the newest assignment; no pod is deleted before that",
        ("see whether the operator reaches each API server: its log, `!kubectl get endpointslices -n default`",),
    ),
    "AdmissionBehind": Guidance(
        "an API server, or a replica of the webhook, does not know the newest assignment yet; it is asked again"
    ),
    "WebhookUnreachable": Guidance(
        "a replica of the operator's webhook cannot be asked which assignment it knows; no pod is deleted before that",
        (
            "see whether the operator's pods run and are ready, and whether they reach each other on the webhook's port",
            "a replica that is gone leaves the endpoints of the webhook's Service by itself",
        ),
    ),
    "Unfenced": Guidance(
        "the admission policy that limits the operator's own writes is missing: it requests no mode and deletes no pod",
        _INSTALL_ADMISSION,
    ),
    "TemplateStartsMixed": Guidance(
        "templates of these workloads start new pods in a mixed mode; while admission works, the assigned mode replaces it",
        (
            "take ENABLE_FP16_TRAINING out of the templates, or set it to false: a pod that admission does not see then "
            "starts in FP32",
        ),
    ),
    "NotRewound": Guidance(
        "they were rolled back for losses that were not finite or diverged, and did not go back to a healthy checkpoint",
        (
            "see in the trainers' logs and dashboards whether their losses are finite again",
            "if they are not, start them from a checkpoint that was saved before the incident",
        ),
    ),
    "PodsInWrongMode": Guidance(
        "replaced pods came back in another mode than the assigned one, twice: they are not deleted again",
        (
            "compare what is assigned with what they report: `!get {name}`",
            "see whether another webhook, or the template, sets ENABLE_FP16_TRAINING after admission",
        ),
    ),
    "Forbidden": Guidance(
        "the API server refuses a write of the operator: its role, or an admission policy, forbids it",
        ("see which: `!status {name}`; then upgrade the chart, or ask the cluster's admin",),
    ),
    "LabelsDisagree": Guidance(
        "a workload's own labels and its template's answer the selector differently; the template's count",
        ("give both the same labels",),
    ),
    "WindowNotClear": Guidance(
        "the metrics' window still reaches back into the last rollback: its breaches are not new ones"
    ),
    "OverflowRateHigh": Guidance("too many steps overflowed; they were skipped, weights are intact", _AFTER_BREACH),
    "LossDiverged": Guidance("the loss rose above the workload's own FP32 baseline", _AFTER_BREACH),
    "LossNotFinite": Guidance(
        "a loss was NaN or infinite: weights may be poisoned",
        ("check the newest checkpoint before it is used: precision-trainer checkpoint verify", *_AFTER_BREACH),
    ),
    "Mitigating": Guidance(
        "something milder than a rollback is being tried against overflow, for a while; nothing is promoted meanwhile",
        ("see each workload's rung: `!status {name}`", "or go back now: `!rollback {name}`"),
    ),
    "Investigating": Guidance(
        "training is slow, which harms no weights: there is time to look for the cause before a rollback",
        (
            "are the batch and the layers multiples of 8, which tensor cores need? (genesis_run_info, the model's sizes)",
            "are the tensor cores busy? (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE, where a DCGM exporter runs)",
            "is the CPU throttled? (container_cpu_cfs_throttled_periods_total)",
            "or go back now: `!rollback {name}`",
        ),
    ),
    "MitigationExhausted": Guidance(
        "what was tried is over; since then neither a breach that is rolled back was seen, nor good metrics",
        ("lower the overflow, or restore the metrics, or go back: `!rollback {name}`",),
    ),
    "Mitigated": Guidance("the signal became good again within its window: nothing is rolled back"),
    "CohortInBF16": Guidance(
        "overflow ended only in BF16 in every workload of the cohort, so that nothing is learnt about the target",
        ("set spec.target: bf16, or go back: `!rollback {name}`",),
    ),
    "ComparingCanary": Guidance(
        "some breached workloads went to the fallback first; whether that helps them is being watched",
        ("wait, or send the rest after them: `!promote {name}`, `!rollback {name}`",),
    ),
    "CanaryUnknown": Guidance("a look at the canary is not counted, because data is missing", (_CHECK_SCRAPE,)),
    "CanaryGone": Guidance("no workload of the canary runs any more: nothing can be compared", _AFTER_CANARY),
    "NothingToCompare": Guidance("no breached workload is left in reduced precision", _AFTER_CANARY),
    "CanaryPromoted": Guidance("the rest of the fleet follows its canary to the fallback, in batches"),
    "CanaryNoDifference": Guidance(
        "the fallback helped the canary no more than waiting helped the rest", _AFTER_CANARY
    ),
    "CanaryWorse": Guidance("the canary is in worse health in the fallback than the rest", _AFTER_CANARY),
    "CanaryInconclusive": Guidance("there was too little data to say whether the fallback helps", _AFTER_CANARY),
    "TrainingFailing": Guidance("too many training runs failed or crashed", _AFTER_BREACH),
    "TrainingSlow": Guidance(
        "training is slower than its FP32 baseline by more than criteria.speed allows", _AFTER_BREACH
    ),
    "LossDiverging": Guidance(
        "the loss lies mildly above the workload's own FP32 baseline: nothing is promoted, and nothing rolled back for it",
        ("compare the loss curves; raise criteria.divergence.warn, or go back: `!rollback {name}`",),
    ),
    "MemoryRatioHigh": Guidance(
        "low precision saves less device memory than criteria.memory asks",
        ("look at what holds memory (precision-trainer env, the batch size), or raise criteria.memory.enter",),
    ),
    "Aborted": Guidance("a person asked for an emergency rollback", _AFTER_BREACH[1:]),
    "RollbackRequested": Guidance("a person asked for a rollback", _AFTER_BREACH[1:]),
    "RolledBack": Guidance("the rollback is over", _AFTER_BREACH),
    "AwaitingPrerequisites": Guidance(
        "a retry needs spec.reenable.prerequisites acknowledged since this rollback",
        ("see which, and acknowledge them: `!ack --policy {name}`, `!ack --policy {name} ITEM`",),
    ),
    "BackingOff": Guidance("repeated rollbacks: a retry must wait for spec.reenable.backoff"),
    "AwaitingRetry": Guidance("waiting for a manual retry", ("start again: `!retry {name}`",)),
    "NotANumber": Guidance(
        "a ratio could not be worked out, for one because there is no FP32 baseline", (_CHECK_SCRAPE,)
    ),
    "DuplicateSeries": Guidance(
        "Prometheus holds several series of one pod, and it is not known which of them is right",
        ("look for a pod that is scraped twice, or for a query without `by (pod)`",),
    ),
    "CohortNotRunning": Guidance("no workload of the cohort runs, so nothing can be learnt from it", (LOOK_AT_PODS,)),
    **RESTART_REASONS,
    **{refusal: Guidance(remedy.meaning, (remedy.step,)) for refusal, remedy in REMEDIES.items()},
}


def guidance(reason: str) -> Guidance | None:
    """What to say of a reason; None where its own message must do."""
    return REASONS.get(reason)

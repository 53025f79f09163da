"""What each phase and each reason means, and what a person does about it."""

from collections.abc import Mapping
from dataclasses import dataclass

from precision_operator.api.state import Phase

PHASES: Mapping[Phase, str] = {
    Phase.PENDING: "nothing has been moved yet",
    Phase.PROGRESSING: "a step is being carried out or judged",
    Phase.PAUSED: "the evidence of the step is good; a person must approve the next one",
    Phase.HEALTHY: "every step is done; the fleet is guarded for life",
    Phase.DEGRADED: "some workloads were rolled back by themselves; the rest is guarded",
    Phase.ROLLING_BACK: "all of the fleet is on its way to the fallback; new pods start in it",
    Phase.HELD: "the fleet was rolled back and stays so until a person retries; new pods start in the fallback",
}

BY_CANARY = "a few breached workloads are in the fallback, the rest only if that helps; new pods start in the fallback"
"""Of RollingBack, as long as it has come no further than its canary."""


@dataclass(frozen=True, slots=True)
class Guidance:
    """A reason, for a person."""

    meaning: str
    steps: tuple[str, ...] = ()
    """What to do; ``{name}`` is the policy, and a line ``!`` stands before a verb of ours. None: only wait."""


_LOOK_AT_PODS = "look at the pods named above: kubectl describe, kubectl logs"
_CHECK_SCRAPE = (
    "check that Prometheus scrapes the trainers' port 9400 and attaches the labels namespace and pod (docs/contract.md)"
)
_AFTER_BREACH = (
    "find the cause: `!history {name}`, `!get {name}`, `!incident list {name}`, the trainers' logs and dashboards",
    "see what must be acknowledged before another attempt: `!ack --policy {name}`",
    "then start again: `!retry {name}`",
)
_AFTER_CANARY = (
    "look for another cause: data, nodes, a change of the trainers; `!get {name}` says who is where",
    "then roll back the rest: `!promote {name}`, or at once: `!rollback --emergency {name}`",
    "or end the rollback and begin again: `!ack --policy {name}`, `!retry {name}`",
)

REASONS: Mapping[str, Guidance] = {
    "Suspended": Guidance(
        "a person paused the policy: nothing is moved, judged or guarded", ("go on: `!resume {name}`",)
    ),
    "AwaitingApproval": Guidance("the step ends with `pause: {}`", ("approve it: `!promote {name}`",)),
    "Soaking": Guidance("the evidence is good and must stay so for a while"),
    "AwaitingEvaluation": Guidance("the metrics have not been read, or not judged, yet"),
    "AwaitingAcknowledgement": Guidance(
        "trainers have been told; their own metrics do not say yet that they have moved"
    ),
    "ProgressDeadlineExceeded": Guidance(
        "a step takes longer than spec.progressDeadlineSeconds", (_LOOK_AT_PODS, "or go back: `!rollback {name}`")
    ),
    "DeadlineExceeded": Guidance(
        "the rollback takes longer than its deadline",
        (_LOOK_AT_PODS, "delete pods that do not react; new ones start safe"),
    ),
    "EvidenceInsufficient": Guidance(
        "a signal is neither in breach nor good enough to promote",
        ("wait until it settles, raise criteria.<signal>.promoteBelow, or go back: `!rollback {name}`",),
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
    "QueryInvalid": Guidance(
        "a query cannot be asked as it is written",
        ("correct criteria.<signal>.promql, where it is the policy's own; else tell the operator's admin",),
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
            "compare: kubectl get deployments -o custom-columns=NAME:.metadata.name,LABELS:.spec.template.metadata.labels",
        ),
    ),
    "Undeliverable": Guidance(
        "these workloads can be moved in no way that spec.delivery allows",
        ("declare the contract in their pod template (docs/contract.md), or choose another delivery",),
    ),
    "PolicyConflict": Guidance(
        "a workload of two policies belongs to the older one", ("make the selectors disjoint: `!get`",)
    ),
    "ConflictedWriter": Guidance(
        "somebody else writes these templates' precision too, e.g. what deploys them: theirs is left to them",
        ("leave the contract's annotations and the switch out of what is applied, or go back: `!rollback {name}`",),
    ),
    "LabelsDisagree": Guidance(
        "a workload's own labels and its template's answer the selector differently; the template's count",
        ("give both the same labels",),
    ),
    "WindowNotClear": Guidance(
        "the metrics' window still reaches back into the last rollback: its breaches are not new ones"
    ),
    "LatchedWorkloads": Guidance(
        "workloads still carry the latch of a rollback under an earlier policy",
        ("where its cause is gone: `!retry {name}`",),
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
        "training is slow, which harms no weights: there is time to look for the cause before it is rolled back",
        (
            "are the batch and the layers multiples of 8, which tensor cores need? (genesis_run_info, the model's sizes)",
            "are the tensor cores busy? (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE, where a DCGM exporter runs)",
            "is the CPU throttled? (container_cpu_cfs_throttled_periods_total)",
            "or go back now: `!rollback {name}`",
        ),
    ),
    "MitigationExhausted": Guidance(
        "what was tried is over; a breach that is to be rolled back was not seen since, nor that all is well",
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
    "CanaryWorse": Guidance("the canary fares worse in the fallback than the rest", _AFTER_CANARY),
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
        "another attempt needs spec.reenable.prerequisites acknowledged since this rollback",
        ("see which, and acknowledge them: `!ack --policy {name}`, `!ack --policy {name} ITEM`",),
    ),
    "BackingOff": Guidance("repeated failures: another attempt must wait for spec.reenable.backoff"),
    "AwaitingRetry": Guidance(
        "another attempt waits for nothing but a person's word", ("start again: `!retry {name}`",)
    ),
    "NotANumber": Guidance(
        "a ratio could not be worked out, for one because there is no FP32 baseline", (_CHECK_SCRAPE,)
    ),
    "DuplicateSeries": Guidance(
        "Prometheus holds several series of one pod, and which is true is not known",
        ("look for a pod that is scraped twice, or for a query without `by (pod)`",),
    ),
    "CohortNotRunning": Guidance("no workload of the cohort runs, so nothing can be learnt from it", (_LOOK_AT_PODS,)),
    "Settling": Guidance("the rollback is being written into the templates, without a restart; then it goes on"),
    "Unlatching": Guidance("the latches of the rollback are being taken off; then it starts again"),
    "RestoreIncomplete": Guidance("the policy is being deleted; not every workload has its original values back yet"),
}


def guidance(reason: str) -> Guidance | None:
    """What to say of a reason; None where its own message must do."""
    return REASONS.get(reason)

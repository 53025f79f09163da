"""What calls for a rollback, and how it goes."""

from precision_operator.reasons.row import (
    AFTER_BREACH,
    ATTENTION,
    CHECK_SCRAPE,
    DECISION,
    LOOK_AT_PODS,
    NORMAL,
    STUCK,
    WAITING,
)

_AFTER_CANARY = (
    "look for another cause: data, nodes, a change of the trainers; `!get {name}` shows each workload",
    "then roll back the rest: `!promote {name}`, or at once: `!rollback {name} --emergency`",
    "or end the rollback and begin again: `!ack {name}`, `!retry {name}`",
)

DEADLINE_EXCEEDED = (
    STUCK,
    "the rollback takes longer than its deadline",
    LOOK_AT_PODS,
    "see which are late: `!get {name}`; the operator restarts by itself what does not answer",
)
CAUSE_NOT_PRECISION = (
    ATTENTION,
    "workloads that train in FP32 are in breach too, so that a rollback would not help",
    "look for what they share: data, storage, network, a node",
)
WINDOW_NOT_CLEAR = (
    WAITING,
    "the metrics' window still reaches back into the last rollback: its breaches are not new ones",
)
OVERFLOW_RATE_HIGH = (ATTENTION, "too many steps overflowed; they were skipped, weights are intact", *AFTER_BREACH)
LOSS_DIVERGED = (ATTENTION, "the loss rose above the workload's own FP32 baseline", *AFTER_BREACH)
LOSS_NOT_FINITE = (
    ATTENTION,
    "a loss was NaN or infinite: weights may be poisoned",
    "check the newest checkpoint before it is used: precision-trainer checkpoint verify",
    *AFTER_BREACH,
)
MITIGATING = (
    ATTENTION,
    "something milder than a rollback is being tried against overflow, for a while; nothing is promoted meanwhile",
    "see each workload's rung: `!status {name}`",
    "or go back now: `!rollback {name}`",
)
INVESTIGATING = (
    ATTENTION,
    "training is slow, which harms no weights: there is time to look for the cause before a rollback",
    "are the batch and the layers multiples of 8, which tensor cores need? (genesis_run_info, the model's sizes)",
    "are the tensor cores busy? (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE, where a DCGM exporter runs)",
    "is the CPU throttled? (container_cpu_cfs_throttled_periods_total)",
    "or go back now: `!rollback {name}`",
)
MITIGATION_EXHAUSTED = (
    ATTENTION,
    "what was tried is over; since then neither a breach that is rolled back was seen, nor good metrics",
    "lower the overflow, or restore the metrics, or go back: `!rollback {name}`",
)
MITIGATED = (WAITING, "the signal became good again within its window: nothing is rolled back")
MITIGATION_FAILED = (
    ATTENTION,
    "the signal did not become good again within its window, or something more severe came: it is rolled back",
    *AFTER_BREACH,
)
COMPARING_CANARY = (
    ATTENTION,
    "some breached workloads went to the fallback first; whether that helps them is being watched",
    "wait, or send the rest after them: `!promote {name}`, `!rollback {name}`",
)
CANARY_UNKNOWN = (ATTENTION, "a look at the canary is not counted, because data is missing", CHECK_SCRAPE)
CANARY_GONE = (ATTENTION, "no workload of the canary runs any more: nothing can be compared", *_AFTER_CANARY)
NOTHING_TO_COMPARE = (ATTENTION, "no breached workload is left in reduced precision", *_AFTER_CANARY)
CANARY_PROMOTED = (WAITING, "the rest of the fleet follows its canary to the fallback, in batches")
CANARY_NO_DIFFERENCE = (STUCK, "the fallback helped the canary no more than waiting helped the rest", *_AFTER_CANARY)
CANARY_WORSE = (STUCK, "the canary is in worse health in the fallback than the rest", *_AFTER_CANARY)
CANARY_INCONCLUSIVE = (STUCK, "there was too little data to say whether the fallback helps", *_AFTER_CANARY)
TRAINING_FAILING = (ATTENTION, "too many training runs failed or crashed", *AFTER_BREACH)
TRAINING_SLOW = (
    ATTENTION,
    "training is slower than its FP32 baseline by more than criteria.speed allows",
    *AFTER_BREACH,
)
LOSS_DIVERGING = (
    ATTENTION,
    "the loss lies mildly above the workload's own FP32 baseline: nothing is promoted, and nothing rolled back for it",
    "compare the loss curves; raise criteria.divergence.warn, or go back: `!rollback {name}`",
)
MEMORY_RATIO_HIGH = (
    ATTENTION,
    "low precision saves less device memory than criteria.memory asks",
    "look at what holds memory (precision-trainer env, the batch size), or raise criteria.memory.enter",
)
ABORTED = (ATTENTION, "a person asked for an emergency rollback", *AFTER_BREACH[1:])
ROLLED_BACK = (DECISION, "the rollback is over", *AFTER_BREACH)
NOTHING_SUSPECT = (NORMAL, "no weights may be poisoned")
ROLLBACK_ESCALATED = (
    ATTENTION,
    "the workloads that did not acknowledge are restarted",
    "see why they do not answer: `!get {name}`, `!kubectl logs {of} --tail=50`",
)
INVESTIGATION_CHECKS = (NORMAL, "what is known of the causes of slow training")

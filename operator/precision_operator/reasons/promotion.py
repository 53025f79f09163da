"""What a rollout does, and what it waits for."""

from precision_operator.reasons.row import ATTENTION, DECISION, LOOK_AT_PODS, NORMAL, STUCK, WAITING

OUTSIDE_SCHEDULE = (
    WAITING,
    "the rollout advances inside of the windows of spec.schedule alone; rollbacks do not wait for them",
)
UNKNOWN_TIME_ZONE = (
    STUCK,
    "spec.schedule names a time zone that the operator does not know: the rollout does not advance",
    "name one of the IANA database, e.g. `Europe/Berlin`",
)
PROMOTION_CAP = (
    WAITING,
    "as many workloads of the whole cluster are being promoted as the admin allows (config.maxPromotingWorkloads)",
)
AWAITING_APPROVAL = (DECISION, "the step ends with `pause: {}`", "approve it: `!promote {name}`")
SOAKING = (WAITING, "the evidence is good and must stay so for a while")
AWAITING_EVALUATION = (WAITING, "the metrics have not been read, or not judged, yet")
AWAITING_ACKNOWLEDGEMENT = (WAITING, "the mode was requested; the trainers' own metrics do not report it yet")
PROGRESS_DEADLINE_EXCEEDED = (
    STUCK,
    "a step takes longer than spec.progressDeadlineSeconds",
    LOOK_AT_PODS,
    "or go back: `!rollback {name}`",
)
EVIDENCE_INSUFFICIENT = (
    ATTENTION,
    "a signal is neither in breach nor good enough to promote",
    "wait for better metrics, raise criteria.<signal>.promoteBelow, or go back: `!rollback {name}`",
)
CANARY_REGRESSED = (
    STUCK,
    "what was moved does worse than what still trains in the fallback, though every threshold is met",
    "compare them: `!get {name}`, the dashboards; then take them back: `!rollback {name}`",
    "or go on all the same: `!promote {name}`",
)
PREFLIGHT_FAILED = (
    ATTENTION,
    "a workload could not train in the target, or could not come back: torch, the device or a dry run say so",
    "mend what the message names, or take the workload out of the selector",
)
NO_STAGING_NODES = (
    ATTENTION,
    "strategy.canary.by is NodeLabel, and no workload runs on labelled nodes alone",
    "label nodes as strategy.canary.nodeLabel says: `!kubectl get nodes --show-labels`",
    "the operator needs rbac.nodes of the chart to read them",
)
PODS_INDIVISIBLE = (
    ATTENTION,
    "spec.unit is Pod, and these workloads of several pods move only by a restart, and have no index to divide them by",
    "declare the contract in their pod template, by hand or by one label (docs/onboarding.md)",
    "or select them by another policy, with spec.unit: Workload",
)
PROCESS_GROUP_UNKNOWN = (
    ATTENTION,
    "spec.unit is Pod, and nobody says whether the pods of these workloads train together: they move at 100 % only",
    "have the trainer export world_size in genesis_run_info (docs/contract.md), or set spec.unit: Workload",
)
SPEEDUP_LOW = (
    ATTENTION,
    "training gained less speed than expected",
    "see whether tensor cores are used: sizes and batches are best multiples of 8",
)
MEMORY_TOO_SMALL = (
    ATTENTION,
    "FP32 needs more device memory than these workloads have left",
    "free device memory, or move them to larger devices, before a rollback needs FP32",
)
NOT_REPORTED = (WAITING, "trainers or dry runs have not answered a preflight check yet")
PREFLIGHT_PASSED = (NORMAL, "every workload can train in the target and come back")
ROLLOUT_STARTED = (NORMAL, "the rollout began")
STEP_PROMOTED = (NORMAL, "the next step of the rollout began")
PROMOTED = (NORMAL, "every step of the rollout is done")
COHORT_IN_BF16 = (
    ATTENTION,
    "overflow ended only in BF16 in every workload of the cohort, so that nothing is learnt about the target",
    "set spec.target: bf16, or go back: `!rollback {name}`",
)
COHORT_NOT_RUNNING = (ATTENTION, "no workload of the cohort runs, so nothing can be learnt from it", LOOK_AT_PODS)

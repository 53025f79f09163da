"""What people ask for, and how far the operator may act."""

from precision_operator.reasons.row import AFTER_BREACH, ATTENTION, DECISION, LOOK_AT_PODS, NORMAL, WAITING

_ENFORCE = 'let it act: `!kubectl patch precisionpolicy {name} --type=merge -p={"spec":{"enforcement":"Enforce"}}`'

SUSPENDED = (DECISION, "a person paused the policy: nothing is moved, judged or watched", "go on: `!resume {name}`")
HALTED = (
    DECISION,
    "somebody halted the operator on the whole cluster: nothing is moved, judged or watched, forward or back",
    "ask who halted it, and why: `!kubectl get configmaps --all-namespaces "
    "--field-selector=metadata.name=precision-halt -o yaml`",
    "go on: delete the ConfigMap precision-halt in the operator's namespace, which the message names",
)
OBSERVING = (
    DECISION,
    "the policy only observes: metrics are judged and decisions reported, and nothing is changed",
    _ENFORCE,
)
WOULD_ACT = (
    DECISION,
    "the policy only observes; were it enforced, the operator would act now",
    "see what it would do: `!get {name}`",
    _ENFORCE,
)
ROLLBACK_REQUESTED = (ATTENTION, "a person asked for a rollback", *AFTER_BREACH[1:])
AWAITING_PREREQUISITES = (
    DECISION,
    "a retry needs spec.reenable.prerequisites acknowledged since this rollback",
    "see which, and acknowledge them: `!ack {name}`, `!ack {name} {missing}`",
)
BACKING_OFF = (WAITING, "repeated rollbacks: a retry must wait for spec.reenable.backoff")
AWAITING_RETRY = (DECISION, "waiting for a manual retry", "start again: `!retry {name}`")
RETRIED = (NORMAL, "a person asked for another rollout")
TARGET_CHANGED = (NORMAL, "spec.target was edited: the rollout begins again")
ROLLBACK_EXPEDITED = (ATTENTION, "a rollback under way was made faster", "see what remains: `!status {name}`")
PENDING = (WAITING, "nothing has been decided yet")
NOT_ACKNOWLEDGED = (ATTENTION, "the trainers did not acknowledge a mitigation in time", LOOK_AT_PODS)
NOTHING_TO_RETRY = (DECISION, "a retry was asked for, and nothing was rolled back")
NOT_AWAITING_APPROVAL = (
    DECISION,
    "a promotion was asked for, and no step waits for one",
    "see what it waits for: `!explain {name}`",
)
DRILLING = (WAITING, "a rollback is rehearsed: workloads in good health go to the fallback, and back by themselves")
DRILL_PASSED = (NORMAL, "every workload of a drill reported the fallback before the deadline of a P0")
DRILL_FAILED = (
    ATTENTION,
    "not every workload of a drill reported the fallback before the deadline of a P0; a rollback would not have either",
    "see why they do not answer: `!get {name}`, `!kubectl logs {of} --tail=50`",
    "then rehearse again: `!drill {name}`",
)
DRILL_PREEMPTED = (
    NORMAL,
    "a breach, a command or an edit ended a drill: it says nothing of the way back",
    "rehearse again once the fleet is Healthy: `!drill {name}`",
)
DRILL_REFUSED = (
    DECISION,
    "a drill was asked for where it would be in the way, or could not be followed",
    "see what the fleet does now: `!explain {name}`",
)
REFUSED = (DECISION, "what was asked for cannot be done now")

"""Why a restart does not come nearer."""

from precision_operator.reasons.row import ATTENTION, LOOK_AT_PODS, NORMAL

_WHERE = "see which pods, and where they run: `!kubectl get pods {of} -o wide`"
_EMERGENCY = "or do not wait: `!rollback {name} --emergency`"

BLOCKED = (
    ATTENTION,
    "pods that are deleted do not go, so that what runs in them is not known; no deadline is about them",
    _WHERE,
    LOOK_AT_PODS,
)
NODE_UNREACHABLE = (
    ATTENTION,
    "a node does not answer, so that what runs on it cannot be ended from here; no deadline is about its pods",
    "see which nodes do not answer: `!kubectl get nodes`",
    _WHERE,
    "bring the node back, or power it off and then delete its object",
    "do not delete the object of a node that may still run: its processes may still write checkpoints",
)
FOREIGN_FINALIZER = (
    ATTENTION,
    "another program's finalizer keeps pods that should be gone; no deadline is about them",
    "see which: `!kubectl get pods {of} "
    "-o custom-columns=POD:.metadata.name,DELETED:.metadata.deletionTimestamp,FINALIZERS:.metadata.finalizers`",
    "ask whoever runs that program; take its finalizer away by hand only where the program is gone",
)
NOT_TERMINATED = (
    ATTENTION,
    "pods that were deleted with a grace of one second half a minute ago have not ended, and their node is not known "
    "to be away; the operator knows that only where it may read nodes (rbac.nodes of the chart)",
    "see whether the node answers: `!kubectl get nodes`",
    _WHERE,
    "look at their events, and at the kubelet and the container runtime of that node: `!kubectl describe pods {of}`",
    "a process that waits for storage or for a device ends with a reboot of its node; deleting the pod by --force "
    "would only hide it",
)
TEMPLATE_CHANGED = (
    ATTENTION,
    "a change of the pod template has not reached the running pods; a restart would bring it in, so there is none",
    "see which workloads: `!get {name}`",
    "see their revisions: `!kubectl get replicasets,controllerrevisions {of}`; roll the newest out, or take it back",
    "or let an emergency bring it in: `!kubectl patch precisionpolicy {name} --type=merge "
    '-p={"spec":{"rollback":{"onPendingRevision":"Restart"}}}`',
)
REPLACEMENT_PENDING = (
    ATTENTION,
    "a replacement finds no place though its old pod is gone: that capacity is lost, and nothing of this policy that "
    "can wait is restarted",
    "see why: `!kubectl get events --field-selector=reason=FailedScheduling`, and which pods: "
    "`!kubectl get pods {of} --field-selector=status.phase=Pending`",
    "give them room: nodes, devices, quota, volumes; restarts go on by themselves then",
)
DISRUPTION_BUDGET = (
    ATTENTION,
    "a PodDisruptionBudget does not allow these pods to go; they are asked for again until it does",
    "see what each allows: `!kubectl get poddisruptionbudgets`",
    "wait until more of its pods are ready, or lower its minAvailable: one that allows no disruption never lets "
    "them go",
    f"{_EMERGENCY}, which asks no budget unless rollback.emergency.respectDisruptionBudgets is true",
)
DEADLINE_UNREACHABLE = (
    ATTENTION,
    "the restarts of this rollback are predicted to take longer than its deadline leaves",
    "raise rollback.emergency.maxConcurrentPods, if the cluster can start so many pods at once",
    "for the next time: declare the contract, and such workloads change without a restart (docs/onboarding.md)",
)
ALL_CAN_BE_RESTARTED = (NORMAL, "every workload can be restarted")
HOT_ONLY = (
    ATTENTION,
    "these workloads change precision while they answer, and are never restarted",
    "declare how they are started again by a controller that this operator knows (docs/reference/kinds.md)",
)
NOTHING_STUCK = (NORMAL, "no pod came back in a wrong mode")
NOTHING_BLOCKED = (NORMAL, "no terminating pod is kept")

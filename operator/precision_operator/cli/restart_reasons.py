"""What the reasons mean that restarts bring, and what a person does about each. docs/restarts.md says more."""

from collections.abc import Mapping

from precision_operator.cli.reason import LOOK_AT_PODS, Guidance

_WHERE = "see which pods, and where they run: `!kubectl get pods -o wide`"
_EMERGENCY = "or do not wait: `!rollback --emergency {name}`"

RESTART_REASONS: Mapping[str, Guidance] = {
    "Blocked": Guidance(
        "pods that are deleted do not go, so that what runs in them is not known; no deadline is about them",
        (_WHERE, LOOK_AT_PODS),
    ),
    "NodeUnreachable": Guidance(
        "a node does not answer, so that what runs on it cannot be ended from here; no deadline is about its pods",
        (
            "see which nodes do not answer: `!kubectl get nodes`",
            _WHERE,
            "bring the node back, or power it off and then delete its object: `!kubectl delete node NODE`",
            "do not delete the object of a node that may still run: its processes may still write checkpoints",
        ),
    ),
    "ForeignFinalizer": Guidance(
        "another program's finalizer keeps pods that should be gone; no deadline is about them",
        (
            "see which: `!kubectl get pods "
            "-o custom-columns=POD:.metadata.name,DELETED:.metadata.deletionTimestamp,FINALIZERS:.metadata.finalizers`",
            "ask whoever runs that program; take its finalizer away by hand only where the program is gone",
        ),
    ),
    "NotTerminated": Guidance(
        "a node that answers has not ended pods that were deleted with a grace of one second, half a minute ago",
        (
            _WHERE,
            "look at their events, and at the kubelet and the container runtime of that node: `!kubectl describe pods`",
            "a process that waits for storage or for a device ends with a reboot of its node; deleting the pod by --force "
            "would only hide it",
        ),
    ),
    "TemplateChanged": Guidance(
        "a change of the pod template has not reached the running pods; a restart would bring it in, so there is none",
        (
            "see which workloads: `!get {name}`",
            "roll the change out, or take it back: `!kubectl rollout status KIND/NAME`, `!kubectl rollout undo KIND/NAME`",
            "or let an emergency bring it in: `!kubectl patch precisionpolicy {name} --type=merge "
            '-p={"spec":{"rollback":{"onPendingRevision":"Restart"}}}`',
        ),
    ),
    "ReplacementPending": Guidance(
        "a replacement finds no place though its old pod is gone: that capacity is lost, and nothing that can wait is "
        "restarted",
        (
            "see why: `!kubectl get events --field-selector=reason=FailedScheduling`, and which pods: "
            "`!kubectl get pods --field-selector=status.phase=Pending`",
            "give them room: nodes, devices, quota, volumes; restarts go on by themselves then",
        ),
    ),
    "DisruptionBudget": Guidance(
        "a PodDisruptionBudget does not allow these pods to go; they are asked for again until it does",
        (
            "see what each allows: `!kubectl get poddisruptionbudgets`",
            "wait until more of its pods are ready, or lower its minAvailable: one that allows no disruption never lets "
            "them go",
            f"{_EMERGENCY}, which asks no budget unless rollback.emergency.respectDisruptionBudgets is true",
        ),
    ),
    "DeadlineUnreachable": Guidance(
        "the restarts of this rollback are predicted to take longer than its deadline leaves",
        (
            "raise rollback.emergency.maxConcurrentPods, if the cluster can start so many pods at once",
            "for the next time: declare the contract, and such workloads change without a restart (docs/onboarding.md)",
        ),
    ),
    "UnsupportedKind": Guidance(
        "spec.selector matches pods whose controller is of no supported kind (Deployment, ReplicaSet, StatefulSet, Job, or "
        "none): their new pods get the assigned mode, and running ones are left alone",
        (
            "see who owns them: `!kubectl get pods "
            "-o custom-columns=POD:.metadata.name,KIND:.metadata.ownerReferences[*].kind,"
            "OWNER:.metadata.ownerReferences[*].name`",
            "restart them as their own controller wants it, to bring them into the assigned mode; or narrow spec.selector",
        ),
    ),
}

"""ReplicaSets: workloads where nothing controls them, else links between pods and what controls the ReplicaSet."""

from precision_operator.core.model import RestartBy
from precision_operator.kube.port import REPLICASETS
from precision_operator.workloads.kinds.kind import Body, WorkloadKind, read_template, replicas_of, unobserved
from precision_operator.workloads.owner import controller_of
from precision_operator.workloads.records import WorkloadRecord


def read_replicaset(body: Body) -> WorkloadRecord | None:
    """The record of a bare ReplicaSet; None where something controls it.

    It keeps no revisions: whether its pods are of an older template can be told only until its controller has seen it.
    """
    if controller_of(body) is not None:
        return None
    return read_template(
        body,
        REPLICASET.kind,
        REPLICASET.restart_by,
        replicas=replicas_of(body),
        pending_revision=unobserved(body),
    )


REPLICASET = WorkloadKind("apps/ReplicaSet", REPLICASETS, RestartBy.PODS, read_replicaset)

"""ReplicaSets: workloads where nothing controls them, else links between pods and what controls the ReplicaSet."""

from precision_operator.core.model import RestartBy
from precision_operator.kube.port import REPLICASETS
from precision_operator.workloads.identity import workload_key
from precision_operator.workloads.kinds.deployment import DEPLOYMENT
from precision_operator.workloads.kinds.kind import Body, WorkloadKind, pod_of, read_template, replicas_of, unobserved
from precision_operator.workloads.owner import controller_of
from precision_operator.workloads.reading import interned
from precision_operator.workloads.records import Stranger, WorkloadRecord


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


def strange_replicaset(body: Body) -> Stranger | None:
    """Of a ReplicaSet that something else than a Deployment controls, such as a Rollout; None of any other."""
    owner = controller_of(body)
    if owner is None or owner.kind == DEPLOYMENT.kind:
        return None
    pod = pod_of(body, REPLICASET.kind)
    return Stranger(workload_key(pod), interned(pod))


REPLICASET = WorkloadKind("apps/ReplicaSet", REPLICASETS, RestartBy.PODS, read_replicaset)

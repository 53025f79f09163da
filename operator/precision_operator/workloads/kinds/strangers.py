"""What an object of no known kind controls: it is named where a policy selects it, and never touched."""

from precision_operator.workloads.identity import workload_key
from precision_operator.workloads.kinds.deployment import DEPLOYMENT
from precision_operator.workloads.kinds.kind import Body, pod_of
from precision_operator.workloads.kinds.pod import finished
from precision_operator.workloads.kinds.replicaset import REPLICASET
from precision_operator.workloads.kinds.table import KINDS
from precision_operator.workloads.owner import controller_of
from precision_operator.workloads.reading import interned
from precision_operator.workloads.records import Stranger

_KNOWN = frozenset(kind.kind for kind in KINDS)


def strange_pod(body: Body) -> Stranger | None:
    """Of a pod that an object of no known kind controls, such as a RayCluster; None of any other, and once it has ended."""
    owner = controller_of(body)
    if owner is None or owner.kind in _KNOWN or finished(body):
        return None
    return Stranger(workload_key(body), interned(body))


def strange_replicaset(body: Body) -> Stranger | None:
    """Of a ReplicaSet that something else than a Deployment controls, such as a Rollout; None of any other."""
    owner = controller_of(body)
    if owner is None or owner.kind == DEPLOYMENT.kind:
        return None
    pod = pod_of(body, REPLICASET.kind)
    return Stranger(workload_key(pod), interned(pod))

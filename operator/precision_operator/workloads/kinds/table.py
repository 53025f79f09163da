"""All kinds of workloads that are known here. What is watched follows from it."""

from collections.abc import Mapping

from precision_operator.kube.port import Resource
from precision_operator.workloads.kinds.deployment import DEPLOYMENT
from precision_operator.workloads.kinds.job import JOB
from precision_operator.workloads.kinds.kind import WorkloadKind
from precision_operator.workloads.kinds.pod import POD
from precision_operator.workloads.kinds.replicaset import REPLICASET
from precision_operator.workloads.kinds.statefulset import STATEFULSET

KINDS = (DEPLOYMENT, REPLICASET, STATEFULSET, JOB, POD)

KIND_OF: Mapping[Resource, WorkloadKind] = {kind.resource: kind for kind in KINDS}

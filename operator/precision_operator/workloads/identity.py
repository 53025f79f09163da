"""Which workload a pod belongs to, from the pod's body alone. manifests/admission/assign.yaml has the same rules in CEL.

A key is ``apiGroup/Kind/name`` (``apps/Deployment/vit``, ``/Pod/probe`` in the core group) or ``label/name``. A pod's
own name is never parsed, because controllers truncate it. Labels and owners are what the pod says of itself: who acts
on a workload must verify the chain of owners by uid.
"""

import re
from collections.abc import Mapping

from precision_operator.api.wire import mapping, text
from precision_operator.contract import WORKLOAD
from precision_operator.workloads.owner import Owner, controller_of

_JOB_NAME = "training.kubeflow.org/job-name"
_JOB_CONTROLLER = "training.kubeflow.org/operator-name"

_NAMED_BY_LABEL = (
    (WORKLOAD, "label"),
    ("jobset.sigs.k8s.io/jobset-name", "jobset.x-k8s.io/JobSet"),
    (_JOB_NAME, "kubeflow.org/PyTorchJob"),
    ("leaderworkerset.sigs.k8s.io/name", "leaderworkerset.x-k8s.io/LeaderWorkerSet"),
    ("ray.io/cluster", "ray.io/RayCluster"),
)
"""In the order of precedence. A TrainJob's pods carry the label of its JobSet, which has the same name."""

_NAMED_BY_HASH = (
    ("rollouts-pod-template-hash", "argoproj.io/Rollout"),
    ("pod-template-hash", "apps/Deployment"),
)
"""Labels whose value ends the name of the ReplicaSet, after the name of what owns it."""

_INDEXED_BY = {
    "apps/StatefulSet": "apps.kubernetes.io/pod-index",
    "batch/Job": "batch.kubernetes.io/job-completion-index",
}
"""Labels that these controllers write into a new pod, whatever their template says of them."""

_INDEX = re.compile("[0-9]{1,9}")


def workload_key(pod: Mapping[str, object]) -> str:
    """The key of the pod's workload; of any body, also of an odd one.

    A bare pod whose name the API server generates has no name while it is admitted: its key is ``/Pod/`` then.
    """
    metadata = mapping(pod.get("metadata"))
    labels = mapping(metadata.get("labels"))
    owner = controller_of(pod) or Owner("", "Pod", text(metadata.get("name")), "")
    return _key_by_label(labels) or _key_by_hash(labels, owner) or f"{owner.kind}/{owner.name}"


def pod_index(pod: Mapping[str, object]) -> int:
    """The index that its controller gave the pod; -1 where it has none."""
    owner = controller_of(pod)
    label = _INDEXED_BY.get(owner.kind, "") if owner is not None else ""
    found = text(mapping(mapping(pod.get("metadata")).get("labels")).get(label))
    return int(found) if _INDEX.fullmatch(found) else -1


def _key_by_label(labels: Mapping[str, object]) -> str:
    for label, kind in _NAMED_BY_LABEL:
        name = text(labels.get(label))
        if name and (label != _JOB_NAME or labels.get(_JOB_CONTROLLER) == "pytorchjob-controller"):
            return f"{kind}/{name}"
    return ""


def _key_by_hash(labels: Mapping[str, object], owner: Owner) -> str:
    if owner.kind != "apps/ReplicaSet":
        return ""
    for label, kind in _NAMED_BY_HASH:
        found, suffix = text(labels.get(label)), f"-{text(labels.get(label))}"
        if found and owner.name.endswith(suffix) and owner.name != suffix:
            return f"{kind}/{owner.name.removesuffix(suffix)}"
    return ""

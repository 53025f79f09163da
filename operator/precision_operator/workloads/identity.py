"""Which workload a pod belongs to, from the pod's body alone. manifests/admission/assign.yaml has the same rules in CEL.

A key is ``apiGroup/Kind/name`` (``apps/Deployment/vit``, ``/Pod/probe`` in the core group) or ``label/name``. A pod's
own name is never parsed, because controllers truncate it. Labels and owners are what the pod says of itself: who acts
on a workload must verify the chain of owners by uid.
"""

import re
from collections.abc import Mapping

from precision_operator.api.wire import mapping, sequence, text
from precision_operator.contract import WORKLOAD

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

_INDEXED_BY = (
    ("apps/", "StatefulSet", "apps.kubernetes.io/pod-index"),
    ("batch/", "Job", "batch.kubernetes.io/job-completion-index"),
)
"""Labels that these controllers write into a new pod, whatever their template says of them."""

_INDEX = re.compile("[0-9]{1,9}")


def workload_key(pod: Mapping[str, object]) -> str:
    """The key of the pod's workload; of any body, also of an odd one.

    A bare pod whose name the API server generates has no name while it is admitted: its key is ``/Pod/`` then.
    """
    metadata = mapping(pod.get("metadata"))
    labels = mapping(metadata.get("labels"))
    owner = _controller(metadata)
    return (
        _key_by_label(labels)
        or _key_by_hash(labels, owner)
        or (_key_by_owner(owner) if owner is not None else f"/Pod/{text(metadata.get('name'))}")
    )


def pod_index(pod: Mapping[str, object]) -> int:
    """The index that its controller gave the pod; -1 where it has none."""
    metadata = mapping(pod.get("metadata"))
    owner = _controller(metadata) or {}
    api, kind = text(owner.get("apiVersion")), owner.get("kind")
    label = next((label for group, name, label in _INDEXED_BY if kind == name and api.startswith(group)), "")
    found = text(mapping(metadata.get("labels")).get(label))
    return int(found) if _INDEX.fullmatch(found) else -1


def _controller(metadata: Mapping[str, object]) -> Mapping[str, object] | None:
    owners = map(mapping, sequence(metadata.get("ownerReferences")))
    return next((owner for owner in owners if owner.get("controller") is True), None)


def _key_by_label(labels: Mapping[str, object]) -> str:
    for label, kind in _NAMED_BY_LABEL:
        name = text(labels.get(label))
        if name and (label != _JOB_NAME or labels.get(_JOB_CONTROLLER) == "pytorchjob-controller"):
            return f"{kind}/{name}"
    return ""


def _key_by_hash(labels: Mapping[str, object], owner: Mapping[str, object] | None) -> str:
    if owner is None or owner.get("kind") != "ReplicaSet" or not text(owner.get("apiVersion")).startswith("apps/"):
        return ""
    for label, kind in _NAMED_BY_HASH:
        found, suffix = text(labels.get(label)), f"-{text(labels.get(label))}"
        name = text(owner.get("name"))
        if found and name.endswith(suffix) and name != suffix:
            return f"{kind}/{name.removesuffix(suffix)}"
    return ""


def _key_by_owner(owner: Mapping[str, object]) -> str:
    group, slash, _ = text(owner.get("apiVersion")).partition("/")
    return f"{group if slash else ''}/{text(owner.get('kind'))}/{text(owner.get('name'))}"

"""The objects of a benchmark: Deployments that carry the contract, with or without controllers, and policies over them."""

from __future__ import annotations

from collections.abc import Mapping

from lab.bench.api import Json
from precision_operator.contract import ENABLE, ENABLE_ENV, MODE, MODE_ENV, REQUEST

INTERVAL_SECONDS = 5.0
WINDOW_SECONDS = 6.0
MIN_STEPS = 20
POLICY = "fleet"
LABELS = {"fleet": "bench"}

_CONTAINER = {"name": "trainer", "image": "trainer"}
_LITERAL = {"name": ENABLE_ENV, "value": "false"}
_FROM_ANNOTATION = {
    ENABLE_ENV: {"fieldRef": {"fieldPath": f"metadata.annotations['{ENABLE}']"}},
    MODE_ENV: {"fieldRef": {"fieldPath": f"metadata.annotations['{MODE}']"}},
}


def deployment(name: str, *, replicas: int, labels: Mapping[str, str] = LABELS, hot: bool = True) -> Json:
    """A Deployment whose pods read the request file, as the contract shows it; not hot: one that only a restart moves."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": dict(labels)},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {**labels, "app": name}, "annotations": {ENABLE: "false"}},
                "spec": _pod_spec() if hot else {"containers": [{**_CONTAINER, "env": [_LITERAL]}]},
            },
        },
    }


def replica_set(owner: Json) -> Json:
    """The ReplicaSet of a stored Deployment that no controller serves."""
    template = owner["spec"]["template"]
    labels = {**template["metadata"]["labels"], "pod-template-hash": "bench"}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{owner['metadata']['name']}-bench",
            "labels": labels,
            "ownerReferences": [_controlled_by(owner, "Deployment")],
        },
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {**template, "metadata": {**template["metadata"], "labels": labels}},
        },
    }


def pod_of(owner: Json) -> Json:
    """The pod of a stored ReplicaSet that no controller serves."""
    metadata = owner["spec"]["template"]["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{owner['metadata']['name']}-0",
            "labels": metadata["labels"],
            "annotations": {ENABLE: "false"},
            "ownerReferences": [_controlled_by(owner, "ReplicaSet")],
        },
        "spec": _pod_spec(),
    }


def _controlled_by(owner: Json, kind: str) -> Json:
    found = owner["metadata"]
    return {"apiVersion": "apps/v1", "kind": kind, "name": found["name"], "uid": found["uid"], "controller": True}


def node(name: str, *, pods: int) -> Json:
    """A node with room for so many pods."""
    room = {"cpu": "64", "memory": "256Gi", "pods": str(pods)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": room, "capacity": room},
    }


def policy(
    name: str = POLICY, *, interval_seconds: float = INTERVAL_SECONDS, labels: Mapping[str, str] = LABELS
) -> Json:
    """One step to everything, and a rollback of everything as soon as two workloads breach."""
    return {
        "apiVersion": "precision.genesis.ai/v1alpha1",
        "kind": "PrecisionPolicy",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": dict(labels)},
            "evaluation": {
                "interval": f"{interval_seconds:g}s",
                "window": f"{WINDOW_SECONDS:g}s",
                "failureLimit": 0,
                "minSamples": 1,
                "minSteps": MIN_STEPS,
            },
            "strategy": {"steps": [{"setWeight": 100}]},
            "rollback": {"fleetShare": 0.0001, "fleetMinimum": 2},
            "reenable": {"prerequisites": [], "backoff": "0s", "dwell": "0s"},
        },
    }


def _pod_spec() -> Json:
    env = [{"name": name, "valueFrom": source} for name, source in _FROM_ANNOTATION.items()]
    request = {"path": "request", "fieldRef": {"fieldPath": f"metadata.annotations['{REQUEST}']"}}
    mount = {"name": "precision", "mountPath": "/etc/precision", "readOnly": True}
    return {
        "containers": [{**_CONTAINER, "env": env, "volumeMounts": [mount]}],
        "volumes": [{"name": "precision", "downwardAPI": {"items": [request]}}],
    }

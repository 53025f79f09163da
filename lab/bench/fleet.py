"""The objects of a benchmark: Deployments that carry the contract, policies over them, and pods where nobody makes any."""

from __future__ import annotations

from lab.bench.api import Json
from precision_operator.contract import ENABLE, ENABLE_ENV, MODE, MODE_ENV, REQUEST

INTERVAL_SECONDS = 5.0
WINDOW_SECONDS = 6.0
MIN_STEPS = 20
POLICY = "fleet"
LABELS = {"fleet": "bench"}

_FROM_ANNOTATION = {
    ENABLE_ENV: {"fieldRef": {"fieldPath": f"metadata.annotations['{ENABLE}']"}},
    MODE_ENV: {"fieldRef": {"fieldPath": f"metadata.annotations['{MODE}']"}},
}


def deployment(name: str, *, replicas: int) -> Json:
    """A Deployment whose pods read the request file, as the contract shows it."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": LABELS},
        "spec": {
            "replicas": replicas,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {**LABELS, "app": name}, "annotations": {ENABLE: "false"}},
                "spec": _pod_spec(),
            },
        },
    }


def pod_of(workload: str) -> Json:
    """The pod of a Deployment that no controller serves: only its ownership is as a controller would leave it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{workload}-bench-0",
            "labels": {**LABELS, "app": workload, "pod-template-hash": "bench"},
            "annotations": {ENABLE: "false"},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": f"{workload}-bench",
                    "uid": f"none-{workload}",
                    "controller": True,
                }
            ],
        },
        "spec": _pod_spec(),
    }


def node(name: str, *, pods: int) -> Json:
    """A node with room for so many pods."""
    room = {"cpu": "64", "memory": "256Gi", "pods": str(pods)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": room, "capacity": room},
    }


def policy(*, fleet_minimum: int) -> Json:
    """One step to everything, and a rollback of everything as soon as ``fleet_minimum`` workloads breach."""
    return {
        "apiVersion": "precision.genesis.ai/v1alpha1",
        "kind": "PrecisionPolicy",
        "metadata": {"name": POLICY},
        "spec": {
            "selector": {"matchLabels": LABELS},
            "evaluation": {
                "interval": f"{INTERVAL_SECONDS:g}s",
                "window": f"{WINDOW_SECONDS:g}s",
                "failureLimit": 0,
                "minSamples": 1,
                "minSteps": MIN_STEPS,
            },
            "strategy": {"steps": [{"setWeight": 100}]},
            "rollback": {"fleetShare": 0.0001, "fleetMinimum": fleet_minimum},
            "reenable": {"prerequisites": [], "backoff": "0s", "dwell": "0s"},
        },
    }


def _pod_spec() -> Json:
    env = [{"name": name, "valueFrom": source} for name, source in _FROM_ANNOTATION.items()]
    request = {"path": "request", "fieldRef": {"fieldPath": f"metadata.annotations['{REQUEST}']"}}
    mount = {"name": "precision", "mountPath": "/etc/precision", "readOnly": True}
    return {
        "containers": [{"name": "trainer", "image": "trainer", "env": env, "volumeMounts": [mount]}],
        "volumes": [{"name": "precision", "downwardAPI": {"items": [request]}}],
    }

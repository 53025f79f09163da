"""Policies, Deployments and their pods as an API server gives them."""

from __future__ import annotations

from typing import Any

REQUEST_PATH = "metadata.annotations['precision.genesis.ai/request']"
ENABLE_PATH = "metadata.annotations['precision.genesis.ai/enable-fp16']"
MODE_PATH = "metadata.annotations['precision.genesis.ai/mode']"

LITERAL = [{"name": "ENABLE_FP16_TRAINING", "value": "false"}]
CONTRACT_ENV = [
    {"name": "ENABLE_FP16_TRAINING", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": ENABLE_PATH}}},
    {"name": "PRECISION_MODE", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": MODE_PATH}}},
]
FROM_CONFIG = [
    {"name": "ENABLE_FP16_TRAINING", "valueFrom": {"configMapKeyRef": {"name": "flags", "key": "fp16"}}},
]


def container(
    name: str = "trainer", *, env: list[Any] | None = None, mounts: bool = False, **more: object
) -> dict[str, Any]:
    body: dict[str, Any] = {"name": name, "image": "trainer:1", **more}
    if env is not None:
        body["env"] = env
    if mounts:
        body["volumeMounts"] = [{"name": "precision", "mountPath": "/etc/precision"}]
    return body


def volume(*, projected: bool = False) -> dict[str, Any]:
    items = {"items": [{"path": "request", "fieldRef": {"fieldPath": REQUEST_PATH}}]}
    if projected:
        return {"name": "precision", "projected": {"sources": [{"downwardAPI": items}]}}
    return {"name": "precision", "downwardAPI": items}


def pod_spec(*containers: dict[str, Any], volumes: list[Any] | None = None, **more: object) -> dict[str, Any]:
    body: dict[str, Any] = {"containers": list(containers), **more}
    if volumes is not None:
        body["volumes"] = volumes
    return body


def hot_spec() -> dict[str, Any]:
    return pod_spec(container(env=CONTRACT_ENV, mounts=True), volumes=[volume()])


def deployment(
    spec: dict[str, Any],
    *,
    name: str = "train",
    namespace: str = "default",
    uid: str = "d-1",
    labels: dict[str, str] | None = None,
    **more: object,
) -> dict[str, Any]:
    """``labels``: of its template, beside the one with its name."""
    own = {"app": name}
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "uid": uid, "labels": own, "generation": 1}
    template: dict[str, Any] = {"labels": {**own, **(labels or {})}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": own},
            "template": {"metadata": template, "spec": spec},
            **more,
        },
        "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1},
    }


def owned(kind: str, name: str, uid: str, *, controller: bool = True) -> dict[str, Any]:
    """An owner reference."""
    return {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": controller}


def replicaset(
    *, name: str = "train-abc", uid: str = "r-1", namespace: str = "default", owner: str | None = "d-1"
) -> dict[str, Any]:
    """The link between a Deployment, by its uid, and its pods."""
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "uid": uid}
    if owner is not None:
        metadata["ownerReferences"] = [owned("Deployment", name.rpartition("-")[0], owner)]
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata}


def pod(
    spec: dict[str, Any] | None = None,
    *,
    name: str = "train-abc-1",
    uid: str = "p-1",
    namespace: str = "default",
    owner: str | None = "r-1",
    app: str = "train",
    annotations: dict[str, str] | None = None,
    **status: object,
) -> dict[str, Any]:
    """A running pod of a ReplicaSet, by its uid; able to read requests unless a spec is given."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "uid": uid,
        "labels": {"app": app, "pod-template-hash": "abc"},
        "creationTimestamp": "2026-11-22T10:00:00Z",
    }
    if owner is not None:
        metadata["ownerReferences"] = [owned("ReplicaSet", f"{app}-abc", owner)]
    if annotations is not None:
        metadata["annotations"] = annotations
    spec = hot_spec() if spec is None else spec
    return {"metadata": metadata, "spec": {**spec, "nodeName": "node-1"}, "status": {"phase": "Running", **status}}


def policy(
    selector: dict[str, Any] | None = None,
    *,
    name: str = "p",
    namespace: str = "default",
    uid: str = "pp",
    created: str = "2026-11-22T10:00:00Z",
    annotations: dict[str, str] | None = None,
    **spec: object,
) -> dict[str, Any]:
    """A policy that selects what is named ``train``, unless a selector is given."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "uid": uid,
        "generation": 1,
        "creationTimestamp": created,
    }
    if annotations is not None:
        metadata["annotations"] = annotations
    chosen = {"matchLabels": {"app": "train"}} if selector is None else selector
    return {"metadata": metadata, "spec": {"selector": chosen, **spec}}

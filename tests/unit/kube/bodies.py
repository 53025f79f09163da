"""Bodies as an API server gives them, for tests of the adapter."""

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
    uid: str = "u-1",
    annotations: dict[str, str] | None = None,
    inner: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    **more: object,
) -> dict[str, Any]:
    own = {"app": name}
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "uid": uid, "labels": own, "generation": 1}
    template: dict[str, Any] = {"labels": {**own, **(labels or {})}}
    if annotations is not None:
        metadata["annotations"] = annotations
    if inner is not None:
        template["annotations"] = inner
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
        "status": {"observedGeneration": 1, "updatedReplicas": 1, "replicas": 1},
    }


def pod(
    spec: dict[str, Any],
    *,
    name: str = "train-abc-1",
    owner: str = "train",
    namespace: str = "default",
    uid: str = "p-1",
    annotations: dict[str, str] | None = None,
    **status: object,
) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "uid": uid,
        "labels": {"app": owner, "pod-template-hash": "abc"},
        "ownerReferences": [{"kind": "ReplicaSet", "name": f"{owner}-abc", "uid": "r", "controller": True}],
    }
    if annotations is not None:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": {**spec, "nodeName": "node-1"}, "status": {"phase": "Running", **status}}

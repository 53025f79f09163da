"""Fleets and policies for tests on the control plane."""

from typing import Any

Json = dict[str, Any]
LABELS = {"fleet": "test"}


def deployment(name: str, *, hot: bool = True, replicas: int = 1, enabled: str = "false") -> Json:
    """A Deployment with the contract, or with a literal value."""
    annotations = {"precision.genesis.ai/enable-fp16": enabled} if hot else {}
    reference = {"fieldRef": {"fieldPath": "metadata.annotations['precision.genesis.ai/enable-fp16']"}}
    entry: Json = {"name": "ENABLE_FP16_TRAINING"}
    entry.update({"valueFrom": reference} if hot else {"value": enabled})
    request = {
        "path": "request",
        "fieldRef": {"fieldPath": "metadata.annotations['precision.genesis.ai/request']"},
    }
    volumes = [{"name": "precision", "downwardAPI": {"items": [request]}}] if hot else []
    mounts = [{"name": "precision", "mountPath": "/etc/precision"}] if hot else []
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": LABELS},
        "spec": {
            "replicas": replicas,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {**LABELS, "app": name}, "annotations": annotations},
                "spec": {
                    "containers": [{"name": "trainer", "image": "trainer", "env": [entry], "volumeMounts": mounts}],
                    "volumes": volumes,
                },
            },
        },
    }


def policy(name: str = "fleet", /, **spec: object) -> Json:
    """A policy that is quick to decide."""
    return {
        "apiVersion": "precision.genesis.ai/v1alpha1",
        "kind": "PrecisionPolicy",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": LABELS},
            "evaluation": {"interval": "500ms", "window": "4s", "failureLimit": 0, "maxSampleAge": "5s"},
            "strategy": {"steps": [{"setWeight": 25}, {"pause": {"duration": "1s"}}, {"setWeight": 100}]},
            "reenable": {"dwell": "0s"},
            **spec,
        },
    }

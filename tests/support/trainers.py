"""Bodies of trainers as an API server gives them: a Deployment, its ReplicaSet and its pod, linked by their uids."""

from __future__ import annotations

from tests.support.bodies import MEANING, REQUEST_VOLUME, SWITCH, Json, container, ours, request


def hot_spec() -> Json:
    """A pod's spec with the whole contract."""
    mounts = [{"name": "precision", "mountPath": "/etc/precision"}]
    return {"containers": [container(env=[SWITCH, MEANING], volumeMounts=mounts)], "volumes": [REQUEST_VOLUME]}


def bare_spec() -> Json:
    """A pod's spec that says nothing of precision."""
    return {"containers": [container()]}


def deployment(name: str, *, labels: dict[str, str], spec: Json | None = None, replicas: int = 1, **own: str) -> Json:
    """A Deployment whose template carries these labels; ``own``: labels of the object itself, else the same."""
    template = {"metadata": {"labels": {"app": name, **labels}}, "spec": spec or hot_spec()}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": own or {"app": name, **labels}},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


def replicaset(name: str) -> Json:
    """The ReplicaSet between a Deployment and its pods."""
    return {"metadata": {"name": f"{name}-abc", "uid": f"rs-{name}", "ownerReferences": [_owner("Deployment", name)]}}


def pod(
    name: str,
    *,
    labels: dict[str, str],
    mode: str = "",
    generation: int = 0,
    spec: Json | None = None,
    **status: object,
) -> Json:
    """The pod ``<name>-abc-1``, with a request where a mode is given."""
    annotations = ours(request=request(generation, mode), mode=mode) if mode else {}
    return {
        "metadata": {
            "name": f"{name}-abc-1",
            "uid": f"pod-{name}",
            "labels": {"app": name, **labels},
            "annotations": annotations,
            "ownerReferences": [{**_owner("ReplicaSet", f"{name}-abc"), "uid": f"rs-{name}"}],
        },
        "spec": {**(spec or hot_spec()), "nodeName": "node-1"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], **status},
    }


def _owner(kind: str, name: str) -> Json:
    return {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}

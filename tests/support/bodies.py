"""Bodies of pods and assignments, as a client would send them."""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]

PREFIX = "precision.genesis.ai/"
FLEET = {"app": "trainer"}


def from_annotation(name: str, field: str) -> Json:
    """An environment variable that reads one of our annotations, as the contract wants it."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{PREFIX}{field}']"}}}


SWITCH = from_annotation("ENABLE_FP16_TRAINING", "enable-fp16")
MEANING = from_annotation("PRECISION_MODE", "mode")
REQUEST_VOLUME = {
    "name": "precision",
    "downwardAPI": {
        "items": [{"path": "request", "fieldRef": {"fieldPath": f"metadata.annotations['{PREFIX}request']"}}]
    },
}


def literal(switch: str, mode: str | None = None) -> list[Json]:
    """Both variables as literals, the second where it is given."""
    meaning = [] if mode is None else [{"name": "PRECISION_MODE", "value": mode}]
    return [{"name": "ENABLE_FP16_TRAINING", "value": switch}, *meaning]


def variable(name: str, **source: Json) -> Json:
    """A variable from somewhere else: ``variable("A", configMapKeyRef={...})``."""
    return {"name": name, "valueFrom": source}


def container(name: str = "trainer", /, **fields: object) -> Json:
    """A container."""
    return {"name": name, "image": "trainer", **fields}


def owner(api: str, kind: str, name: str, *, controller: bool | None = True) -> Json:
    """An owner reference."""
    said = {} if controller is None else {"controller": controller}
    return {"apiVersion": api, "kind": kind, "name": name, "uid": "5d0a3c1e-0000-4000-8000-000000000001", **said}


def pod(
    *containers: Json,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    owners: list[Json] | None = None,
    metadata: Json | None = None,
    **spec: object,
) -> Json:
    """A pod with one bare container, unless containers are given."""
    said: Json = {"name": "p", "labels": FLEET if labels is None else labels, **(metadata or {})}
    if annotations is not None:
        said["annotations"] = annotations
    if owners is not None:
        said["ownerReferences"] = owners
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": said,
        "spec": {"containers": list(containers) or [container()], **spec},
    }


def ours(**values: str) -> dict[str, str]:
    """Annotations of ours: ``ours(mode="fp16", enable_fp16="true")``."""
    return {f"{PREFIX}{key.replace('_', '-')}": value for key, value in values.items()}


def request(generation: object, mode: str) -> str:
    """A request as admission and the operator write it."""
    return json.dumps({"generation": generation, "mode": mode}, separators=(",", ":"))


def found(body: Json) -> dict[str, str]:
    """Our annotations of a pod, without the prefix."""
    annotations = body["metadata"].get("annotations") or {}
    return {key.removeprefix(PREFIX): value for key, value in annotations.items() if key.startswith(PREFIX)}


def assignment(name: str = "fleet", *, selector: Json | None = None, **fields: object) -> Json:
    """An assignment that is enforced and selects the fleet, unless the fields say otherwise."""
    body: Json = {
        "apiVersion": "precision.genesis.ai/v1alpha1",
        "kind": "PrecisionAssignment",
        "metadata": {"name": name},
        "selector": {"matchLabels": FLEET} if selector is None else selector,
        "generation": 17,
        "enforce": True,
        **fields,
    }
    return {key: value for key, value in body.items() if value is not None}


def needs(key: str, operator: str, *values: str) -> Json:
    """One requirement of ``matchExpressions``."""
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


ALL_PODS = {"matchExpressions": [needs("nobody-carries-this", "DoesNotExist")]}

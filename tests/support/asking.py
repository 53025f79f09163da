"""Pods whose label asks for the contract, and the parts that they are made of."""

from __future__ import annotations

from tests.support.bodies import FLEET, PREFIX, Json, pod, variable

INJECT = f"{PREFIX}inject"
RESTRICTED: Json = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
MOUNT: Json = {"name": "precision", "mountPath": "/etc/precision", "readOnly": True}
METRICS: Json = {"name": "metrics", "containerPort": 9400}
UID = variable("PRECISION_POD_UID", fieldRef={"fieldPath": "metadata.uid"})
SCRATCH: Json = {"name": "scratch", "emptyDir": {}}
ITEMS: list[Json] = [
    {"path": "request", "fieldRef": {"fieldPath": "metadata.annotations['precision.genesis.ai/request']"}}
]
PROJECTED: Json = {
    "name": "all",
    "projected": {"sources": [{"configMap": {"name": "c"}}, {"downwardAPI": {"items": ITEMS}}]},
}


def asking(*containers: Json, name: str = "trainer", labels: dict[str, str] | None = None, **more: object) -> Json:
    """A pod of the fleet whose label names this container."""
    fields: Json = {"labels": {**FLEET, INJECT: name, **(labels or {})}, **more}
    return pod(*containers, **fields)


def request_file(**entry: object) -> list[Json]:
    """Where the trainer reads its request, as an entry of its environment."""
    return [{"name": "PRECISION_REQUEST_FILE", **entry}]

"""Objects of each kind as the real controllers of the laboratory's control plane left them, with their managed fields.

Two pods of the StatefulSet ``db`` stand on both sides of its partition. The Jobs are named after who suspended them:
``patched`` (kubectl patch), ``ours`` (with the operator's field manager), ``born`` (created so), ``applied`` (kubectl
apply), ``server`` (server-side apply); ``indexed`` runs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_operator.core.model import RestartBy

_FOLDER = Path(__file__).parent / "kinds"

NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


@dataclass(frozen=True)
class Recorded:
    """An object of a kind, and what must be read in it."""

    name: str
    """Of its file."""
    key: str
    replicas: int
    restart_by: RestartBy
    alert_label: str
    """By which an alert names one."""
    pod: str = ""
    """File of a pod that has its key; empty: none was recorded."""


RECORDED = {
    "Deployment": Recorded("deployment-paused", "apps/Deployment/vit", 1, RestartBy.PODS, "deployment"),
    "ReplicaSet": Recorded("replicaset", "apps/ReplicaSet/bare", 2, RestartBy.PODS, "replicaset"),
    "StatefulSet": Recorded(
        "statefulset", "apps/StatefulSet/db", 2, RestartBy.PODS, "statefulset", pod="statefulset-pod-0"
    ),
    "Job": Recorded("job-indexed", "batch/Job/indexed", 2, RestartBy.SUSPENSION, "job_name", pod="job-pod"),
    "Pod": Recorded("bare-pod", "/Pod/probe", 1, RestartBy.NEVER, "pod", pod="bare-pod"),
}
"""One of each kind."""


def recorded(name: str) -> dict[str, Any]:
    """A fresh copy of one object."""
    body: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text())
    return body


def owned_by(body: dict[str, Any], api: str, kind: str, name: str = "x", uid: str = "owner") -> dict[str, Any]:
    """The object, controlled by another."""
    owner = {"apiVersion": api, "kind": kind, "name": name, "uid": uid, "controller": True}
    body["metadata"]["ownerReferences"] = [owner]
    return body

"""Objects of each kind as the real controllers of the laboratory's control plane left them, with their managed fields.

Two pods of the StatefulSet ``db`` stand on both sides of its partition. The Jobs are named after who suspended them:
``patched`` (kubectl patch), ``ours`` (with the operator's field manager), ``born`` (created so), ``applied`` (kubectl
apply), ``server`` (server-side apply); ``indexed`` runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "kinds"

NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def recorded(name: str) -> dict[str, Any]:
    """A fresh copy of one object."""
    body: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text())
    return body


def owned_by(body: dict[str, Any], api: str, kind: str, name: str = "x", uid: str = "owner") -> dict[str, Any]:
    """The object, controlled by another."""
    owner = {"apiVersion": api, "kind": kind, "name": name, "uid": uid, "controller": True}
    body["metadata"]["ownerReferences"] = [owner]
    return body

"""PrecisionPolicies in each phase as ``kubectl get -o json`` showed them, with the status that a real operator wrote.

``pytest tests/cluster/test_kstatus.py --record-policies`` records them anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "policy_bodies"

NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def recorded(name: str) -> dict[str, Any]:
    """A fresh copy of one policy."""
    body: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text())
    return body


def record(name: str, body: dict[str, Any]) -> None:
    """Keep a policy as it was returned."""
    (_FOLDER / f"{name}.json").write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n")

"""What the chart renders to, and what it must install."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]
REGISTRY = ("--set", "image.registry=localhost")
"""The one value that the chart cannot do without."""
ADMISSION = Path(__file__).parents[2] / "manifests" / "admission"


def of_kind(objects: list[Json], kind: str) -> list[Json]:
    return [item for item in objects if item["kind"] == kind]


def the(objects: list[Json], kind: str, name: str = "precision-operator") -> Json:
    found = [item for item in of_kind(objects, kind) if item["metadata"]["name"] == name]
    assert len(found) == 1, f"{kind} {name}: found {len(found)}"
    return found[0]


def config(objects: list[Json]) -> Json:
    parsed: Json = yaml.safe_load(the(objects, "ConfigMap")["data"]["config.yaml"])
    return parsed


def shipped(*kinds: str) -> list[Json]:
    """The admission policies and bindings that the sources hold, of these kinds or all."""
    documents = [d for path in ADMISSION.glob("*.yaml") for d in yaml.safe_load_all(path.read_text())]
    return [document for document in documents if not kinds or document["kind"] in kinds]

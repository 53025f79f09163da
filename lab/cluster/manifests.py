"""Put the product's own manifests into a cluster: whatever the checkout holds, in the order that works."""

from __future__ import annotations

import json
from pathlib import Path

from lab import paths
from lab.cluster.kubectl import Kubectl

CRDS = paths.ROOT / "crds"
ADMISSION = paths.ROOT / "manifests" / "admission"


def apply_product(kubectl: Kubectl, *, crds: Path = CRDS, admission: Path = ADMISSION) -> None:
    """Apply CRDs, wait until they are served, then apply the admission policies."""
    if _has_manifests(crds):
        kubectl.apply(crds)
        for name in _names(kubectl, crds):
            kubectl.wait_until("condition=Established", name, seconds=30)
    if (admission / "kustomization.yaml").exists():
        kubectl("apply", "--server-side", "--force-conflicts", "-k", admission)
    elif _has_manifests(admission):
        kubectl.apply(admission)


def _has_manifests(folder: Path) -> bool:
    return folder.is_dir() and any(path.suffix in {".yaml", ".yml", ".json"} for path in folder.iterdir())


def _names(kubectl: Kubectl, folder: Path) -> list[str]:
    output = kubectl("create", "--dry-run=client", "-f", folder, "-o", "json", "--validate=false").stdout
    decoder, names, position = json.JSONDecoder(), [], 0
    while position < len(output.rstrip()):
        item, position = decoder.raw_decode(output, position + _leading_space(output, position))
        for entry in item.get("items", [item]):
            names.append(f"crd/{entry['metadata']['name']}")
    return names


def _leading_space(text: str, position: int) -> int:
    return len(text[position:]) - len(text[position:].lstrip())

"""Put the product's own manifests into a cluster, in the order that works."""

from __future__ import annotations

import json
from pathlib import Path

from lab import paths
from lab.cluster.kubectl import Json, Kubectl
from lab.waiting import wait_for

CRDS = paths.ROOT / "crds"
ADMISSION = paths.ROOT / "manifests" / "admission"
_COMMAND = "precision.genesis.ai/promote"
_PROBE = {
    "apiVersion": "precision.genesis.ai/v1alpha1",
    "kind": "PrecisionPolicy",
    "metadata": {"name": "probe", "namespace": "default", "annotations": {_COMMAND: "1"}},
    "spec": {"selector": {"matchLabels": {"probe": "admission"}}},
}


def apply_product(kubectl: Kubectl) -> None:
    """Apply CRDs, wait until they are served, then apply the admission policies, and wait until those know the CRDs."""
    kubectl.apply(CRDS)
    for crd in _objects(kubectl, CRDS):
        kubectl.wait_until("condition=Established", f"crd/{crd['metadata']['name']}", seconds=30)
    kubectl.apply(ADMISSION)
    until_admitted(kubectl)


def until_admitted(kubectl: Kubectl) -> None:
    """Until a command on a policy is stamped: admission begins some time after it was written, and answers 503 for a kind
    until it knows that kind's schema, some time after the kind is served.
    """

    def answer() -> bool:
        created = kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", input=json.dumps(_PROBE), check=False)
        said.append(created.stderr.strip() or "no stamp yet")
        return created.returncode == 0 and f"{_COMMAND}-by" in json.loads(created.stdout)["metadata"]["annotations"]

    said: list[str] = []
    wait_for(answer, what="admission of PrecisionPolicies", seconds=60, found=lambda: said[-1])


def _objects(kubectl: Kubectl, folder: Path) -> list[Json]:
    output = kubectl("create", "--dry-run=client", "-f", folder, "-o", "json", "--validate=false").stdout
    decoder, objects, position = json.JSONDecoder(), list[Json](), 0
    while position < len(output.rstrip()):
        item, position = decoder.raw_decode(output, position + _leading_space(output, position))
        objects += item.get("items", [item])
    return objects


def _leading_space(text: str, position: int) -> int:
    return len(text[position:]) - len(text[position:].lstrip())

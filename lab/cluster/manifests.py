"""Put the product's own manifests into a cluster, in the order that works."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from lab import paths
from lab.cluster.control_plane import ControlPlane
from lab.cluster.kubectl import Json, Kubectl
from lab.waiting import wait_for

CRDS = paths.ROOT / "crds"
ADMISSION = paths.ROOT / "manifests" / "admission"
OPERATOR = paths.ROOT / "manifests" / "base" / "operator.yaml"
_RBAC = {"apiVersion": "rbac.authorization.k8s.io/v1"}
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


def operator_access(plane: ControlPlane) -> Path:
    """A kubeconfig with the rights of the installed operator, no more: its ServiceAccount, roles and bindings are made.

    Its Lease may stand in any namespace, so that operators of several tests do not meet.
    """
    kubectl = plane.kubectl
    lease = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]}
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    objects = [o for o in yaml.safe_load_all(OPERATOR.read_text()) if o and o["kind"] in kinds]
    account = next(o["metadata"] for o in objects if o["kind"] == "ServiceAccount")
    subject = {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": account["namespace"]}})
    kubectl.apply(
        *objects,
        {**_RBAC, "kind": "ClusterRole", "metadata": {"name": "lab-lease"}, "rules": [lease]},
        {
            **_RBAC,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "lab-lease"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "lab-lease"},
            "subjects": [subject],
        },
    )
    return plane.service_account_kubeconfig(account["namespace"], account["name"])


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

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
MANIFEST = paths.ROOT / "manifests" / "base" / "operator.yaml"
_RBAC = {"apiVersion": "rbac.authorization.k8s.io/v1"}
OPERATOR = "system:serviceaccount:precision-system:precision-operator"
"""The account that the plain admission policies name."""

_PREFIX = "precision.genesis.ai"
AS_OPERATOR = ("--as", OPERATOR, "--as-group", "system:masters")
"""The operator's name with an administrator's rights: RBAC allows everything, admission sees the operator."""

_META = {"name": "admission-probe", "namespace": "default"}
_SELECTED = {f"{_PREFIX}/probe": "admission"}
_SELECTOR = {"matchLabels": _SELECTED}
_POLICY: Json = {
    "apiVersion": f"{_PREFIX}/v1alpha1",
    "kind": "PrecisionPolicy",
    "metadata": _META,
    "spec": {"selector": _SELECTOR, "suspend": True},
}
_ASSIGNMENT: Json = {
    "apiVersion": f"{_PREFIX}/v1alpha1",
    "kind": "PrecisionAssignment",
    "metadata": _META,
    "selector": _SELECTOR,
    "generation": 7,
    "default": "fp32",
    "enforce": True,
}
_POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {**_META, "labels": {**_SELECTED, f"{_PREFIX}/inject": "probe"}},
    "spec": {"containers": [{"name": "probe", "image": "probe"}]},
}


def apply_product(kubectl: Kubectl) -> None:
    """Apply CRDs, wait until they are served, then apply the admission policies, and wait until those know the CRDs."""
    kubectl.apply(CRDS)
    for crd in _objects(kubectl, CRDS):
        kubectl.wait_until("condition=Established", f"crd/{crd['metadata']['name']}", seconds=30)
    kubectl.apply(ADMISSION)
    until_admitted(kubectl)


def installed_access(plane: ControlPlane) -> Path:
    """A kubeconfig with the rights of the installed operator, no more: its ServiceAccount, roles and bindings are made."""
    kubectl = plane.kubectl
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    objects = [o for o in yaml.safe_load_all(MANIFEST.read_text()) if o and o["kind"] in kinds]
    _, _, namespace, name = OPERATOR.split(":")
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    kubectl.apply(*objects)
    return plane.service_account_kubeconfig(namespace, name)


def operator_access(plane: ControlPlane) -> Path:
    """The same, but that its Lease and its switch may stand in any namespace, so that operators of several tests do not
    meet."""
    kubeconfig = installed_access(plane)
    lease = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]}
    switch = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["precision-halt"], "verbs": ["get"]}
    _, _, namespace, name = OPERATOR.split(":")
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    plane.kubectl.apply(
        {**_RBAC, "kind": "ClusterRole", "metadata": {"name": "lab-lease"}, "rules": [lease, switch]},
        {
            **_RBAC,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "lab-lease"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "lab-lease"},
            "subjects": [subject],
        },
    )
    return kubeconfig


def until_admitted(kubectl: Kubectl) -> None:
    """Until every kind of the product's admission is in force: new pods get their assigned mode and the contract that
    they ask for, the echo answers, commands are stamped, and the operator is fenced in.

    Admission begins some time after it was written or its API server was started, and answers 503 for a kind until it
    knows that kind's schema. Assignments are known only once they are stored, so a policy and an assignment stand in
    the cluster meanwhile.
    """
    missing: list[str] = []

    def admitted() -> bool:
        missing[:] = _stored(kubectl) or _missing(kubectl)
        return not missing

    try:
        wait_for(admitted, what="the product's admission", seconds=90, found=lambda: "; ".join(missing))
    finally:
        for kind in ("precisionpolicy", "precisionassignment"):
            who = AS_OPERATOR if kind == "precisionassignment" else ()
            kubectl("delete", kind, _META["name"], "-n", _META["namespace"], "--ignore-not-found", *who)


def _stored(kubectl: Kubectl) -> list[str]:
    """Store the probe's policy and assignment; what the API server says against it."""
    wrong: list[str] = []
    for body, who in ((_POLICY, ()), (_ASSIGNMENT, AS_OPERATOR)):
        if kubectl("get", body["kind"], _META["name"], "-n", _META["namespace"], check=False).returncode == 0:
            continue
        done = kubectl("create", "-f", "-", *who, input=json.dumps(body), check=False)
        wrong += [] if done.returncode == 0 else [done.stderr.strip()]
    return wrong


def _missing(kubectl: Kubectl) -> list[str]:
    """What admission does not do yet."""
    command = f"{_PREFIX}/promote"
    asked = {"metadata": {"annotations": {f"{_PREFIX}/echo-nonce": "probe", command: "1"}}}
    patch = ("patch", "precisionpolicy", _META["name"], "-n", _META["namespace"], "--dry-run=server", "--type=merge")
    pod = kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", input=json.dumps(_POD), check=False)
    policy = kubectl(*patch, "-o", "json", "-p", json.dumps(asked), check=False)
    fenced = kubectl(*patch, *AS_OPERATOR, "-p", '{"spec":{"suspend":false}}', check=False)
    wanted = {
        "new pods are not given their mode": f"{_PREFIX}/admitted" in _annotations(pod.stdout),
        "new pods are not given the contract": f"{_PREFIX}/injected" in _annotations(pod.stdout),
        "the echo does not answer": _annotations(policy.stdout).get(f"{_PREFIX}/echo")
        == f"probe/{_META['name']}/{_ASSIGNMENT['generation']}",
        "commands are not stamped": f"{command}-by" in _annotations(policy.stdout),
        "the operator is not fenced in": "the operator may" in fenced.stderr,
    }
    said = [done.stderr.strip() for done in (pod, policy) if done.returncode]
    return [what for what, so in wanted.items() if not so] + said


def _annotations(output: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(output)["metadata"].get("annotations", {}) if output else {}
    return found


def _objects(kubectl: Kubectl, folder: Path) -> list[Json]:
    output = kubectl("create", "--dry-run=client", "-f", folder, "-o", "json", "--validate=false").stdout
    decoder, objects, position = json.JSONDecoder(), list[Json](), 0
    while position < len(output.rstrip()):
        item, position = decoder.raw_decode(output, position + _leading_space(output, position))
        objects += item.get("items", [item])
    return objects


def _leading_space(text: str, position: int) -> int:
    return len(text[position:]) - len(text[position:].lstrip())

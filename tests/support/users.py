"""People and service accounts with credentials of their own: what a policy says of them is tried as them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

from lab.cluster import ControlPlane, Kubectl
from lab.cluster.manifests import OPERATOR
from lab.waiting import wait_for

Json = dict[str, Any]
GROUP = "precision.genesis.ai"
PREFIX = f"{GROUP}/"
_, _, OPERATOR_NAMESPACE, OPERATOR_NAME = OPERATOR.split(":")


class Client:
    """Requests of one user, with the credentials of a kubeconfig, over one kept-alive connection."""

    def __init__(self, kubeconfig: Path, directory: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._server = cluster["server"]
        self._session = requests.Session()
        self._session.trust_env = False
        directory.mkdir(exist_ok=True)
        self._session.verify = self._file(directory / "ca.crt", cluster["certificate-authority-data"])
        if "token" in user:
            self._session.headers["Authorization"] = f"Bearer {user['token']}"
        else:
            self._session.cert = (
                self._file(directory / "user.crt", user["client-certificate-data"]),
                self._file(directory / "user.key", user["client-key-data"]),
            )

    @staticmethod
    def _file(path: Path, encoded: str) -> str:
        path.touch(mode=0o600)
        path.write_bytes(base64.b64decode(encoded))
        return str(path)

    def __call__(self, method: str, path: str, body: object = None, *, patch: str = "merge-patch") -> requests.Response:
        syntax = "yaml" if patch == "apply-patch" else "json"
        kind = f"application/{patch}+{syntax}" if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": kind} if data is not None else {}
        headers |= self._impersonated(method, path)
        return self._session.request(method, self._server + path, data=data, headers=headers, timeout=60)

    def _impersonated(self, _method: str, _path: str) -> dict[str, str]:
        """Headers by which another user's name is taken; nobody's, here."""
        return {}

    def made(self, method: str, path: str, body: object = None, *, patch: str = "merge-patch") -> Json:
        """The object of an answer that must be a good one."""
        answer = self(method, path, body, patch=patch)
        assert answer.ok, f"{method} {path}: {answer.status_code} {answer.text[:2000]}"
        found: Json = answer.json()
        return found

    def close(self) -> None:
        """End the connection."""
        self._session.close()


def custom(namespace: str, plural: str, name: str = "") -> str:
    """The path of our objects, or of one of them."""
    path = f"/apis/{GROUP}/v1alpha1/namespaces/{namespace}/{plural}"
    return f"{path}/{name}" if name else path


def pods(namespace: str, name: str = "") -> str:
    """The path of a namespace's pods, or of one of them."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    return f"{path}/{name}" if name else path


def policy(name: str = "fleet", *, annotations: Json | None = None, **spec: object) -> Json:
    """A PrecisionPolicy."""
    metadata: Json = {"name": name} if annotations is None else {"name": name, "annotations": annotations}
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "PrecisionPolicy",
        "metadata": metadata,
        "spec": {"selector": {"matchLabels": {"app": "trainer"}}, **spec},
    }


def assignment(name: str = "fleet", *, metadata: Json | None = None, **fields: object) -> Json:
    """A PrecisionAssignment."""
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "PrecisionAssignment",
        "metadata": {"name": name, **(metadata or {})},
        "selector": {"matchLabels": {"app": "trainer"}},
        "generation": 1,
        "default": "fp32",
        "modes": {"apps/Deployment/vit": "fp16"},
        "enforce": True,
        **fields,
    }


def rule(group: str, resources: list[str], verbs: list[str]) -> Json:
    """A rule of a Role."""
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


def grant(kubectl: Kubectl, namespace: str, user: str, name: str, *rules: Json) -> None:
    """Give a user these rights in a namespace."""
    kubectl.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": name, "namespace": namespace},
            "rules": list(rules),
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name, "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
        },
    )


@contextmanager
def person(
    control_plane: ControlPlane, directory: Path, name: str, *, groups: tuple[str, ...] = ()
) -> Iterator[Client]:
    """A user with a client certificate; what the user may do is RBAC's business."""
    client = Client(control_plane.user_kubeconfig(name, groups=groups), directory / name.replace(":", "-"))
    yield client
    client.close()


def operator_account(kubectl: Kubectl) -> Json:
    """Make the operator's own ServiceAccount where it is missing; as the subject of a binding."""
    where = {"name": OPERATOR_NAME, "namespace": OPERATOR_NAMESPACE}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERATOR_NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": where},
    )
    return {"kind": "ServiceAccount", **where}


@contextmanager
def unlimited_operator(control_plane: ControlPlane, directory: Path) -> Iterator[Client]:
    """The operator's own ServiceAccount, with a token that RBAC lets do everything: what is refused, a policy refuses."""
    kubectl, binding = control_plane.kubectl, "operator-may-everything"
    kubectl.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": binding},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [operator_account(kubectl)],
        }
    )
    client = Client(control_plane.service_account_kubeconfig(OPERATOR_NAMESPACE, OPERATOR_NAME), directory / "operator")
    wait_for(lambda: client("GET", pods("kube-system")).ok, what="the operator's rights", seconds=30)
    yield client
    client.close()
    kubectl("delete", "clusterrolebinding", binding)


def said(answer: requests.Response) -> str:
    """What the API server says, for a failed assertion or a search."""
    return f"{answer.status_code} {answer.json().get('message', 'accepted')}"

"""An API server in memory as the controller meets it: it echoes, it holds the fence, and admission is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from precision_operator.admission.objects import Shipped
from precision_operator.errors import Forbidden, KubeError
from precision_operator.kube.port import (
    ASSIGNMENTS,
    ENDPOINT_SLICES,
    JOBS,
    PODS,
    POLICIES,
    UNCONDITIONAL,
    Deletion,
    JsonObject,
    JsonValue,
    Resource,
)
from tests.support.fake_kube import FakeKube

ECHO = "precision.genesis.ai/echo"
NONCE = "precision.genesis.ai/echo-nonce"
FENCE = "ValidatingAdmissionPolicy 'precision-fence-pods.precision.genesis.ai' with binding 'b' denied request: no"


class Server(FakeKube):
    """FakeKube with what our admission policies do, at as many API servers as are wanted."""

    def __init__(self, *servers: str) -> None:
        """``servers``: addresses; none: they cannot be listed."""
        super().__init__()
        self.fenced = True
        self.unruled: set[str] = set()
        """What the fence lacks: ``pods``, ``grace``, ``uid``, ``policies``, ``jobs``, ``evict-grace`` or ``evict-uid``."""
        self.installed = True
        """Whether admission knows assignments at all."""
        self.known: dict[str, int] = {}
        """By API server ("" is the configured address): the generation that it knows, where it is behind."""
        self.echo: str | None = None
        """In place of the answer: another one, in which ``{nonce}`` stands for the one that was asked with."""
        self.failing: dict[str, KubeError] = {}
        """By API server: what it answers to a question instead. By ``list``: to a list of pods or Jobs."""
        self.hanging: set[str] = set()
        """API servers that accept a question and never answer it."""
        self.asked: list[str] = []
        """The API servers that were asked, in order."""
        self.grace: list[int | None] = []
        """Of each dry run of a deletion."""
        self.graces: dict[str, int | None] = {}
        """Of each deletion, by name."""
        if servers:
            endpoints: list[JsonValue] = [
                {"addresses": [address], "conditions": {"ready": True}} for address in servers
            ]
            metadata: JsonObject = {"namespace": "default", "name": "kubernetes"}
            self.put(ENDPOINT_SLICES, {"metadata": metadata, "ports": [{"port": 6443}], "endpoints": endpoints})

    async def list(
        self, resource: Resource, namespace: str, *, label_selector: str = "", most_bytes: int | None = None
    ) -> Sequence[JsonObject]:
        """See the port."""
        found = await super().list(resource, namespace, label_selector=label_selector, most_bytes=most_bytes)
        if resource in (PODS, JOBS) and "list" in self.failing:
            raise self.failing["list"]
        return found

    async def delete(self, resource: Resource, namespace: str, name: str, deletion: Deletion = UNCONDITIONAL) -> None:
        """See the port."""
        await super().delete(resource, namespace, name, deletion)
        self.graces[name] = deletion.grace_seconds
        if deletion.dry_run:
            self.grace.append(deletion.grace_seconds)
            pod: Any = self._find((resource.plural, namespace, name))
            if pod["metadata"].get("deletionTimestamp") and deletion.grace_seconds != 0:
                return  # a deletion that shortens nothing is not shown to admission
            if not deletion.uid:
                self._fence("uid")
            if deletion.grace_seconds == 0 and pod.get("spec", {}).get("nodeName"):
                self._fence("grace")

    async def evict(self, namespace: str, pod: str, deletion: Deletion = UNCONDITIONAL) -> None:
        """See the port."""
        if not deletion.uid:
            self._fence("evict-uid")
        if deletion.grace_seconds == 0:
            self._fence("evict-grace")
        await super().evict(namespace, pod, deletion)
        self.graces[pod] = deletion.grace_seconds

    async def dry_run(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, JsonValue], *, server: str = ""
    ) -> JsonObject:
        """See the port."""
        asks: Any = body
        if resource != POLICIES:
            found = await super().dry_run(resource, namespace, name, body)
            if "labels" in asks.get("metadata", {}):
                self._fence("jobs" if resource == JOBS else "pods")
            return found
        if "labels" in asks["metadata"]:
            found = await super().dry_run(resource, namespace, name, body)
            self._fence("policies")
            return found
        self.asked.append(server)
        if server in self.hanging:
            await asyncio.get_running_loop().create_future()
        if server in self.failing:
            raise self.failing[server]
        answer: Any = await super().dry_run(resource, namespace, name, body)
        assignment: Any = self.objects.get((ASSIGNMENTS.plural, namespace, name))
        if self.installed and assignment is not None:
            nonce = answer["metadata"]["annotations"][NONCE]
            generation = self.known.get(server, assignment["generation"])
            echo = (self.echo or f"{{nonce}}/{name}/{generation}").replace("{nonce}", nonce)
            answer["metadata"]["annotations"][ECHO] = echo
        return answer  # type: ignore[no-any-return]

    def _fence(self, rule: str) -> None:
        if self.fenced and rule not in self.unruled:
            raise Forbidden(f'pods "p" is forbidden: {FENCE}', status=403)


SHIPPED = (
    Shipped("MutatingAdmissionPolicy", "assign", {"failurePolicy": "Ignore", "variables": [{"name": "a"}]}),
    Shipped("ValidatingAdmissionPolicyBinding", "fence", {"policyName": "fence", "validationActions": ["Deny"]}),
)
"""Two policies that stand for those of manifests/admission."""

INSTALLED = {
    "MutatingAdmissionPolicy": Resource("admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies"),
    "ValidatingAdmissionPolicyBinding": Resource(
        "admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings"
    ),
}


def install(kube: FakeKube, kind: str, name: str, spec: object) -> None:
    """Put an admission policy there."""
    body: Any = {"metadata": {"namespace": "", "name": name}, "spec": spec}
    kube.put(INSTALLED[kind], body)


def install_all(kube: FakeKube) -> None:
    """Put those of SHIPPED there, as they are shipped."""
    for ours in SHIPPED:
        install(kube, ours.kind, ours.name, ours.spec)

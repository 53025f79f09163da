"""A namespace in which pods are tried over one kept-alive connection: in milliseconds each."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import requests

from lab.cluster.manifests import OPERATOR
from lab.waiting import wait_for
from tests.support.bodies import Json
from tests.support.users import Client

AS_OPERATOR = {"Impersonate-User": OPERATOR, "Impersonate-Group": "system:masters"}
"""The operator's name with an administrator's rights."""


class Api(Client):
    """An administrator, who writes assignments in the operator's name: an admission policy lets nobody else."""

    def _impersonated(self, method: str, path: str) -> dict[str, str]:
        return AS_OPERATOR if method != "GET" and "/precisionassignments" in path else {}


class Place:
    """A namespace in which assignments stand and pods are tried; a new one, unless it is named."""

    def __init__(self, api: Api, namespace: str | None = None) -> None:
        self.api = api
        self.namespace = namespace or f"admission-{uuid.uuid4().hex[:8]}"
        self.assignments = f"/apis/precision.genesis.ai/v1alpha1/namespaces/{self.namespace}/precisionassignments"
        if namespace is None:
            api.made("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        account = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/default"
        wait_for(lambda: api("GET", account).ok, what="the default ServiceAccount", seconds=30, every=0.02)

    def assign(self, *assignments: Json) -> None:
        """Make these assignments."""
        for body in assignments:
            self.api.made("POST", self.assignments, body)

    def edit(self, name: str, **fields: object) -> None:
        """Change these fields of an assignment; None removes one."""
        self.api.made("PATCH", f"{self.assignments}/{name}", fields)

    def release(self, name: str) -> None:
        """Delete an assignment."""
        self.api.made("DELETE", f"{self.assignments}/{name}")

    def post(self, pod: Json) -> requests.Response:
        """The answer to a dry run."""
        return self.api("POST", f"/api/v1/namespaces/{self.namespace}/pods?dryRun=All", pod)

    def tried(self, pod: Json) -> Json:
        """What the pod would become; fails where it is refused."""
        return self.api.made("POST", f"/api/v1/namespaces/{self.namespace}/pods?dryRun=All", pod)

    def wait(self, pod: Json, seen: Callable[[Json], bool], what: str) -> None:
        """Until admission does what was written. It follows by milliseconds, unless the API server has just started."""
        answers: list[str] = []

        def happened() -> bool:
            answer = self.post(pod)
            answers[:] = [answer.text[:2000]]
            return answer.ok and seen(answer.json())

        wait_for(happened, what=what, seconds=60, every=0.02, found=lambda: answers[0])

    def leave(self) -> None:
        """Delete the namespace."""
        self.api.made("DELETE", f"/api/v1/namespaces/{self.namespace}")

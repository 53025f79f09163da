"""An actor on a real API server, with the rights and the fence of the installed operator, and what it acts on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lab.cluster import Kubectl
from lab.model.policies import policy
from lab.waiting import wait_for
from precision_operator.api.assignment import assignment_to_wire
from precision_operator.api.modes import Mode
from precision_operator.api.policy import PolicyKey
from precision_operator.api.selector import Selector
from precision_operator.api.state import Phase, State
from precision_operator.controller.act import Acted, Actor
from precision_operator.controller.echo import Echoes
from precision_operator.controller.enforcement import Enforcement
from precision_operator.controller.expectations import Expectations
from precision_operator.controller.fence import Fence
from precision_operator.controller.halt import Halt
from precision_operator.controller.installed import InstalledPolicies
from precision_operator.core.actions import Action, DeletePod, EvictPod, ResumeJob, SuspendJob
from precision_operator.core.model import PodView, RefusedWrite, WorkloadView
from precision_operator.inventory.caches import Inventory
from precision_operator.kube.access import Access
from precision_operator.kube.client import KubeClient
from precision_operator.kube.events import COMPONENT, EventRecorder
from precision_operator.kube.port import ASSIGNMENTS, JsonObject
from precision_operator.runtime.clock import SystemClock
from precision_operator.runtime.ratelimit import RateLimiter
from tests.support.cluster_fleet import LABELS, Json
from tests.support.cluster_fleet import policy as policy_body

PATIENCE_SECONDS = 60.0
STATE = State(
    phase=Phase.ROLLING_BACK,
    selector=Selector(tuple(LABELS.items())),
    generation=1,
    fallback=Mode.FP32,
    enforce=True,
)
"""A rollback's: what is written gives way to nothing, however long the first trials of a slow API server take."""


@dataclass
class Acting:
    """Carries out actions in one namespace, in which a policy and its assignment stand."""

    kubectl: Kubectl
    namespace: str
    actor: Actor

    async def act(self, *actions: Action) -> Acted:
        """One pass' actions."""
        return await self.actor.act(replace(policy(), namespace=self.namespace), STATE, actions, emergency=True)

    def refused(self) -> tuple[RefusedWrite, ...]:
        """As it is shown."""
        return self.actor.refused(PolicyKey(self.namespace, "fleet"))

    # ---- what is there

    def found(self, kind: str, name: str) -> Json | None:
        """An object of the namespace."""
        return self.kubectl.find(kind, name, "-n", self.namespace)

    def apply(self, *bodies: Json) -> None:
        """Into the namespace."""
        self.kubectl.apply(*({**b, "metadata": {**b["metadata"], "namespace": self.namespace}} for b in bodies))

    def run(self, pod: str) -> None:
        """Say that a pod runs and is ready, as its kubelet would."""
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        words = ("patch", "pod", pod, "-n", self.namespace, "--subresource=status", "--type=merge")
        self.kubectl(*words, "-p", json.dumps({"status": status}))

    def budget(self, *, at_least: int, allowed: int, name: str = "train", app: str = "train") -> None:
        """A PodDisruptionBudget, once its controller says that it allows so many disruptions."""
        spec = {"minAvailable": at_least, "selector": {"matchLabels": {"app": app}}}
        body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}
        self.apply(body)

        def settled() -> bool:
            found = self.found("pdb", name) or {}
            status = found.get("status", {})
            known = status.get("observedGeneration") == found["metadata"]["generation"]
            return bool(known and status.get("disruptionsAllowed") == allowed)

        wait_for(
            settled,
            what=f"{allowed} allowed disruptions",
            seconds=PATIENCE_SECONDS,
            found=lambda: str(self.found("pdb", name)),
        )

    def pods_of(self, job: str) -> list[str]:
        """Names of a Job's pods that are not on their way out."""
        items = self.kubectl.json("get", "pods", "-n", self.namespace, "-l", f"job-name={job}")["items"]
        return [item["metadata"]["name"] for item in items if "deletionTimestamp" not in item["metadata"]]

    def uid(self, kind: str, name: str) -> str:
        """Of what is there."""
        found = self.found(kind, name)
        assert found is not None
        return str(found["metadata"]["uid"])

    async def recorded(self, times: int) -> None:
        """Wait until Events have been told so many times in all; they are sent beside what is done."""

        def told() -> int:
            items = self.kubectl.json("get", "events", "-n", self.namespace)["items"]
            return sum(item["count"] for item in items if item["source"].get("component") == COMPONENT)

        found = partial(wait_for, lambda: told() == times, what=f"{times} Events", seconds=PATIENCE_SECONDS)
        await asyncio.to_thread(found, found=lambda: str(told()))

    # ---- what is wanted

    def eviction(self, pod: str, *, of: str = "train") -> EvictPod:
        """Of this pod, of the Deployment of that name."""
        return EvictPod(self._workload(of), PodView(pod, self.uid("pod", pod)), STATE.generation)

    def deletion(self, pod: str, *, grace_seconds: int | None = None) -> DeletePod:
        """Of this pod."""
        return DeletePod(self._workload(), PodView(pod, self.uid("pod", pod)), STATE.generation, grace_seconds)

    def suspension(self, job: str, *, respects_budgets: bool = False) -> SuspendJob:
        """Of this Job, as it is now."""
        view = self._job(job)
        return SuspendJob(view, STATE.generation, view.object_generation, respects_budgets)

    def resumption(self, job: str) -> ResumeJob:
        """Of this Job, as it is now."""
        view = self._job(job)
        return ResumeJob(view, STATE.generation, view.object_generation)

    def suspended(self, job: str) -> bool:
        """Whether the Job is suspended now."""
        found = self.found("job", job)
        assert found is not None
        return bool(found["spec"].get("suspend"))

    def _workload(self, name: str = "train") -> WorkloadView:
        return WorkloadView(self.namespace, f"apps/Deployment/{name}", f"uid-{name}", object_name=name)

    def _job(self, name: str) -> WorkloadView:
        found = self.found("job", name)
        assert found is not None
        metadata, suspended = found["metadata"], bool(found["spec"].get("suspend"))
        return WorkloadView(
            self.namespace,
            f"batch/Job/{name}",
            metadata["uid"],
            object_name=name,
            suspended=suspended,
            object_generation=metadata["generation"],
        )


@asynccontextmanager
async def acting(kubectl: Kubectl, operator: Path, namespace: str) -> AsyncIterator[Acting]:
    """``operator``: credentials of the operator's account."""
    kubectl.apply({**policy_body(suspend=True), "metadata": {"name": "fleet", "namespace": namespace}})
    wire: Any = assignment_to_wire(STATE)
    kind = {"apiVersion": "precision.genesis.ai/v1alpha1", "kind": "PrecisionAssignment"}
    body: JsonObject = {**kind, "metadata": {"name": "fleet"}, **wire}
    client, clock = await KubeClient.connect(Access(operator)), SystemClock()
    enforcement = Enforcement(
        client,
        echoes=Echoes(client, clock),
        installed=InstalledPolicies(client, clock, namespace="precision-system"),
        inventory=Inventory(),
        clock=clock,
    )
    limiter = RateLimiter(20.0, 8, clock)
    try:
        await client.create(ASSIGNMENTS, namespace, body)
        actor = Actor(
            client,
            events=EventRecorder(client, identity="test"),
            limiter=limiter,
            expectations=Expectations(clock),
            enforcement=enforcement,
            fence=Fence(client, clock),
            halt=Halt(client, clock, namespace="precision-system"),
            clock=clock,
        )
        yield Acting(kubectl, namespace, actor)
    finally:
        limiter.close()
        await enforcement.close()
        await client.close()


def pod(name: str, *, app: str = "train") -> Json:
    """A pod that no node has; a test says that it runs."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {**LABELS, "app": app}},
        "spec": {"nodeSelector": {"no": "node"}, "containers": [{"name": "trainer", "image": "none"}]},
    }


def job(name: str, *, pods: int) -> Json:
    """A Job of so many pods."""
    template = pod(name, app=name)
    spec = {**template["spec"], "restartPolicy": "Never"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "template": {"metadata": {"labels": template["metadata"]["labels"]}, "spec": spec},
        },
    }

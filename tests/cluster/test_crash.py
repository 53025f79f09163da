"""The operator dies between its commit and its writes: the next one finishes, and nothing is done twice.

The process is this one, so that it can be ended at an exact write; API server, controllers and Prometheus are real.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lab.cluster import Kubectl
from lab.prometheus import Prometheus
from lab.waiting import wait_for
from precision_operator.api.assignment import parse_assignment
from precision_operator.api.state import Phase, State
from precision_operator.api.wire import mapping
from precision_operator.app import App
from precision_operator.kube.access import Access
from precision_operator.kube.client import KubeClient
from precision_operator.kube.port import ASSIGNMENTS, UNCONDITIONAL, Deletion, JsonObject, Operation, Resource
from precision_operator.observability.metrics import Metrics
from precision_operator.settings import LeaseSettings, PrometheusEndpoint, Settings
from tests.support.cluster_fleet import Json, deployment, policy
from tests.support.cluster_scene import NO_SPEED, PATIENCE_SECONDS, scraping
from tests.support.shadow_trainers import ShadowTrainers

HOT = [f"hot-{i}" for i in range(4)]
LEASE = LeaseSettings(duration_seconds=2.0, renew_seconds=1.5, retry_seconds=0.3)


class Died(BaseException):
    """Stands for SIGKILL: no handler of ours may catch it."""


class MortalClient(KubeClient):
    """Dies at a write to a pod after an assignment that says ``phase`` was committed."""

    phase = ""
    survive = 0
    """How many of those writes still go through."""
    after_the_write = False
    """Whether the fatal write reaches the server (its answer does not reach us)."""
    _armed = False

    async def replace(self, resource: Resource, namespace: str, name: str, body: JsonObject) -> JsonObject:
        """See KubeClient."""
        answer = await super().replace(resource, namespace, name, body)
        self._armed = self._armed or (resource == ASSIGNMENTS and mapping(body.get("state")).get("phase") == self.phase)
        return answer

    async def json_patch(self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]) -> None:
        """See KubeClient."""
        dies = self._dies()
        if not dies or self.after_the_write:
            await super().json_patch(resource, namespace, name, operations)
        if dies:
            raise Died

    async def delete(self, resource: Resource, namespace: str, name: str, deletion: Deletion = UNCONDITIONAL) -> None:
        """See KubeClient."""
        dies = not deletion.dry_run and self._dies()
        if not dies or self.after_the_write:
            await super().delete(resource, namespace, name, deletion)
        if dies:
            raise Died

    async def evict(self, namespace: str, pod: str, deletion: Deletion = UNCONDITIONAL) -> None:
        """See KubeClient."""
        dies = not deletion.dry_run and self._dies()
        if not dies or self.after_the_write:
            await super().evict(namespace, pod, deletion)
        if dies:
            raise Died

    def _dies(self) -> bool:
        self.survive -= self._armed
        return self._armed and self.survive < 0


@asynccontextmanager
async def operating(client: KubeClient, settings: Settings, access: Access) -> AsyncIterator[asyncio.Task[None]]:
    """An operator in this process, until the block ends or it dies."""
    stop = asyncio.Event()
    task = asyncio.create_task(App(settings, client, Metrics()).run(access, stop))
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait({task}, timeout=30)
        if task.done() and not task.cancelled():
            task.exception()
        await client.close()


def find(kubectl: Kubectl, namespace: str) -> Json:
    """The policy's status."""
    found = kubectl.find("pp", "fleet", "-n", namespace) or {}
    status: Json = found.get("status", {})
    return status


def state_of(kubectl: Kubectl, namespace: str) -> State:
    """The operator's own record."""
    return parse_assignment(kubectl.json("get", "precisionassignment", "fleet", "-n", namespace))


async def until_phase(kubectl: Kubectl, namespace: str, phase: str) -> Json:
    """Wait in a thread, so that the operator goes on in the loop."""

    def probe() -> Json | None:
        status = find(kubectl, namespace)
        return status if status.get("phase") == phase else None

    return await asyncio.to_thread(
        wait_for, probe, what=f"phase {phase}", seconds=PATIENCE_SECONDS, found=lambda: str(find(kubectl, namespace))
    )


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # what a process that dies leaves open
@pytest.mark.parametrize("survive", [0, 2, 4])
@pytest.mark.parametrize("after_the_write", [False, True], ids=["before-the-write", "answer-lost"])
async def test_operator_killed_between_commit_and_patches_is_finished_by_the_next(
    kubectl: Kubectl, operator_kubeconfig: Path, namespace: str, tmp_path: Path, survive: int, after_the_write: bool
) -> None:
    """Four writes are requests to the hot ones; the fifth takes the pod of the restart-only one away."""
    with ShadowTrainers(kubectl, namespace) as shadow, Prometheus(tmp_path, scraping(shadow.target)) as prometheus:
        settings = Settings(
            prometheus={"default": PrometheusEndpoint(prometheus.url)},
            watch_namespaces=(namespace,),
            namespace=namespace,
            lease=LEASE,
            http_port=0,
        )
        access = Access(operator_kubeconfig)
        objects = [*(deployment(name) for name in HOT), deployment("literal", hot=False), policy(criteria=NO_SPEED)]
        kubectl.apply(*({**o, "metadata": {**o["metadata"], "namespace": namespace}} for o in objects))
        mortal = await MortalClient.connect(access)
        mortal.phase, mortal.survive, mortal.after_the_write = "RollingBack", survive, after_the_write
        async with operating(mortal, settings, access) as first:
            await until_phase(kubectl, namespace, "Healthy")
            shadow.overflow = {HOT[0]: 0.8, HOT[1]: 0.8}
            await asyncio.wait({first}, timeout=PATIENCE_SECONDS)
            assert first.done(), "the operator outlived its death"
        died = state_of(kubectl, namespace)
        assert died.phase is Phase.ROLLING_BACK
        async with operating(await KubeClient.connect(access), settings, access):
            status = await until_phase(kubectl, namespace, "Held")
        assert status["generation"] == died.generation
        assert all(modes == {"fp32"} for modes in shadow.modes().values())

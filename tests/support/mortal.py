"""Operators that die at an exact write, and what they leave. The process is this one: the API server, the controllers and
Prometheus are real.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import NoReturn

from lab.cluster import Kubectl
from lab.waiting import wait_for
from precision_operator.api.assignment import parse_assignment
from precision_operator.api.state import State
from precision_operator.api.wire import mapping
from precision_operator.app import App
from precision_operator.kube.access import Access
from precision_operator.kube.client import KubeClient
from precision_operator.kube.port import (
    ASSIGNMENTS,
    JOBS,
    POLICIES,
    UNCONDITIONAL,
    Deletion,
    JsonObject,
    Operation,
    Resource,
)
from precision_operator.observability.metrics import Metrics
from precision_operator.settings import LeaseSettings, Settings
from tests.support.cluster_fleet import Json
from tests.support.cluster_scene import PATIENCE_SECONDS
from tests.support.shadow_trainers import ShadowTrainers

LEASE = LeaseSettings(duration_seconds=300.0, renew_seconds=200.0)
"""No busy machine loses it; `lease_over` ends it."""


class Died(BaseException):
    """Stands for SIGKILL: no handler of ours may catch it."""


async def _dead() -> NoReturn:
    raise Died


class _Mortal(KubeClient):
    """Sends nothing any more once it died: a killed process does not give its Lease back."""

    def _die(self) -> NoReturn:
        self._transport._authorization = _dead  # type: ignore[method-assign]  # asked for by each request
        raise Died


class MortalClient(_Mortal):
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
            self._die()

    async def delete(self, resource: Resource, namespace: str, name: str, deletion: Deletion = UNCONDITIONAL) -> None:
        """See KubeClient."""
        dies = not deletion.dry_run and self._dies()
        if not dies or self.after_the_write:
            await super().delete(resource, namespace, name, deletion)
        if dies:
            self._die()

    async def evict(self, namespace: str, pod: str, deletion: Deletion = UNCONDITIONAL) -> None:
        """See KubeClient."""
        dies = not deletion.dry_run and self._dies()
        if not dies or self.after_the_write:
            await super().evict(namespace, pod, deletion)
        if dies:
            self._die()

    def _dies(self) -> bool:
        self.survive -= self._armed
        return self._armed and self.survive < 0


class Step(StrEnum):
    """Where a leader that restarts Jobs is killed."""

    RECORDED = "recorded"
    """The suspensions are committed, and none is written."""
    SUSPENDING = "suspending"
    """The first suspension is stored, and its answer is lost."""
    SUSPENDED = "suspended"
    """The Jobs are empty, and that they are resumed is not committed."""
    EMPTY = "empty"
    """That is committed, and no Job is resumed."""
    RESUMING = "resuming"
    """The first Job is resumed, and the answer is lost."""


class JobsMortalClient(_Mortal):
    """Dies at a step of the first restart of a Job."""

    dies: Step

    async def replace(self, resource: Resource, namespace: str, name: str, body: JsonObject) -> JsonObject:
        """See KubeClient."""
        found = parse_assignment(body).suspensions.values() if resource == ASSIGNMENTS else ()
        resuming = any(suspension.resuming for suspension in found)
        if resuming and self.dies is Step.SUSPENDED:
            self._die()
        answer = await super().replace(resource, namespace, name, body)
        if (resuming and self.dies is Step.EMPTY) or (found and self.dies is Step.RECORDED):
            self._die()
        return answer

    async def json_patch(self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]) -> None:
        """See KubeClient."""
        await super().json_patch(resource, namespace, name, operations)
        written = [operation.value for operation in operations if operation.op == "replace" and resource == JOBS]
        if written and self.dies is (Step.SUSPENDING if written == [True] else Step.RESUMING):
            self._die()


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


async def lease_over(kubectl: Kubectl, namespace: str) -> None:
    """The Lease of a leader that died has no holder, as if its time were over: its successor need not wait for that."""
    patch = json.dumps({"spec": {"holderIdentity": ""}})
    await asyncio.to_thread(kubectl, "patch", "lease", LEASE.name, "-n", namespace, "--type=merge", "-p", patch)


def state_of(shadow: ShadowTrainers) -> State:
    """The operator's own record."""
    return parse_assignment(shadow.get(ASSIGNMENTS, "fleet") or {})


async def until_phase(shadow: ShadowTrainers, phase: str) -> Json:
    """Wait in a thread for the policy's status, so that the operator goes on in the loop."""

    def status() -> Json:
        found: Json = (shadow.get(POLICIES, "fleet") or {}).get("status", {})
        return found

    def probe() -> Json | None:
        found = status()
        return found if found.get("phase") == phase else None

    return await asyncio.to_thread(
        wait_for, probe, what=f"phase {phase}", seconds=PATIENCE_SECONDS, found=lambda: str(status())
    )

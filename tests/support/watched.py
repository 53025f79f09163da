"""An inventory that a running kopf fills from a real API server."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from lab.cluster import Kubectl
from precision_operator.api.wire import mapping
from precision_operator.controller.registry import build_registry, run_kopf
from precision_operator.controller.sink import InventorySink
from precision_operator.inventory.caches import Inventory
from precision_operator.kube.access import Access
from precision_operator.kube.port import JsonObject, Resource
from precision_operator.settings import Settings


class World(InventorySink):
    """The inventory, and what came of it."""

    def __init__(self, namespaces: Sequence[str]) -> None:
        self.inventory = Inventory(namespaces=namespaces)
        self.beats: set[str] = set()
        self._news = asyncio.Event()
        super().__init__(self.inventory, enqueue=lambda key: None, heartbeat=self.beats.add)

    def event(self, resource: Resource, body: JsonObject, *, deleted: bool) -> None:
        super().event(resource, body, deleted=deleted)
        self._news.set()

    def relisted(self, resource: Resource, namespace: str | None, uids: frozenset[str]) -> None:
        super().relisted(resource, namespace, uids)
        self._news.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until it is so."""
        async with asyncio.timeout(90):
            while not holds():
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def watching(access: Access, settings: Settings) -> AsyncIterator[World]:
    """The watches as the operator runs them, with a full inventory."""
    world, stop = World(settings.watch_namespaces), asyncio.Event()
    kopf = asyncio.create_task(run_kopf(build_registry(world), settings, access=access, stop_flag=stop), name="kopf")
    ready = asyncio.create_task(world.until(lambda: world.inventory.ready))
    await asyncio.wait({kopf, ready}, return_when=asyncio.FIRST_COMPLETED)
    if kopf.done():
        ready.cancel()
        await kopf
    await ready
    yield world
    stop.set()
    await kopf
    gc.collect()


async def apply(kubectl: Kubectl, namespace: str, *bodies: JsonObject) -> None:
    """Into the test's namespace."""
    for body in bodies:
        metadata = {**mapping(body["metadata"]), "namespace": namespace}
        await asyncio.to_thread(kubectl.apply, {**body, "metadata": metadata})

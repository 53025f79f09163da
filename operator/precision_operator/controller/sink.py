"""Where watch news goes: from kopf's thread into our loop, there into the inventory, from there onto the queue."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from precision_operator.admission.known import KnownAssignments
from precision_operator.api.policy import PolicyKey
from precision_operator.inventory.caches import Inventory
from precision_operator.kube.port import ASSIGNMENTS, JsonObject, Resource

log = logging.getLogger(__name__)

AT_ONCE = 500
"""Watch news that are taken in at one turn of the loop: a list of a whole cluster must not stop everything else."""


class Sink(Protocol):
    """Where watch news goes. Calls are quick and never raise."""

    def event(self, resource: Resource, body: JsonObject, *, deleted: bool) -> None:
        """An object was listed, came, changed or went: a sign of life too."""
        ...

    def relisted(self, resource: Resource, namespace: str | None, uids: frozenset[str]) -> None:
        """A list of it is complete; its objects have been sent as events."""
        ...

    def alive(self, resource: Resource) -> None:
        """Its stream gave a sign of life that is no event: a bookmark (one a minute)."""
        ...


class InventorySink:
    """Keeps the inventory and enqueues the policies that have to look again."""

    def __init__(
        self,
        inventory: Inventory,
        *,
        enqueue: Callable[[PolicyKey], None],
        heartbeat: Callable[[str], None],
        known: KnownAssignments | None = None,
    ) -> None:
        """``known``: what admission by webhook knows; None where there is no webhook."""
        self._known = known
        self._inventory = inventory
        self._enqueue = enqueue
        self._heartbeat = heartbeat

    def event(self, resource: Resource, body: JsonObject, *, deleted: bool) -> None:
        """See Sink."""
        self.alive(resource)
        if self._known is not None and resource == ASSIGNMENTS:
            self._known.observe(body, deleted=deleted)
        self._wake(self._inventory.observe(resource, body, deleted=deleted))

    def relisted(self, resource: Resource, namespace: str | None, uids: frozenset[str]) -> None:
        """See Sink. The first list of the last resource wakes all policies: only now may they be decided on."""
        self.alive(resource)
        if self._known is not None and resource == ASSIGNMENTS:
            self._known.relisted(namespace, uids)
        was_ready = self._inventory.ready
        self._wake(self._inventory.relisted(resource, namespace, uids))
        if self._inventory.ready and not was_ready:
            self._wake(frozenset(self._inventory.policy_keys()))

    def alive(self, resource: Resource) -> None:
        """See Sink."""
        self._heartbeat(resource.plural)

    def _wake(self, keys: frozenset[PolicyKey]) -> None:
        for key in sorted(keys):
            self._enqueue(key)


class Handover:
    """Calls a sink in its own loop, from kopf's thread, in order.

    What comes while our loop is busy waits together: a thousand events are not a thousand wake-ups of it.
    """

    def __init__(self, sink: Sink, loop: asyncio.AbstractEventLoop) -> None:
        self._sink = sink
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()
        self._called = False

    def event(self, resource: Resource, body: JsonObject, *, deleted: bool) -> None:
        self._call(lambda: self._sink.event(resource, body, deleted=deleted))

    def relisted(self, resource: Resource, namespace: str | None, uids: frozenset[str]) -> None:
        self._call(lambda: self._sink.relisted(resource, namespace, uids))

    def alive(self, resource: Resource) -> None:
        self._call(lambda: self._sink.alive(resource))

    def _call(self, what: Callable[[], None]) -> None:
        self._waiting.append(what)
        if self._called:
            return
        self._called = True
        try:
            self._loop.call_soon_threadsafe(self._take)
        except RuntimeError:  # our loop is closed
            log.debug("watch news after the end")

    def _take(self) -> None:
        # First: whoever appends from here on calls again, though this may take what it appended.
        self._called = False
        for _ in range(min(len(self._waiting), AT_ONCE)):
            try:
                self._waiting.popleft()()
            except Exception:
                log.exception("watch news could not be taken in")
        if self._waiting:
            self._called = True
            self._loop.call_soon(self._take)

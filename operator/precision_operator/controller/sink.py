"""Where watch news goes: from kopf's thread into our loop, there into the inventory, from there onto the queue."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

import kopf

from precision_operator.admission.known import KnownAssignments
from precision_operator.api.policy import PolicyKey
from precision_operator.errors import OperatorError
from precision_operator.inventory.caches import WATCHED, Inventory
from precision_operator.kube.port import ASSIGNMENTS, JsonObject, Resource
from precision_operator.reasons import Reason

log = logging.getLogger(__name__)

AT_ONCE = 500
"""Watch news that are taken in at one turn of the loop: a list of a whole cluster must not stop everything else."""

_BY_PLURAL = {resource.plural: resource for resource in WATCHED}


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


class WatchLost(OperatorError):
    """kopf, or one of its watches, ended unasked: the process must end, because it would miss what happens."""

    reason = Reason.WATCH_LOST


class Watches(kopf.OperatorRegistry):
    """kopf's registry, and what its streams say: called in kopf's thread, it calls a sink in our loop, in order.

    What comes while our loop is busy waits together: a thousand events are not a thousand wake-ups of it.
    """

    def __init__(self, sink: Sink, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._sink = sink
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()
        self._called = False
        self.error: WatchLost | None = None
        self.on_failure: Callable[[], None] = lambda: None

    def wants(self, plural: str) -> bool:
        """Whether it takes the events of this resource, so that kopf need not."""
        return plural in _BY_PLURAL

    def alive(self, plural: str) -> None:
        """A bookmark came, and nothing else: the stream lives."""
        self._call(lambda: self._sink.alive(_BY_PLURAL[plural]))

    def event(self, plural: str, body: JsonObject, *, deleted: bool) -> None:
        """An object was listed, came, changed or went."""
        self._call(lambda: self._sink.event(_BY_PLURAL[plural], body, deleted=deleted))

    def listed(self, plural: str, namespace: str | None, uids: frozenset[str]) -> None:
        """A list is complete; its objects have been sent as events."""
        self._call(lambda: self._sink.relisted(_BY_PLURAL[plural], namespace, uids))

    def failed(self, plural: str, error: Exception) -> None:
        """The stream ended with an error that will not go away by itself."""
        self.error = WatchLost(f"the watch of {plural} ended: {type(error).__name__}: {error}")
        self.on_failure()

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

"""kopf's watch streams, read where they come from the API server.

kopf drops bookmarks before any handler, says to nobody that a list was complete, sends no deletions for what vanished
while it was away, and leaves a watch that failed for dead while the process lives on. All four pass through one
function of it, ``watching.infinite_watch``; it is wrapped here, and ``tests/unit/controller/test_registry.py`` fails where a
new kopf has moved it.

All that we use of kopf and it does not publish is imported here, and nowhere else (``pyproject.toml`` bounds its version).

Events are taken here too, and do not go on to kopf's worker and memory for each object. Those are for handlers that take
long; ours takes an event in within microseconds, and what they cost comes a thousandfold when we write a thousand times.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import cast

import kopf
from kopf._cogs.aiokits import aiotoggles
from kopf._cogs.clients import errors, watching
from kopf._cogs.structs import bodies, references
from kopf._core.engines.peering import Identity as Identity

from precision_operator.controller.sink import Watches
from precision_operator.kube.port import JsonObject

log = logging.getLogger(__name__)

REFUSED_SECONDS = 30.0
"""How long a refusal is taken for one that passes: an API server that was just started has not read its own roles yet."""

_TROUBLE = (watching.WatchingError, errors.APIServerError, errors.APITooManyRequestsError)
"""The server's own, which will pass."""

StreamItem = watching.Bookmark | bodies.RawEvent


_original = watching.infinite_watch
_listeners: dict[int, Watches] = {}


def listen(settings: kopf.OperatorSettings, listener: Watches) -> Callable[[], None]:
    """Listen to the streams of the operator that runs with these settings; the answer ends it."""
    _listeners[id(settings)] = listener
    watching.infinite_watch = _tapped

    def end() -> None:
        _listeners.pop(id(settings), None)

    return end


async def _tapped(
    *,
    settings: kopf.OperatorSettings,
    resource: references.Resource,
    namespace: references.Namespace,
    operator_paused: aiotoggles.ToggleSet | None = None,
    _iterations: int | None = None,
) -> AsyncIterator[StreamItem]:
    listener = _listeners.get(id(settings))
    ours = listener is not None and listener.wants(resource.plural)
    refused_since: float | None = None
    while True:
        uids: set[str] = set()
        stream = _original(
            settings=settings,
            resource=resource,
            namespace=namespace,
            operator_paused=operator_paused,
            _iterations=_iterations,
        )
        try:
            async for item in stream:
                refused_since = None
                if listener is not None and ours:
                    _tell(listener, resource.plural, namespace, item, uids)
                if not ours or isinstance(item, watching.Bookmark):
                    yield item
            return
        except Exception as error:
            refused = isinstance(error, errors.APIForbiddenError)
            refused_since = (refused_since or time.monotonic()) if refused else None
            lasts = refused_since is not None and time.monotonic() - refused_since >= REFUSED_SECONDS
            if lasts or not (refused or isinstance(error, _TROUBLE)):
                if listener is not None and ours:
                    listener.failed(resource.plural, error)
                raise
            # The server is in trouble, or lost its place: list again. The watchdog sees the stream's age.
            log.warning("watch broken, listing again", extra={"resource": resource.plural, "error": str(error)})
            await asyncio.sleep(settings.watching.reconnect_backoff)


def _tell(listener: Watches, plural: str, namespace: str | None, item: StreamItem, uids: set[str]) -> None:
    """Pass on what one item says. ``uids``: of the list under way."""
    if isinstance(item, watching.Bookmark):
        listener.listed(plural, namespace, frozenset(uids))
        uids.clear()
    elif item["type"] == "BOOKMARK":
        listener.alive(plural)
    else:
        body = cast(JsonObject, item["object"])
        if item["type"] is None:
            uids.add(item["object"].get("metadata", {}).get("uid", ""))
        listener.event(plural, body, deleted=item["type"] == "DELETED")

"""The HTTP server that Alertmanager posts to. Who brings no token is sent away before a byte of the body is read."""

import asyncio
import json
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from http import HTTPStatus

import aiohttp
from aiohttp import web

from precision_operator.api.text import bounded
from precision_operator.reasons import Reason
from precision_operator.receiver.connections import Bounds, Connections
from precision_operator.runtime.listening import listening_socket

PATH = "/api/v1/alerts"

MAX_BODY_BYTES = 1024 * 1024
"""A webhook of a thousand alerts; more is cut by Alertmanager's own max_alerts."""

BODIES = 4
"""Read at once: what they take together is bounded, however many connections there are."""

READ_BYTES = 16 * 1024
"""Of a request that nobody reads yet, twice this is kept; the rest waits at the sender."""

LINGER_SECONDS = 1.0
"""For how long the rest of a body that nobody wants is taken, so that its sender sees the answer."""

_LOG = logging.getLogger(__name__)
_SILENT = logging.Logger("receiver")
"""For aiohttp: it logs a traceback for whatever is no HTTP, and anybody can send that."""
_SILENT.disabled = True

RETRY_AFTER = {"Retry-After": "1"}


class AlertResult(StrEnum):
    """What became of a request, or of a connection."""

    ACCEPTED = "Accepted"
    UNAUTHORIZED = "Unauthorized"
    NOT_LEADING = "NotLeading"
    MALFORMED = "Malformed"
    TOO_LARGE = "TooLarge"
    UNKNOWN_PATH = "UnknownPath"
    FAILED = "Failed"
    """A fault of our own; it is logged."""
    CONNECTION_REFUSED = "ConnectionRefused"
    """Too many connections, of all peers or of this one."""


Receive = Callable[[object], Awaitable[int]]
"""Takes a webhook's body; the number of policies concerned. Raises ValueError where it is no webhook."""


class AlertServer:
    """Serves until ``stop``. What it takes in can only make the operator look: no alert changes a decision."""

    def __init__(
        self,
        *,
        allows: Callable[[Sequence[str]], bool],
        leading: Callable[[], bool],
        receive: Receive,
        count: Callable[[str], None],
        bounds: Bounds | None = None,
    ) -> None:
        """``allows``: whether these ``Authorization`` headers hold a valid token. ``count``: takes each AlertResult."""
        self._allows = allows
        self._leading = leading
        self._receive = receive
        self._count = count
        self._bounds = bounds or Bounds()
        self._reading = asyncio.Semaphore(BODIES)
        self._connections: Connections | None = None
        self._task: asyncio.Task[None] | None = None
        self._listening: socket.socket | None = None

    async def start(self, port: int, context: ssl.SSLContext | None, *, host: str | None = None) -> int:
        """Listen, on every address where there is no ``host``; port 0 picks a free one. Returns the port.

        Raises:
            OSError: the port is taken.
        """
        self._listening = listening_socket(host, port)
        self._listening.setblocking(False)
        server = web.Server(
            self._answer,
            access_log=None,
            logger=_SILENT,
            handler_cancellation=True,  # who has gone waits for nothing
            auto_decompress=False,  # a small body must not become a large one
            read_bufsize=READ_BYTES,
            lingering_time=LINGER_SECONDS,
        )
        self._connections = Connections(
            server, self._bounds, refused=lambda: self._count(AlertResult.CONNECTION_REFUSED.value)
        )
        accepting = self._connections.accept(self._listening, context)
        self._task = asyncio.get_running_loop().create_task(accepting, name="alert receiver")
        return int(self._listening.getsockname()[1])

    async def stop(self) -> None:
        """Stop listening; harmless when not started."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        try:
            result, answer = await self._result(request)
        except (web.RequestPayloadError, aiohttp.ClientPayloadError, ConnectionError):
            result, answer = (
                AlertResult.MALFORMED,
                _said(HTTPStatus.BAD_REQUEST, "the body ended early, or is badly encoded"),
            )
        except Exception:  # noqa: BLE001 - the sender is told, and the log says it
            _LOG.exception("an alert could not be taken", extra={"reason": Reason.ALERT_FAILED})
            result, answer = (
                AlertResult.FAILED,
                _said(HTTPStatus.INTERNAL_SERVER_ERROR, "failed; see the operator's log"),
            )
        self._count(result.value)
        answer.force_close()  # the next request counts anew, and may reach another replica
        return answer

    async def _result(self, request: web.BaseRequest) -> tuple[AlertResult, web.Response]:
        if not self._allows(request.headers.getall("Authorization", [])):
            said = _said(HTTPStatus.UNAUTHORIZED, "expected a valid bearer token", {"WWW-Authenticate": "Bearer"})
            return AlertResult.UNAUTHORIZED, said
        if self._connections is not None:
            self._connections.token_shown(request.protocol)
        if (request.method, request.path) != ("POST", PATH):
            return AlertResult.UNKNOWN_PATH, _said(HTTPStatus.NOT_FOUND, f"expected POST {PATH}")
        if not self._leading():
            # Alertmanager tries again, and the Service leads it to the leader at some time.
            unavailable = _said(HTTPStatus.SERVICE_UNAVAILABLE, "another replica leads", RETRY_AFTER)
            return AlertResult.NOT_LEADING, unavailable
        async with self._reading:
            body = await _read(request)
            if body is None:
                large = _said(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected at most {MAX_BODY_BYTES} bytes")
                return AlertResult.TOO_LARGE, large
            try:
                woken = await self._receive(_parsed(body))
            except ValueError as error:
                return AlertResult.MALFORMED, _said(HTTPStatus.BAD_REQUEST, bounded(str(error)))
        return AlertResult.ACCEPTED, web.json_response({"woken": woken})


async def _read(request: web.BaseRequest) -> bytearray | None:
    """The body; None where it is too large, of which no more than the limit is kept."""
    body = bytearray()
    if (request.content_length or 0) > MAX_BODY_BYTES:
        return None
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            return None
    return body


def _parsed(body: bytearray) -> object:
    """Its JSON.

    Raises:
        ValueError: it is none.
    """
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("expected Alertmanager's webhook payload, found JSON that is nested too deeply") from None


def _said(status: HTTPStatus, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, text=f"{message}\n", headers=headers)

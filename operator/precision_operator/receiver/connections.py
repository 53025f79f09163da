"""Connections with bounds of their own: how many, how many from one peer, and how long one may take to say what it wants.

aiohttp's server has no deadline for a request, and asyncio no limit of connections. A TLS connection takes about half a MiB,
so few are served at once. Others wait for their turn before the handshake, where each costs little more than its socket.
"""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from precision_operator.reasons import Reason

_LOG = logging.getLogger(__name__)

AFTER_FAILURE_SECONDS = 1.0
"""No file descriptors are left, for one: then nothing is accepted for a while."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of connections."""

    connections: int = 128
    """That are served or wait for their turn; what comes beyond that is closed."""
    connections_per_peer: int = 32
    """The same, from one address."""
    served: int = 8
    """At once."""
    served_per_peer: int = 4
    header_seconds: float = 5.0
    """Until the header of the request has come, the wait and a TLS handshake included."""
    body_seconds: float = 5.0
    """From then on, until the connection has ended."""


class Connections:
    """Accepts connections and hands them to aiohttp, one request each. Belongs to one event loop."""

    def __init__(self, server: web.Server, bounds: Bounds, *, refused: Callable[[], None]) -> None:
        """``refused``: called for each connection that is closed at once, because there are too many."""
        self._server = server
        self._bounds = bounds
        self._refused = refused
        self._turn = asyncio.Semaphore(bounds.served)
        self._peers_turns: dict[str, asyncio.Semaphore] = {}
        self._peers: Counter[str] = Counter()
        """Connections by address; none of one without."""
        self._deadlines: dict[web.RequestHandler, asyncio.Timeout] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, listening: socket.socket, context: ssl.SSLContext | None) -> None:
        """Serve until cancelled. ``context``: of TLS; None: plain."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, address = await loop.sock_accept(listening)
                except OSError as error:
                    _LOG.warning("connections cannot be accepted: %s", error, extra={"reason": Reason.ACCEPT_FAILED})
                    await asyncio.sleep(AFTER_FAILURE_SECONDS)
                    continue
                peer = str(address[0])
                if (
                    self._peers.total() >= self._bounds.connections
                    or self._peers[peer] >= self._bounds.connections_per_peer
                ):
                    connection.close()
                    self._refused()
                    continue
                self._peers[peer] += 1
                task = loop.create_task(self._serve(connection, peer, context), name="alert connection")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._server.shutdown(0)

    def header_came(self, handler: web.RequestHandler) -> None:
        """From now on the deadline of the body counts."""
        deadline = self._deadlines.get(handler)
        if deadline is not None:
            deadline.reschedule(asyncio.get_running_loop().time() + self._bounds.body_seconds)

    async def _serve(self, connection: socket.socket, peer: str, context: ssl.SSLContext | None) -> None:
        peers_turn = self._peers_turns.setdefault(peer, asyncio.Semaphore(self._bounds.served_per_peer))
        try:
            async with asyncio.timeout(self._bounds.header_seconds) as deadline, peers_turn, self._turn:
                await self._hand_over(connection, context, deadline)
        except (OSError, TimeoutError):  # no TLS, or too slow
            pass
        finally:
            connection.close()  # where its turn never came
            self._peers[peer] -= 1
            if not self._peers[peer]:
                del self._peers[peer], self._peers_turns[peer]

    async def _hand_over(
        self, connection: socket.socket, context: ssl.SSLContext | None, deadline: asyncio.Timeout
    ) -> None:
        handler = self._server()
        relay = _Relay(handler)
        self._deadlines[handler] = deadline
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: relay, connection, ssl=context)
            await relay.ended.wait()
        finally:
            del self._deadlines[handler]
            relay.abort()


class _Relay(asyncio.Protocol):
    """Passes everything on to aiohttp's protocol, and knows when the connection has ended."""

    def __init__(self, handler: web.RequestHandler) -> None:
        self._handler = handler
        self._transport: asyncio.Transport | None = None
        self.ended = asyncio.Event()

    def abort(self) -> None:
        """End the connection now; harmless where it has ended."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._handler.connection_lost(exc)
        self.ended.set()

    def data_received(self, data: bytes) -> None:
        self._handler.data_received(data)

    def eof_received(self) -> None:
        self._handler.eof_received()

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()

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
from contextlib import suppress
from dataclasses import dataclass, field

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
    """Until a header with a token has come, the wait and a TLS handshake included."""
    turn_seconds: float = 1.0
    """How long one without a token may be served while others wait for that."""
    body_seconds: float = 5.0
    """From when it has shown a token, until the connection has ended."""


@dataclass(eq=False, slots=True)
class _Connection:
    """One that was accepted and has not ended."""

    socket: socket.socket
    peer: str
    until: float
    """When it is ended; by the loop's clock."""
    turn: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: it is served."""
    turn_at: float = 0.0
    known: bool = False
    """It has shown a token: no other takes its place."""
    deadline: asyncio.Timeout | None = None
    task: asyncio.Task[None] | None = None

    def end_at(self, when: float) -> None:
        """Move its end."""
        self.until = when
        if self.deadline is not None and not self.deadline.expired():
            self.deadline.reschedule(when)


class Connections:
    """Accepts connections and hands them to aiohttp, one request each. Belongs to one event loop.

    Who comes with a token gets in while others hold every place: where no more are accepted, a newcomer takes the place of
    the oldest without a token, of the peer that has most; and who waits for a turn shortens that of those without a token.
    """

    def __init__(self, server: web.Server, bounds: Bounds, *, refused: Callable[[], None]) -> None:
        """``refused``: called for each connection that is closed because there are too many."""
        self._server = server
        self._bounds = bounds
        self._refused = refused
        self._waiting: dict[_Connection, None] = {}
        """For a turn; the oldest first."""
        self._served: dict[_Connection, None] = {}
        self._peers: Counter[str] = Counter()
        """Connections by address; none of one without."""
        self._handlers: dict[web.RequestHandler, _Connection] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, listening: socket.socket, context: ssl.SSLContext | None) -> None:
        """Serve until cancelled. ``context``: of TLS; None: plain."""
        try:
            while True:
                try:
                    connection, address = await asyncio.get_running_loop().sock_accept(listening)
                except OSError as error:
                    _LOG.warning("connections cannot be accepted: %s", error, extra={"reason": Reason.ACCEPT_FAILED})
                    await asyncio.sleep(AFTER_FAILURE_SECONDS)
                    continue
                self._take(connection, str(address[0]), context)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._server.shutdown(0)

    def token_shown(self, handler: web.RequestHandler) -> None:
        """From now on the deadline of the body counts."""
        connection = self._handlers.get(handler)
        if connection is not None:
            connection.known = True
            connection.end_at(asyncio.get_running_loop().time() + self._bounds.body_seconds)

    def _take(self, accepted: socket.socket, peer: str, context: ssl.SSLContext | None) -> None:
        if not self._room_for(peer):
            accepted.close()
            self._refused()
            return
        loop = asyncio.get_running_loop()
        new = _Connection(accepted, peer, loop.time() + self._bounds.header_seconds)
        self._waiting[new] = None
        self._peers[peer] += 1
        new.task = loop.create_task(self._serve(new, context), name="alert connection")
        self._tasks.add(new.task)
        new.task.add_done_callback(lambda task: self._ended(new, task))
        self._share()

    def _room_for(self, peer: str) -> bool:
        """Whether there is a place, if need be after another was given up: for a peer's first, or to even them out."""
        if self._peers[peer] >= self._bounds.connections_per_peer:
            return False
        if len(self._waiting) + len(self._served) < self._bounds.connections:
            return True
        unknown = (c for c in (*self._served, *self._waiting) if not c.known)
        oldest = max(unknown, key=lambda c: self._peers[c.peer], default=None)
        if oldest is None or oldest.task is None:
            return False
        if self._peers[peer] and self._peers[oldest.peer] <= self._peers[peer] + 1:
            return False
        self._forget(oldest)
        oldest.task.cancel()
        self._refused()
        return True

    def _share(self) -> None:
        """Give free turns to those who wait, of the peers with the fewest connections first."""
        while True:
            turns = Counter(c.peer for c in self._served)
            ready = (c for c in self._waiting if turns[c.peer] < self._bounds.served_per_peer)
            if len(self._served) >= self._bounds.served:
                if any(True for _ in ready):
                    self._hurry()
                return
            turn = min(ready, key=lambda c: self._peers[c.peer], default=None)
            if turn is None:
                return
            del self._waiting[turn]
            self._served[turn] = None
            turn.turn_at = asyncio.get_running_loop().time()
            turn.turn.set()

    def _hurry(self) -> None:
        for connection in self._served:
            if not connection.known:
                connection.end_at(min(connection.until, connection.turn_at + self._bounds.turn_seconds))

    def _forget(self, connection: _Connection) -> None:
        """It holds no place any more; harmless where it holds none."""
        if connection in self._waiting or connection in self._served:
            self._waiting.pop(connection, None)
            self._served.pop(connection, None)
            self._peers[connection.peer] -= 1
            if not self._peers[connection.peer]:
                del self._peers[connection.peer]

    def _ended(self, connection: _Connection, task: asyncio.Task[None]) -> None:
        connection.socket.close()  # where its turn never came
        self._tasks.discard(task)
        self._forget(connection)
        self._share()

    async def _serve(self, connection: _Connection, context: ssl.SSLContext | None) -> None:
        with suppress(OSError, TimeoutError):  # no TLS, or too slow
            async with asyncio.timeout_at(connection.until) as connection.deadline:
                try:
                    await connection.turn.wait()
                    await self._hand_over(connection, context)
                finally:
                    connection.deadline = None  # one that is over cannot be moved

    async def _hand_over(self, connection: _Connection, context: ssl.SSLContext | None) -> None:
        handler = self._server()
        relay = _Relay(handler)
        self._handlers[handler] = connection
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: relay, connection.socket, ssl=context)
            await relay.ended.wait()
        finally:
            del self._handlers[handler]
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

"""The alert receiver over real sockets: who is let in, and what everybody else costs."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from precision_operator.receiver.alertmanager import parse_webhook
from precision_operator.receiver.connections import Bounds, Connections
from precision_operator.receiver.server import BODIES, MAX_BODY_BYTES, PATH, AlertResult, AlertServer
from tests.support.fake_kube import FakeKube
from tests.support.manual_clock import settle
from tests.support.tls import NAME, kept, trusting

pytestmark = pytest.mark.slow

TOKEN = "t" * 32
EMPTY = b'{"version": "4", "alerts": []}'
PATIENT = Bounds(header_seconds=60.0, body_seconds=60.0)
"""For what is not about deadlines: a busy machine keeps nobody out."""
CROWDED = Bounds(header_seconds=600.0, body_seconds=600.0, turn_seconds=60.0)
"""Only the end of its turn closes a connection without a token."""


class Served:
    """A receiver, and raw connections to it."""

    def __init__(self, bounds: Bounds) -> None:
        self.counted: Counter[str] = Counter()
        self.received: list[object] = []
        self.leading = True
        self._news = asyncio.Event()
        self.receive: Callable[[object], Awaitable[int]] = self._receive
        self.server = AlertServer(
            allows=lambda headers: headers == [f"Bearer {TOKEN}"],
            leading=lambda: self.leading,
            receive=lambda body: self.receive(body),
            count=self._count,
            bounds=bounds,
        )
        self.port = 0

    def _count(self, result: str) -> None:
        self.counted[result] += 1
        self._news.set()

    def hold(self) -> asyncio.Event:
        """What is received is answered once this is set."""
        released = asyncio.Event()

        async def held(body: object) -> int:
            await self._receive(body)
            await released.wait()
            return 0

        self.receive = held
        return released

    async def _receive(self, body: object) -> int:
        self.received.append(body)
        self._news.set()
        return len(parse_webhook(body))

    @property
    def connections(self) -> Connections:
        assert self.server._connections is not None
        return self.server._connections

    async def connect(self, peer: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(peer, 0))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for what is counted or received."""
        async with asyncio.timeout(60):
            while not holds():
                self._news.clear()
                await self._news.wait()

    @asynccontextmanager
    async def held(self, peers: int, begun: bytes = b"") -> AsyncIterator[None]:
        """As many connections as each of so many peers may have, of which each has sent this."""
        async with AsyncExitStack() as stack:
            for number in range(peers * Bounds().connections_per_peer):
                _, writer = await self.connect(f"127.0.1.{number % peers + 1}")
                stack.callback(writer.close)
                writer.write(begun)
            yield

    async def send(self, raw: bytes, *, peer: str = "127.0.0.1") -> bytes:
        """What it answers until it closes the connection; nothing where it just closes it."""
        reader, writer = await self.connect(peer)
        try:
            writer.write(raw)
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()

    async def status(self, raw: bytes) -> int:
        """The status of the answer."""
        return int((await self.send(raw)).split()[1])

    async def in_a_crowd(self) -> int:
        """The status of the answer to who has a token, perhaps after a wait for a turn.

        The loop's time is then set forward by a turn: those before him have had theirs, and the whole of his is to come,
        however slow this machine is.
        """
        sending = asyncio.create_task(self.status(post(EMPTY)))
        async with asyncio.timeout(CROWDED.turn_seconds):
            while not sending.done() and not any(c.peer == "127.0.0.1" for c in self.connections._waiting):
                await settle()
        loop = asyncio.get_running_loop()
        now = loop.time
        loop.time = lambda: now() + CROWDED.turn_seconds  # type: ignore[method-assign]
        return await asyncio.wait_for(sending, CROWDED.turn_seconds)


@asynccontextmanager
async def serving(bounds: Bounds = PATIENT) -> AsyncIterator[Served]:
    served = Served(bounds)
    served.port = await served.server.start(0, None, host="127.0.0.1")
    try:
        yield served
    finally:
        await served.server.stop()
        await served.server.stop()


def post(body: bytes, *, length: int | None = None, token: str = TOKEN, more: str = "", path: str = PATH) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n{more}"
    return f"{head}Content-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


async def test_alertmanager_is_told_what_became_of_its_alerts() -> None:
    async with serving() as served:
        body = json.dumps({"version": "4", "alerts": [{"labels": {"namespace": "ns"}}]}).encode()
        answer = await served.send(post(body))
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b'{"woken": 1}')
        assert await served.status(post(b"{}")) == 400
        assert await served.status(post(b"not json")) == 400
        assert await served.status(post(EMPTY, path="/metrics")) == 404
        assert await served.status(post(EMPTY).replace(b"POST", b"PUT")) == 404
        served.leading = False
        standby = await served.send(post(EMPTY))
        assert standby.startswith(b"HTTP/1.1 503")
        assert b"Retry-After: 1" in standby
        assert served.counted == {
            AlertResult.ACCEPTED: 1,
            AlertResult.MALFORMED: 2,
            AlertResult.UNKNOWN_PATH: 2,
            AlertResult.NOT_LEADING: 1,
        }


@pytest.mark.parametrize(
    "raw",
    [
        post(EMPTY, token="u" * 32),
        post(EMPTY).replace(b"Authorization", b"X-Authorization"),
        post(EMPTY, more=f"Authorization: Bearer {TOKEN}\r\n"),
        post(EMPTY, path=f"{PATH}?token={TOKEN}", token="none"),
        post(EMPTY, path="/anything", token="none"),
        post(b"", length=10**9, token="none"),
    ],
)
async def test_who_brings_no_valid_token_is_sent_away_before_his_body_is_read(raw: bytes) -> None:
    async with serving() as served:
        assert await served.status(raw) == 401
        assert served.received == []
        assert served.counted == {AlertResult.UNAUTHORIZED: 1}


@pytest.mark.parametrize("length", [None, 2 * MAX_BODY_BYTES])
async def test_a_body_beyond_the_limit_is_refused(length: int | None) -> None:
    async with serving() as served:
        chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (MAX_BODY_BYTES + 1, b"x" * (MAX_BODY_BYTES + 1))
        raw = post(b"", length=length)
        if length is None:
            raw = post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + chunked
        assert await served.status(raw) == 413
        assert served.received == []


@pytest.mark.parametrize(
    "body",
    [b"[" * 100_000, b'{"a":' * 100_000, b"1" * 100_000, b"\xff\xfe" * 100, b'{"version": NaN}', b'"\\ud800"'],
)
async def test_a_body_that_is_no_webhook_is_refused_whatever_it_is(body: bytes) -> None:
    async with serving() as served:
        assert await served.status(post(body)) == 400
        assert await served.status(post(EMPTY)) == 200


@pytest.mark.parametrize(
    "raw",
    [
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00" * 50,
        b"GET / HTTP/9.9\r\n\r\n",
        b"A" * 100_000,
        post(b"ZZ\r\n").replace(b"Content-Length: 4", b"Transfer-Encoding: chunked"),
    ],
)
async def test_what_is_no_http_is_not_logged(raw: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Anybody may send it, again and again."""
    async with serving() as served:
        assert (await served.send(raw)).startswith(b"HTTP/1.1 400") or not served.received
        assert caplog.records == []
        assert await served.status(post(EMPTY)) == 200


async def test_a_fault_of_our_own_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as served:

        async def broken(_: object) -> int:
            raise LookupError("a bug")

        served.receive = broken
        assert await served.status(post(EMPTY)) == 500
        assert served.counted == {AlertResult.FAILED: 1}
        assert [record.message for record in caplog.records] == ["an alert could not be taken"]


async def test_a_compressed_body_is_not_unpacked() -> None:
    import gzip

    async with serving() as served:
        bomb = gzip.compress(b" " * 50_000_000)
        assert await served.status(post(bomb, more="Content-Encoding: gzip\r\n")) == 400
        assert served.received == []


@pytest.mark.parametrize("begun", [b"", b"POST ", b"POST / HTTP/1.1\r\nHost: x\r\n"])
async def test_a_header_that_does_not_end_ends_the_connection(begun: bytes) -> None:
    async with serving(Bounds(header_seconds=0.05)) as served:
        assert await served.send(begun) == b""
        assert served.counted == {}


async def test_a_body_that_does_not_come_ends_the_connection() -> None:
    async with serving(replace(PATIENT, body_seconds=0.05)) as served:
        assert await served.send(post(b"{", length=1000)) == b""
        served.connections._bounds = PATIENT
        assert await served.status(post(EMPTY)) == 200


async def test_slow_bodies_give_their_place_back() -> None:
    """Each holds one of few places for reading; who waits for one and has gone holds none."""
    async with serving(replace(PATIENT, body_seconds=0.05)) as served:
        assert await asyncio.gather(*(served.send(post(b"{", length=1000)) for _ in range(2 * BODIES))) == [b""] * (
            2 * BODIES
        )
        served.connections._bounds = PATIENT
        assert await served.status(post(EMPTY)) == 200


async def test_one_peer_has_so_many_connections_and_another_has_its_own() -> None:
    async with serving(replace(PATIENT, connections=3, connections_per_peer=2)) as served:
        held = [await served.connect() for _ in range(2)]
        assert await served.send(post(EMPTY)) == b""
        assert served.counted == {AlertResult.CONNECTION_REFUSED: 1}
        assert (await served.send(post(EMPTY), peer="127.0.0.2")).startswith(b"HTTP/1.1 200")
        for reader, writer in held:
            writer.write(post(EMPTY))
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()
        assert await served.status(post(EMPTY)) == 200


async def test_all_peers_together_have_so_many_connections_and_none_with_a_token_is_given_up_for_another() -> None:
    async with serving(replace(PATIENT, connections=2, connections_per_peer=2)) as served:
        released = served.hold()
        held = [asyncio.create_task(served.send(post(EMPTY), peer=f"127.0.0.{number}")) for number in (1, 2)]
        await served.until(lambda: len(served.received) == 2)
        assert await served.send(post(EMPTY), peer="127.0.0.3") == b""
        released.set()
        assert all(answer.startswith(b"HTTP/1.1 200") for answer in await asyncio.gather(*held))


SLOW = {
    "nothing at all": b"",
    "a header that does not end": b"POST / HTTP/1.1\r\nHost: x\r\n",
    "a wrong token and a body that does not end": post(b"{", length=1000, token="u" * 32),
}


@pytest.mark.parametrize("begun", SLOW.values(), ids=SLOW)
@pytest.mark.parametrize("peers", [2, 4, 12])
async def test_who_has_a_token_gets_in_while_others_hold_every_place(peers: int, begun: bytes) -> None:
    """Their own deadline does not come."""
    async with serving(CROWDED) as served, served.held(peers, begun):
        for _ in range(2):
            assert await served.in_a_crowd() == 200


async def test_who_has_a_token_gets_in_while_others_come_again_as_often_as_they_are_sent_away() -> None:
    async with serving(replace(CROWDED, connections=8, connections_per_peer=4, served=4)) as served:

        async def again_and_again(peer: str) -> None:
            while True:
                await served.send(b"", peer=peer)

        attack = [asyncio.create_task(again_and_again(f"127.0.1.{number % 4 + 1}")) for number in range(16)]
        await served.until(lambda: served.counted[AlertResult.CONNECTION_REFUSED] > 16)
        for _ in range(5):
            assert await served.in_a_crowd() == 200
        for task in attack:
            task.cancel()
        await asyncio.gather(*attack, return_exceptions=True)


async def test_who_has_a_token_gets_in_by_tls_while_others_begin_no_handshake() -> None:
    keeper = await kept(FakeKube())
    served = Served(CROWDED)
    served.port = await served.server.start(0, keeper.context, host="127.0.0.1")
    try:
        async with served.held(4):
            tls = trusting(keeper)
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=tls, server_hostname=NAME)
            writer.write(post(EMPTY))
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()
    finally:
        await served.server.stop()


async def test_one_peer_cannot_take_every_turn() -> None:
    async with serving(replace(PATIENT, served=2, served_per_peer=1)) as served:
        held = [await served.connect() for _ in range(3)]
        assert (await served.send(post(EMPTY), peer="127.0.0.2")).startswith(b"HTTP/1.1 200")
        for _, writer in held:
            writer.close()


async def test_who_waits_for_a_turn_gets_it_when_another_has_ended() -> None:
    async with serving(replace(PATIENT, served=1, turn_seconds=60.0)) as served:
        _, writer = await served.connect()
        waiting = [asyncio.create_task(served.send(post(EMPTY), peer=f"127.0.0.{number}")) for number in range(2, 12)]
        await asyncio.sleep(0)
        writer.close()
        assert all(answer.startswith(b"HTTP/1.1 200") for answer in await asyncio.gather(*waiting))


async def test_who_waits_for_a_turn_in_vain_is_closed() -> None:
    async with serving(Bounds(served=1, header_seconds=0.05)) as served:
        held = [await served.connect() for _ in range(3)]
        assert [await reader.read() for reader, _ in held] == [b""] * 3
        for _, writer in held:
            writer.close()


async def test_a_handshake_that_does_not_come_ends_the_connection() -> None:
    keeper = await kept(FakeKube())
    served = Served(Bounds(header_seconds=0.05))
    served.port = await served.server.start(0, keeper.context, host="127.0.0.1")
    try:
        assert await served.send(b"") == b""
        assert await served.send(post(EMPTY)) == b"", "no plain HTTP where a certificate was given"
    finally:
        await served.server.stop()


async def test_it_speaks_tls_where_a_certificate_was_given() -> None:
    keeper = await kept(FakeKube())
    served = Served(PATIENT)
    served.port = await served.server.start(0, keeper.context, host="127.0.0.1")
    try:
        tls = trusting(keeper)
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=tls, server_hostname=NAME)
        writer.write(post(EMPTY))
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
        await writer.wait_closed()
    finally:
        await served.server.stop()


async def test_what_waits_is_ended_with_the_server() -> None:
    async with serving() as served:
        _, writer = await served.connect()
        writer.write(post(b"{", length=1000))
        await writer.drain()
        await served.server.stop()
        with pytest.raises(ConnectionRefusedError):
            await served.connect()
        writer.close()

"""What a fault does to a request: whether the server got it, and what the operator saw."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web

from lab.faults import proxy as module
from lab.faults.proxy import Line, Proxy
from lab.faults.rules import REFUSALS, Fault, Injection, Write

NAMESPACE = "team"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
POD = f"{PODS}/hot-0"
WRITE = Write("PATCH", "pods", "hot-0", 1)
EVENTS: tuple[dict[str, object], ...] = tuple(
    {"type": "MODIFIED", "object": {"metadata": {"uid": "uid-hot-0", "resourceVersion": str(n)}}} for n in (7, 8)
)
EXPIRED = 410


@dataclass
class Server:
    """An API server of one pod: it keeps what it was sent, and shows two events once a write has come."""

    writes: list[bytes] = field(default_factory=list)
    status: int = 200
    events: tuple[dict[str, object], ...] = EVENTS
    lists: int = 0
    watched: asyncio.Event = field(default_factory=asyncio.Event)
    written: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            self.writes.append(await request.read())
            self.written.set()
            return web.json_response({"kind": "Pod"}, status=self.status)
        if "watch" in request.query:
            return await self._watch(request)
        self.lists += 1
        return web.json_response({"list": self.lists})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        self.watched.set()
        await self.written.wait()
        for event in self.events:
            await stream.write(json.dumps(event, separators=(",", ":")).encode() + b"\n")
        await asyncio.Event().wait()
        return stream


@dataclass
class World:
    """An operator's side of the proxy."""

    server: Server
    proxy: Proxy
    client: aiohttp.ClientSession
    line: Line
    writes_when_killed: list[int]
    """How many writes the server had got at each kill."""

    def meets(self, fault: Fault) -> None:
        """The first write of the pod meets it."""
        self.line.injections = (Injection("rollout", WRITE, fault),)

    async def patch(self) -> tuple[int, dict[str, object]]:
        """Write; the status and the body of the answer."""
        async with self.client.patch(self.proxy.url + POD, data=b"{}") as answer:
            return answer.status, await answer.json()

    async def listed(self) -> object:
        """What a list shows."""
        async with self.client.get(self.proxy.url + PODS) as answer:
            return await answer.json()

    async def watch(self) -> asyncio.Task[list[dict[str, object]]]:
        """Open a watch; the task ends with it, and has its events."""
        opened = asyncio.Event()

        async def events() -> list[dict[str, object]]:
            async with self.client.get(self.proxy.url + PODS, params={"watch": "1"}) as answer:
                opened.set()
                return [json.loads(line) async for line in answer.content]

        task = asyncio.create_task(events())
        await opened.wait()
        await self.server.watched.wait()
        return task


@pytest.fixture
async def world() -> AsyncIterator[World]:
    server = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    killed: list[int] = []

    async def kill() -> bool:
        killed.append(len(server.writes))
        return True

    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with Proxy(url, ssl.create_default_context(), kill) as proxy, aiohttp.ClientSession() as client:
        line = proxy.lines[NAMESPACE] = Line()
        yield World(server, proxy, client, line, killed)
    await runner.cleanup()


async def test_a_write_without_a_fault_is_forwarded_and_numbered(world: World) -> None:
    assert await world.patch() == (200, {"kind": "Pod"})
    assert world.server.writes == [b"{}"]
    assert world.line.numbering.writes == [WRITE]
    assert world.line.done == set()


@pytest.mark.parametrize("fault", sorted(REFUSALS))
async def test_a_refused_write_does_not_reach_the_server(world: World, fault: Fault) -> None:
    world.meets(fault)
    status, body = await world.patch()
    assert (status, body["kind"], body["code"]) == (int(fault.value), "Status", int(fault.value))
    assert world.server.writes == []
    assert world.line.done == {fault}


async def test_an_operator_that_is_killed_before_its_write_has_written_nothing(world: World) -> None:
    world.meets(Fault.KILL_BEFORE)
    with pytest.raises(aiohttp.ClientError):
        await world.patch()
    assert (world.writes_when_killed, world.server.writes) == ([0], [])
    assert world.line.done == {Fault.KILL_BEFORE}


async def test_an_operator_that_is_killed_after_its_write_has_written_and_gets_no_answer(world: World) -> None:
    world.meets(Fault.KILL_AFTER)
    with pytest.raises(aiohttp.ClientError):
        await world.patch()
    assert (world.writes_when_killed, world.server.writes) == ([1], [b"{}"])
    assert world.line.done == {Fault.KILL_AFTER}


async def test_a_dropped_answer_is_that_of_a_write_that_was_committed(world: World) -> None:
    world.meets(Fault.DROP_ANSWER)
    with pytest.raises(aiohttp.ClientError):
        await world.patch()
    assert world.server.writes == [b"{}"]
    assert (world.line.done, world.writes_when_killed) == ({Fault.DROP_ANSWER}, [])


@pytest.mark.parametrize("fault", [Fault.KILL_AFTER, Fault.DROP_ANSWER])
async def test_what_the_server_itself_refused_was_not_committed_and_does_not_count(world: World, fault: Fault) -> None:
    world.meets(fault)
    world.server.status = 409
    with pytest.raises(aiohttp.ClientError):
        await world.patch()
    assert world.line.done == set()


async def test_a_delayed_write_is_forwarded_when_the_delay_is_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_begin: list[int] = []

    async def sleep(_: float) -> None:
        at_begin.append(len(world.server.writes))

    monkeypatch.setattr(asyncio, "sleep", sleep)
    world.meets(Fault.DELAY)
    assert await world.patch() == (200, {"kind": "Pod"})
    assert (at_begin, world.server.writes, world.line.done) == ([0], [b"{}"], {Fault.DELAY})


async def test_a_fault_meets_its_write_once(world: World) -> None:
    world.meets(Fault.CONFLICT)
    assert [(await world.patch())[0] for _ in range(2)] == [409, 200]
    assert world.server.writes == [b"{}"]


async def test_watches_are_cut_at_a_write_that_is_answered_as_always(world: World) -> None:
    world.meets(Fault.CUT_WATCH)
    watch = await world.watch()
    assert (await world.patch())[0] == 200
    await asyncio.wait_for(watch, 60)
    assert (world.server.writes, world.line.done) == ([b"{}"], {Fault.CUT_WATCH})


async def test_a_cut_where_no_watch_is_open_does_not_count(world: World) -> None:
    world.meets(Fault.CUT_WATCH)
    assert (await world.patch())[0] == 200
    assert world.line.done == set()


async def seen(world: World, count: int) -> list[str]:
    """The revisions of the first events of a watch that begins before the write."""
    async with world.client.get(world.proxy.url + PODS, params={"watch": "1"}) as answer:
        await world.server.watched.wait()
        assert (await world.patch())[0] == 200
        events = [json.loads(await asyncio.wait_for(answer.content.readline(), 60)) for _ in range(count)]
    return [event["object"]["metadata"]["resourceVersion"] for event in events]


async def test_the_next_event_is_repeated_once(world: World) -> None:
    world.meets(Fault.REPEAT_EVENT)
    assert await seen(world, 3) == ["7", "7", "8"]
    assert world.line.done == {Fault.REPEAT_EVENT}


async def test_an_event_that_another_follows_is_hidden_for_good(world: World) -> None:
    world.meets(Fault.HIDE_EVENT)
    assert await seen(world, 1) == ["8"]
    assert world.line.done == {Fault.HIDE_EVENT}


async def test_an_event_that_none_follows_is_shown_late(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HIDDEN_SECONDS", 0.0)
    world.server.events = EVENTS[:1]
    world.meets(Fault.HIDE_EVENT)
    assert await seen(world, 1) == ["7"]
    assert world.line.done == {Fault.HIDE_EVENT}


async def test_after_an_old_list_watches_expire_and_the_first_list_is_shown_again_once(world: World) -> None:
    first = await world.listed()
    assert await world.listed() != first
    world.meets(Fault.OLD_LIST)
    watch = await world.watch()
    assert (await world.patch())[0] == 200
    last = (await asyncio.wait_for(watch, 60))[-1]["object"]
    assert isinstance(last, dict)
    assert last["code"] == EXPIRED
    assert world.line.done == set()
    assert await world.listed() == first
    assert world.line.done == {Fault.OLD_LIST}
    assert await world.listed() not in (first, {"list": 2})


async def test_every_counted_write_is_said_and_no_read(world: World) -> None:
    said: list[tuple[str, dict[str, str]]] = []
    world.line.log = lambda kind, what: said.append((kind, what))
    await world.listed()
    assert (await world.patch())[0] == 200
    assert said == [("Wrote", {"write": str(WRITE)})]

"""A reverse proxy between one operator and the API server that numbers writes and does harm to chosen ones.

It listens on the loopback address in plain HTTP and speaks TLS to the server. The operator's own credentials pass through.
Several namespaces, each a run of its own, may share it: requests are counted and harmed namespace by namespace.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType

import aiohttp
from aiohttp import web

from lab.faults.rules import KILLS, REFUSALS, Fault, Injection, Numbering, Request, Write, parse
from precision_operator.api.wire import mapping, text

DELAY_SECONDS = 1.0
HIDDEN_SECONDS = 3.0
"""How late an event is shown that no other has replaced: several passes of a policy."""
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "host", "content-length"})
_REASONS = {
    "409": "Conflict",
    "422": "Invalid",
    "429": "TooManyRequests",
    "500": "InternalError",
    "503": "ServiceUnavailable",
}

_EXPIRED = (
    b'{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}}\n'
)
"""Who is told so lists again."""

Kill = Callable[[], Awaitable[bool]]
"""Ends the operator by SIGKILL, and waits until it is dead; False: none ran."""
Log = Callable[[str, dict[str, str]], None]
"""(kind, what): said when a write comes, and when a fault is done."""


@dataclass
class Line:
    """What happens to the requests of one namespace."""

    injections: Sequence[Injection] = ()
    """No two with the same fault, or at the same write."""
    log: Log = lambda kind, what: None
    numbering: Numbering = field(default_factory=Numbering)
    met: set[Fault] = field(default_factory=set)
    """Faults whose write came."""
    done: set[Fault] = field(default_factory=set)
    """Faults that had their effect: an answer was another one, a watch ended, an event was hidden, a process died."""
    watches: int = 0
    """How many are open."""
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: its watches end."""
    repeating: set[str] = field(default_factory=set)
    hiding: bool = False
    first_lists: dict[str, bytes] = field(default_factory=dict)
    """Resource → the first answer to a list of it."""
    stale: set[str] = field(default_factory=set)
    """Resources whose next list is an old one."""

    def meets(self, write: Write) -> Fault | None:
        """The fault of this write; done once."""
        for fault in (injection.fault for injection in self.injections if injection.write == write):
            if fault not in self.met:
                self.met.add(fault)
                self.log("Fault", {"fault": fault.value, "write": str(write)})
                return fault
        return None

    def had_effect(self, fault: Fault, really: bool = True) -> None:
        """Write down that a fault had its effect, if it really had."""
        if really:
            self.done.add(fault)


class Proxy:
    """A context manager; ``url`` is where the operator finds the API."""

    def __init__(self, server: str, tls: ssl.SSLContext, kill: Kill) -> None:
        self._server = server
        self._tls = tls
        self._kill = kill
        self.lines: dict[str, Line] = {}
        """By namespace."""
        self.url = ""
        self._closing = asyncio.Event()
        """Set: all watches end."""

    async def __aenter__(self) -> Proxy:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        connector = aiohttp.TCPConnector(limit=0, ssl=self._tls)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
        )
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        await self._runner.cleanup()
        await self._session.close()

    async def _handle(self, incoming: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(incoming)
        except (_UnansweredError, ConnectionError):
            if incoming.transport is not None:
                incoming.transport.abort()
            return web.Response()  # nobody gets it

    async def _answer(self, incoming: web.Request) -> web.StreamResponse:
        body = await incoming.read()
        content = _json(body) if incoming.method in ("POST", "DELETE") else {}
        request = parse(incoming.method, incoming.path, incoming.query, body_dry_run=_dry_run(content))
        line = self.lines.get(request.namespace) if request is not None else None
        if request is None or line is None:
            return await self._forward(incoming, body, request, None)
        if not request.counted:
            return await self._forward(incoming, body, request, line)
        metadata = content.get("metadata")
        write = line.numbering.name(request, str(metadata.get("name", "")) if isinstance(metadata, dict) else "")
        line.log("Wrote", {"write": str(write)})
        fault = line.meets(write)
        if fault is None:
            return await self._forward(incoming, body, request, line)
        return await self._harm(incoming, body, request, line, fault)

    async def _harm(
        self, incoming: web.Request, body: bytes, request: Request, line: Line, fault: Fault
    ) -> web.StreamResponse:
        if fault in REFUSALS:
            line.had_effect(fault)
            return _refusal(fault)
        if fault is Fault.KILL_BEFORE:
            line.had_effect(fault, await self._kill())
            raise _UnansweredError
        if fault is Fault.DELAY:
            line.had_effect(fault)
            await asyncio.sleep(DELAY_SECONDS)
            return await self._forward(incoming, body, request, line)
        if fault is Fault.REPEAT_EVENT:
            line.repeating = {"pods", "precisionassignments", "precisionpolicies"}
        if fault is Fault.HIDE_EVENT:
            line.hiding = True
        status, headers, answer = await self._answered(incoming, body)
        committed = status < 300
        if fault in KILLS:
            line.had_effect(fault, await self._kill() and committed)
        if fault is Fault.DROP_ANSWER:
            line.had_effect(fault, committed)
        if fault is Fault.CUT_WATCH:
            line.had_effect(fault, line.watches > 0)
        if fault is Fault.OLD_LIST:
            line.stale = set(line.first_lists)
        if fault in (Fault.CUT_WATCH, Fault.OLD_LIST):
            line.cut.set()
            line.cut = asyncio.Event()
        if fault in (Fault.KILL_AFTER, Fault.DROP_ANSWER):
            raise _UnansweredError
        return web.Response(status=status, headers=headers, body=answer)

    async def _forward(
        self, incoming: web.Request, body: bytes, request: Request | None, line: Line | None
    ) -> web.StreamResponse:
        if request is not None and request.watch:
            return await self._watch(incoming, request, line)
        if request is not None and line is not None and request.listing and request.resource in line.stale:
            line.stale.discard(request.resource)
            line.had_effect(Fault.OLD_LIST)
            line.log("Fault", {"served_old_list_of": request.resource})
            return web.Response(body=line.first_lists[request.resource], content_type="application/json")
        status, headers, answer = await self._answered(incoming, body)
        if request is not None and line is not None and request.listing and status == 200:
            line.first_lists.setdefault(request.resource, answer)
        return web.Response(status=status, headers=headers, body=answer)

    async def _answered(self, incoming: web.Request, body: bytes) -> tuple[int, dict[str, str], bytes]:
        url, headers = self._server + incoming.path_qs, _headers(incoming)
        try:
            async with self._session.request(incoming.method, url, headers=headers, data=body or None) as answer:
                return answer.status, _passed(answer.headers), await answer.read()
        except (aiohttp.ClientError, OSError):
            raise _UnansweredError from None  # the operator sees what it would see without us

    async def _watch(self, incoming: web.Request, request: Request, line: Line | None) -> web.StreamResponse:
        try:
            answer = await self._session.get(self._server + incoming.path_qs, headers=_headers(incoming))
        except (aiohttp.ClientError, OSError):
            raise _UnansweredError from None
        async with answer:
            outgoing = web.StreamResponse(status=answer.status, headers=_passed(answer.headers))
            await outgoing.prepare(incoming)
            hidden = _Hidden(outgoing)
            copying = asyncio.create_task(_copy(answer, outgoing, request, line, hidden))
            cuts = [self._closing, *([line.cut] if line is not None else [])]
            tasks = [copying, *(asyncio.create_task(cut.wait()) for cut in cuts)]
            with _counted(line):
                try:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
            if hidden.close() or (line is not None and request.resource in line.stale):
                await outgoing.write(_EXPIRED)  # else who watches on would never be shown what was hidden
            return outgoing


async def _copy(
    answer: aiohttp.ClientResponse,
    outgoing: web.StreamResponse,
    request: Request,
    line: Line | None,
    hidden: _Hidden,
) -> None:
    buffer = b""
    async for chunk in answer.content.iter_any():
        *events, buffer = (buffer + chunk).split(b"\n")
        for event in events:
            if not hidden.takes(event, line):
                await outgoing.write((event + b"\n") * _times(event, request, line))


@contextmanager
def _counted(line: Line | None) -> Iterator[None]:
    if line is not None:
        line.watches += 1
    try:
        yield
    finally:
        if line is not None:
            line.watches -= 1


class _Hidden:
    """An event that is not shown unless it is its object's last: that one an API server always shows, if late."""

    def __init__(self, outgoing: web.StreamResponse) -> None:
        self._outgoing = outgoing
        self._of = ""
        self._late: asyncio.Task[None] | None = None

    def takes(self, event: bytes, line: Line | None) -> bool:
        """Whether this event is hidden; one that comes after it, of the same object, replaces it."""
        if self._late is not None and _uid(event) == self._of:
            self.close()
        if line is None or not line.hiding or b'"type":"MODIFIED"' not in event[:40]:
            return False
        line.hiding = False
        line.had_effect(Fault.HIDE_EVENT)
        line.log("Fault", {"hid_event_of": _uid(event)})
        self._of, self._late = _uid(event), asyncio.create_task(self._show_late(event))
        return True

    def close(self) -> bool:
        """Never show it; whether one was still hidden."""
        was = self._late is not None and not self._late.done()
        if self._late is not None:
            self._late.cancel()
        return was

    async def _show_late(self, event: bytes) -> None:
        await asyncio.sleep(HIDDEN_SECONDS)
        await self._outgoing.write(event + b"\n")


def _uid(event: bytes) -> str:
    metadata = mapping(mapping(_json(event).get("object")).get("metadata"))
    return text(metadata.get("uid"))


def _times(event: bytes, request: Request, line: Line | None) -> int:
    """How often an event is shown."""
    if line is None or request.resource not in line.repeating or b'"type":"BOOKMARK"' in event[:40]:
        return 1
    line.repeating.discard(request.resource)
    line.had_effect(Fault.REPEAT_EVENT)
    line.log("Fault", {"repeated_event_of": request.resource})
    return 2


class _UnansweredError(Exception):
    """The connection is closed without an answer."""


def _refusal(fault: Fault) -> web.Response:
    code = int(fault.value)
    details = {"retryAfterSeconds": 1} if code == 429 else {}
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": f"injected {fault}",
        "reason": _REASONS[fault.value],
        "details": details,
        "code": code,
    }
    return web.json_response(body, status=code, headers={"Retry-After": "1"} if code == 429 else {})


def _headers(incoming: web.Request) -> dict[str, str]:
    found = {name: value for name, value in incoming.headers.items() if name.lower() not in _HOP_BY_HOP}
    return {**found, "Accept-Encoding": "identity"}


def _passed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}


def _json(body: bytes) -> dict[str, object]:
    try:
        found = json.loads(body) if body else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _dry_run(content: dict[str, object]) -> bool:
    options = content.get("deleteOptions", content)
    return isinstance(options, dict) and bool(options.get("dryRun"))

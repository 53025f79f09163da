"""The administrator's view of the cluster under test: bulk writes, watches, and waiting on what is there."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, TypeVar

import aiohttp

from lab.cluster import ControlPlane
from lab.errors import DeadlineExceeded, LabError

T = TypeVar("T")
Json = dict[str, Any]
_IN_FLIGHT = 16


class Refused(LabError):
    """The API server's answer is not success."""

    def __init__(self, request: str, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"{request} to succeed", f"{status} {message}", "read the message")


class Api:
    """A JSON client with a cluster administrator's certificate. Errors raise, with what the server said."""

    def __init__(self, plane: ControlPlane) -> None:
        admin = plane.authority.issue("admin", "admin", groups=["system:masters"])
        self.server = plane.server
        self.tls = ssl.create_default_context(cafile=str(plane.authority.certificate))
        self.tls.load_cert_chain(admin.certificate, admin.key)

    async def __aenter__(self) -> Api:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=64, ssl=self.tls), timeout=aiohttp.ClientTimeout(total=60)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def get(self, path: str) -> Json:
        """One object, or a list."""
        return await self._call("GET", path)

    async def create(self, path: str, objects: Iterable[Json]) -> None:
        """Create objects in a collection, several at once."""
        room = asyncio.Semaphore(_IN_FLIGHT)

        async def one(body: Json) -> None:
            async with room:
                await self._call("POST", path, body)

        await asyncio.gather(*(one(body) for body in objects))

    async def post(self, path: str, body: Json) -> Json:
        """Create one object in a collection; what the server made of it."""
        return await self._call("POST", path, body)

    async def merge(self, path: str, change: Mapping[str, Any]) -> Json:
        """Merge-patch one object."""
        return await self._call("PATCH", path, dict(change), content_type="application/merge-patch+json")

    async def put(self, path: str, body: Json) -> Json:
        """Replace an object; what the server made of it."""
        return await self._call("PUT", path, body)

    async def delete(self, path: str) -> None:
        """Delete an object, or all of a collection."""
        await self._call("DELETE", path)

    async def watch(self, path: str, *, since: str = "0") -> AsyncIterator[Json]:
        """Events of a collection until the server ends it: after a revision, or from what is there now on."""
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.get(f"{self.server}{path}?watch=1&resourceVersion={since}", timeout=timeout) as answer:
            buffer = b""
            async for chunk in answer.content.iter_any():
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)

    async def _call(self, verb: str, path: str, body: object = None, *, content_type: str = "application/json") -> Json:
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type}
        async with self._session.request(verb, self.server + path, data=data, headers=headers) as answer:
            found: Json = await answer.json()
            if answer.status >= 300:
                raise Refused(f"{verb} {path}", answer.status, str(found.get("message")))
            return found


async def until(probe: Callable[[], Awaitable[T | None]], *, what: str, seconds: float, every: float = 0.1) -> T:
    """Await ``probe()`` until it gives something truthy, and return that.

    Raises:
        DeadlineExceeded: it did not within ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = await probe()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise DeadlineExceeded(f"{what} within {seconds:g} s", f"last answer {value!r}", "read the operators' logs")
        await asyncio.sleep(every)

"""The page's server on 127.0.0.1: files, news by server-sent events, and commands."""

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files

from aiohttp import web

from precision_operator.cli.dashboard import incidents
from precision_operator.cli.dashboard.feed import Feed
from precision_operator.cli.dashboard.guard import COOKIE, HEADER, SECURITY_HEADERS, Ask, Guard
from precision_operator.cli.dashboard.orders import Wish, apply, preview
from precision_operator.cli.refusals import in_words
from precision_operator.cli.session import CommandRefused, Session
from precision_operator.errors import ConfigurationError, KubeError, OperatorError

LOOPBACK = "127.0.0.1"
ALIVE_SECONDS = 10.0
"""Without news a page is told that the server lives, so that it notices when it does not."""
BODY_BYTES = 16 * 1024
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Serves the pages of one user until it is stopped."""

    def __init__(self, session: Session, arguments: argparse.Namespace) -> None:
        self.feed = Feed(session, arguments)
        self.guard = Guard(0)
        self._session, self._everywhere = session, bool(arguments.all_namespaces)
        self._files = {
            file.name: file.read_bytes() for file in files(__package__).joinpath("static").iterdir() if file.is_file()
        }
        self._runner: web.AppRunner | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self, port: int) -> str:
        """Listen; port 0 picks a free one. Returns the address that opens the page once.

        Raises:
            ConfigurationError: the port is taken.
        """
        guard = self.guard
        app = web.Application(middlewares=[self._only_the_user], client_max_size=BODY_BYTES)
        app.router.add_get(guard.path, self._page)
        app.router.add_get(guard.path + "{file:[a-z]+\\.[a-z]+}", self._file)
        api = guard.path + "api/"
        app.router.add_get(api + "news", self._news)
        app.router.add_get(api + "workload", self._workload)
        app.router.add_get(api + "incidents", self._incidents)
        app.router.add_get(api + "incident", self._incident)
        app.router.add_post(api + "preview", self._preview)
        app.router.add_post(api + "apply", self._apply)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5, handler_cancellation=True)
        await runner.setup()
        try:
            await web.TCPSite(runner, LOOPBACK, port).start()
        except OSError as error:
            await runner.cleanup()
            raise ConfigurationError(f"port {port}: {error.strerror}; leave --port out to have a free one") from error
        self._runner = runner
        guard.port = runner.addresses[0][1]
        self._reading = asyncio.ensure_future(self.feed.run())
        return guard.address

    async def ended(self) -> None:
        """Until the reader ends, which it does only by an error of ours."""
        if self._reading is not None:
            await self._reading

    async def stop(self) -> None:
        """Stop listening; harmless when not started."""
        if self._reading is not None:
            self._reading.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _only_the_user(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        ask = _ask(request)
        why = self.guard.refusal(ask)
        if why:
            return _refuse(why)
        known = self.guard.known(ask)
        if not known and not self._opens(request, ask):
            return _refuse(
                "this browser was not let in: the address that the dashboard printed opens the page once; "
                "start `kubectl precision dashboard` again for another"
            )
        try:
            answer = await handler(request)
        except (OperatorError, web.HTTPException) as error:
            answer = self._failed(error)
        if not answer.prepared:
            answer.headers.update(SECURITY_HEADERS)
        if not known:
            answer.set_cookie(COOKIE, self.guard.key, path=self.guard.path, httponly=True, samesite="Strict")
        return answer

    def _opens(self, request: web.Request, ask: Ask) -> bool:
        return request.method == "GET" and request.path == self.guard.path and self.guard.admit(ask)

    def _failed(self, error: OperatorError | web.HTTPException) -> web.StreamResponse:
        if isinstance(error, web.HTTPException):
            return _json({"error": error.reason}, status=error.status)
        said = in_words(error, self._session.flags) if isinstance(error, KubeError) else str(error)
        return _json({"error": said}, status=409 if isinstance(error, CommandRefused) else 502)

    async def _page(self, _: web.Request) -> web.StreamResponse:
        return self._answer("index.html")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return self._answer(request.match_info["file"])

    def _answer(self, name: str) -> web.Response:
        content = self._files.get(name)
        if content is None:
            raise web.HTTPNotFound
        return web.Response(body=content, content_type=_TYPES[name.rpartition(".")[2]], charset="utf-8")

    async def _news(self, request: web.Request) -> web.StreamResponse:
        """What is there, then what changes, until the page is closed."""
        stream = web.StreamResponse(headers={**SECURITY_HEADERS, "Content-Type": "text/event-stream"})
        await stream.prepare(request)
        # A page that is closed while it is written to has no more to hear.
        with suppress(ConnectionResetError), self.feed.page(request.query.get("policy", "")) as page:
            whole = True
            async for news in self.feed.news(page, seconds=ALIVE_SECONDS):
                if whole or news:
                    kind = "whole" if whole else "change"
                    await stream.write(f"event: {kind}\ndata: {json.dumps(news)}\n\n".encode())
                else:
                    await stream.write(b"event: alive\ndata: {}\n\n")
                whole = whole and not news
        return stream

    async def _workload(self, request: web.Request) -> web.StreamResponse:
        """A workload with its pods, as it was read last."""
        where, key = request.query.get("policy", ""), request.query.get("key", "")
        for fleet in self.feed.fleets:
            if fleet.target.where == where:
                for cohort in fleet.cohorts:
                    for line in cohort.workloads:
                        if line.key == key:
                            return _json({**line.as_json(), "cohort": cohort.name, "policy": where})
        raise web.HTTPNotFound(reason="the workload is gone")

    async def _incidents(self, _: web.Request) -> web.StreamResponse:
        return _json({"incidents": await incidents.listed(self._session, everywhere=self._everywhere)})

    async def _incident(self, request: web.Request) -> web.StreamResponse:
        there = replace(self._session, namespace=request.query.get("namespace", ""))
        return _json(await incidents.shown(there, request.query.get("name", "")))

    async def _preview(self, request: web.Request) -> web.StreamResponse:
        return _json(await preview(self._session, await self._wish(request)))

    async def _apply(self, request: web.Request) -> web.StreamResponse:
        found = await apply(self._session, await self._wish(request))
        self.feed.look()
        return _json(found)

    async def _wish(self, request: web.Request) -> Wish:
        try:
            wish = Wish.read(json.loads(await request.text()))
        except ValueError as error:
            raise web.HTTPBadRequest(reason="expected JSON") from error
        if not self._everywhere and wish.namespace != self._session.namespace:
            raise web.HTTPBadRequest(reason="this dashboard shows another namespace; start it with -A for all")
        return wish


def _ask(request: web.Request) -> Ask:
    headers = request.headers
    return Ask(
        request.method,
        headers.get("Host"),
        headers.get("Origin"),
        headers.get("Sec-Fetch-Site"),
        headers.get(HEADER),
        request.cookies.get(COOKIE),
        request.query.get("token"),
    )


def _refuse(why: str) -> web.Response:
    return web.Response(status=403, text=f"{why}\n", headers=SECURITY_HEADERS)


def _json(value: Mapping[str, object], *, status: int = 200) -> web.Response:
    return web.json_response(value, status=status)


async def serve(session: Session, arguments: argparse.Namespace) -> int:
    """Print the address, and serve until Ctrl-C. A policy that was named is what the page opens with."""
    view = ""
    if arguments.policy:
        target = await session.policy(arguments.policy)
        view = f"#/policy/{target.where}"
    server = Server(session, arguments)
    address = await server.start(arguments.port) + view
    try:
        sys.stdout.write(f"{address}\nopens once, in one browser, with your rights; Ctrl-C ends it\n")
        sys.stdout.flush()
        if arguments.open:
            import webbrowser

            await asyncio.to_thread(webbrowser.open, address)
        await server.ended()
    finally:
        await server.stop()
    return 0

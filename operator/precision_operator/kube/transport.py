"""Requests to the API server: ``kubernetes.aio`` for credentials and connections, raw JSON for what is sent."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import aiohttp
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject, RESTResponse

from precision_operator import __version__
from precision_operator.errors import AnswerTooLarge, KubeError, TooManyRequests, Unavailable
from precision_operator.kube.access import authorization
from precision_operator.kube.answers import error_of, parsed_object
from precision_operator.kube.port import FIELD_MANAGER, JsonObject, JsonValue, Resource

JSON = "application/json"

READ_CONNECTIONS = 8
"""Connections on top of the concurrent writes, so that a Lease renewal never waits behind an emergency's writes."""

CONNECT_SECONDS = 2.0
"""How long `request_anew` waits for its connection: an API server that is gone does not refuse one, it says nothing."""

PAUSE_SECONDS = 0.1, 2.0
"""Least and most before a read is tried again, whatever the API server asks for: somebody waits for it."""

RequestHook = Callable[[str, str, str], None]
"""Called once a request with (verb, resource, result); result is ``Success`` or an error's reason."""


def not_counted(verb: str, resource: str, result: str) -> None:
    """Nobody counts requests."""


class Transport:
    """One answer a request, or an error of ours: with our credentials, in time, and tried again where that is wanted."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        concurrent_writes: int = 32,
        timeout_seconds: float = 10.0,
        on_request: RequestHook = not_counted,
        program: str = FIELD_MANAGER,
        read_retries: int = 0,
    ) -> None:
        """See :meth:`~precision_operator.kube.client.KubeClient.connect`."""
        self.program = program
        configuration.connection_pool_maxsize = concurrent_writes + READ_CONNECTIONS
        configuration.retries = None
        # An environment proxy is looked up anew for every request, at more cost than the request; kubeconfig's is kept.
        configuration.client_session_kwargs = {"trust_env": False, "cookie_jar": aiohttp.DummyCookieJar()}
        self._configuration = configuration
        self._rest = RESTClientObject(configuration)
        self._timeout_seconds = timeout_seconds
        self._on_request = on_request
        self._read_retries = read_retries
        self._headers = {"User-Agent": f"{program}/{__version__}"}

    async def close(self) -> None:
        """Close all connections."""
        await self._rest.close()

    async def request(
        self,
        verb: str,
        method: str,
        resource: Resource,
        path: str,
        body: JsonValue = None,
        content_type: str = JSON,
        *,
        accept: str = JSON,
        read: Callable[[bytes], JsonObject | None] = parsed_object,
        more_seconds: float = 0.0,
        most_bytes: int | None = None,
    ) -> JsonObject:
        """One answer, and each request counted by its result.

        ``read``: how a success is read, where not as JSON. ``more_seconds``: how much longer than others it may take.
        """
        what, url = f"{method} {path}", f"{self._configuration.host}{path}"
        timeout = aiohttp.ClientTimeout(total=self._timeout_seconds + more_seconds)
        retries = self._read_retries if method == "GET" else 0
        while True:
            try:
                headers = {
                    **self._headers,
                    "Content-Type": content_type,
                    "Accept": accept,
                    **await self._authorization(),
                }
                with _reaching(what, late=f"no answer within {timeout.total} s"):
                    response = await self._rest.request(  # type: ignore[no-untyped-call]
                        method, url, headers=headers, body=body, _request_timeout=timeout
                    )
                    raw = await (response.read() if most_bytes is None else _start(response, most_bytes + 1))
                if most_bytes is not None and len(raw) > most_bytes:
                    raise AnswerTooLarge(f"{what}: expected at most {most_bytes} bytes, found more")
                answer = _success(what, response.status, raw, response.headers, read)
            except KubeError as error:
                self._on_request(verb, resource.plural, error.reason)
                if not retries or not isinstance(error, TooManyRequests):
                    raise
                retries -= 1
                least, most = PAUSE_SECONDS
                await asyncio.sleep(min(max(least, error.retry_after_seconds), most))
            else:
                self._on_request(verb, resource.plural, "Success")
                return answer

    async def watch(self, path: str, *, seconds: int) -> bool:
        """Whether a watch of so many seconds has an event; one that cannot go on counts as one: read anew."""
        timeout = aiohttp.ClientTimeout(total=seconds + self._timeout_seconds)
        headers = {**self._headers, **await self._authorization()}
        with _reaching(f"GET {path}"):
            try:
                response = await self._rest.request(  # type: ignore[no-untyped-call]
                    "GET", f"{self._configuration.host}{path}", headers=headers, _request_timeout=timeout
                )
                async with response.response as stream:
                    if stream.status == 200:
                        return bool(await stream.content.readany())
                    answer = parsed_object(await stream.read())
            except TimeoutError:
                return False
        if stream.status == 410:
            return True
        raise error_of(f"GET {path}", stream.status, answer)

    async def request_anew(
        self, method: str, path: str, body: Mapping[str, JsonValue], content_type: str, *, server: str = ""
    ) -> JsonObject:
        """One answer, over a connection of its own; ``server``: of this API server, else of the one that we know."""
        headers = {**self._headers, "Content-Type": content_type, "Accept": JSON, **await self._authorization()}
        url = f"{server or self._configuration.host}{path}"
        proxy = None if server else self._configuration.proxy
        timeout = aiohttp.ClientTimeout(total=self._timeout_seconds, sock_connect=CONNECT_SECONDS)
        with _reaching(f"{method} {url}"):
            connector = aiohttp.TCPConnector(ssl=self._rest.ssl_context, force_close=True)
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
                answer = await session.request(method, url, data=json.dumps(body), headers=headers, proxy=proxy)
                raw = await answer.read()
        return _success(f"{method} {url}", answer.status, raw, answer.headers)

    async def _authorization(self) -> Mapping[str, str]:
        try:
            return await authorization(self._configuration)
        except OSError as error:
            raise Unavailable(f"the service account's token cannot be read: {error}") from error


@contextmanager
def _reaching(what: str, *, late: str = "no answer in time") -> Iterator[None]:
    """Whatever keeps an answer away is Unavailable. ``late``: how it is told that the time is over."""
    try:
        yield
    except TimeoutError as error:
        raise Unavailable(f"{what}: {late}") from error
    except (aiohttp.ClientError, OSError) as error:
        raise Unavailable(f"{what}: {type(error).__name__}: {error}") from error


def _success(
    what: str,
    status: int,
    raw: bytes,
    headers: Mapping[str, str],
    read: Callable[[bytes], JsonObject | None] = parsed_object,
) -> JsonObject:
    """What an answer holds that is success; another raises its error."""
    answer = read(raw) if 200 <= status < 300 else None
    if answer is None:
        raise error_of(what, status, parsed_object(raw), retry_after=headers.get("Retry-After"))
    return answer


async def _start(response: RESTResponse, most_bytes: int) -> bytes:
    """The first bytes of an answer; the rest is not received."""
    async with response.response as stream:
        try:
            return cast(bytes, await stream.content.readexactly(most_bytes))
        except asyncio.IncompleteReadError as whole:
            return whole.partial

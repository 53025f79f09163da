"""Prometheus as a metric source, through prometheus-api-client, with the bounds that the library lacks.

The library's client has no default time-out, retries for seconds, follows redirects, reads a body of any size and drops
``warnings`` and ``resultType``, so that a partial answer looks like a healthy empty one. It is kept for building and
sending the request; the transport below it is ours: one connection a client, no retry, no redirect, no proxy from the
environment, a deadline for the whole answer, a limit on its size, and a look at the whole envelope.

A query runs in one of a few threads of its own source, so that a source that hangs blocks neither the event loop nor
other sources. At the deadline the connection is shut down under the thread, which frees it.
"""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import cast

import requests
from prometheus_api_client import PrometheusConnect
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse
from urllib3.util.retry import Retry

from precision_operator.errors import QueryInvalid, SignalError, SourceUnavailable
from precision_operator.settings import PrometheusEndpoint
from precision_operator.signals.port import Sample

THREADS = 8
"""Queries of one source at once."""
_CHUNK = 64 * 1024
_LONGEST_MESSAGE = 300


class PrometheusSource:
    """One Prometheus; implements :class:`~precision_operator.signals.port.MetricSource`."""

    def __init__(self, name: str, endpoint: PrometheusEndpoint, *, threads: int = THREADS) -> None:
        self._name = name
        self._endpoint = endpoint
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=f"prometheus-{name}")
        self._room = asyncio.Semaphore(threads)
        self._idle: list[_Client] = []
        self._busy: set[_Client] = set()

    async def vector(self, query: str) -> Sequence[Sample]:
        """The instant vector of ``query``; empty where no series matches.

        Raises:
            QueryInvalid: Prometheus refused the query.
            SourceUnavailable: no vector within the deadline, which includes the wait for a free thread.
        """
        limit = self._endpoint.timeout_seconds
        deadline = time.monotonic() + limit
        try:
            async with asyncio.timeout(limit):
                await self._room.acquire()
        except TimeoutError:
            raise SourceUnavailable(
                f"endpoint {self._name!r}: all query threads were busy for {limit:g} s; Prometheus hangs or is too slow"
            ) from None
        client = self._idle.pop() if self._idle else _Client(self._endpoint)
        self._busy.add(client)
        try:
            answer = self._pool.submit(client.ask, query, deadline)
        except RuntimeError:
            self._room.release()
            raise SourceUnavailable(f"endpoint {self._name!r}: the source is closed") from None
        loop = asyncio.get_running_loop()
        answer.add_done_callback(lambda done: self._hand_back(loop, client, done))
        try:
            async with asyncio.timeout_at(loop.time() + deadline - time.monotonic()):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            client.abort()
            raise SourceUnavailable(f"endpoint {self._name!r}: no answer within {limit:g} s") from None
        except asyncio.CancelledError:
            client.abort()
            raise
        except SignalError as error:
            raise type(error)(f"endpoint {self._name!r}: {error}") from None

    def close(self) -> None:
        """Abort what runs and free the threads; later queries raise SourceUnavailable."""
        for client in list(self._busy):
            client.abort()
        self._pool.shutdown(wait=False, cancel_futures=True)
        while self._idle:
            self._idle.pop().close()

    def _hand_back(self, loop: asyncio.AbstractEventLoop, client: "_Client", done: "Future[list[Sample]]") -> None:
        """Runs in the thread that asked, when it is free again."""
        healthy = not done.cancelled() and done.exception() is None

        def hand_back() -> None:
            self._busy.discard(client)
            self._room.release()
            if healthy:
                self._idle.append(client)

        if not healthy:
            client.close()
        if not loop.is_closed():
            loop.call_soon_threadsafe(hand_back)


class _Client:
    """One session with one connection; used by one thread at a time."""

    def __init__(self, endpoint: PrometheusEndpoint) -> None:
        self._endpoint = endpoint
        session = _Session()
        session.trust_env = False
        session.verify = endpoint.ca_file or True
        url = endpoint.url.rstrip("/")
        self._session = session
        self._connect = PrometheusConnect(url=url, session=session, retry=Retry(0), timeout=endpoint.timeout_seconds)
        self._adapter = _Adapter(endpoint.max_response_bytes)
        session.mount(url, self._adapter)  # over the library's own

    def ask(self, query: str, deadline: float) -> list[Sample]:
        """Send ``query`` and read its vector before ``deadline`` (monotonic). Blocks.

        Raises:
            SignalError: see PrometheusSource.vector; nothing else.
        """
        left = deadline - time.monotonic()
        if left <= 0:
            raise SourceUnavailable("no time left for the query")
        self._adapter.deadline = deadline
        _THREAD.adapter = self._adapter
        try:
            self._connect.headers = self._headers()
            result = self._connect.custom_query(
                query,
                params={"timeout": f"{max(1, int(left * 1000))}ms"},
                timeout=cast(int, left),  # the library hands it on to requests, which takes a float
            )
        except SignalError:
            raise
        except requests.Timeout:
            raise SourceUnavailable(f"no answer within {self._endpoint.timeout_seconds:g} s") from None
        except (requests.RequestException, HTTPError, OSError, ValueError, AttributeError) as error:
            # AttributeError: urllib3 finds its socket gone, when `abort` came in between
            raise SourceUnavailable(_shorten(f"{type(error).__name__}: {_root(error)}")) from error
        return [_sample(element) for element in result]

    def abort(self) -> None:
        """From another thread: make the blocked read return."""
        self._adapter.abort()

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if self._endpoint.bearer_token_file:
            token = Path(self._endpoint.bearer_token_file).read_text(encoding="ascii").strip()
            headers["Authorization"] = f"Bearer {token}"
        return headers


class _Session(requests.Session):
    """A session that never follows a redirect: the address is the admin's word."""

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Nowhere."""
        return None


class _Answer(requests.Response):
    """A response read within its bounds, whose ``json`` refuses everything but a whole, unwarned vector."""

    def json(self, **_: object) -> object:
        """The checked envelope, as the library takes it apart."""
        envelope = _object(self.content)
        if envelope.get("status") != "success":
            raise SourceUnavailable(_shorten(f"expected status success, found {_complaint(envelope)}"))
        if envelope.get("warnings"):
            raise SourceUnavailable(_shorten(f"the answer is partial, Prometheus warns: {envelope['warnings']}"))
        data = envelope.get("data")
        kind = data.get("resultType") if isinstance(data, dict) else None
        if kind != "vector" or not isinstance(cast(dict[str, object], data).get("result"), list):
            raise SourceUnavailable(
                f"expected a vector, found {kind or 'no result'}; write the query so that it is one"
            )
        return envelope


class _Adapter(HTTPAdapter):
    """The transport: reads the whole answer before the deadline and below the limit, or raises."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.deadline = 0.0
        self.socket: socket.socket | None = None
        super().__init__(pool_connections=1, pool_maxsize=1, max_retries=Retry(0, redirect=False))

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **options: object) -> None:
        """With connections that tell us their socket."""
        super().init_poolmanager(connections, maxsize, block, **options)
        self.poolmanager.pool_classes_by_scheme = {"http": _PlainPool, "https": _TlsPool}

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: None | float | tuple[float, float] | tuple[float, None] = None,
        verify: bool | str = True,
        cert: None | bytes | str | tuple[bytes | str, bytes | str] = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """One answer, read; the statuses that are not 200 are sorted here."""
        response = super().send(request, stream=True, timeout=timeout, verify=verify, cert=cert, proxies=proxies)
        try:
            body = self._read(response)
        except BaseException:
            response.close()  # what is left of the body must not be taken for the next answer
            raise
        if response.status_code != 200:
            raise _refusal(response, body)
        answer = _Answer()
        answer.status_code = response.status_code
        answer.headers = response.headers
        answer.url = response.url
        answer.request = request
        answer.raw = BytesIO(body)
        return answer

    def abort(self) -> None:
        """Shut the connection down, from any thread."""
        if self.socket is not None:
            try:
                self.socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # closed already

    def _read(self, response: requests.Response) -> bytes:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise SourceUnavailable("the answer is compressed although plain text was asked for; refused")
        raw = cast(BaseHTTPResponse, response.raw)
        body = bytearray()
        while chunk := raw.read1(_CHUNK, decode_content=False):
            body += chunk
            if len(body) > self._max_bytes:
                raise SourceUnavailable(
                    f"the answer is longer than {self._max_bytes} bytes; group the query by pod, or raise maxResponseBytes"
                )
            if time.monotonic() > self.deadline:
                raise SourceUnavailable("the answer did not end within the deadline")
        return bytes(body)


_THREAD = threading.local()
"""``adapter``: whose query this thread runs, for the connections below."""


def _remember(sock: socket.socket | None) -> None:
    adapter = cast(_Adapter | None, getattr(_THREAD, "adapter", None))
    if adapter is not None:
        adapter.socket = sock


class _PlainConnection(HTTPConnection):
    def connect(self) -> None:
        super().connect()
        _remember(self.sock)


class _TlsConnection(HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        _remember(self.sock)


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _PlainConnection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


def _refusal(response: requests.Response, body: bytes) -> SignalError:
    """The error for a status that is not 200."""
    status = response.status_code
    if 300 <= status < 400:
        return SourceUnavailable(f"HTTP {status}: a redirect is not followed; set the endpoint's final URL")
    try:
        envelope = _object(body)
    except SourceUnavailable:
        return SourceUnavailable(f"HTTP {status}, without an answer of Prometheus; check the endpoint's URL")
    if status in (400, 422) and envelope.get("errorType") == "bad_data":
        return QueryInvalid(_shorten(f"Prometheus refuses the query: {envelope.get('error')}"))
    return SourceUnavailable(_shorten(f"HTTP {status}: {_complaint(envelope)}"))


def _object(body: bytes) -> dict[str, object]:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        raise SourceUnavailable("expected JSON of Prometheus, found something else; check the endpoint's URL") from None
    if not isinstance(parsed, dict):
        raise SourceUnavailable(f"expected a JSON object, found {type(parsed).__name__}; check the endpoint's URL")
    return parsed


def _complaint(envelope: Mapping[str, object]) -> str:
    return f"{envelope.get('errorType') or envelope.get('status')}: {envelope.get('error') or 'no message'}"


def _sample(element: object) -> Sample:
    match element:
        case {"metric": dict(labels), "value": [_, str(text)]}:
            try:
                return Sample(labels=labels, value=float(text))
            except ValueError:
                pass
    raise SourceUnavailable(_shorten(f"expected samples with a numeric value, found {element!r}"))


def _root(error: BaseException) -> str:
    """The innermost cause: the outer messages repeat the whole URL."""
    inner = error.__cause__ or error.__context__
    while inner is not None:
        error, inner = inner, inner.__cause__ or inner.__context__
    return str(error) or type(error).__name__


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 1] + "…"

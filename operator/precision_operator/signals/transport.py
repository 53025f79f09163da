"""The transport below prometheus-api-client: one bounded answer, and a look at the whole envelope.

Status codes, redirects, size, deadline, ``warnings`` and ``resultType`` are judged here, before the library takes the
answer apart.

The timeout of requests would not do in its place: it bounds each read and never the whole answer, so a head or a body that
comes a byte at a time keeps a thread for ever; nor does it end a query that was cancelled. Only closing the socket under the
thread does. See ``test_a_slow_answer_ends_at_the_deadline_and_its_thread_is_freed`` and
``test_a_cancelled_query_frees_its_thread`` in tests/unit/signals/test_prometheus.py.
"""

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from io import BytesIO
from typing import Literal, cast

import msgspec
import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.response import BaseHTTPResponse
from urllib3.util.retry import Retry

from precision_operator.errors import QueryInvalid, SignalError, SourceUnavailable

_CHUNK = 64 * 1024
_LONGEST_MESSAGE = 300


_ADDRESSES = 512
"""How many encoded questions are kept: one a metric, namespace and window is asked again and again."""


class _Prepared(requests.PreparedRequest):
    def prepare_url(self, url: str, params: Mapping[str, str]) -> None:
        """Address and query, as the library encodes them."""
        self.url = _address(url, tuple(params.items()))


@lru_cache(maxsize=_ADDRESSES)
def _address(url: str, params: tuple[tuple[str, str], ...]) -> str:
    plain = requests.PreparedRequest()
    plain.prepare_url(url, params)
    return str(plain.url)


class PlainSession(requests.Session):
    """A session that never follows a redirect: the address is the admin's word."""

    def prepare_request(self, request: requests.Request) -> requests.PreparedRequest:
        """As the library does, without what the environment would add; the same question is not encoded anew."""
        prepared = _Prepared()
        prepared.prepare(
            method=request.method,
            url=request.url,
            headers={**self.headers, **request.headers},
            params=request.params,
            auth=request.auth,
            cookies=self.cookies,
        )
        return prepared

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Nowhere."""
        return None


class Element(msgspec.Struct, frozen=True, gc=False):
    """One sample as Prometheus writes it."""

    metric: dict[str, str]
    value: tuple[float, str]
    """When it was evaluated, and the number."""


class _Data(msgspec.Struct):
    resultType: Literal["vector"]
    result: list[Element]


class _Vector(msgspec.Struct):
    """A whole answer of which nothing is to be complained."""

    status: Literal["success"]
    data: _Data
    warnings: object = None
    isPartial: object = None


_VECTOR = msgspec.json.Decoder(_Vector)
"""Reads what nearly every answer is, in half the time; what is anything else is looked at field by field."""


class VectorAnswer(requests.Response):
    """A response read within its bounds, whose ``json`` refuses everything but a whole, unwarned vector.

    Of a range query it must be a matrix instead.
    """

    def json(self, **_: object) -> object:
        """The checked envelope, as the library takes it apart; of a vector with an ``Element`` for each sample."""
        if "/query_range" not in self.url and (elements := _elements(self.content)) is not None:
            return {"data": {"result": elements}}
        envelope = _object(self.content)
        if envelope.get("status") != "success":
            raise SourceUnavailable(shorten(f"expected status success, found {_complaint(envelope)}"))
        if envelope.get("warnings"):
            raise SourceUnavailable(shorten(f"the answer is partial, Prometheus warns: {envelope['warnings']}"))
        if envelope.get("isPartial"):
            raise SourceUnavailable("the answer is partial (isPartial): a storage node is away")
        data = envelope.get("data")
        kind, result = (data.get("resultType"), data.get("result")) if isinstance(data, dict) else (None, None)
        wanted = "matrix" if "/query_range" in self.url else "vector"
        if kind != wanted or not isinstance(result, list):
            raise SourceUnavailable(
                f"expected a {wanted}, found {kind or 'no result'}; write the query so that it is one"
            )
        if kind == "vector":
            raise SourceUnavailable(shorten(f"expected samples with a numeric value, found {_wrong(result)!r}"))
        return envelope


class BoundedAdapter(HTTPAdapter):
    """The transport: reads the whole answer before the deadline and below the limit, or raises."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.deadline = 0.0
        self._connection: HTTPConnection | None = None
        super().__init__(pool_connections=1, pool_maxsize=1, max_retries=Retry(0, redirect=False))

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **options: object) -> None:
        """With a connection that we know, so that it can be shut down."""
        super().init_poolmanager(connections, maxsize, block, **options)
        kinds = {"http": HTTPConnectionPool, "https": HTTPSConnectionPool}
        self.poolmanager.pool_classes_by_scheme = {scheme: partial(self._pool, kind) for scheme, kind in kinds.items()}

    def _pool(self, kind: Callable[..., HTTPConnectionPool], *place: object, **options: object) -> HTTPConnectionPool:
        pool = kind(*place, **options)
        kept = partial(self._connected, cast(type[HTTPConnection], pool.ConnectionCls))
        pool.ConnectionCls = cast(type[HTTPConnection], kept)
        return pool

    def _connected(self, kind: Callable[..., HTTPConnection], *place: object, **options: object) -> HTTPConnection:
        self._connection = kind(*place, **options)
        return self._connection

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: float | tuple[float, float] | tuple[float, None] | None = None,
        verify: bool | str = True,
        cert: bytes | str | tuple[bytes | str, bytes | str] | None = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """One answer, read; the statuses that are not 200 are sorted here."""
        response = super().send(request, stream=True, timeout=timeout, verify=verify, cert=cert, proxies=proxies)
        try:
            body = self._read(response)
            if response.status_code != 200:
                raise _refusal(response, body)
            cast(BaseHTTPResponse, response.raw).release_conn()  # `read1` does not, at the body's end
        except BaseException:
            response.close()  # what is left of the body must not be taken for the next answer
            raise
        answer = VectorAnswer()
        answer.status_code = response.status_code
        answer.headers = response.headers
        answer.url = response.url
        answer.request = request
        answer.raw = BytesIO(body)
        return answer

    def abort(self) -> None:
        """Shut the connection down, from any thread."""
        opened = self._connection.sock if self._connection is not None else None
        if opened is not None:
            with suppress(OSError):  # closed already
                opened.shutdown(socket.SHUT_RDWR)

    def _read(self, response: requests.Response) -> bytes:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise SourceUnavailable("the answer is compressed although plain text was asked for; refused")
        raw = cast(BaseHTTPResponse, response.raw)
        body = bytearray()
        while chunk := raw.read1(_CHUNK, decode_content=False):
            body += chunk
            if len(body) > self._max_bytes:
                raise SourceUnavailable(
                    f"the answer is longer than {self._max_bytes} bytes; group the query by pod, "
                    "or raise maxResponseBytes"
                )
            if time.monotonic() > self.deadline:
                raise SourceUnavailable("the answer did not end within the deadline")
        return bytes(body)


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
        return QueryInvalid(shorten(f"Prometheus refuses the query: {envelope.get('error')}"))
    return SourceUnavailable(shorten(f"HTTP {status}: {_complaint(envelope)}"))


def _elements(body: bytes) -> list[Element] | None:
    """Of a whole vector without warnings; None: it must be looked at more closely."""
    try:
        answer = _VECTOR.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return None if answer.warnings or answer.isPartial else answer.data.result


def _wrong(result: Sequence[object]) -> object:
    """The first that is no sample: a message quotes that, and never a whole answer."""
    for element in result:
        try:
            msgspec.convert(element, Element)
        except msgspec.ValidationError:
            return element
    return None


def _object(body: bytes) -> dict[str, object]:
    try:
        parsed = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise SourceUnavailable("expected JSON of Prometheus, found something else; check the endpoint's URL") from None
    if not isinstance(parsed, dict):
        raise SourceUnavailable(f"expected a JSON object, found {type(parsed).__name__}; check the endpoint's URL")
    return parsed


def _complaint(envelope: Mapping[str, object]) -> str:
    return f"{envelope.get('errorType') or envelope.get('status')}: {envelope.get('error') or 'no message'}"


def shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 1] + "…"

"""The transport below prometheus-api-client: one bounded answer, and a look at the whole envelope.

Status codes, redirects, size, deadline, ``warnings`` and ``resultType`` are judged here, before the library takes the
answer apart.

The timeout of requests would not do in its place: it bounds each read and never the whole answer, so a head or a body that
comes a byte at a time keeps a thread for ever; nor does it end a query that was cancelled. Only closing the socket under the
thread does. See ``test_a_slow_answer_ends_at_the_deadline_and_its_thread_is_freed`` and
``test_a_cancelled_query_frees_its_thread`` in tests/unit/signals/test_prometheus.py.
"""

import math
import socket
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Literal, cast
from urllib.parse import urlsplit

import msgspec
import requests
import urllib3
from certifi import where
from requests.utils import get_auth_from_url
from urllib3.connection import HTTPConnection

from precision_operator.errors import QueryInvalid, SignalError, SourceUnavailable
from precision_operator.signals.port import Labels

_CHUNK = 64 * 1024
_LONGEST_MESSAGE = 300
_STAMPED = b'"value":['
"""What precedes the time of a sample. No label holds it: there each quote has a backslash before it."""


_ADDRESSES = 512
"""How many encoded questions are kept: one a metric, namespace and window is asked again and again."""


@lru_cache(maxsize=_ADDRESSES)
def _target(url: str, params: tuple[tuple[str, str], ...]) -> str:
    """Path and query of an address, as requests encodes them."""
    plain = requests.PreparedRequest()
    plain.prepare_url(url, params)
    return plain.path_url


class Value(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A number as Prometheus writes it."""

    at: float
    """When it was evaluated; seconds since the epoch."""
    number: str


class Element(msgspec.Struct, frozen=True, gc=False):
    """One sample as Prometheus writes it."""

    metric: Labels
    value: Value


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


class VectorAnswer:
    """A response read within its bounds, of which only a whole, unwarned vector is taken, or matrix of a range query."""

    status_code = 200

    def __init__(self, url: str, content: bytes) -> None:
        self.url = url
        self.content = content

    def json(self) -> object:
        """As the library takes it apart: of a range query the checked envelope, of a vector this answer as it came."""
        return self._checked("matrix") if "/query_range" in self.url else {"data": {"result": self}}

    def unstamped(self) -> tuple[bytes, float, int]:
        """What a vector says but for the time of its samples; that of the first; and how many bear the same.

        Infinite and none, with the text as it is, where there are no samples, or their times are not written as usual.
        """
        start = self.content.find(_STAMPED)
        stamp = self.content[start + len(_STAMPED) : self.content.find(b",", start)] if start >= 0 else b""
        try:
            at = msgspec.json.decode(stamp, type=float)
        except (msgspec.DecodeError, ValueError):
            return self.content, math.inf, 0
        text = self.content.replace(_STAMPED + stamp + b",", _STAMPED + b",")
        return text, at, (len(self.content) - len(text)) // len(stamp)

    def elements(self) -> list[Element]:
        """The samples of a vector.

        Raises:
            SourceUnavailable: it is no whole vector of numbers.
        """
        found = _elements(self.content)
        if found is None:
            data = cast(Mapping[str, Sequence[object]], self._checked("vector")["data"])
            raise SourceUnavailable(shorten(f"expected samples with a numeric value, found {_wrong(data['result'])!r}"))
        return found

    def _checked(self, wanted: str) -> dict[str, object]:
        envelope = _object(self.content)
        if envelope.get("status") != "success":
            raise SourceUnavailable(shorten(f"expected status success, found {_complaint(envelope)}"))
        if envelope.get("warnings"):
            raise SourceUnavailable(shorten(f"the answer is partial, Prometheus warns: {envelope['warnings']}"))
        if envelope.get("isPartial"):
            raise SourceUnavailable("the answer is partial (isPartial): a storage node is away")
        data = envelope.get("data")
        kind, result = (data.get("resultType"), data.get("result")) if isinstance(data, dict) else (None, None)
        if kind != wanted or not isinstance(result, list):
            raise SourceUnavailable(
                f"expected a {wanted}, found {kind or 'no result'}; write the query so that it is one"
            )
        return envelope


class BoundedSession(requests.Session):
    """Sends one question at a time, and reads the whole answer before the deadline and below the limit, or raises.

    Through urllib3: what requests does on the way there (environment, cookies, hooks, redirects) is not wanted, and took
    more of a processor than the rest of a reading.
    """

    def __init__(self, url: str, *, ca_file: str | None, max_bytes: int) -> None:
        super().__init__()
        self.deadline = 0.0
        self.aborted = False
        """Given up or closed: nothing more can be asked."""
        self._max_bytes = max_bytes
        self._connection: HTTPConnection | None = None
        credentials = ":".join(get_auth_from_url(url)).encode()
        self._own_headers = {"Authorization": f"Basic {b64encode(credentials).decode()}"} if credentials != b":" else {}
        tls = {"cert_reqs": "CERT_REQUIRED", "ca_certs": ca_file or where()}
        place = urlsplit(url)
        self._pool = urllib3.connection_from_url(
            url, maxsize=1, retries=False, **(tls if place.scheme == "https" else {})
        )
        kind = cast(type[HTTPConnection], self._pool.ConnectionCls)
        self._pool.ConnectionCls = cast(type[HTTPConnection], partial(self._connected, kind))

    def _connected(self, kind: type[HTTPConnection], *place: object, **options: object) -> HTTPConnection:
        """A connection that ``abort`` can shut down. Where that came first, connecting fails."""
        connection = self._connection = kind(*place, **options)  # type: ignore[arg-type]
        connect = connection.connect

        def connect_unless_aborted() -> None:
            connect()
            if self.aborted:  # by now `abort` either finds the socket, or was before us
                raise ConnectionAbortedError("the query was given up")

        connection.connect = connect_unless_aborted  # type: ignore[method-assign]
        return connection

    def request(  # type: ignore[override]
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, str],
        headers: Mapping[str, str],
        timeout: float,
        **_: object,
    ) -> VectorAnswer:
        """One answer, read; the statuses that are not 200 are sorted here."""
        response = self._pool.urlopen(
            method,
            _target(url, tuple(params.items())),
            headers={**headers, **self._own_headers},
            timeout=urllib3.Timeout(connect=timeout, read=timeout),
            redirect=False,
            preload_content=False,
        )
        try:
            body = self._read(response)
            if response.status != 200:
                raise _refusal(response.status, body)
            response.release_conn()  # `read1` does not, at the body's end
        except BaseException:
            response.close()  # what is left of the body must not be taken for the next answer
            raise
        return VectorAnswer(url, body)

    def abort(self) -> None:
        """Shut the connection down for good, from any thread."""
        self.aborted = True
        opened = self._connection.sock if self._connection is not None else None
        if opened is not None:
            with suppress(OSError):  # closed already
                opened.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, also where somebody still holds it (the traceback of an error does)."""
        self.abort()
        self._pool.close()
        super().close()

    def _read(self, response: urllib3.BaseHTTPResponse) -> bytes:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise SourceUnavailable("the answer is compressed although plain text was asked for; refused")
        body = bytearray()
        while chunk := response.read1(_CHUNK, decode_content=False):
            body += chunk
            if len(body) > self._max_bytes:
                raise SourceUnavailable(
                    f"the answer is longer than {self._max_bytes} bytes; group the query by pod, "
                    "or raise maxResponseBytes"
                )
            if time.monotonic() > self.deadline:
                raise SourceUnavailable("the answer did not end within the deadline")
        return bytes(body)


def _refusal(status: int, body: bytes) -> SignalError:
    """The error for a status that is not 200."""
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

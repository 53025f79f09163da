"""Prometheus as a metric source, through prometheus-api-client, with the bounds that the library lacks.

The library's client has no default time-out, retries for seconds, follows redirects, reads a body of any size and drops
``warnings`` and ``resultType``, so that a partial answer looks like a healthy empty one. It is kept for building and
sending the request; the transport below it is ours: one connection a client, no retry, no redirect, no proxy from the
environment, a deadline for the whole answer, a limit on its size, and a look at the whole envelope.

A query runs in one of a few threads of its own source, so that a source that hangs blocks neither the event loop nor
other sources. At the deadline the connection is shut down under the thread, which frees it.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

import requests
from prometheus_api_client import PrometheusConnect
from urllib3.exceptions import HTTPError, NewConnectionError
from urllib3.exceptions import TimeoutError as NoAnswer

from precision_operator.errors import SignalError, SourceUnavailable
from precision_operator.settings import PrometheusEndpoint
from precision_operator.signals.port import Sample, Series
from precision_operator.signals.transport import BoundedSession, Element, VectorAnswer, shorten
from precision_operator.signals.vectors import NewestVectors, Vector

T = TypeVar("T")

THREADS = 12
"""Queries of one source at once: those of evaluations (SLOTS, RAW_SLOTS and a trial), and what reports ask of the past."""

STAMP_SECONDS = 120.0
"""An answer that is stamped longer ago is one of a cache, and is not believed; clocks may differ by this much."""


class PrometheusSource:
    """One Prometheus; implements :class:`~precision_operator.signals.port.MetricSource`."""

    def __init__(self, name: str, endpoint: PrometheusEndpoint, *, threads: int = THREADS) -> None:
        self._name = name
        self._endpoint = endpoint
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=f"prometheus-{name}")
        self._room = asyncio.Semaphore(threads)
        self._idle: list[_Client] = []
        self._busy: set[_Client] = set()
        self._newest = NewestVectors()

    async def vector(self, query: str) -> Sequence[Sample]:
        """The instant vector of ``query``; empty where no series matches.

        Raises:
            QueryInvalid: Prometheus refused the query.
            SourceUnavailable: no vector within the deadline, which includes the wait for a free thread.
        """
        before = self._newest.get(query)
        answer = await self._run(lambda client, deadline: client.ask(query, deadline, before))
        self._newest.keep(query, answer, now=time.monotonic())
        return answer.samples

    async def history(self, query: str, start: float, end: float, step_seconds: float) -> Sequence[Series]:
        """The matrix of ``query`` over a span; see :class:`~precision_operator.signals.port.MetricHistory`."""
        return await self._run(lambda client, deadline: client.ask_range(query, (start, end, step_seconds), deadline))

    async def _run(self, ask: "Callable[[_Client, float], T]") -> T:
        limit = self._endpoint.timeout_seconds
        deadline = time.monotonic() + limit
        try:
            async with asyncio.timeout(limit):
                await self._room.acquire()
        except TimeoutError:
            raise SourceUnavailable(
                f"endpoint {self._name!r}: all query threads were busy for {limit:g} s; Prometheus hangs or is too slow"
            ) from None
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        try:
            client = self._idle.pop() if self._idle else _Client(self._endpoint)
            self._pool.submit(self._work, loop, client, ask, deadline, answer)
        except RuntimeError:
            self._room.release()
            raise SourceUnavailable(f"endpoint {self._name!r}: the source is closed") from None
        except (HTTPError, ValueError) as error:
            self._room.release()
            text = f"endpoint {self._name!r}: its URL cannot be used ({type(error).__name__}); see its host and port"
            raise SourceUnavailable(text) from None
        self._busy.add(client)
        try:
            await asyncio.wait({answer}, timeout=deadline - time.monotonic())
        finally:
            if not answer.done():  # else the thread and its client are another query's by now
                client.abort()
                answer.cancel()
        if answer.cancelled():
            raise SourceUnavailable(f"endpoint {self._name!r}: no answer within {limit:g} s")
        try:
            return answer.result()
        except SignalError as error:
            raise type(error)(f"endpoint {self._name!r}: {error}") from None

    def close(self) -> None:
        """Abort what runs and free the threads; later queries raise SourceUnavailable."""
        for client in list(self._busy):
            client.abort()
        self._pool.shutdown(wait=False, cancel_futures=True)
        while self._idle:
            self._idle.pop().close()

    def _work(
        self,
        loop: asyncio.AbstractEventLoop,
        client: "_Client",
        ask: "Callable[[_Client, float], T]",
        deadline: float,
        answer: "asyncio.Future[T]",
    ) -> None:
        """In a thread: ask, and give the answer and the thread back in one turn of the loop."""
        found: T | None = None
        error: BaseException | None = None
        try:
            found = ask(client, deadline)
        except BaseException as failure:  # noqa: BLE001  whatever it is belongs to who asked
            error = failure
            client.close()
        with suppress(RuntimeError):  # the loop is closed: nobody asks any more
            loop.call_soon_threadsafe(self._hand_back, client, answer, found, error)
        error = None  # its traceback holds this frame

    def _hand_back(
        self, client: "_Client", answer: "asyncio.Future[T]", found: T | None, error: BaseException | None
    ) -> None:
        self._busy.discard(client)
        self._room.release()
        if error is None and client.aborted:  # too late: its answer was there
            client.close()
        elif error is None:
            self._idle.append(client)
        if answer.done():
            return  # nobody waits any more
        if error is None:
            answer.set_result(cast(T, found))
        else:
            answer.set_exception(error)


class _Client:
    """One session with one connection; used by one thread at a time."""

    def __init__(self, endpoint: PrometheusEndpoint) -> None:
        self._endpoint = endpoint
        url = endpoint.url.rstrip("/")
        self._session = BoundedSession(url, ca_file=endpoint.ca_file, max_bytes=endpoint.max_response_bytes)
        self._connect = PrometheusConnect(url=url, session=self._session, timeout=endpoint.timeout_seconds)

    def ask(self, query: str, deadline: float, before: Vector | None) -> Vector:
        """Send ``query`` and read its vector. Blocks.

        Args:
            query: PromQL.
            deadline: until when; seconds, by the monotonic clock.
            before: the last answer to it. It is returned again, undecoded, where this one differs in its time alone.

        Raises:
            SignalError: see PrometheusSource.vector; nothing else.
        """
        oldest = time.time() - STAMP_SECONDS
        answer = cast(VectorAnswer, self._send(deadline, lambda options: self._connect.custom_query(query, **options)))
        text, at, stamped = answer.unstamped()
        if before is not None and before.text == text and at >= oldest and stamped == len(before.samples):
            return before
        elements = answer.elements()
        together = stamped == len(elements) and all(element.value.at == at for element in elements)
        return Vector(_samples(elements, oldest=oldest), text if together else b"")

    def ask_range(self, query: str, span: tuple[float, float, float], deadline: float) -> list[Series]:
        """As ``ask``, over a span of (start, end, step)."""
        start, end, step = span

        def send(options: dict[str, Any]) -> object:
            first, last = (datetime.fromtimestamp(at, tz=UTC) for at in (start, end))
            return self._connect.custom_query_range(query, first, last, f"{step:.3f}", **options)

        return [_series(element) for element in cast(list[object], self._send(deadline, send))]

    def _send(self, deadline: float, send: Callable[[dict[str, Any]], object]) -> object:
        left = deadline - time.monotonic()
        if left <= 0:
            raise SourceUnavailable("no time left for the query")
        self._session.deadline = deadline
        try:
            self._connect.headers = self._headers()
            # In whole seconds, so that the address is the same again; our own deadline is exact. The library hands
            # `timeout` on, which may be a float.
            return send({"params": {"timeout": f"{math.ceil(left)}s"}, "timeout": cast(int, left)})
        except SignalError:
            raise
        except (requests.RequestException, HTTPError, OSError, ValueError, AttributeError) as error:
            # AttributeError: urllib3 finds its socket gone, when `abort` came in between
            if isinstance(error, NoAnswer) and not isinstance(error, NewConnectionError):
                raise SourceUnavailable(f"no answer within {self._endpoint.timeout_seconds:g} s") from None
            raise SourceUnavailable(shorten(f"{type(error).__name__}: {_root(error)}")) from error

    @property
    def aborted(self) -> bool:
        """It can be asked nothing more."""
        return self._session.aborted

    def abort(self) -> None:
        """From another thread: make the blocked read return, now or as soon as there is one."""
        self._session.abort()

    def close(self) -> None:
        """Close the connection, also where somebody still holds it (the traceback of an error does)."""
        self._session.close()

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if self._endpoint.bearer_token_file:
            token = Path(self._endpoint.bearer_token_file).read_text(encoding="ascii").strip()
            headers["Authorization"] = f"Bearer {token}"
        return headers


def _samples(elements: Sequence[Element], *, oldest: float) -> list[Sample]:
    # float() takes more than Prometheus writes: 1_0, digits of other scripts.
    written = "".join([element.value.number for element in elements])
    try:
        samples = [Sample(element.metric, float(element.value.number)) for element in elements]
    except ValueError:
        samples = []
    if len(samples) < len(elements) or "_" in written or not written.isascii():
        wrong = next(element for element in elements if not _is_number(element.value.number))
        raise SourceUnavailable(shorten(f"expected samples with a numeric value, found {wrong!r}"))
    stale = next((element.value.at for element in elements if element.value.at < oldest), None)
    if stale is not None:
        raise SourceUnavailable(
            f"the answer is stamped {oldest + STAMP_SECONDS - stale:.0f} s ago, expected less than "
            f"{STAMP_SECONDS:g} s: a cache lies between, or a clock is wrong"
        )
    return samples


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.isascii() and "_" not in text


def _series(element: object) -> Series:
    if isinstance(element, dict):
        labels, pairs = element.get("metric"), element.get("values")
        if (
            isinstance(labels, dict)
            and isinstance(pairs, list)
            and all(isinstance(text, str) for text in labels.values())
        ):
            try:
                return Series(labels, tuple((float(at), float(value)) for at, value in pairs))
            except (TypeError, ValueError):
                pass
    raise SourceUnavailable(shorten(f"expected series with numeric values, found {element!r}"))


def _root(error: BaseException) -> str:
    """The innermost cause: the outer messages repeat the whole URL."""
    inner = error.__cause__ or error.__context__
    while inner is not None:
        error, inner = inner, inner.__cause__ or inner.__context__
    return str(error) or type(error).__name__

"""One Prometheus, shared: fair slots by namespace, and a circuit breaker that stops asking who does not answer.

Our own and not a library's: the kept ones count calls, know no clock port, and let each caller try a half-open circuit.
Here only queries of the operator's own count, so that no policy's PromQL can open the circuit for others.
Belongs to one event loop.
"""

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from enum import IntEnum

from precision_operator.errors import EndpointNotAnswering, QueryInvalid, SignalError, SourceUnavailable
from precision_operator.runtime.clock import Clock, within
from precision_operator.signals.port import MetricSource, Sample

SLOTS = 8
"""Queries of one endpoint at once; the source has as many threads."""
NAMESPACE_SLOTS = 6
"""Of these, what one namespace may hold."""
WAIT_SECONDS = 5.0
"""How long a query waits for a slot."""
FAILURE_LIMIT = 4
"""Failures in a row that open the circuit."""
SHORTEST_SECONDS, LONGEST_SECONDS = 2.0, 15.0
"""How long an open circuit rests before one query tries it: doubled at each failure, up to the longest."""


class Circuit(IntEnum):
    """The state of an endpoint's circuit; the numbers are those of the metric."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class Endpoint:
    """Asks one source for all policies."""

    def __init__(
        self, name: str, source: MetricSource, clock: Clock, *, jitter: Callable[[], float] = random.random
    ) -> None:
        """``jitter``: a share of 0 to 1, by which rests are shortened by up to a quarter."""
        self._name = name
        self._source = source
        self._clock = clock
        self._jitter = jitter
        self._slots = _FairSlots()
        self._failures = 0
        self._closed_again_at = 0.0
        self._trial: asyncio.Future[None] | None = None

    @property
    def circuit(self) -> Circuit:
        """Whether the endpoint is asked."""
        if self._failures < FAILURE_LIMIT:
            return Circuit.CLOSED
        rests = self._trial is None and self._clock.monotonic() < self._closed_again_at
        return Circuit.OPEN if rests else Circuit.HALF_OPEN

    async def vector(self, query: str, namespace: str, *, own: bool, urgent: bool) -> Sequence[Sample]:
        """The vector of ``query``, asked on behalf of a namespace. ``own``: the operator wrote the query. ``urgent``: of a
        policy with a breach or a rollback under way.

        Raises:
            EndpointNotAnswering: the circuit is open.
            SignalError: as MetricSource.vector; also where no slot came free in time.
        """
        if self.circuit is Circuit.HALF_OPEN and self._trial is None and own:
            return await self._try(query)
        if self._trial is not None:
            await asyncio.wait({self._trial})
        if self.circuit is not Circuit.CLOSED:
            raise self._not_answering()
        try:
            await within(self._clock, WAIT_SECONDS, self._slots.take(namespace, urgent=urgent))
        except TimeoutError:
            raise SourceUnavailable(
                f"endpoint {self._name!r}: no slot within {WAIT_SECONDS:g} s; it is too slow for what is asked of it"
            ) from None
        try:
            if self.circuit is not Circuit.CLOSED:
                raise self._not_answering()  # it opened while this query waited
            return await self._ask(query, own=own)
        finally:
            self._slots.free(namespace)

    async def _try(self, query: str) -> Sequence[Sample]:
        """One query finds out for all whether the endpoint answers again."""
        self._trial = asyncio.get_running_loop().create_future()
        try:
            return await self._ask(query, own=True)
        except SourceUnavailable:
            # With the words of before: what the conditions say must not change with every trial.
            raise self._not_answering() from None
        finally:
            self._trial.set_result(None)
            self._trial = None

    async def _ask(self, query: str, *, own: bool) -> Sequence[Sample]:
        try:
            found = await self._source.vector(query)
        except QueryInvalid:
            self._failures = 0
            raise
        except SignalError:
            if own:
                self._failed()
            raise
        self._failures = 0
        return found

    def _failed(self) -> None:
        now = self._clock.monotonic()
        if self._failures >= FAILURE_LIMIT and self._trial is None and now < self._closed_again_at:
            return  # it was under way when the circuit opened
        self._failures += 1
        over = self._failures - FAILURE_LIMIT
        if over >= 0:
            rest_seconds = min(LONGEST_SECONDS, SHORTEST_SECONDS * 2.0 ** min(over, 30))
            self._closed_again_at = now + rest_seconds * (1.0 - 0.25 * self._jitter())

    def _not_answering(self) -> EndpointNotAnswering:
        return EndpointNotAnswering(
            f"endpoint {self._name!r} failed {FAILURE_LIMIT} times or more in a row and is asked every "
            f"{LONGEST_SECONDS:g} s at most; check that Prometheus runs and answers at its URL in the settings"
        )


class _FairSlots:
    """Slots that go to the namespaces in turn, first to urgent queries."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self._waiting: dict[bool, dict[str, deque[asyncio.Future[None]]]] = {True: {}, False: {}}
        """By urgency and namespace; the order of the namespaces is that of their turns."""

    async def take(self, namespace: str, *, urgent: bool) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[urgent].setdefault(namespace, deque()).append(waiter)
        self._grant()
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                self.free(namespace)
            raise

    def free(self, namespace: str) -> None:
        self._held[namespace] -= 1
        if not self._held[namespace]:
            del self._held[namespace]
        self._grant()

    def _grant(self) -> None:
        for lane in (self._waiting[True], self._waiting[False]):
            while sum(self._held.values()) < SLOTS and (namespace := self._next(lane)) is not None:
                queue = lane.pop(namespace)
                waiter = queue.popleft()
                if queue:
                    lane[namespace] = queue  # to the end of the turns
                self._held[namespace] += 1
                waiter.set_result(None)

    def _next(self, lane: dict[str, deque[asyncio.Future[None]]]) -> str | None:
        for namespace in list(lane):
            while lane[namespace] and lane[namespace][0].done():
                lane[namespace].popleft()
            if not lane[namespace]:
                del lane[namespace]
        return next((namespace for namespace in lane if self._held[namespace] < NAMESPACE_SLOTS), None)

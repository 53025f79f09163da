"""One Prometheus, shared: fair slots by namespace, and a circuit breaker that stops asking who does not answer.

Our own and not a library's: the kept ones count calls, know no clock port, and let each caller try a half-open circuit.
Here only queries of the operator's own count, and no namespace alone opens the circuit while others are answered: what it
exports may be too much for any query. PromQL of policies has slots of its own. Belongs to one event loop.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum, IntEnum

from precision_operator.errors import EndpointNotAnswering, QueryInvalid, SignalError, SourceUnavailable
from precision_operator.runtime.clock import Clock, within
from precision_operator.runtime.turns import Turns
from precision_operator.signals.port import MetricSource, Sample

SLOTS = 8
"""Queries of one endpoint at once that the operator or its admin wrote; the source has threads for these and more."""
NAMESPACE_SLOTS = 6
"""Of these, what one namespace may hold."""
URGENT_SLOTS = 6
"""Of these, what urgent queries may hold: a breach that nobody knows of yet is found by one that is not urgent."""
RAW_SLOTS = 2
"""Queries at once that policies brought. These may be as slow as they like."""
WAIT_SECONDS = 5.0
"""How long a query waits for a slot."""
FAILURE_LIMIT = 4
"""Failures in a row that open the circuit."""
ANSWERED_SECONDS = 600.0
"""How long a namespace's last answer speaks for the endpoint, where another namespace's queries fail."""
SHORTEST_SECONDS, LONGEST_SECONDS = 2.0, 15.0
"""How long an open circuit rests before one query tries it: doubled at each failure, up to the longest."""


class Author(Enum):
    """Who wrote a query."""

    OPERATOR = "operator"
    ADMIN = "admin"
    """It is one of the catalogue."""
    POLICY = "policy"


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
        slots = _FairSlots(SLOTS, of_namespace=NAMESPACE_SLOTS, urgent=URGENT_SLOTS)
        raw = _FairSlots(RAW_SLOTS, of_namespace=1, urgent=1)
        self._slots = {Author.OPERATOR: slots, Author.ADMIN: slots, Author.POLICY: raw}
        self._failures = 0
        self._failing: set[str] = set()
        """The namespaces of these failures."""
        self._answered: dict[str, float] = {}
        """Namespaces that have not failed since they were answered, and when that was."""
        self._closed_again_at = 0.0
        self._trial: asyncio.Future[None] | None = None

    @property
    def circuit(self) -> Circuit:
        """Whether the endpoint is asked."""
        if self._failures < FAILURE_LIMIT:
            return Circuit.CLOSED
        rests = self._trial is None and self._clock.monotonic() < self._closed_again_at
        return Circuit.OPEN if rests else Circuit.HALF_OPEN

    async def vector(self, query: str, namespace: str, *, author: Author, urgent: bool) -> Sequence[Sample]:
        """The vector of ``query``, asked on behalf of a namespace. ``urgent``: of a policy with a breach or a rollback under
        way.

        Raises:
            EndpointNotAnswering: the circuit is open.
            SignalError: as MetricSource.vector; also where no slot came free in time.
        """
        if self._trial is None and author is Author.OPERATOR and self._may_try(namespace):
            return await self._try(query, namespace)
        if self._trial is not None:
            await asyncio.wait({self._trial})
        if self.circuit is not Circuit.CLOSED:
            raise self._not_answering()
        slots = self._slots[author]
        try:
            if not slots.took(namespace, urgent=urgent):
                await within(self._clock, WAIT_SECONDS, slots.take(namespace, urgent=urgent))
        except TimeoutError:
            raise SourceUnavailable(
                f"endpoint {self._name!r}: no slot within {WAIT_SECONDS:g} s; it is too slow for what is asked of it"
            ) from None
        try:
            if self.circuit is not Circuit.CLOSED:
                raise self._not_answering()  # it opened while this query waited
            return await self._ask(query, namespace, author)
        finally:
            slots.free(namespace, urgent=urgent)

    def _may_try(self, namespace: str) -> bool:
        """Once the circuit has rested; at once where it was opened by others, whose own queries may be too much for it."""
        circuit = self.circuit
        return circuit is Circuit.HALF_OPEN or (circuit is Circuit.OPEN and namespace in self._answered)

    async def _try(self, query: str, namespace: str) -> Sequence[Sample]:
        """One query finds out for all whether the endpoint answers again."""
        self._trial = asyncio.get_running_loop().create_future()
        try:
            return await self._ask(query, namespace, Author.OPERATOR)
        except SourceUnavailable:
            # With the words of before: what the conditions say must not change with every trial.
            raise self._not_answering() from None
        finally:
            self._trial.set_result(None)
            self._trial = None

    async def _ask(self, query: str, namespace: str, author: Author) -> Sequence[Sample]:
        try:
            found = await self._source.vector(query)
        except QueryInvalid:
            self._succeeded(namespace)
            raise
        except SignalError:
            if author is Author.OPERATOR:
                self._failed(namespace)
            raise
        self._succeeded(namespace)
        return found

    def _succeeded(self, namespace: str) -> None:
        self._failures = 0
        self._failing.clear()
        self._answered[namespace] = self._clock.monotonic()

    def _failed(self, namespace: str) -> None:
        now = self._clock.monotonic()
        if self._failures >= FAILURE_LIMIT and self._trial is None and now < self._closed_again_at:
            return  # it was under way when the circuit opened
        self._answered = {n: at for n, at in self._answered.items() if n != namespace and now - at < ANSWERED_SECONDS}
        self._failing.add(namespace)
        if self._answered and len(self._failing) == 1 and self._failures == FAILURE_LIMIT - 1:
            return  # this namespace's alone, as far as is known: another's failure opens the circuit
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
    """Slots that go to the namespaces in turn, first to urgent queries; these never hold all."""

    def __init__(self, slots: int, *, of_namespace: int, urgent: int) -> None:
        self._most, self._most_of_namespace, self._most_urgent = slots, of_namespace, urgent
        self._held: Counter[str] = Counter()
        self._urgent = 0
        self._waiting = {True: Turns(), False: Turns()}
        """By urgency."""

    def took(self, namespace: str, *, urgent: bool) -> bool:
        """Take a slot where one is free and nobody waits; whether it was taken."""
        if any(self._waiting.values()) or not self._has_room(urgent) or not self._may(namespace):
            return False
        self._hold(namespace, urgent)
        return True

    async def take(self, namespace: str, *, urgent: bool) -> None:
        """Wait for a slot."""
        waiter = self._waiting[urgent].wait(namespace)
        self._grant()
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                self.free(namespace, urgent=urgent)
            raise

    def free(self, namespace: str, *, urgent: bool) -> None:
        self._held[namespace] -= 1
        if not self._held[namespace]:
            del self._held[namespace]
        self._urgent -= urgent
        self._grant()

    def _grant(self) -> None:
        for urgent, lane in self._waiting.items():
            while self._has_room(urgent) and (namespace := lane.next(self._may)) is not None:
                self._hold(namespace, urgent)
                lane.grant(namespace)

    def _hold(self, namespace: str, urgent: bool) -> None:
        self._held[namespace] += 1
        self._urgent += urgent

    def _has_room(self, urgent: bool) -> bool:
        return self._held.total() < self._most and not (urgent and self._urgent >= self._most_urgent)

    def _may(self, namespace: str) -> bool:
        return self._held[namespace] < self._most_of_namespace

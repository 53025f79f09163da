"""How fast, and how many at once, we write to the API server; an emergency goes first and may borrow.

A token bucket holds one second of the rate. A normal write needs a whole token. An emergency write may take the bucket
below zero, down to ``-emergency_burst``: what it borrowed is paid back by the normal writes that wait afterwards. The
cap on writes in flight holds for both. In each lane the groups go in turn, and one group never has all writes in flight:
writes that hang in one namespace leave room for the others. Belongs to one event loop.
"""

import asyncio
from collections import Counter
from contextlib import AbstractAsyncContextManager
from types import TracebackType

from precision_operator.errors import TooManyRequests
from precision_operator.runtime.clock import Clock, SystemClock
from precision_operator.runtime.turns import Turns

_EMERGENCY_SECONDS = 10.0
"""How many seconds' worth of writes an emergency may borrow where nothing else is set."""
_GROUP_SHARE = 0.75
"""Of the writes in flight, what one group may have."""
_ROUNDING = 1e-9


class RateLimiter:
    """Slots for writes.

    Raises:
        ValueError: a rate or a cap that would let no write through.
    """

    def __init__(
        self,
        per_second: float,
        concurrency: int,
        clock: Clock | None = None,
        *,
        emergency_burst: float | None = None,
    ) -> None:
        if per_second <= 0 or concurrency < 1:
            raise ValueError(
                f"expected writesPerSecond > 0 and concurrentWrites >= 1, found {per_second} and {concurrency}"
            )
        self._clock: Clock = clock or SystemClock()
        self._rate = per_second
        self._burst = max(1.0, per_second)
        self._credit = per_second * _EMERGENCY_SECONDS if emergency_burst is None else emergency_burst
        self._concurrency = concurrency
        self._tokens = self._burst
        self._filled_at = self._clock.monotonic()
        self._paused_until: dict[str, float] = {}
        self._most_of_group = max(1, int(concurrency * _GROUP_SHARE))
        self._held: Counter[str] = Counter()
        """Writes in flight, by group."""
        self._emergencies, self._normals = Turns(), Turns()
        self._alarm: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Writes that wait for a slot."""
        return len(self._emergencies) + len(self._normals)

    def slot(self, emergency: bool = False, group: str = "") -> "AbstractAsyncContextManager[Slot]":
        """Hold one write slot: waits for a token and for room among the writes in flight.

        Raises (on entering):
            TooManyRequests: the group is paused. Who waited here would keep a worker from other namespaces.
        """
        return Slot(self, emergency, group)

    async def _take(self, emergency: bool, group: str) -> None:
        waiter = (self._emergencies if emergency else self._normals).wait(group)
        self._grant()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._release(group)  # granted and cancelled at once: the token is spent, the slot is not
            self._grant()
            raise

    def _free(self, group: str, *, unused: bool = False) -> None:
        self._release(group)
        if unused:
            self._tokens += 1.0
        self._grant()

    def _release(self, group: str) -> None:
        self._held[group] -= 1
        if not self._held[group]:
            del self._held[group]

    def _may(self, group: str) -> bool:
        return self._held.total() < self._concurrency and (not group or self._held[group] < self._most_of_group)

    def paused_seconds(self, group: str) -> float:
        """For how long nothing is granted to the group; 0 where its writes may go."""
        return max(0.0, self._paused_until.get(group, 0.0) - self._clock.monotonic())

    def pause(self, seconds: float, group: str) -> None:
        """Grant the group nothing for ``seconds``: the API server asked us to slow down (429). Others are not held back."""
        now = self._clock.monotonic()
        standing = {name: until for name, until in self._paused_until.items() if until > now}
        self._paused_until = {**standing, group: max(standing.get(group, 0.0), now + seconds)}

    def close(self) -> None:
        """Stop the timer; for shutdown."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _grant(self) -> None:
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        wait = 0.0
        for lane, needed in ((self._emergencies, 1.0 - self._credit), (self._normals, 1.0)):
            while (group := lane.next(self._may)) is not None:
                wait = (needed - self._tokens) / self._rate
                if wait > _ROUNDING:
                    break
                self._tokens -= 1.0
                self._held[group] += 1
                lane.grant(group)
                wait = 0.0
            if group is not None:
                break  # nobody overtakes an emergency that could go
        if wait > _ROUNDING and (self._alarm is None or self._alarm.done()):
            self._alarm = asyncio.get_running_loop().create_task(self._ring(wait), name="ratelimit-alarm")

    async def _ring(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._alarm = None
        self._grant()


class Slot(AbstractAsyncContextManager["Slot"]):
    """A slot. Not a generator: those register with the loop, which a thousand writes in an emergency can feel."""

    def __init__(self, limiter: RateLimiter, emergency: bool, group: str) -> None:
        self._limiter = limiter
        self._emergency = emergency
        self._group = group
        self._unused = False

    def give_back(self) -> None:
        """Nothing is written after all: the next one has the token."""
        self._unused = True

    async def __aenter__(self) -> "Slot":
        self._refuse_while_paused()
        await self._limiter._take(self._emergency, self._group)
        try:
            self._refuse_while_paused()  # the pause may have begun meanwhile
        except TooManyRequests:
            self._limiter._free(self._group, unused=True)
            raise
        return self

    def _refuse_while_paused(self) -> None:
        left = self._limiter.paused_seconds(self._group)
        if left > _ROUNDING:
            raise TooManyRequests(f"writes to {self._group} are paused for {left:.1f} s", retry_after_seconds=left)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limiter._free(self._group, unused=self._unused)

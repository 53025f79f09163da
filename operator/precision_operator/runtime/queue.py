"""A keyed work queue: what is to be looked at, each key once, the urgent first, and never two workers on one key.

The semantics are those of Kubernetes' client-go workqueue (deduplication, per-key exclusivity, delayed adds, per-key
exponential backoff) with two lanes. It belongs to one event loop; every method must be called on it.
"""

import asyncio
from collections import deque
from collections.abc import Hashable
from enum import IntEnum
from typing import Generic, TypeVar

from precision_operator.runtime.clock import Clock, SystemClock

K = TypeVar("K", bound=Hashable)


class Priority(IntEnum):
    """The lane of a key; lower goes first."""

    EMERGENCY = 0
    NORMAL = 1


class WorkQueue(Generic[K]):
    """Keys waiting to be processed.

    A key is in at most one of *ready* (may be taken now) and *active* (a worker has it). Added while active, it is
    *again*: ready once more after ``done``. Independently it may have one delayed add, the earliest asked for;
    being taken ends it.
    """

    def __init__(
        self, clock: Clock | None = None, *, backoff_base_seconds: float = 0.1, backoff_limit_seconds: float = 30.0
    ) -> None:
        self._clock: Clock = clock or SystemClock()
        self._backoff_base = backoff_base_seconds
        self._backoff_limit = backoff_limit_seconds
        self._ready: dict[Priority, dict[K, float]] = {lane: {} for lane in Priority}
        self._active: set[K] = set()
        self._again: dict[K, tuple[Priority, float]] = {}
        self._delayed: dict[K, tuple[float, Priority]] = {}
        self._failures: dict[K, int] = {}
        self._getters: deque[asyncio.Future[None]] = deque()
        self._alarm: asyncio.Task[None] | None = None
        self._alarm_due = float("inf")

    def add(self, key: K, *, priority: Priority = Priority.NORMAL) -> None:
        """Ask for ``key`` to be processed once from now on; a more urgent priority moves it up, never down."""
        now = self._clock.monotonic()
        if key in self._active:
            lane, since = self._again.get(key, (priority, now))
            self._again[key] = (min(lane, priority), since)
            return
        self._make_ready(key, priority, now)

    def add_after(self, key: K, delay_seconds: float, *, priority: Priority = Priority.NORMAL) -> None:
        """Add ``key`` once ``delay_seconds`` have passed. Of several pending delays of a key the earliest wins."""
        if delay_seconds <= 0:
            self.add(key, priority=priority)
            return
        due = self._clock.monotonic() + delay_seconds
        if key in self._delayed:
            known_due, known_priority = self._delayed[key]
            due, priority = min(due, known_due), min(priority, known_priority)
        self._delayed[key] = (due, priority)
        self._arm()

    def backoff(self, key: K, *, priority: Priority = Priority.NORMAL) -> float:
        """Add ``key`` again after its exponential delay; returns that delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(self._backoff_limit, self._backoff_base * 2.0 ** min(failures, 60))
        self.add_after(key, delay, priority=priority)
        return delay

    def forget(self, key: K) -> None:
        """Processing succeeded: the next failure of ``key`` starts at the shortest delay."""
        self._failures.pop(key, None)

    def drop(self, key: K) -> None:
        """The key is gone: forget its delays and failures. A worker that has it still calls ``done``.

        Adds that came meanwhile stay: they may say that it is back.
        """
        self._delayed.pop(key, None)
        self._failures.pop(key, None)

    async def get(self) -> K:
        """Wait for the next key; it belongs to the caller until ``done``. Safe to cancel: no key is lost."""
        while True:
            self._release_due()
            for lane in Priority:
                if self._ready[lane]:
                    key = next(iter(self._ready[lane]))
                    del self._ready[lane][key]
                    self._active.add(key)
                    self._delayed.pop(key, None)  # this pass says anew when the next one is due
                    return key
            getter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._getters.append(getter)
            try:
                await getter
            except asyncio.CancelledError:
                if getter.done() and not getter.cancelled():
                    self._wake_one()  # our wake-up stood for a key that we leave to the next
                raise
            finally:
                if getter in self._getters:
                    self._getters.remove(getter)

    def done(self, key: K) -> None:
        """The caller has finished ``key``; if it was added meanwhile it is ready again.

        Raises:
            ValueError: the key is not being processed: a programming error.
        """
        if key not in self._active:
            raise ValueError(f"done({key!r}): the key is not being processed; call done once for each get")
        self._active.remove(key)
        if key in self._again:
            priority, since = self._again.pop(key)
            self._make_ready(key, priority, since)

    def close(self) -> None:
        """Stop the timer of the delayed adds; for shutdown."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    @property
    def depth(self) -> int:
        """Keys that wait for a worker (delayed ones do not)."""
        return sum(len(lane) for lane in self._ready.values()) + len(self._again)

    @property
    def oldest_seconds(self) -> float:
        """How long the longest-waiting key has waited; 0 where none waits."""
        waiting = [since for lane in self._ready.values() for since in lane.values()]
        waiting += [since for _, since in self._again.values()]
        return max(0.0, self._clock.monotonic() - min(waiting)) if waiting else 0.0

    def _make_ready(self, key: K, priority: Priority, since: float) -> None:
        for lane in Priority:
            if key in self._ready[lane]:
                if lane <= priority:
                    return
                since = self._ready[lane].pop(key)
        self._ready[priority][key] = since
        self._wake_one()

    def _wake_one(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return

    def _release_due(self) -> None:
        now = self._clock.monotonic()
        due = sorted(
            (at, lane, index, key) for index, (key, (at, lane)) in enumerate(self._delayed.items()) if at <= now
        )
        for _, priority, _, key in due:
            del self._delayed[key]
            self.add(key, priority=priority)

    def _arm(self) -> None:
        """Have the timer run until the earliest delay."""
        earliest = min((at for at, _ in self._delayed.values()), default=float("inf"))
        running = self._alarm is not None and not self._alarm.done()
        if earliest == float("inf") or (running and self._alarm_due <= earliest):
            return
        self.close()
        self._alarm_due = earliest
        self._alarm = asyncio.get_running_loop().create_task(self._ring(earliest), name="workqueue-alarm")

    async def _ring(self, due: float) -> None:
        while (left := due - self._clock.monotonic()) > 0:
            await self._clock.sleep(left)
        self._release_due()
        self._alarm = None
        self._arm()

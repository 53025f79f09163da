"""A keyed work queue: what is to be looked at, each key once, the urgent first, and never two workers on one key.

The semantics are those of Kubernetes' client-go workqueue (deduplication, per-key exclusivity, delayed adds, per-key
exponential backoff) with two lanes. Keys may be of groups: in each lane these go in turn, and one group never has all
workers, so that slow passes of one namespace leave room for another's. It belongs to one event loop; every method must be
called on it.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Hashable
from enum import IntEnum
from typing import Generic, TypeVar

from precision_operator.runtime.backoff import Backoff
from precision_operator.runtime.clock import Clock, SystemClock

RETRY = Backoff(0.1, 30.0)
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
        self,
        clock: Clock | None = None,
        *,
        backoff: Backoff = RETRY,
        group: Callable[[K], str] = lambda key: "",
        most_of_group: float = float("inf"),
    ) -> None:
        """``most_of_group``: keys of one group that may be processed at once."""
        self._group = group
        self._most_of_group = most_of_group
        self._busy: Counter[str] = Counter()
        self._clock: Clock = clock or SystemClock()
        self._backoff = backoff
        self._ready: dict[Priority, dict[str, dict[K, float]]] = {lane: {} for lane in Priority}
        """By lane and group, in the order of their turns: since when each key is ready."""
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

    def backoff(self, key: K) -> float:
        """Add ``key`` again after its exponential delay; returns that delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = self._backoff.seconds(failures)
        self.add_after(key, delay)
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
                key = self._take(lane)
                if key is not None:
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

    def _take(self, lane: Priority) -> K | None:
        group = next((name for name in self._ready[lane] if self._busy[name] < self._most_of_group), None)
        if group is None:
            return None
        keys = self._ready[lane].pop(group)
        key = next(iter(keys))
        del keys[key]
        if keys:
            self._ready[lane][group] = keys  # to the end of the turns
        self._active.add(key)
        self._busy[group] += 1
        self._delayed.pop(key, None)  # this pass says anew when the next one is due
        return key

    def done(self, key: K) -> None:
        """The caller has finished ``key``; if it was added meanwhile it is ready again.

        Raises:
            ValueError: the key is not being processed: a programming error.
        """
        if key not in self._active:
            raise ValueError(f"done({key!r}): the key is not being processed; call done once for each get")
        self._active.remove(key)
        group = self._group(key)
        self._busy[group] -= 1
        if not self._busy[group]:
            del self._busy[group]
        if key in self._again:
            priority, since = self._again.pop(key)
            self._make_ready(key, priority, since)
        elif any(group in lane for lane in self._ready.values()):
            self._wake_one()  # it may have waited for this very end

    def close(self) -> None:
        """Stop the timer of the delayed adds; for shutdown."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    @property
    def depth(self) -> int:
        """Keys that wait for a worker (delayed ones do not)."""
        return len(self._waits_since()) + len(self._again)

    @property
    def oldest_seconds(self) -> float:
        """How long the longest-waiting key has waited; 0 where none waits."""
        waiting = [*self._waits_since(), *(since for _, since in self._again.values())]
        return max(0.0, self._clock.monotonic() - min(waiting)) if waiting else 0.0

    def _waits_since(self) -> list[float]:
        return [since for lane in self._ready.values() for keys in lane.values() for since in keys.values()]

    def _make_ready(self, key: K, priority: Priority, since: float) -> None:
        group = self._group(key)
        for lane in Priority:
            keys = self._ready[lane].get(group, {})
            if key in keys:
                if lane <= priority:
                    return
                since = keys.pop(key)
                if not keys:
                    del self._ready[lane][group]
        self._ready[priority].setdefault(group, {})[key] = since
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

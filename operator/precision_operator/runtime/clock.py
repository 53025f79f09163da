"""Time as a port: whatever waits or measures takes a ``Clock``, so that tests move time by hand."""

import asyncio
import time
from collections.abc import Coroutine, Iterable
from typing import Protocol, TypeVar

T = TypeVar("T")

TURN_SECONDS = 0.005
"""How long work in steps keeps the event loop from others."""


class Clock(Protocol):
    """Wall time for what people read, monotonic time for what must not jump, and a way to wait."""

    def time(self) -> float:
        """Wall clock; seconds since the epoch. May jump."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; zero or less yields once."""
        ...


class SystemClock:
    """The machine's clock."""

    def time(self) -> float:
        """Wall clock; seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """CLOCK_MONOTONIC; it runs on while the process is stopped (SIGSTOP)."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait on the event loop."""
        await asyncio.sleep(max(0.0, seconds))


async def within(clock: Clock, seconds: float, work: Coroutine[object, object, T]) -> T:
    """The result of ``work``, given ``seconds`` of ``clock``.

    Unlike ``asyncio.timeout`` it obeys the injected clock. The work is cancelled and awaited when time is up.

    Raises:
        TimeoutError: time was up first.
    """
    task = asyncio.ensure_future(work)
    alarm = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({task, alarm}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise TimeoutError(f"no result within {seconds:g} s")
    finally:
        for pending in (task, alarm):
            pending.cancel()
        await asyncio.gather(task, alarm, return_exceptions=True)


async def wait_event(clock: Clock, event: asyncio.Event, seconds: float) -> bool:
    """Wait until ``event`` is set, at most ``seconds``; whether it is set."""
    try:
        await within(clock, seconds, event.wait())
    except TimeoutError:
        return event.is_set()
    return True


async def in_turns(clock: Clock, steps: Iterable[object]) -> None:
    """Take all steps, and let others run every few milliseconds."""
    until = clock.monotonic() + TURN_SECONDS
    for _ in steps:
        if clock.monotonic() >= until:
            await clock.sleep(0)
            until = clock.monotonic() + TURN_SECONDS

"""A clock that a test moves by hand."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ManualClock:
    """Time stands still until ``advance``."""

    def __init__(self, start: float = 1_000.0) -> None:
        self.now = start
        self.wall_ahead = 1_800_000_000.0
        """Of the wall clock before the monotonic one: a test that changes it sets the wall clock."""
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def time(self) -> float:
        return self.wall_ahead + self.now

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, future))
        await future

    async def advance(self, seconds: float) -> None:
        """Move on to ``seconds`` from now, waking each sleeper at its own time."""
        target = self.now + seconds
        await settle()
        while True:
            self._sleepers = [(at, f) for at, f in self._sleepers if not f.done()]
            due = min((at for at, _ in self._sleepers if at <= target), default=None)
            if due is None:
                break
            self.now = max(self.now, due)
            for at, future in self._sleepers:
                if at <= self.now and not future.done():
                    future.set_result(None)
            await settle()
        self.now = target
        await settle()


async def settle() -> None:
    """Let everything run that can run."""
    for _ in range(25):
        await asyncio.sleep(0)


async def finished(clock: ManualClock, what: Awaitable[T]) -> T:
    """Let time pass until this has come to its end."""
    task = asyncio.ensure_future(what)
    await settle()
    while not task.done():
        await clock.advance(0.05)
    return await task


def late(clock: ManualClock, seconds: float, call: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """The same call, which takes so long before it does anything."""

    async def slow(*given: P.args, **options: P.kwargs) -> T:
        await clock.sleep(seconds)
        return await call(*given, **options)

    return slow

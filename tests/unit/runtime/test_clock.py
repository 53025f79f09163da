"""Work in steps leaves the event loop to others."""

from __future__ import annotations

import asyncio
import itertools

from precision_operator.runtime.clock import TURN_SECONDS, in_turns
from tests.support.manual_clock import ManualClock


async def test_work_in_steps_lets_others_run_every_few_milliseconds() -> None:
    clock, done, seen = ManualClock(), list[int](), list[int]()

    def step(number: int) -> None:
        clock.now += TURN_SECONDS / 4
        done.append(number)

    async def look() -> None:
        while True:
            seen.append(len(done))
            await asyncio.sleep(0)

    other = asyncio.ensure_future(look())
    await in_turns(clock, map(step, range(40)))
    other.cancel()
    assert done == list(range(40))
    assert max(after - before for before, after in itertools.pairwise(seen)) <= 5

"""The rate limiter: ceilings hold, emergencies go first and borrow within bounds."""

import asyncio

import pytest

from precision_operator.errors import TooManyRequests
from precision_operator.runtime.ratelimit import RateLimiter
from tests.support.manual_clock import ManualClock, settle


class Writers:
    """Writers that note when they got their slot and keep it until told."""

    def __init__(self, limiter: RateLimiter, *, keep: bool = False) -> None:
        self.limiter = limiter
        self.got: list[str] = []
        self.leave = asyncio.Event()
        if not keep:
            self.leave.set()
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, name: str, *, emergency: bool = False, group: str = "") -> "asyncio.Task[None]":
        async def write() -> None:
            async with self.limiter.slot(emergency, group):
                self.got.append(name)
                await self.leave.wait()

        task = asyncio.ensure_future(write())
        self.tasks.append(task)
        return task


async def test_the_rate_holds() -> None:
    clock = ManualClock()
    writers = Writers(RateLimiter(10, 100, clock))
    for i in range(25):
        writers.start(str(i))
    await settle()
    assert len(writers.got) == 10
    await clock.advance(1.0)
    assert len(writers.got) == 20
    await clock.advance(0.5)
    assert writers.got == [str(i) for i in range(25)]


async def test_no_more_than_so_many_are_in_flight() -> None:
    limiter = RateLimiter(1000, 3, ManualClock())
    writers = Writers(limiter, keep=True)
    for i in range(5):
        writers.start(str(i))
    await settle()
    assert (len(writers.got), limiter._held.total(), limiter.waiting) == (3, 3, 2)
    writers.leave.set()
    await asyncio.gather(*writers.tasks)
    assert limiter._held.total() == 0


async def test_an_emergency_overtakes_and_borrows_up_to_its_burst() -> None:
    clock = ManualClock()
    writers = Writers(RateLimiter(10, 100, clock, emergency_burst=5))
    for i in range(12):
        writers.start(f"n{i}")
    await settle()
    for i in range(7):
        writers.start(f"e{i}", emergency=True)
    await settle()
    assert writers.got[10:] == [f"e{i}" for i in range(5)], "the credit is bounded"
    await clock.advance(0.21)
    assert writers.got[15:] == ["e5", "e6"]
    await clock.advance(0.5)
    assert len(writers.got) == 17, "normal writes pay the credit back"
    await clock.advance(0.3)
    assert writers.got[17:] == ["n10", "n11"]


async def test_a_cancelled_waiter_leaves_no_hole() -> None:
    clock = ManualClock()
    limiter = RateLimiter(1000, 1, clock)
    writers = Writers(limiter, keep=True)
    writers.start("a")
    await settle()
    second, _ = writers.start("b"), writers.start("c")
    await settle()
    second.cancel()
    writers.tasks[0].cancel()
    await settle()
    assert writers.got == ["a", "c"]
    assert limiter._held.total() == 1
    writers.leave.set()
    await asyncio.gather(*writers.tasks, return_exceptions=True)
    assert limiter._held.total() == 0


async def test_a_pause_refuses_both_lanes_of_its_group_and_no_other() -> None:
    """Who waited it out would hold a worker that other namespaces need."""
    clock = ManualClock()
    limiter = RateLimiter(10, 10, clock)
    writers = Writers(limiter)
    limiter.pause(2.0, "busy")
    refused = [writers.start("n", group="busy"), writers.start("e", emergency=True, group="busy")]
    writers.start("other", group="quiet")
    await clock.advance(1.9)
    assert writers.got == ["other"]
    assert [type(task.exception()) for task in refused] == [TooManyRequests] * 2
    assert limiter.paused_seconds("busy") == pytest.approx(0.1)
    assert limiter.paused_seconds("quiet") == 0
    await clock.advance(0.2)
    await writers.start("again", group="busy")


async def test_a_pause_refuses_those_too_that_waited_for_their_turn_when_it_began() -> None:
    limiter = RateLimiter(10, 1, ManualClock())
    writers = Writers(limiter, keep=True)
    _, *waiting = [writers.start(name, group="busy") for name in ("first", "second", "third")]
    await settle()
    limiter.pause(2.0, "busy")
    writers.start("other", group="quiet")
    writers.leave.set()
    await settle()
    assert writers.got == ["first", "other"]
    assert [type(task.exception()) for task in waiting] == [TooManyRequests] * 2
    assert limiter._held.total() == 0


async def test_a_turn_that_a_pause_takes_away_costs_no_token() -> None:
    clock = ManualClock()
    limiter = RateLimiter(5, 1, clock)
    writers = Writers(limiter, keep=True)
    for number in range(4):
        writers.start(f"paused-{number}", group="busy")
    await settle()
    limiter.pause(60.0, "busy")
    writers.leave.set()
    await asyncio.gather(*writers.tasks, return_exceptions=True)
    for number in range(5):
        writers.start(f"n{number}")
    await settle()
    assert writers.got == ["paused-0", "n0", "n1", "n2", "n3"]


async def test_a_shorter_pause_does_not_end_a_longer_one() -> None:
    clock = ManualClock()
    limiter = RateLimiter(10, 1, clock)
    limiter.pause(5.0, "busy")
    limiter.pause(1.0, "busy")
    assert limiter.paused_seconds("busy") == 5.0
    await clock.advance(6.0)
    limiter.pause(1.0, "another")
    assert list(limiter._paused_until) == ["another"], "what is over is forgotten"


@pytest.mark.parametrize(("rate", "cap"), [(0, 1), (-1, 1), (1, 0)])
def test_a_limit_that_lets_nothing_through_is_refused(rate: float, cap: int) -> None:
    with pytest.raises(ValueError, match="writesPerSecond"):
        RateLimiter(rate, cap, ManualClock())


async def test_groups_go_in_turn_and_none_has_all_writes_in_flight() -> None:
    """One namespace's emergency of many pods, whose writes hang, and another's of one."""
    limiter = RateLimiter(1000, 4, ManualClock())
    writers = Writers(limiter, keep=True)
    large = [writers.start(f"a{i}", emergency=True, group="a") for i in range(50)]
    await settle()
    assert writers.got == ["a0", "a1", "a2"]
    writers.start("b", emergency=True, group="b")
    await settle()
    assert writers.got[3:] == ["b"]
    writers.start("c", emergency=True, group="c")
    for writer in large[:2]:
        writer.cancel()
        await settle()
    assert writers.got[4:] == ["a3", "c"]
    writers.leave.set()
    await asyncio.gather(*writers.tasks, return_exceptions=True)
    assert limiter._held.total() == 0


async def test_an_emergency_that_may_not_go_for_its_group_holds_nobody_back() -> None:
    writers = Writers(RateLimiter(1000, 2, ManualClock()), keep=True)
    writers.start("a1", emergency=True, group="a")
    writers.start("a2", emergency=True, group="a")
    writers.start("b", group="b")
    await settle()
    assert writers.got == ["a1", "b"]
    writers.leave.set()
    await asyncio.gather(*writers.tasks)


async def test_a_slot_that_is_given_back_costs_no_token() -> None:
    limiter = RateLimiter(2, 1, ManualClock())
    for _ in range(3):
        async with limiter.slot() as slot:
            slot.give_back()
    writers = Writers(limiter)
    for number in range(3):
        writers.start(f"n{number}")
    await settle()
    assert writers.got == ["n0", "n1"]

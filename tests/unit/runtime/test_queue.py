"""The work queue: no key lost, never two workers on one key, the urgent first."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_operator.runtime.queue import Priority, WorkQueue
from tests.support.manual_clock import ManualClock, settle


async def test_a_key_is_taken_once_however_often_it_was_added() -> None:
    queue: WorkQueue[str] = WorkQueue(ManualClock())
    for _ in range(3):
        queue.add("a")
    assert await queue.get() == "a"
    assert queue.depth == 0


async def test_a_key_added_while_processed_runs_once_more_and_not_before_done() -> None:
    queue: WorkQueue[str] = WorkQueue(ManualClock())
    queue.add("a")
    key = await queue.get()
    queue.add("a")
    queue.add("a", priority=Priority.EMERGENCY)
    second = asyncio.ensure_future(queue.get())
    await settle()
    assert not second.done()
    queue.done(key)
    assert await second == "a"
    queue.done("a")
    assert queue.depth == 0


async def test_an_emergency_goes_first_and_moves_a_waiting_key_up() -> None:
    queue: WorkQueue[str] = WorkQueue(ManualClock())
    for key in "abc":
        queue.add(key)
    queue.add("c", priority=Priority.EMERGENCY)
    queue.add("c")  # never down again
    assert [await queue.get() for _ in range(3)] == ["c", "a", "b"]


async def test_of_several_delays_the_earliest_wins() -> None:
    clock = ManualClock()
    queue: WorkQueue[str] = WorkQueue(clock)
    queue.add_after("a", 10)
    queue.add_after("a", 2)
    queue.add_after("a", 5)
    getter = asyncio.ensure_future(queue.get())
    await clock.advance(1.9)
    assert not getter.done()
    await clock.advance(0.2)
    assert await getter == "a"
    queue.done("a")
    await clock.advance(60)
    assert queue.depth == 0


async def test_backoff_doubles_up_to_its_limit_and_forget_resets_it() -> None:
    queue: WorkQueue[str] = WorkQueue(ManualClock())
    delays = [queue.backoff("a") for _ in range(11)]
    assert delays[:4] == [0.1, 0.2, 0.4, 0.8]
    assert delays[-1] == 30.0
    assert queue.backoff("b") == 0.1
    queue.forget("a")
    assert queue.backoff("a") == 0.1


async def test_a_dropped_key_does_not_come_back_by_itself() -> None:
    clock = ManualClock()
    queue: WorkQueue[str] = WorkQueue(clock)
    queue.add("a")
    key = await queue.get()
    queue.add_after("a", 1)
    queue.backoff("a")
    queue.drop("a")
    queue.done(key)
    await clock.advance(5)
    assert queue.depth == 0
    assert queue.backoff("a") == 0.1


async def test_a_dropped_key_that_was_added_meanwhile_is_taken_again() -> None:
    queue: WorkQueue[str] = WorkQueue(ManualClock())
    queue.add("a")
    key = await queue.get()
    queue.add("a")
    queue.drop("a")
    queue.done(key)
    assert await queue.get() == "a"


async def test_a_cancelled_get_loses_no_key() -> None:
    queue: WorkQueue[str] = WorkQueue(ManualClock())
    first, second = asyncio.ensure_future(queue.get()), asyncio.ensure_future(queue.get())
    await settle()
    queue.add("a")
    first.cancel()
    assert await asyncio.wait_for(second, 1) == "a"


async def test_age_counts_from_the_first_add() -> None:
    clock = ManualClock()
    queue: WorkQueue[str] = WorkQueue(clock)
    assert queue.oldest_seconds == 0
    queue.add("a")
    await clock.advance(3)
    queue.add("a", priority=Priority.EMERGENCY)
    assert queue.oldest_seconds == 3


async def test_done_without_get_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="once for each get"):
        WorkQueue[str](ManualClock()).done("a")


_KEYS = st.sampled_from("abcd")
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), _KEYS, st.sampled_from(Priority)),
        st.tuples(st.just("after"), _KEYS, st.sampled_from([0.5, 1.0, 3.0])),
        st.tuples(st.just("backoff"), _KEYS, st.none()),
        st.tuples(st.just("get"), st.none(), st.none()),
        st.tuples(st.just("done"), st.integers(0, 3), st.none()),
        st.tuples(st.just("tick"), st.sampled_from([0.4, 1.0, 5.0]), st.none()),
    ),
    max_size=40,
)


@given(_STEPS)
@settings(max_examples=150, deadline=None)
def test_no_key_is_lost_none_is_taken_twice_and_the_urgent_go_first(steps: list[tuple[str, object, object]]) -> None:
    asyncio.run(_Model().check(steps))


class _Model:
    """The simplest one: which keys are owed a run, and since when at which priority."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.queue: WorkQueue[str] = WorkQueue(self.clock)
        self.owed: dict[str, Priority] = {}
        self.due: dict[str, float] = {}
        self.active: list[str] = []

    async def check(self, steps: list[tuple[str, object, object]]) -> None:
        for step in steps:
            await self.apply(step)
            self.pass_time()
            assert self.queue.depth == len(self.owed)
        await self.clock.advance(100)
        self.pass_time()
        for key in self.active:
            self.queue.done(key)
        self.active.clear()
        while self.owed:
            await self.take()
        assert self.queue.depth == 0
        self.queue.close()

    async def apply(self, step: tuple[str, object, object]) -> None:
        match step:
            case "add", str(key), Priority() as priority:
                self.queue.add(key, priority=priority)
                self.owed[key] = min(self.owed.get(key, priority), priority)
            case "after", str(key), float(delay):
                self.queue.add_after(key, delay)
                self.wait(key, delay)
            case "backoff", str(key), _:
                self.wait(key, self.queue.backoff(key))
            case "get", _, _:
                await self.take()
            case "done", int(index), _:
                if self.active:
                    self.queue.done(self.active.pop(index % len(self.active)))
            case "tick", float(seconds), _:
                await self.clock.advance(seconds)
            case _:
                raise AssertionError(step)

    def wait(self, key: str, delay: float) -> None:
        self.due[key] = min(self.due.get(key, float("inf")), self.clock.now + delay)

    def pass_time(self) -> None:
        for key in [k for k, at in self.due.items() if at <= self.clock.now]:
            del self.due[key]
            self.owed[key] = min(self.owed.get(key, Priority.NORMAL), Priority.NORMAL)

    async def take(self) -> None:
        ready = {k: p for k, p in self.owed.items() if k not in self.active}
        if not ready:
            return
        key = await asyncio.wait_for(self.queue.get(), 1)
        assert key not in self.active, "two workers on one key"
        assert key in ready, "a run that nobody asked for"
        assert ready[key] == min(ready.values()), "an emergency was overtaken"
        del self.owed[key]
        self.due.pop(key, None)  # whoever takes it says anew when it is due
        self.active.append(key)


async def test_a_pass_ends_the_delay_that_was_asked_for_before_it() -> None:
    clock = ManualClock()
    queue: WorkQueue[str] = WorkQueue(clock)
    queue.add_after("a", 10.0)
    queue.add("a")
    assert await queue.get() == "a"
    queue.add_after("a", 15.0)
    queue.done("a")
    await clock.advance(10.0)
    assert queue.depth == 0
    await clock.advance(5.0)
    assert queue.depth == 1
    queue.close()


def by_first_letter(most: int = 1) -> WorkQueue[str]:
    return WorkQueue(ManualClock(), group=lambda key: key[0], most_of_group=most)


async def test_groups_go_in_turn_and_each_in_its_order() -> None:
    queue = by_first_letter(most=9)
    for key in ("a1", "a2", "a3", "b1", "b2"):
        queue.add(key)
    assert [await queue.get() for _ in range(5)] == ["a1", "b1", "a2", "b2", "a3"]


async def test_a_group_never_has_all_workers_and_goes_on_when_one_of_its_keys_ends() -> None:
    """200 slow passes of one namespace."""
    queue = by_first_letter()
    for number in range(200):
        queue.add(f"a{number}")
    slow = await queue.get()
    waiting = asyncio.ensure_future(queue.get())
    await settle()
    assert not waiting.done()
    queue.add("b")
    await settle()
    assert waiting.result() == "b"
    waiting = asyncio.ensure_future(queue.get())
    await settle()
    queue.done("b")
    await settle()
    assert not waiting.done()
    queue.done(slow)
    await settle()
    assert waiting.result() == "a1"
    assert queue.depth == 198


async def test_a_key_that_was_added_meanwhile_waits_behind_those_of_its_group() -> None:
    queue = by_first_letter()
    queue.add("a1")
    queue.add("a2")
    key = await queue.get()
    queue.add(key)
    queue.done(key)
    assert await queue.get() == "a2"

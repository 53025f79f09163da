"""Which policies share an answer, and what of one the next turn goes on from."""

import asyncio
import weakref
from collections.abc import Sequence
from dataclasses import replace

import pytest

from precision_operator.api.signals import Signal
from precision_operator.signals import evaluator as evaluator_module
from precision_operator.signals.grouping import Split, split
from precision_operator.signals.port import Sample
from precision_operator.signals.queries import ACK, BUILT_IN
from tests.support.evaluating import PLAN, Source, make
from tests.support.manual_clock import ManualClock, settle
from tests.support.samples import sample


async def test_policies_that_ask_the_same_share_the_requests() -> None:
    clock = ManualClock()
    source = Source()
    evaluator = make(source, clock)
    other = replace(PLAN, queries=(("overflow", ""), ("speed", "")))
    first, second = await asyncio.gather(evaluator.evaluate(PLAN), evaluator.evaluate(other))
    assert len(source.asked) == len(set(source.asked)) == 7
    assert first.at == second.at
    await clock.advance(0.9)
    third = await evaluator.evaluate(PLAN)
    assert len(source.asked) == 7, "fresh for half an interval"
    assert third.at == first.at, "the same reading, so the same time"
    await clock.advance(0.2)
    fourth = await evaluator.evaluate(PLAN)
    assert len(source.asked) == 13
    assert fourth.at > first.at
    await evaluator.evaluate(replace(PLAN, namespace="other"))
    assert len(source.asked) == 19


async def test_policies_that_share_all_answers_share_what_is_made_of_them_and_no_others() -> None:
    clock = ManualClock()
    source = Source(overflow=[sample("a", 0.25)], loss=[sample("a", 0.5)])
    evaluator = make(source, clock)
    first, same = await evaluator.evaluate(PLAN), await evaluator.evaluate(PLAN)
    assert same.pods is first.pods
    fewer = await evaluator.evaluate(replace(PLAN, queries=PLAN.queries[:1]))
    assert fewer.pods["a"].values == {Signal.OVERFLOW: 0.25}
    assert (await evaluator.evaluate(PLAN)).pods is first.pods, "whoever asked for less between them"
    assert first.pods["a"].values == {Signal.OVERFLOW: 0.25, Signal.DIVERGENCE: 0.5}
    await clock.advance(PLAN.interval_seconds)
    source.answers["overflow"] = [sample("a", 0.75)]
    assert (await evaluator.evaluate(PLAN)).pods["a"].values[Signal.OVERFLOW] == 0.75


async def test_an_answer_that_is_the_one_before_is_not_split_again(monkeypatch: pytest.MonkeyPatch) -> None:
    splits: list[str] = []

    def counted(name: str, samples: Sequence[Sample]) -> Split:
        splits.append(name)
        return split(name, samples)

    monkeypatch.setattr(evaluator_module, "split", counted)
    clock, found = ManualClock(), [sample("a", 0.25)]
    source = Source(overflow=found)
    evaluator = make(source, clock)
    await evaluator.evaluate(PLAN)
    splits.clear()
    for answer in (found, [sample("a", 0.75)], [sample("a", 0.75)]):
        await clock.advance(PLAN.interval_seconds)
        source.answers["overflow"] = answer
        assert (await evaluator.evaluate(PLAN)).pods["a"].values[Signal.OVERFLOW] == answer[0].value
    assert splits.count("overflow") == 2


async def test_an_answer_that_is_not_asked_for_again_is_forgotten() -> None:
    class Answer(list[Sample]):
        """One that can be referred to weakly."""

    clock = ManualClock()
    source = Source(overflow=Answer([sample("a", 0.25)]))
    evaluator = make(source, clock)
    found = await evaluator.evaluate(PLAN)
    answer = weakref.ref(source.answers.pop("overflow"))
    assert found.pods["a"].values == {Signal.OVERFLOW: 0.25}
    await clock.advance(5 * PLAN.interval_seconds)
    await evaluator.evaluate(replace(PLAN, namespace="other"))
    assert answer() is None


async def test_an_answer_that_was_cancelled_costs_the_next_reading_nothing() -> None:
    clock = ManualClock()
    source = Source()
    source.gate = asyncio.Event()
    evaluator = make(source, clock)
    reading = asyncio.ensure_future(evaluator.evaluate(PLAN))
    await settle()
    for task in [task for task in asyncio.all_tasks() if "_ask" in repr(task.get_coro())]:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    source.gate.set()
    await clock.advance(PLAN.interval_seconds)
    assert (await evaluator.evaluate(PLAN)).errors == {}


async def test_nothing_that_was_read_before_a_leadership_is_shared_in_it() -> None:
    clock = ManualClock()
    source = Source()
    evaluator = make(source, clock)
    await evaluator.evaluate(PLAN)
    asked = len(source.asked)
    evaluator.begin()
    await evaluator.evaluate(PLAN)
    assert len(source.asked) == 2 * asked


async def test_a_query_that_two_names_ask_is_sent_once() -> None:
    source = Source()
    evaluator = make(source, ManualClock(), mine='min by (pod) (mine{namespace="$namespace"})')
    await evaluator.evaluate(replace(PLAN, queries=(("overflow", "mine"), ("speed", "mine"))))
    assert len([query for query in source.asked if "mine" in query]) == 1


async def test_a_query_that_two_names_ask_is_split_as_each_of_them_needs_it() -> None:
    clock = ManualClock()
    said = [sample("a", -2.0, mode="fp16", generation="3"), sample("a", -1.0, mode="fp16", generation="4")]
    evaluator = make(Source(precision_info=said), clock, mine=BUILT_IN[ACK])
    found = await evaluator.evaluate(replace(PLAN, queries=(("overflow", "mine"),)))
    assert (found.pods["a"].generation, found.pods["a"].values) == (4, {})


async def test_a_slow_source_is_asked_once_at_a_time() -> None:
    clock = ManualClock()
    source = Source()
    source.gate = asyncio.Event()
    evaluator = make(source, clock)
    asking = []
    for _ in range(5):
        asking.append(asyncio.ensure_future(evaluator.evaluate(PLAN)))
        await clock.advance(2)
    assert len(source.asked) == len(set(source.asked)) > 1
    asking[0].cancel()
    await settle()
    source.gate.set()
    evaluations = await asyncio.gather(*asking[1:])
    assert len(source.asked) == len(set(source.asked)) == 6
    assert len({evaluation.at for evaluation in evaluations}) == 1

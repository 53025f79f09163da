"""The evaluator: one query a metric whoever asks, split by pod, and never an exception."""

import asyncio
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.core.model import PodSignals
from precision_operator.errors import QueryInvalid, SourceUnavailable
from precision_operator.signals import evaluator as evaluator_module
from precision_operator.signals.evaluator import WORK_SECONDS, Evaluator
from precision_operator.signals.grouping import Split, split
from precision_operator.signals.plan import EvaluationPlan
from precision_operator.signals.port import Sample
from precision_operator.signals.queries import ACK, BUILT_IN, CHECKPOINT
from tests.support.manual_clock import ManualClock, settle
from tests.support.samples import sample

PLAN = EvaluationPlan(
    endpoint="main",
    namespace="team",
    window_seconds=10,
    min_steps=5,
    interval_seconds=2,
    queries=(("overflow", ""), ("divergence", "")),
)


class Source:
    """Answers by a word that the query contains; counts what it was asked."""

    def __init__(self, **answers: Sequence[Sample] | Exception) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.gate: asyncio.Event | None = None

    async def vector(self, query: str) -> Sequence[Sample]:
        self.asked.append(query)
        if self.gate is not None:
            await self.gate.wait()
        for word, answer in self.answers.items():
            if word in query:
                if isinstance(answer, Exception):
                    raise answer
                return answer
        return []


def make(source: Source, clock: ManualClock, **queries: str) -> Evaluator:
    return Evaluator({"main": source}, queries, clock)


async def test_answers_are_split_by_pod() -> None:
    clock = ManualClock()
    source = Source(
        precision_info=[sample("a", -2.0, mode="fp16", generation="3"), sample("b", -1.0, mode="fp32", generation="2")],
        training_steps_total=[sample("a", 40.0)],
        overflow=[sample("a", 0.25)],
        loss=[sample("a", math.nan), sample("c", -0.1)],
    )
    # "steps" and "overflow" share words: the steps query names genesis_training_steps_total only
    source.answers = {k: source.answers[k] for k in ("overflow", "precision_info", "training_steps_total", "loss")}
    evaluation = await make(source, clock).evaluate(PLAN)
    assert {name: str(error) for name, error in evaluation.errors.items()} == {}
    assert evaluation.at == evaluation.continuous_since == clock.time()
    a = evaluation.pods["a"]
    assert (a.mode, a.generation, a.sampled_at, a.steps) == (Mode.FP16, 3, evaluation.at - 2.0, 40.0)
    assert a.values[Signal.OVERFLOW] == 0.25
    assert math.isnan(a.values[Signal.DIVERGENCE])
    assert evaluation.pods["b"] == PodSignals(mode=Mode.FP32, generation=2, sampled_at=evaluation.at - 1.0)
    assert evaluation.pods["c"].sampled_at is None
    assert len(source.asked) == 6


async def test_checkpoints_are_asked_for_where_the_plan_says_so_and_that_begins_nothing_anew() -> None:
    clock = ManualClock()
    source = Source(checkpoint=[sample("a", -30.0), sample("b", math.nan)])
    evaluator = make(source, clock)
    first = await evaluator.evaluate(PLAN)
    assert (first.pods, len(source.asked)) == ({}, 6)
    await clock.advance(2)
    evaluation = await evaluator.evaluate(replace(PLAN, besides=(CHECKPOINT,)))
    assert len(source.asked) == 6 + 7
    assert evaluation.continuous_since == first.continuous_since
    assert {name: pod.checkpoint_at for name, pod in evaluation.pods.items()} == {"a": evaluation.at - 30.0, "b": None}


async def test_the_newest_acknowledgement_counts_and_a_contradiction_counts_for_nothing() -> None:
    source = Source(
        precision_info=[
            sample("a", 100.0, mode="fp16", generation="3"),
            sample("a", 102.0, mode="fp32", generation="4"),
            sample("b", 100.0, mode="fp16", generation="3"),
            sample("b", 100.0, mode="fp32", generation="3"),
            sample("c", 100.0, mode="int4", generation="-1"),
            sample("d", math.nan, mode="fp16", generation="3"),
            sample("e", 100.0, mode="fp16", generation="9" * 5000),
        ]
    )
    evaluation = await make(source, ManualClock()).evaluate(PLAN)
    assert (evaluation.pods["a"].mode, evaluation.pods["a"].generation) == (Mode.FP32, 4)
    assert (evaluation.pods["b"].mode, evaluation.pods["b"].generation) == (None, None)
    assert {name: str(error) for name, error in evaluation.errors.items()} == {}
    assert (evaluation.pods["c"].mode, evaluation.pods["c"].generation) == (None, None)
    assert "d" not in evaluation.pods
    assert (evaluation.pods["e"].mode, evaluation.pods["e"].generation) == (Mode.FP16, None)


async def test_a_pod_with_two_series_has_no_value_and_nobody_else_is_the_worse_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A namespace holds pods of others too: theirs must not blind the guard of the fleet."""
    source = Source(overflow=[sample("a", 0.0), sample("a", 1.0), sample("b", 0.5)])
    clock = ManualClock()
    evaluator = make(source, clock)
    for _ in range(3):
        evaluation = await evaluator.evaluate(PLAN)
        await clock.advance(2)
    assert "a" not in evaluation.pods
    assert evaluation.pods["b"].values == {Signal.OVERFLOW: 0.5}
    assert {name: str(error) for name, error in evaluation.errors.items()} == {}
    assert [r.getMessage().split(";")[0] for r in caplog.records] == ["query overflow: more than one series for a"]


async def test_an_answer_without_any_pod_is_an_error_and_a_foreign_series_without_one_is_not() -> None:
    evaluation = await make(Source(overflow=[sample("", 1.0)]), ManualClock()).evaluate(PLAN)
    assert evaluation.pods == {}
    assert str(evaluation.errors["overflow"]).startswith("MissingPodLabel: none of 1 series")
    evaluation = await make(Source(overflow=[sample("", 1.0), sample("a", 0.5)]), ManualClock()).evaluate(PLAN)
    assert evaluation.pods["a"].values == {Signal.OVERFLOW: 0.5}
    assert {name: str(error) for name, error in evaluation.errors.items()} == {}


async def test_an_error_stays_with_its_query() -> None:
    source = Source(
        overflow=SourceUnavailable("no answer within 5 s"), loss=QueryInvalid("parse"), info=RuntimeError("bug")
    )
    evaluation = await make(source, ManualClock()).evaluate(PLAN)
    assert {name: str(error) for name, error in evaluation.errors.items()} == {
        "overflow": "MetricsUnavailable: no answer within 5 s",
        "divergence": "QueryInvalid: parse",
        **dict.fromkeys(("ack", "run"), "InternalError: RuntimeError: bug"),
    }


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


async def test_continuity_ends_with_a_gap_of_more_than_three_intervals() -> None:
    clock = ManualClock()
    evaluator = make(Source(), clock)
    began = (await evaluator.evaluate(PLAN)).at
    for pause in (2, 2, 6):
        await clock.advance(pause)
        assert (await evaluator.evaluate(PLAN)).continuous_since == began
    await clock.advance(6.1)
    again = await evaluator.evaluate(PLAN)
    assert again.continuous_since == again.at


@pytest.mark.parametrize("seconds", [600.0, -600.0, 2.0, -2.0])
async def test_a_wall_clock_that_was_set_ends_continuity(seconds: float) -> None:
    clock = ManualClock()
    evaluator = make(Source(), clock)
    await evaluator.evaluate(PLAN)
    await clock.advance(2)
    clock.wall_ahead += seconds
    stepped = await evaluator.evaluate(PLAN)
    assert stepped.continuous_since == stepped.clock_since == clock.time()
    await clock.advance(2)
    later = await evaluator.evaluate(PLAN)
    assert (later.continuous_since, later.clock_since) == (stepped.continuous_since, stepped.clock_since)


async def test_a_wall_clock_that_is_slewed_or_was_right_all_along_is_not_taken_for_one_that_was_set() -> None:
    clock = ManualClock()
    evaluator = make(Source(), clock)
    began = (await evaluator.evaluate(PLAN)).at
    for _ in range(5):
        await clock.advance(2)
        clock.wall_ahead += 0.9
        seen = await evaluator.evaluate(PLAN)
        assert (seen.continuous_since, seen.clock_since) == (began, 0.0)


async def test_an_answer_that_is_shared_across_a_step_back_has_watched_nothing() -> None:
    clock = ManualClock()
    evaluator = make(Source(), clock)
    await evaluator.evaluate(PLAN)
    clock.wall_ahead -= 3600.0
    for _ in range(2):
        shared = await evaluator.evaluate(PLAN)
        assert shared.at - shared.continuous_since == 0.0


GOOD = 'max by (pod) (mine{namespace="$namespace"})'


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        ({}, None, []),
        ({"endpoint": "prod"}, "UnknownEndpoint", ["'prod'", "known endpoints: main", "prometheusRef"]),
        ({"queries": (("overflow", "mine"),)}, None, []),
        ({"queries": (("overflow", "yours"),)}, "UnknownQuery", ["'yours'", "bad, mine", "settings"]),
        ({"queries": (("overflow", "bad"),)}, "QueryInvalid", ["'bad'", "does not parse", "correct"]),
        ({"queries": (("latency", ""),)}, "UnknownQuery", ["'latency'", "divergence"]),
    ],
)
async def test_a_plan_that_cannot_be_carried_out_is_told_why_and_asks_nothing(
    change: dict[str, object], reason: str | None, words: list[str]
) -> None:
    source = Source()
    evaluator = make(source, ManualClock(), mine=GOOD, bad='sum(x{namespace="$namespace"}')
    make_plan: Callable[..., EvaluationPlan] = replace
    plan = make_plan(PLAN, **change)
    problem = evaluator.problem(plan)
    evaluation = await evaluator.evaluate(plan)
    if reason is None:
        assert problem is None
        return
    assert problem is not None
    assert problem.reason == reason
    for word in words:
        assert word in problem.message
    assert source.asked == []
    assert set(evaluation.errors) >= {"ack", "steps"}
    assert {error.reason for error in evaluation.errors.values()} == {reason}


async def test_an_admins_query_takes_the_built_in_ones_place() -> None:
    source = Source(mine=[sample("a", 0.7)])
    plan = replace(PLAN, queries=(("overflow", "mine"),))
    evaluation = await make(source, ManualClock(), mine=GOOD).evaluate(plan)
    assert evaluation.pods["a"].values == {Signal.OVERFLOW: 0.7}
    assert 'max by (pod) (mine{namespace="team"})' in source.asked


async def test_requests_are_observed_and_a_namespace_that_is_none_is_an_error() -> None:
    seen: list[tuple[str, str]] = []
    source = Source(overflow=SourceUnavailable("away"))
    evaluator = Evaluator(
        {"main": source}, {}, ManualClock(), observe=lambda query, result, _: seen.append((query, result))
    )
    await evaluator.evaluate(PLAN)
    assert ("overflow", "MetricsUnavailable") in seen
    assert ("ack", "success") in seen
    evaluation = await evaluator.evaluate(replace(PLAN, namespace='"}'))
    assert str(evaluation.errors["ack"]).startswith("QueryInvalid: expected a namespace")
    await evaluator.close()


async def test_a_policys_own_query_is_asked_confined_where_the_admin_allows_it() -> None:
    source = Source(mine=[sample("a", 0.7)])
    plan = replace(PLAN, raw=(("overflow", "max by (pod) (max_over_time(mine[$window]))"),))
    evaluation = await Evaluator({"main": source}, {}, ManualClock(), allow_raw=True).evaluate(plan)
    assert evaluation.pods["a"].values == {Signal.OVERFLOW: 0.7}
    assert 'max by (pod) (max_over_time(mine{namespace="team"}[10s]))' in source.asked
    assert len(source.asked) == 6


@pytest.mark.parametrize(
    ("allowed", "query", "reason", "words"),
    [
        (False, "mine", "RawQueryNotAllowed", "allowRawQueries"),
        (True, 'mine{namespace="victim"}', "QueryInvalid", "no other namespace"),
    ],
)
async def test_a_policys_own_query_that_may_not_be_asked_is_not_and_nothing_else_either(
    allowed: bool, query: str, reason: str, words: str
) -> None:
    source = Source()
    evaluator = Evaluator({"main": source}, {}, ManualClock(), allow_raw=allowed)
    plan = replace(PLAN, raw=(("overflow", query),))
    problem = evaluator.problem(plan)
    assert problem is not None
    assert problem.reason == reason
    assert words in problem.message
    evaluation = await evaluator.evaluate(plan)
    assert source.asked == []
    assert evaluation.errors["overflow"].reason == reason


async def test_a_pod_whose_device_has_no_room_for_fp32_is_named_and_of_all_others_nothing_is_known() -> None:
    source = Source(
        precision_info=[sample("a", -1.0, mode="fp16", generation="3")], memory_headroom=[sample("a", 2.0**30)]
    )
    evaluation = await make(source, ManualClock()).evaluate(PLAN)
    assert evaluation.pods["a"].fp32_shortage_bytes == 2.0**30
    other = await make(Source(training_steps_total=[sample("a", 40.0)]), ManualClock()).evaluate(PLAN)
    assert other.pods["a"].fp32_shortage_bytes is None


async def test_a_series_with_a_generation_of_5000_digits_costs_its_pod_the_generation_and_nobody_else_anything() -> (
    None
):
    source = Source(
        precision_info=[
            sample("a", -1.0, mode="fp16", generation="9" * 5000),
            sample("b", -1.0, mode="fp16", generation="3"),
        ]
    )
    evaluation = await make(source, ManualClock()).evaluate(PLAN)
    assert {name: str(error) for name, error in evaluation.errors.items()} == {}
    assert (evaluation.pods["a"].mode, evaluation.pods["a"].generation) == (Mode.FP16, None)
    assert evaluation.pods["b"].generation == 3


async def test_the_work_so_far_is_asked_once_in_a_while_and_waited_for_by_nobody() -> None:
    clock = ManualClock()
    source = Source(fp32_baseline_step=[sample("a", 7200.0)])
    evaluator, plan = make(source, clock), replace(PLAN, work=True)
    first = await evaluator.evaluate(plan)
    assert "a" not in first.pods, "it is not answered yet"
    for _ in range(10):
        await clock.advance(WORK_SECONDS / 10)
        evaluation = await evaluator.evaluate(plan)
        assert evaluation.pods["a"] == PodSignals(fp32_work_seconds=7200.0)
        assert evaluation.at == clock.time(), "an old answer makes no reading old"
    await settle()
    assert sum("fp32_baseline_step" in query for query in source.asked) == 2


async def test_a_work_that_cannot_be_asked_is_no_error_of_the_reading() -> None:
    clock = ManualClock()
    source = Source(fp32_baseline_step=SourceUnavailable("no"))
    evaluator, plan = make(source, clock), replace(PLAN, work=True)
    for _ in range(3):
        evaluation = await evaluator.evaluate(plan)
        await clock.advance(2)
    assert (evaluation.errors, evaluation.pods) == ({}, {})

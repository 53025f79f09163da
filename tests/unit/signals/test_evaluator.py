"""The evaluator: one query a metric whoever asks, split by pod, and never an exception."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.core.model import PodSignals
from precision_operator.errors import QueryInvalid, SourceUnavailable
from precision_operator.signals.evaluator import WORK_SECONDS, Evaluator
from precision_operator.signals.plan import EvaluationPlan
from precision_operator.signals.queries import CHECKPOINT
from tests.support.evaluating import PLAN, Source, make
from tests.support.manual_clock import ManualClock, settle
from tests.support.samples import sample


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

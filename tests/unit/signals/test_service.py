"""The evaluation service: nobody waits for it, it reads in time, and it never takes silence for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from precision_operator.core.model import Evaluation
from precision_operator.errors import SourceUnavailable
from precision_operator.reasons import Reason
from precision_operator.signals.evaluator import Evaluator
from precision_operator.signals.plan import EvaluationPlan
from precision_operator.signals.port import MetricSource, Sample
from precision_operator.signals.queries import CHECKPOINT
from precision_operator.signals.service import DEADLINE_SECONDS, STALE_INTERVALS, EvaluationService, phase
from tests.support.manual_clock import ManualClock, settle
from tests.support.samples import sample

PLAN = EvaluationPlan("main", "team", window_seconds=60, min_steps=5, interval_seconds=15)
EVERY = 15.0


class Hanging:
    """Never answers."""

    async def vector(self, query: str) -> Sequence[Sample]:
        await asyncio.Event().wait()
        return []


class Timely:
    """Gives up after five seconds, as a source on a hung socket does."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.asked = 0
        self.answers = False

    async def vector(self, query: str) -> Sequence[Sample]:
        self.asked += 1
        await self.clock.sleep(5.0)
        if self.answers:
            return []
        raise SourceUnavailable("no answer within 5 s")


class Answering:
    """Answers at once."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.at: list[float] = []
        self.asked: list[str] = []

    async def vector(self, query: str) -> Sequence[Sample]:
        if "genesis_precision_info" in query:
            self.at.append(self.clock.monotonic())
        self.asked.append(query)
        return []


class Partly:
    """Never answers one query."""

    async def vector(self, query: str) -> Sequence[Sample]:
        if "nonfinite_loss" in query:
            await asyncio.Event().wait()
        return [sample("p", 1.0)]


class Rig:
    """A service whose policies are passed over as often as their evaluations end."""

    def __init__(self, *, spread: bool = False) -> None:
        self.clock = ManualClock()
        self.answering = Answering(self.clock)
        self.timely = Timely(self.clock)
        sources: dict[str, MetricSource] = {
            "main": self.answering,
            "hung": Hanging(),
            "timely": self.timely,
            "partly": Partly(),
        }
        self.finished: list[tuple[str, bool]] = []
        began = self.clock.monotonic()
        self.evaluator = Evaluator(sources, {}, self.clock)
        self.service: EvaluationService[str] = EvaluationService(
            self.evaluator,
            self.clock,
            finished=lambda key, urgent: self.finished.append((key, urgent)),
            phase=phase if spread else lambda plan: began,
        )


async def test_a_pass_takes_what_is_finished_and_waits_for_nothing() -> None:
    rig = Rig()
    assert rig.service.latest("p", PLAN, every_seconds=EVERY) is None
    await settle()
    assert rig.finished == [("p", False)]
    assert rig.service.latest("p", PLAN, every_seconds=EVERY) is not None
    await rig.service.close()


async def test_a_plan_that_begins_to_ask_for_checkpoints_keeps_its_answer_until_the_next() -> None:
    rig = Rig()
    rig.service.latest("p", PLAN, every_seconds=EVERY)
    await settle()
    first = rig.service.latest("p", PLAN, every_seconds=EVERY)
    asking = replace(PLAN, besides=(CHECKPOINT,))
    assert rig.service.latest("p", asking, every_seconds=EVERY) is first is not None
    assert not [query for query in rig.answering.asked if "genesis_checkpoint_last" in query]
    await rig.clock.advance(EVERY)
    assert len([query for query in rig.answering.asked if "genesis_checkpoint_last" in query]) == 1
    await rig.service.close()


async def test_the_answer_that_a_pass_takes_is_followed_by_another_an_interval_later() -> None:
    rig = Rig()
    for _ in range(4):
        rig.service.latest("p", PLAN, every_seconds=EVERY)
        await settle()
        rig.service.latest("p", PLAN, every_seconds=EVERY)
        await rig.clock.advance(EVERY)
    assert [at - rig.answering.at[0] for at in rig.answering.at] == [EVERY * i for i in range(5)]
    await rig.service.close()


async def test_a_policy_that_no_pass_asks_for_is_not_read_on() -> None:
    """A replica that does not lead makes no passes."""
    rig = Rig()
    rig.service.latest("p", PLAN, every_seconds=EVERY)
    await rig.clock.advance(100 * EVERY)
    assert len(rig.answering.at) == 1


async def test_a_source_that_never_answers_is_unknown_after_the_deadline() -> None:
    rig = Rig()
    plan = replace(PLAN, endpoint="hung")
    rig.service.latest("p", plan, every_seconds=EVERY)
    await rig.clock.advance(DEADLINE_SECONDS)
    found = rig.service.latest("p", plan, every_seconds=EVERY)
    assert found is not None
    assert found.errors["ack"].reason is Reason.EVALUATION_TIMEOUT
    await rig.service.close()


async def test_an_answer_that_is_too_old_is_unknown() -> None:
    rig = Rig()
    rig.service.latest("p", PLAN, every_seconds=EVERY)
    await rig.clock.advance(STALE_INTERVALS * EVERY + DEADLINE_SECONDS + 1.0)
    found = rig.service.latest("p", PLAN, every_seconds=EVERY)
    assert found is not None
    assert found.errors["ack"].reason is Reason.EVALUATION_LATE
    await rig.service.close()


async def test_200_policies_on_a_hung_endpoint_delay_no_other_policy() -> None:
    rig = Rig()
    for number in range(200):
        plan = replace(PLAN, endpoint="timely", namespace=f"n{number % 4}", window_seconds=60 + number)
        rig.service.latest(f"hung{number}", plan, every_seconds=EVERY)
    await settle()
    rig.service.latest("p", PLAN, every_seconds=EVERY, urgent=True)
    await settle()
    assert rig.finished == [("p", True)]
    await rig.clock.advance(DEADLINE_SECONDS)
    assert len(rig.finished) == 201
    assert rig.timely.asked <= 2 * 8, "the circuit opened"
    await rig.service.close()


async def test_namespaces_spread_over_the_interval() -> None:
    assert phase(PLAN) == phase(replace(PLAN, window_seconds=99))
    assert phase(PLAN) == phase(replace(PLAN, interval_seconds=2 * EVERY)), "every other turn is one of both"
    turns = [phase(replace(PLAN, namespace=f"team-{i}")) % EVERY for i in range(100)]
    assert min(turns) < EVERY / 10
    assert max(turns) > EVERY * 0.9


async def test_policies_of_one_namespace_are_read_together_whenever_they_were_made() -> None:
    rig = Rig(spread=True)
    for i in range(12):
        for key in ["p", "q"] if i >= 3 else ["p"]:
            rig.service.latest(key, PLAN, every_seconds=EVERY)
        await rig.clock.advance(EVERY / 3)
    asked = len(rig.answering.at)
    for _ in range(2 * 3):
        for key in ["p", "q"]:
            rig.service.latest(key, PLAN, every_seconds=EVERY)
        await rig.clock.advance(EVERY / 3)
    assert len(rig.answering.at) == asked + 2, "one query an interval for both"
    await rig.service.close()


async def test_no_two_answers_lie_further_apart_than_an_interval() -> None:
    """What can be seen just after one is seen by the next one."""
    rig = Rig(spread=True)
    for _ in range(20):
        rig.service.latest("p", PLAN, every_seconds=EVERY)
        await rig.clock.advance(EVERY / 5)
    assert max(b - a for a, b in pairwise(rig.answering.at)) <= EVERY + 1e-6
    await rig.service.close()


async def test_one_query_that_hangs_costs_its_own_signal_and_no_other() -> None:
    rig = Rig()
    plan = replace(PLAN, endpoint="partly", queries=(("memory", ""), ("nonFinite", "")))
    rig.service.latest("p", plan, every_seconds=EVERY)
    await rig.clock.advance(DEADLINE_SECONDS)
    found = rig.service.latest("p", plan, every_seconds=EVERY)
    assert found is not None
    assert {name for name, error in found.errors.items() if error.reason is Reason.EVALUATION_TIMEOUT} == {"nonFinite"}
    await rig.service.close()


async def test_a_defect_costs_one_reading_and_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()

    async def fails(*_: object, **__: object) -> Evaluation:
        raise ZeroDivisionError

    with monkeypatch.context() as broken:
        broken.setattr(rig.evaluator, "evaluate", fails)
        assert rig.service.latest("p", PLAN, every_seconds=EVERY) is None
        await settle()
        assert rig.finished == [("p", False)]
        found = rig.service.latest("p", PLAN, every_seconds=EVERY)
        assert found is not None
        assert str(found.errors["ack"]).startswith("InternalError: ZeroDivisionError")
        assert "an evaluation failed unexpectedly" in caplog.text
    await rig.clock.advance(EVERY)
    assert len(rig.answering.at) == 1, "the next one is read as if nothing had happened"
    await rig.service.close()


async def test_a_leadership_decides_on_no_answer_of_an_earlier_one() -> None:
    rig = Rig()
    rig.service.latest("p", PLAN, every_seconds=EVERY)
    await settle()
    await rig.clock.advance(100 * EVERY)
    rig.service.forget_all()
    assert rig.service.latest("p", PLAN, every_seconds=EVERY) is None
    await settle()
    found = rig.service.latest("p", PLAN, every_seconds=EVERY)
    assert found is not None
    assert "EvaluationLate" not in str(found.errors)
    await rig.service.close()


async def test_what_another_leader_dated_was_not_watched_by_this_ones_clock_whatever_is_read_or_edited_later() -> None:
    rig = Rig()
    rig.service.forget_all()
    led_since = rig.clock.time()
    found = list[Evaluation | None]()
    for plan, pause_seconds in (
        (PLAN, EVERY),
        (PLAN, STALE_INTERVALS * EVERY + DEADLINE_SECONDS + 1.0),
        (replace(PLAN, window_seconds=60.0), 0.0),
    ):
        rig.service.latest("p", plan, every_seconds=EVERY)
        await settle()
        await rig.clock.advance(pause_seconds)
        found.append(rig.service.latest("p", plan, every_seconds=EVERY))
    assert [seen and seen.clock_since for seen in found] == [led_since] * 3
    await rig.service.close()


async def test_a_leader_that_led_before_has_not_watched_what_lies_between() -> None:
    rig = Rig()
    rig.service.latest("p", PLAN, every_seconds=EVERY)
    await rig.clock.advance(EVERY / 2)
    rig.service.forget_all()
    led_since = rig.clock.time()
    rig.service.latest("p", PLAN, every_seconds=EVERY)
    await settle()
    found = rig.service.latest("p", PLAN, every_seconds=EVERY)
    assert found is not None
    assert (found.continuous_since, found.clock_since) == (led_since, led_since)
    await rig.service.close()


async def test_a_policy_that_is_edited_while_it_is_read_gets_an_answer_to_what_it_says_now() -> None:
    rig = Rig()
    rig.service.latest("p", replace(PLAN, endpoint="hung"), every_seconds=EVERY)
    await settle()
    assert rig.service.latest("p", PLAN, every_seconds=EVERY) is None
    await settle()
    found = rig.service.latest("p", PLAN, every_seconds=EVERY)
    assert found is not None
    assert "EvaluationTimeout" not in str(found.errors)
    await rig.clock.advance(DEADLINE_SECONDS)
    assert rig.finished == [("p", False)], "nothing comes of the reading before"
    await rig.service.close()


async def test_an_alert_during_a_reading_brings_another_one() -> None:
    rig = Rig()
    rig.timely.answers = True
    plan = replace(PLAN, endpoint="timely")
    rig.service.latest("p", plan, every_seconds=EVERY)
    await rig.clock.advance(1.0)
    rig.service.wake("p")
    await rig.clock.advance(4.0)
    assert rig.finished == [("p", False)]
    asked = rig.timely.asked
    rig.service.latest("p", plan, every_seconds=EVERY)
    await settle()
    assert rig.timely.asked > asked
    await rig.service.close()

"""An endpoint is shared fairly, and is left alone while it does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from precision_operator.errors import EndpointNotAnswering, SignalError, SourceUnavailable
from precision_operator.signals.endpoint import (
    ANSWERED_SECONDS,
    FAILURE_LIMIT,
    LONGEST_SECONDS,
    NAMESPACE_SLOTS,
    RAW_SLOTS,
    SHORTEST_SECONDS,
    SLOTS,
    URGENT_SLOTS,
    WAIT_SECONDS,
    Author,
    Endpoint,
)
from precision_operator.signals.port import Sample
from tests.support.manual_clock import ManualClock, settle


class Source:
    """Answers nothing until it is told, or fails."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: SignalError | None = None
        self.answers = asyncio.Event()
        self.answers.set()

    async def vector(self, query: str) -> Sequence[Sample]:
        self.asked.append(query)
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return []


class Rig:
    def __init__(self) -> None:
        self.clock, self.source = ManualClock(), Source()
        self.endpoint = Endpoint("main", self.source, self.clock, jitter=lambda: 0.0)

    @property
    def circuit(self) -> str:
        return self.endpoint.circuit.name

    def ask(
        self, query: str, namespace: str = "a", *, author: Author = Author.OPERATOR, urgent: bool = False
    ) -> asyncio.Task[Sequence[Sample]]:
        return asyncio.ensure_future(self.endpoint.vector(query, namespace, author=author, urgent=urgent))

    async def fail(self, times: int, namespace: str = "a", *, author: Author = Author.OPERATOR) -> None:
        self.source.error = SourceUnavailable("away")
        for _ in range(times):
            with pytest.raises(SourceUnavailable):
                await self.ask("q", namespace, author=author)
        self.source.error = None


async def test_no_namespace_holds_all_slots() -> None:
    rig = Rig()
    rig.source.answers.clear()
    greedy = [rig.ask(f"a{i}", "a") for i in range(50)]
    await settle()
    assert len(rig.source.asked) == NAMESPACE_SLOTS
    other = rig.ask("b0", "b")
    await settle()
    assert rig.source.asked[-1] == "b0"
    rig.source.answers.set()
    await asyncio.gather(*greedy, other)


async def test_slots_go_to_the_namespaces_in_turn_and_first_to_the_urgent() -> None:
    rig = Rig()
    rig.source.answers.clear()
    tasks = [rig.ask(f"held{i}", f"n{i}") for i in range(SLOTS)]
    await settle()
    tasks += [rig.ask("a1", "a"), rig.ask("a2", "a"), rig.ask("b1", "b"), rig.ask("p0", "c", urgent=True)]
    await settle()
    rig.source.answers.set()
    await asyncio.gather(*tasks)
    assert rig.source.asked[SLOTS:] == ["p0", "a1", "b1", "a2"]


async def test_a_query_without_a_slot_ends_in_time_and_leaves_none_taken() -> None:
    rig = Rig()
    rig.source.answers.clear()
    held = [rig.ask(f"q{i}", f"n{i}") for i in range(SLOTS)]
    await settle()
    late = rig.ask("late")
    await rig.clock.advance(WAIT_SECONDS)
    assert isinstance(late.exception(), SourceUnavailable)
    rig.source.answers.set()
    await asyncio.gather(*held)
    await asyncio.gather(*(rig.ask(f"again{i}", f"n{i}") for i in range(SLOTS)))


async def test_an_endpoint_that_fails_in_a_row_is_asked_no_more_until_it_has_rested() -> None:
    rig = Rig()
    await rig.fail(FAILURE_LIMIT)
    assert rig.circuit == "OPEN"
    with pytest.raises(EndpointNotAnswering, match="check that Prometheus runs"):
        await rig.ask("q")
    assert len(rig.source.asked) == FAILURE_LIMIT
    await rig.clock.advance(SHORTEST_SECONDS)
    assert rig.circuit == "HALF_OPEN"


async def test_one_query_tries_for_all_and_the_others_follow_it() -> None:
    rig = Rig()
    await rig.fail(FAILURE_LIMIT)
    await rig.clock.advance(SHORTEST_SECONDS)
    asked = len(rig.source.asked)
    rig.source.error = None
    rig.source.answers.clear()
    tasks = [rig.ask("trial"), rig.ask("follower"), rig.ask("theirs", author=Author.POLICY)]
    await settle()
    assert rig.source.asked[asked:] == ["trial"]
    rig.source.answers.set()
    await asyncio.gather(*tasks)
    assert rig.circuit == "CLOSED"


async def test_a_failed_trial_doubles_the_rest_up_to_a_limit_with_the_words_of_before() -> None:
    rig = Rig()
    await rig.fail(FAILURE_LIMIT)
    await rig.clock.advance(SHORTEST_SECONDS)
    rest_seconds = SHORTEST_SECONDS
    rig.source.error = SourceUnavailable("away")
    for _ in range(6):
        with pytest.raises(EndpointNotAnswering):
            await rig.ask("trial")
        rest_seconds = min(LONGEST_SECONDS, 2 * rest_seconds)
        await rig.clock.advance(rest_seconds - 0.1)
        assert rig.circuit == "OPEN"
        await rig.clock.advance(0.2)
        assert rig.circuit == "HALF_OPEN"


async def test_a_policys_own_promql_cannot_open_the_circuit_for_others() -> None:
    rig = Rig()
    await rig.fail(10 * FAILURE_LIMIT, author=Author.POLICY)
    assert rig.circuit == "CLOSED"


async def test_a_namespace_whose_own_queries_fail_opens_no_circuit_for_those_that_are_answered() -> None:
    """It exports too many series, or its answers are partial."""
    rig = Rig()
    await rig.ask("q", "well")
    await rig.fail(10 * FAILURE_LIMIT, "large")
    assert rig.circuit == "CLOSED"
    await rig.fail(1, "well")
    assert rig.circuit == "OPEN", "nobody is answered any more"


async def test_namespaces_that_fail_together_open_the_circuit_for_nobody_who_was_answered() -> None:
    """However often they ask: who was answered tries at once, and finds out for all."""
    rig = Rig()
    await rig.ask("q", "well")
    for _ in range(20):
        while rig.circuit == "CLOSED":
            await rig.fail(1, "large")
            await rig.fail(1, "larger")
        rig.source.error = SourceUnavailable("too much")
        with pytest.raises(EndpointNotAnswering):
            await rig.ask("q", "large")
        rig.source.error = None
        await rig.ask("q", "well")
        assert rig.circuit == "CLOSED"
        await rig.clock.advance(SHORTEST_SECONDS / 2)


async def test_an_answer_of_long_ago_does_not_speak_for_the_endpoint() -> None:
    rig = Rig()
    await rig.ask("q", "gone")
    await rig.clock.advance(ANSWERED_SECONDS)
    await rig.fail(FAILURE_LIMIT, "large")
    assert rig.circuit == "OPEN"


async def test_urgent_queries_of_many_namespaces_leave_slots_to_a_breach_that_nobody_knows_of_yet() -> None:
    rig = Rig()
    rig.source.answers.clear()
    urgent = [rig.ask(f"u{i}", f"u{i}", urgent=True) for i in range(10 * SLOTS)]
    await settle()
    assert len(rig.source.asked) == URGENT_SLOTS
    others = [rig.ask("calm", "calm") for _ in range(SLOTS - URGENT_SLOTS)]
    await settle()
    assert rig.source.asked[URGENT_SLOTS:] == ["calm"] * len(others)
    rig.source.answers.set()
    await asyncio.gather(*urgent, *others)


async def test_promql_of_policies_takes_no_slot_from_the_operators_queries() -> None:
    rig = Rig()
    rig.source.answers.clear()
    raw = [rig.ask(f"raw{i}", f"r{i}", author=Author.POLICY, urgent=True) for i in range(10 * SLOTS)]
    raw += [rig.ask(f"calm{i}", f"r{i}", author=Author.POLICY) for i in range(10 * SLOTS)]
    await settle()
    assert len(rig.source.asked) == RAW_SLOTS
    ours = [rig.ask(f"ours{i}", f"n{i}") for i in range(SLOTS)]
    await settle()
    assert rig.source.asked[RAW_SLOTS:] == [f"ours{i}" for i in range(SLOTS)]
    rig.source.answers.set()
    await asyncio.gather(*raw, *ours)

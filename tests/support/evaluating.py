"""An evaluator over a source that answers as told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from precision_operator.signals.evaluator import Evaluator
from precision_operator.signals.plan import EvaluationPlan
from precision_operator.signals.port import Sample
from tests.support.manual_clock import ManualClock

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
    """An evaluator that asks it as ``main``; ``queries`` are its catalogue."""
    return Evaluator({"main": source}, queries, clock)

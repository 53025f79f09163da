"""The evidence collector: what Prometheus shows around an incident, and of the usual causes of slow training."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from precision_operator.core.observer import RecordedPass
from precision_operator.errors import SignalError, SourceUnavailable
from precision_operator.incidents.evidence import Question, fits, fitted, keep, queries_of, questions
from precision_operator.incidents.report import Evidence, Report
from precision_operator.incidents.slowness import CHECKS, say
from precision_operator.reasons import Reason
from precision_operator.runtime.clock import Clock
from precision_operator.signals.endpoint import Circuit
from precision_operator.signals.plan import plan_of
from precision_operator.signals.port import MetricArchive, Sample, Series

T = TypeVar("T")

PATIENCE_SECONDS = 60
"""How long all questions of a case together wait for a circuit that is open: it rests some seconds, and each phase of an
incident is asked for once.
"""
FAILURE_LIMIT = 2
"""After so many questions in a row without an answer the others of a case are not asked: each takes a time-out."""


class EvidenceCollector:
    """Asks the sources that the policies name, one bounded query of an endpoint after another: a source has one thread for
    them beside those of evaluations. What gives no answer is kept as a reason.
    """

    def __init__(
        self,
        sources: Mapping[str, MetricArchive],
        catalogue: Mapping[str, str],
        *,
        clock: Clock,
        failed: Callable[[str], None],
        most_bytes: int,
        circuits: Callable[[], Mapping[str, Circuit]] = dict,
    ) -> None:
        """Ask these sources.

        Args:
            sources: by the name of their endpoint.
            catalogue: the admin's queries.
            clock: what a circuit is waited by.
            failed: called with the reason of each query that failed.
            most_bytes: what all evidence of a case may take.
            circuits: an open one is not asked.
        """
        self._sources = sources
        self._catalogue = catalogue
        self._clock = clock
        self._failed = failed
        self._most_bytes = most_bytes
        self._circuits = circuits
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(1))

    async def gather(self, report: Report, seen: RecordedPass, *, now: float) -> tuple[Evidence, ...]:
        """The signals around the breach, and a day of the run infos. Never raises. Waits for a circuit that is open."""
        policy, plan = seen.policy, plan_of(seen.policy)
        incident = seen.decision.state.incident
        wanted = questions(
            namespace=policy.namespace,
            queries=queries_of(plan, self._catalogue),
            window_seconds=plan.window_seconds,
            detected_at=incident.detected_at if incident is not None else report.decided_at,
            now=now,
        )
        asks = [partial(_history, question) for question in wanted]
        answers = await self._answers(plan.endpoint, asks, patience_seconds=PATIENCE_SECONDS)
        found = tuple(keep(q, answer, first=report.workloads) for q, answer in zip(wanted, answers, strict=True))
        if fits(found, self._most_bytes):
            return found
        # Packing it anew takes a while: not on the loop that decides.
        return await asyncio.to_thread(fitted, found, self._most_bytes)

    async def slowness(self, *, namespace: str, endpoint: str, pods: Mapping[str, str]) -> str:
        """The checks of an investigation in words. Never raises.

        Args:
            namespace: of the pods.
            endpoint: its name in ``prometheusRef``.
            pods: the pods of the slow workloads, each with its workload.
        """
        asks = [partial(_vector, check.query.replace("$namespace", namespace)) for check in CHECKS]
        answers = await self._answers(endpoint, asks)
        return "; ".join(say(check, answer, pods) for check, answer in zip(CHECKS, answers, strict=True))

    async def _answers(
        self,
        endpoint: str,
        asks: Sequence[Callable[[MetricArchive], Awaitable[Sequence[T]]]],
        *,
        patience_seconds: int = 0,
    ) -> list[Sequence[T] | Reason]:
        source = self._sources.get(endpoint)
        if source is None:
            return [Reason.UNKNOWN_ENDPOINT] * len(asks)
        answers: list[Sequence[T] | Reason] = []
        failures = 0
        for ask in asks:
            while patience_seconds and failures < FAILURE_LIMIT and self._rests(endpoint):
                patience_seconds -= 1
                await self._clock.sleep(1.0)
            async with self._turns[endpoint]:
                if failures == FAILURE_LIMIT or self._rests(endpoint):
                    answers.append(Reason.ENDPOINT_NOT_ANSWERING)
                    continue
                try:
                    answers.append(await ask(source))
                    failures = 0
                except SignalError as error:
                    self._failed(error.reason)
                    answers.append(error.reason)
                    failures = failures + 1 if isinstance(error, SourceUnavailable) else 0
        return answers

    def _rests(self, endpoint: str) -> bool:
        return self._circuits().get(endpoint) is Circuit.OPEN


async def _history(question: Question, source: MetricArchive) -> Sequence[Series]:
    return await source.history(question.query, question.start, question.end, question.step_seconds)


async def _vector(query: str, source: MetricArchive) -> Sequence[Sample]:
    return await source.vector(query)

"""The evidence collector: what Prometheus shows around an incident, and of the usual causes of slow training."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from precision_operator.core.observer import RecordedPass
from precision_operator.errors import SignalError
from precision_operator.incidents.evidence import Question, keep, queries_of, questions
from precision_operator.incidents.report import Evidence, Report
from precision_operator.incidents.slowness import CHECKS, say
from precision_operator.reasons import Reason
from precision_operator.signals.plan import plan_of
from precision_operator.signals.port import MetricArchive, Sample, Series

T = TypeVar("T")


class EvidenceCollector:
    """Asks the sources that the policies name, one bounded query after another. What gives no answer is kept as a reason."""

    def __init__(
        self, sources: Mapping[str, MetricArchive], catalogue: Mapping[str, str], *, failed: Callable[[str], None]
    ) -> None:
        """``failed``: called with the reason of each query that failed."""
        self._sources = sources
        self._catalogue = catalogue
        self._failed = failed

    async def gather(self, report: Report, seen: RecordedPass, *, now: float) -> tuple[Evidence, ...]:
        """The signals around the breach, and a day of the run infos. Never raises."""
        policy, plan = seen.policy, plan_of(seen.policy)
        queries = queries_of(
            plan.queries,
            self._catalogue,
            namespace=policy.namespace,
            window_seconds=plan.window_seconds,
            min_steps=plan.min_steps,
            raw=plan.raw,
        )
        incident = seen.decision.state.incident
        wanted = questions(
            namespace=policy.namespace,
            queries=queries,
            window_seconds=plan.window_seconds,
            detected_at=incident.detected_at if incident is not None else report.decided_at,
            now=now,
        )
        return tuple([keep(q, await self._history(plan.endpoint, q), first=report.workloads) for q in wanted])

    async def slowness(self, *, namespace: str, endpoint: str, pods: Mapping[str, str]) -> str:
        """The checks of an investigation in words. Never raises.

        Args:
            namespace: of the pods.
            endpoint: its name in ``prometheusRef``.
            pods: the pods of the slow workloads, each with its workload.
        """
        answers = [await self._vector(endpoint, check.query.replace("$namespace", namespace)) for check in CHECKS]
        return "; ".join(say(check, answer, pods) for check, answer in zip(CHECKS, answers, strict=True))

    async def _history(self, endpoint: str, question: Question) -> Sequence[Series] | Reason:
        span = (question.start, question.end, question.step_seconds)
        return await self._answer(endpoint, lambda source: source.history(question.query, *span))

    async def _vector(self, endpoint: str, query: str) -> Sequence[Sample] | Reason:
        return await self._answer(endpoint, lambda source: source.vector(query))

    async def _answer(
        self, endpoint: str, ask: Callable[[MetricArchive], Awaitable[Sequence[T]]]
    ) -> Sequence[T] | Reason:
        source = self._sources.get(endpoint)
        if source is None:
            return Reason.UNKNOWN_ENDPOINT
        try:
            return await ask(source)
        except SignalError as error:
            self._failed(error.reason)
            return error.reason

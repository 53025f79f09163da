"""The evidence collector: asks Prometheus for the time around an incident, one bounded query after another."""

from collections.abc import Callable, Mapping, Sequence

from precision_operator.controller.gather import plan_of
from precision_operator.errors import SignalError
from precision_operator.reasons import Reason
from precision_operator.report.evidence import Question, keep, queries_of, questions
from precision_operator.report.incident import Evidence, RecordedPass, Report
from precision_operator.signals.port import MetricHistory, Series


class EvidenceCollector:
    """Asks the sources that the policies name. What gives no answer stands in the evidence as an error."""

    def __init__(
        self, sources: Mapping[str, MetricHistory], catalogue: Mapping[str, str], *, failed: Callable[[str], None]
    ) -> None:
        self._sources = sources
        self._catalogue = catalogue
        self._failed = failed
        """Called with the reason of each query that failed."""

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
        detected_at = incident.detected_at if incident is not None else report.decided_at
        wanted = questions(
            namespace=policy.namespace,
            queries=queries,
            window_seconds=plan.window_seconds,
            detected_at=detected_at,
            now=now,
        )
        source = self._sources.get(plan.endpoint)
        return tuple([keep(q, await self._ask(source, q), first=report.workloads) for q in wanted])

    async def _ask(self, source: MetricHistory | None, question: Question) -> Sequence[Series] | str:
        if source is None:
            return Reason.UNKNOWN_ENDPOINT
        try:
            return await source.history(question.query, question.start, question.end, question.step_seconds)
        except SignalError as error:
            self._failed(error.reason)
            return error.reason

"""Readings of the whole fleet: one vector query a metric, shared by all policies that ask the same.

The cost grows with metrics and namespaces, not with workloads or policies. A slow Prometheus is asked once at a time
for each query: whoever asks again meanwhile waits for the same answer.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from precision_operator.api.redaction import redact
from precision_operator.api.signals import Signal
from precision_operator.core.model import Evaluation
from precision_operator.errors import QueryInvalid, SignalError
from precision_operator.reasons import Cause, Reason
from precision_operator.runtime.clock import Clock, SystemClock, within
from precision_operator.signals.catalogue import Catalogue, known_names
from precision_operator.signals.continuity import PLAN_LIFE_SECONDS, Continuity
from precision_operator.signals.endpoint import Author, Circuit, Endpoint
from precision_operator.signals.grouping import NOTHING, Grouped, Split, group, split
from precision_operator.signals.plan import EvaluationPlan
from precision_operator.signals.port import MetricSource
from precision_operator.signals.queries import ACK, ALWAYS_ASKED, BUILT_IN, OWN, WORK, render

_LOG = logging.getLogger(__name__)

_KEPT_INTERVALS = 1.5
"""An answer that nobody has asked for again within so many is forgotten; until then the next one may be the same."""
_PURGE_SECONDS = 5.0
"""How often answers to be forgotten are looked for: there may be thousands."""
WORK_SECONDS = 300.0
"""How seldom it is asked what the work so far would have taken in FP32: it grows slowly, and nothing is decided by it."""
_SIGNALS = {signal.value: signal for signal in Signal}
_NAMED = 3
"""How many pods a log line names."""

Observe = Callable[[str, str, float], None]
"""Told of each request: query name, result (``success`` or the error's reason), seconds."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """One answer, or why there is none."""

    answer: Split = NOTHING
    error: Cause | None = None


@dataclass(slots=True, eq=False)
class _Request:
    """One query under way or answered."""

    task: asyncio.Task[_Reading]
    at: float
    began: float
    kept_until: float
    """Then it is forgotten, by the monotonic clock."""
    grouped: "list[tuple[Mapping[str, _Request], Grouped]]" = field(default_factory=list)
    """Of the acknowledgement's: the other requests that were grouped with it, and what came of it."""


class Evaluator:
    """Asks the metric sources on behalf of the policies. Belongs to one event loop."""

    def __init__(
        self,
        sources: Mapping[str, MetricSource],
        queries: Mapping[str, str],
        clock: Clock | None = None,
        *,
        observe: Observe = lambda query, result, seconds: None,
        allow_raw: bool = False,
    ) -> None:
        """``allow_raw``: policies may bring PromQL of their own, which is confined to their namespace."""
        self._clock: Clock = clock or SystemClock()
        self._endpoints = {name: Endpoint(name, source, self._clock) for name, source in sources.items()}
        self._catalogue = Catalogue(queries, allow_raw=allow_raw)
        self._observe = observe
        self._requests: dict[tuple[str, str, bool], _Request] = {}
        self._work: dict[tuple[str, str], tuple[_Request, _Request | None]] = {}
        """The newest request for the work, and the newest that was answered."""
        self._purged_at = self._clock.monotonic()
        self._continuity = Continuity(self._clock)
        self._twice: dict[tuple[EvaluationPlan, str], frozenset[str]] = {}
        """The pods that have several series, as they were logged."""

    def begin(self) -> None:
        """A leadership begins: another may have led until now, by another clock."""
        self._continuity.begin()
        self._twice.clear()
        self._requests = {key: request for key, request in self._requests.items() if not request.task.done()}

    @property
    def clock_since(self) -> float:
        """The newest of all plans', as in ``Evaluation``."""
        return self._continuity.clock_since

    def problem(self, plan: EvaluationPlan) -> Cause | None:
        """Why the plan cannot be carried out as written; None where it can."""
        if plan.endpoint not in self._endpoints:
            return Cause(
                Reason.UNKNOWN_ENDPOINT,
                f"no Prometheus endpoint is named {plan.endpoint!r}; {known_names('endpoints', self._endpoints)}; "
                "name one of them in prometheusRef, or have the admin add it to the settings under prometheus",
            )
        return self._catalogue.problem(plan)

    def circuits(self) -> Mapping[str, Circuit]:
        """Which endpoints are asked, by name."""
        return {name: endpoint.circuit for name, endpoint in self._endpoints.items()}

    async def evaluate(
        self,
        plan: EvaluationPlan,
        *,
        no_older_seconds: float | None = None,
        urgent: bool = False,
        deadline_seconds: float = math.inf,
    ) -> Evaluation:
        """One reading for ``plan``; never raises. What could not be read stands in ``errors``.

        An answer is shared with others who ask the same for half an interval, or for ``no_older_seconds`` where given.
        ``urgent``: its queries go before others. What is not answered within ``deadline_seconds`` is an error of its own
        signal: the others' answers count.
        """
        began = self._clock.monotonic()
        problem = self.problem(plan)
        requests, errors = self._begun(plan, problem, no_older_seconds, urgent=urgent)
        requests, late = await self._answered(requests, deadline_seconds)
        readings = {signal: request.task.result() for signal, request in requests.items()}
        errors.update(late)
        errors.update((signal, reading.error) for signal, reading in readings.items() if reading.error is not None)
        answers = {signal: reading.answer for signal, reading in readings.items() if reading.error is None}
        at = min((request.at for request in requests.values()), default=self._clock.time())
        if plan.work and problem is None and (work := self._seldom(plan)) is not None:
            requests[WORK], answers[WORK] = work, work.task.result().answer
        grouped = _grouped(requests, answers, at)
        errors.update(grouped.errors)
        for name in answers:
            self._complain(plan, name, grouped.twice.get(name, frozenset()))
        watched = self._continuity.evaluated(plan, at=at, began=began)
        self._twice = {key: twice for key, twice in self._twice.items() if self._continuity.knows(key[0])}
        return Evaluation(
            at=at,
            continuous_since=watched.since,
            pods=grouped.pods,
            errors=errors,
            clock_since=watched.clock_since,
        )

    def _begun(
        self, plan: EvaluationPlan, problem: Cause | None, no_older_seconds: float | None, *, urgent: bool
    ) -> tuple[dict[str, _Request], dict[str, Cause]]:
        """A request for each signal; and, by signal, why there is none."""
        signals = dict.fromkeys((*ALWAYS_ASKED, *plan.besides, *(signal for signal, _ in plan.queries)))
        if problem is not None:
            return {}, dict.fromkeys(signals, Cause(problem.reason, redact(problem.message)))
        requests: dict[str, _Request] = {}
        errors: dict[str, Cause] = {}
        for signal in signals:
            try:
                query = plan.promql(signal, self._catalogue.queries)
            except QueryInvalid as error:
                errors[signal] = Cause(error.reason, str(error))
            else:
                requests[signal] = self._request(signal, plan, query, no_older_seconds, urgent=urgent)
        return requests, errors

    async def _answered(
        self, requests: dict[str, _Request], deadline_seconds: float
    ) -> tuple[dict[str, _Request], dict[str, Cause]]:
        """Those that are answered in time; and, by signal, what is to be said of the others. These go on."""
        tasks = {request.task for request in requests.values()}
        if math.isinf(deadline_seconds) and tasks:
            await asyncio.wait(tasks)
        elif tasks:
            with suppress(TimeoutError):
                await within(self._clock, deadline_seconds, asyncio.wait(tasks))
        text = f"no answer within {deadline_seconds:g} s; see whether Prometheus is slow, or is asked for too much"
        why = Cause(Reason.EVALUATION_TIMEOUT, text)
        found = {signal: request for signal, request in requests.items() if request.task.done()}
        return found, dict.fromkeys(requests.keys() - found.keys(), why)

    async def close(self) -> None:
        """Cancel what is under way; for shutdown."""
        tasks = [request.task for request in self._requests.values()]
        tasks += [newest.task for newest, _ in self._work.values()]
        self._requests.clear()
        self._work.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _request(
        self, name: str, plan: EvaluationPlan, query: str, no_older_seconds: float | None, *, urgent: bool
    ) -> _Request:
        """The request under way or still fresh for the same query, else a new one."""
        now = self._clock.monotonic()
        half, kept_seconds = plan.interval_seconds / 2, _KEPT_INTERVALS * plan.interval_seconds
        self._purge(now)
        key = (plan.endpoint, query, name == ACK)  # of acknowledgements another sample of a pod counts
        known = self._requests.get(key)
        shared = half if no_older_seconds is None else min(half, no_older_seconds)
        if known is not None and (not known.task.done() or now - known.began < shared):
            known.kept_until = max(known.kept_until, known.began + kept_seconds)
            return known
        before = known.task.result().answer if known is not None and not known.task.cancelled() else NOTHING
        task = asyncio.get_running_loop().create_task(self._ask(name, plan, query, before, urgent=urgent))
        request = _Request(task=task, at=self._clock.time(), began=now, kept_until=now + kept_seconds)
        self._requests[key] = request
        return request

    def _seldom(self, plan: EvaluationPlan) -> _Request | None:
        """The newest answer of the work: asked once in ``WORK_SECONDS``, waited for by nobody; its errors are silence."""
        now = self._clock.monotonic()
        query = render(BUILT_IN[WORK], plan.namespace, plan.window_seconds, plan.min_steps)
        newest, answered = self._work.get((plan.endpoint, query), (None, None))
        if newest is not None and newest.task.done():
            answered = newest
        if newest is None or (newest.task.done() and now - newest.began >= WORK_SECONDS):
            for key in [k for k, (r, _) in self._work.items() if r.task.done() and now - r.began > PLAN_LIFE_SECONDS]:
                del self._work[key]
            task = asyncio.get_running_loop().create_task(self._ask(WORK, plan, query, NOTHING, urgent=False))
            newest = _Request(task=task, at=self._clock.time(), began=now, kept_until=now)
        self._work[plan.endpoint, query] = newest, answered
        return answered

    def _purge(self, now: float) -> None:
        if now - self._purged_at < _PURGE_SECONDS:
            return
        self._purged_at = now
        for key in [k for k, r in self._requests.items() if r.task.done() and now >= r.kept_until]:
            del self._requests[key]

    async def _ask(self, name: str, plan: EvaluationPlan, query: str, before: Split, *, urgent: bool) -> _Reading:
        began = self._clock.monotonic()
        result = "success"
        try:
            author = Author.OPERATOR if name in OWN else Author.POLICY if name in dict(plan.raw) else Author.ADMIN
            endpoint = self._endpoints[plan.endpoint]
            samples = await endpoint.vector(query, plan.namespace, author=author, urgent=urgent)
            return _Reading(before if samples is before.samples else split(name, samples))
        except SignalError as error:
            result = error.reason
            return _Reading(error=Cause(error.reason, str(error)))
        except Exception as error:  # noqa: BLE001  a defect of a source must cost one reading, not the operator
            result = Reason.INTERNAL_ERROR
            _LOG.exception("query %s failed unexpectedly", name, extra={"reason": result})
            return _Reading(error=Cause(Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}"))
        finally:
            self._observe(name, result, self._clock.monotonic() - began)

    def _complain(self, plan: EvaluationPlan, name: str, twice: frozenset[str]) -> None:
        """Log the pods that have several series, once for each change: they are Unknown, and should be told why."""
        if twice and twice != self._twice.get((plan, name)):
            more = f" and {len(twice) - _NAMED} more" if len(twice) > _NAMED else ""
            _LOG.warning(
                "query %s: more than one series for %s%s; scrape each pod once and group the query by (pod)",
                name,
                ", ".join(sorted(twice)[:_NAMED]),
                more,
                extra={"reason": Reason.DUPLICATE_SERIES, "namespace": plan.namespace},
            )
        if twice:
            self._twice[plan, name] = twice
        else:
            self._twice.pop((plan, name), None)


def _grouped(requests: Mapping[str, _Request], answers: Mapping[str, Split], at: float) -> Grouped:
    """The answers by pod; policies that share all of their requests share this too."""
    first = requests.get(ACK)
    others = {name: request for name, request in requests.items() if name != ACK}
    known = first.grouped if first is not None else []
    for together, made in known:
        if together == others:
            return made
    found = group(answers, {name: _SIGNALS[name] for name in answers if name in _SIGNALS}, at=at)
    known.append((others, found))
    return found

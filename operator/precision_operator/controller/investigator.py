"""The investigator: reports on windows of mitigation, beside the passes.

When slow training may be investigated, one Event says what Prometheus shows of the usual causes. What ended without a
rollback is kept as a closed PrecisionIncident. ``observe`` returns at once, and one task does the rest: no decision waits
for it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from precision_operator.api.signals import Signal
from precision_operator.api.wire import parse_time
from precision_operator.controller.retention import Retention
from precision_operator.errors import Conflict, OperatorError, SignalError
from precision_operator.kube.events import EventRecorder, PolicyRef
from precision_operator.kube.port import INCIDENTS, KubeApi
from precision_operator.reasons import Reason
from precision_operator.report.document import to_body
from precision_operator.report.incident import RecordedPass, Report
from precision_operator.report.mitigated import Group, closed_report, ended_well
from precision_operator.report.slowness import CHECKS, say
from precision_operator.signals.port import MetricSource, Sample

_LOG = logging.getLogger(__name__)


RECENT_SECONDS = 86400.0
"""A window that ended longer ago is kept already, or pruned."""


@dataclass(frozen=True, slots=True)
class _Slow:
    policy: PolicyRef
    endpoint: str
    pods: Mapping[str, str]
    """Pod → workload."""


@dataclass(frozen=True, slots=True)
class _Ended:
    policy: PolicyRef
    report: Report
    key: tuple[str, Group]


class Investigator:
    """Watches the passes for windows that open and end. Belongs to one event loop.

    What was done is known in memory only: a new leader sends the Event again, which its count shows, and finds the
    incident there.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        sources: Mapping[str, MetricSource],
        events: EventRecorder,
        retention: Retention,
        failed: Callable[[str], None],
    ) -> None:
        self._api = api
        self._sources = sources
        self._events = events
        self._retention = retention
        self._failed = failed
        """Called with the reason of what failed."""
        self._asked: dict[str, frozenset[tuple[str, float]]] = {}
        self._kept: set[tuple[str, Group]] = set()
        self._cases: asyncio.Queue[_Slow | _Ended] = asyncio.Queue()

    @property
    def waiting(self) -> int:
        """Cases that are not reported yet."""
        return self._cases.qsize()

    def observe(self, seen: RecordedPass) -> None:
        """A pass has been carried out."""
        if not seen.decision.state.mitigations:
            self._asked.pop(seen.policy.uid, None)
            return
        reference = PolicyRef(seen.policy.namespace, seen.policy.name, seen.policy.uid)
        self._observe_slow(seen, reference)
        for group, windows in ended_well(seen.decision.state).items():
            key = (seen.policy.uid, group)
            recent = seen.now - max(w.good_since or w.since for w in windows) < RECENT_SECONDS
            if recent and key not in self._kept:
                self._kept.add(key)
                self._cases.put_nowait(_Ended(reference, closed_report(seen, windows), key))

    def _observe_slow(self, seen: RecordedPass, reference: PolicyRef) -> None:
        windows = seen.decision.state.mitigations
        slow = frozenset((m.key, m.since) for m in windows if m.open and m.signal is Signal.SPEED)
        begun = {key for key, _ in slow - self._asked.get(reference.uid, frozenset())}
        self._asked[reference.uid] = slow
        pods = {p.name: w.name for w in seen.observation.workloads if w.key in begun for p in w.pods}
        if pods:
            self._cases.put_nowait(_Slow(reference, seen.policy.spec.prometheus_ref, pods))

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self.turn()

    async def turn(self) -> None:
        """Wait for the next case and report it."""
        case = await self._cases.get()
        try:
            await (self._check(case) if isinstance(case, _Slow) else self._keep(case))
        except Exception as error:  # noqa: BLE001 - the last barrier: a bug in a report must not end the operator
            reason = error.reason if isinstance(error, OperatorError) else Reason.INTERNAL_ERROR
            self._failed(reason)
            _LOG.exception("mitigation of %s/%s", case.policy.namespace, case.policy.name, extra={"reason": reason})
            if isinstance(case, _Ended):
                self._kept.discard(case.key)  # the next pass asks for it again

    async def _check(self, case: _Slow) -> None:
        said = [
            say(check, await self._ask(case, check.query.replace("$namespace", case.policy.namespace)), case.pods)
            for check in CHECKS
        ]
        await self._events.emit(case.policy, Reason.INVESTIGATION_CHECKS, "; ".join(said))

    async def _keep(self, case: _Ended) -> None:
        """Created once, under a name that follows from the window."""
        namespace = case.policy.namespace
        try:
            await self._api.create(INCIDENTS, namespace, to_body(case.report, namespace=namespace))
        except Conflict:
            return
        now = parse_time(case.report.timeline[-1].at) or 0.0
        await self._retention.prune(namespace, case.policy.name, now=now)

    async def _ask(self, case: _Slow, query: str) -> Sequence[Sample] | str:
        source = self._sources.get(case.endpoint)
        if source is None:
            return Reason.UNKNOWN_ENDPOINT
        try:
            return await source.vector(query)
        except SignalError as error:
            self._failed(error.reason)
            return error.reason

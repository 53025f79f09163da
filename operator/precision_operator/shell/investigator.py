"""The investigator: says once, when slow training may be investigated, what Prometheus shows of the usual causes.

Beside the passes, like the reporter: ``observe`` returns at once, one task asks and says it in an Event. No decision waits
for it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from precision_operator.api.signals import Signal
from precision_operator.errors import SignalError
from precision_operator.kube.events import EventRecorder, PolicyRef
from precision_operator.report.incident import Pass
from precision_operator.report.slowness import CHECKS, say
from precision_operator.signals.port import MetricSource, Sample

_LOG = logging.getLogger(__name__)

REASON = "InvestigationChecks"


@dataclass(frozen=True, slots=True)
class _Case:
    policy: PolicyRef
    endpoint: str
    pods: Mapping[str, str]
    """Pod → workload."""


class Investigator:
    """Watches the passes for windows of slow workloads. Belongs to one event loop.

    What was asked is kept in memory only: a new leader says it again, which the Event's count shows.
    """

    def __init__(
        self, sources: Mapping[str, MetricSource], *, events: EventRecorder, failed: Callable[[str], None]
    ) -> None:
        self._sources = sources
        self._events = events
        self._failed = failed
        """Told the reason of each query that failed."""
        self._asked: dict[str, frozenset[tuple[str, float]]] = {}
        self._cases: asyncio.Queue[_Case] = asyncio.Queue()

    @property
    def waiting(self) -> int:
        """Cases that are not reported yet."""
        return self._cases.qsize()

    def observe(self, seen: Pass) -> None:
        """A pass has been carried out."""
        policy, windows = seen.policy, seen.decision.status.mitigations
        slow = {(m.uid, m.since): m.name for m in windows if m.open and m.signal is Signal.SPEED}
        new = slow.keys() - self._asked.get(policy.uid, frozenset())
        if slow:
            self._asked[policy.uid] = frozenset(slow)
        else:
            self._asked.pop(policy.uid, None)
        names = {slow[key] for key in new}
        pods = {p.name: w.name for w in seen.observation.workloads if w.name in names for p in w.pods}
        if pods:
            reference = PolicyRef(policy.namespace, policy.name, policy.uid)
            self._cases.put_nowait(_Case(reference, policy.spec.prometheus_ref, pods))

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self.turn()

    async def turn(self) -> None:
        """Wait for the next case and report it."""
        case = await self._cases.get()
        try:
            said = [
                say(check, await self._ask(case, check.query.replace("$namespace", case.policy.namespace)), case.pods)
                for check in CHECKS
            ]
            await self._events.emit(case.policy, REASON, "; ".join(said))
        except Exception:  # noqa: BLE001 - the last barrier: a bug in a report must not end the operator
            self._failed("InternalError")
            _LOG.exception(
                "checks of %s/%s", case.policy.namespace, case.policy.name, extra={"reason": "InternalError"}
            )

    async def _ask(self, case: _Case, query: str) -> Sequence[Sample] | str:
        source = self._sources.get(case.endpoint)
        if source is None:
            return "UnknownEndpoint"
        try:
            return await source.vector(query)
        except SignalError as error:
            self._failed(error.reason)
            return error.reason

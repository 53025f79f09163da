"""The investigator: reports on windows of mitigation and on drills, beside the passes.

When slow training may be investigated, one Event says what Prometheus shows of the usual causes. What ended without a
rollback, a drill too, is kept as a closed PrecisionIncident. ``observe`` returns at once, and one task does the rest: no
decision waits for it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from precision_operator.api.policy import PolicyKey
from precision_operator.api.signals import Signal
from precision_operator.core.observer import RecordedPass
from precision_operator.errors import OperatorError
from precision_operator.incidents.collector import EvidenceCollector
from precision_operator.incidents.drill import drill_report
from precision_operator.incidents.mitigation import Group, closed_report, ended_well
from precision_operator.incidents.store import IncidentStore
from precision_operator.kube.events import EventRecorder, PolicyRef
from precision_operator.reasons import Reason

_LOG = logging.getLogger(__name__)


RECENT_SECONDS = 86400.0
"""A window that ended longer ago is kept already, or pruned."""


@dataclass(frozen=True, slots=True)
class _Case:
    policy: PolicyRef
    report: Callable[[], Awaitable[None]]
    forget: Callable[[], None] = lambda: None
    """Called where the report fails: the next pass asks for it again."""


@dataclass(slots=True)
class _Windows:
    """What is done of one policy's windows."""

    uid: str
    slow: frozenset[tuple[str, float]] = frozenset()
    """(workload, since when) of those that are investigated."""
    kept: set[Group] = field(default_factory=set)


class Investigator:
    """Watches the passes for windows that open and end. Belongs to one event loop.

    What was done is known in memory only: a new leader sends the Event again, which its count shows, and finds the
    incident there.
    """

    def __init__(
        self,
        collector: EvidenceCollector,
        store: IncidentStore,
        *,
        events: EventRecorder,
        failed: Callable[[str], None],
    ) -> None:
        """``failed``: called with the reason of what failed."""
        self._collector = collector
        self._store = store
        self._events = events
        self._failed = failed
        self._windows: dict[PolicyKey, _Windows] = {}
        self._drills: dict[PolicyKey, set[str]] = {}
        """The id of a policy's last drill, once it is kept."""
        self._cases: asyncio.Queue[_Case] = asyncio.Queue()

    @property
    def waiting(self) -> int:
        """Cases that are not reported yet."""
        return self._cases.qsize()

    def observe(self, seen: RecordedPass) -> None:
        """See Observer."""
        self._observe_drill(seen)
        if not seen.decision.state.mitigations:
            self._windows.pop(seen.key, None)
            return
        known = self._windows.get(seen.key)
        if known is None or known.uid != seen.policy.uid:
            known = _Windows(seen.policy.uid)
        self._windows[seen.key] = known
        reference = PolicyRef(seen.policy.namespace, seen.policy.name, seen.policy.uid)
        self._observe_slow(seen, reference, known)
        for group, windows in ended_well(seen.decision.state).items():
            recent = seen.now - max(w.good_since or w.since for w in windows) < RECENT_SECONDS
            if recent and group not in known.kept:
                known.kept.add(group)
                keep = partial(self._store.add, seen.key.namespace, closed_report(seen, windows))
                self._cases.put_nowait(_Case(reference, keep, partial(known.kept.discard, group)))

    def gone(self, key: PolicyKey) -> None:
        """See Observer."""
        self._windows.pop(key, None)
        self._drills.pop(key, None)

    def _observe_drill(self, seen: RecordedPass) -> None:
        drill = seen.decision.state.last_drill
        if drill is None or drill.ended_at is None or seen.now - drill.ended_at >= RECENT_SECONDS:
            return
        if drill.id not in (known := self._drills.setdefault(seen.key, set())):
            known.clear()  # of those before it nobody asks any more
            known.add(drill.id)
            reference = PolicyRef(seen.policy.namespace, seen.policy.name, seen.policy.uid)
            keep = partial(self._store.add, seen.key.namespace, drill_report(seen, drill))
            self._cases.put_nowait(_Case(reference, keep, partial(known.discard, drill.id)))

    def _observe_slow(self, seen: RecordedPass, reference: PolicyRef, known: _Windows) -> None:
        windows = seen.decision.state.mitigations
        slow = frozenset((m.key, m.since) for m in windows if m.open and m.signal is Signal.SPEED)
        begun = {key for key, _ in slow - known.slow}
        known.slow = slow
        pods = {p.name: w.name for w in seen.observation.workloads if w.key in begun for p in w.pods}
        if pods:
            tell = partial(self._tell_causes, reference, seen.policy.spec.prometheus_ref, pods)
            self._cases.put_nowait(_Case(reference, tell))

    async def _tell_causes(self, policy: PolicyRef, endpoint: str, pods: Mapping[str, str]) -> None:
        """``pods``: pod → workload."""
        said = await self._collector.slowness(namespace=policy.namespace, endpoint=endpoint, pods=pods)
        await self._events.emit(policy, Reason.INVESTIGATION_CHECKS, said)

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self.turn()

    async def turn(self) -> None:
        """Wait for the next case and report it."""
        case = await self._cases.get()
        try:
            await case.report()
        except Exception as error:  # noqa: BLE001 - the last barrier: a bug in a report must not end the operator
            reason = error.reason if isinstance(error, OperatorError) else Reason.INTERNAL_ERROR
            self._failed(reason)
            _LOG.exception("mitigation of %s/%s", case.policy.namespace, case.policy.name, extra={"reason": reason})
            case.forget()

"""The reporter: keeps a PrecisionIncident of each rollback, beside the passes and never in their way.

``observe`` only takes references and returns; one task of its own does the rest. Evidence is gathered by a task a case: a
Prometheus that hangs delays no message and no other incident. What fails here is counted, logged and tried again with
back-off: no rollback waits for it, and none fails by it. A finished incident costs nothing. The reporter knows only what
passes show it: it reads no policy, and goes on when the policy was deleted.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from precision_operator.api.policy import PolicyKey
from precision_operator.api.verification import Checks
from precision_operator.api.wire import parse_time
from precision_operator.core.observer import RecordedPass
from precision_operator.errors import Conflict, NotFound, OperatorError
from precision_operator.incidents.checklist import counted
from precision_operator.incidents.closing import Closer
from precision_operator.incidents.collector import EvidenceCollector
from precision_operator.incidents.document import name_for
from precision_operator.incidents.gathered import answers, take_evidence
from precision_operator.incidents.notifier import Notifier
from precision_operator.incidents.orphans import Orphans, ended
from precision_operator.incidents.passes import carry_on, retried
from precision_operator.incidents.progress import first_reading, next_due, ripen, worth_keeping
from precision_operator.incidents.report import IncidentPhase, Report
from precision_operator.incidents.store import IncidentStore
from precision_operator.incidents.track import Case, Track
from precision_operator.incidents.wording import Wording
from precision_operator.kube.port import KubeApi
from precision_operator.observability.metrics import Metrics
from precision_operator.reasons import Reason
from precision_operator.replay.recording import Recording, record
from precision_operator.runtime.backoff import Backoff
from precision_operator.runtime.clock import Clock, wait_event
from precision_operator.settings import IncidentSettings

_LOG = logging.getLogger(__name__)

BACKLOG = 64
"""Passes that may wait for the reporter; then those in the middle go, and are counted as dropped."""
KEPT_READINGS = 20_000
"""Readings of one pod (about 1 KB each) that a case holds in memory: what is beyond is left out from the middle."""
IDLE_SECONDS = 3600.0
RETRY = Backoff(2.0, 300.0)
PAST_SECONDS = 86400.0
"""A new leader takes up no message of a closed incident that is older: a channel that was added since is not told of it.
Nor is one tried any longer whose policy is gone.
"""
GONE_FAILURES = 5
"""After so many answers that there is no place for it, the incident of a policy that is gone is given up: about a minute."""


class Reporter:
    """Watches the passes of all policies. Belongs to one event loop."""

    def __init__(
        self,
        api: KubeApi,
        *,
        store: IncidentStore,
        collector: EvidenceCollector,
        settings: IncidentSettings,
        notifier: Notifier,
        metrics: Metrics,
        clock: Clock,
        leading: Callable[[], bool],
        namespaces: Sequence[str] = (),
        wording: Wording | None = None,
    ) -> None:
        """``namespaces``: those that are watched; none: all. ``wording``: of the messages; None: as the settings say."""
        self._orphans = Orphans(api, store, namespaces=namespaces)
        self._store = store
        self._collector = collector
        self._settings = settings
        self._notifier = notifier
        self._closer = Closer(store, notifier, metrics=metrics, clock=clock)
        self._metrics = metrics
        self._clock = clock
        self._leading = leading
        self._wording = wording or Wording(settings)
        self._tracks: dict[PolicyKey, Track] = {}
        self._wake = asyncio.Event()

    def observe(self, seen: RecordedPass) -> None:
        """See Observer."""
        track = self._tracks.setdefault(seen.key, Track())
        incident = seen.decision.state.incident
        track.gone = False
        followed = track.case or track.stale
        if followed is None and (incident is None or incident.id == track.finished):
            track.recent.append(seen)
            if incident is not None and retried(seen):
                track.left = seen
                self._wake.set()
            return
        track.pending.append(seen)
        if len(track.pending) > BACKLOG:
            del track.pending[BACKLOG // 2]
            if track.case is None:
                track.dropped += 1
            else:
                track.case.dropped += 1
        self._wake.set()

    def gone(self, key: PolicyKey) -> None:
        """See Observer. The incident ends, and stays."""
        track = self._tracks.get(key)
        if track is not None:
            track.gone = True
            self._wake.set()

    def verified(self, key: PolicyKey) -> tuple[str, Checks] | None:
        """(incident, its checklist, counted) of a policy; None where nothing was checked by this process."""
        track = self._tracks.get(key)
        return track.verified if track is not None else None

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._notifier.run(self._wake.set))
                while True:
                    await wait_event(self._clock, self._wake, self._pause_seconds())
                    self._wake.clear()
                    await self.turn()
        finally:
            for track in self._tracks.values():
                track.leave()

    async def turn(self) -> None:
        """Do all that is due now."""
        if not self._leading():
            self._retire()
        for key, track in list(self._tracks.items()):
            if self._leading() and self._clock.time() >= track.retry_at:
                await self._guarded(key, track)
        if self._leading():
            try:
                await self._store.retention.daily(
                    sorted({key.namespace for key in self._tracks}), now=self._clock.time()
                )
            except OperatorError as error:
                self._metrics.report_error(error.reason)
                _LOG.warning("old incidents stay until tomorrow: %s", error, extra={"reason": error.reason})
            try:
                await self._orphans.close(self._tracks.keys(), held=self._held(), now=self._clock.time())
            except OperatorError as error:
                self._metrics.report_error(error.reason)
                _LOG.warning(
                    "incidents that nobody follows stay for an hour: %s", error, extra={"reason": error.reason}
                )

    def _held(self) -> set[tuple[str, str]]:
        """(namespace, object's name) of each incident that is worked on."""
        return {(key.namespace, name_for(case.report)) for key, track in self._tracks.items() for case in track.cases}

    def _retire(self) -> None:
        """Another one leads and goes on from the objects: what is known here would be old once this one leads again."""
        for key, track in self._tracks.items():
            track.leave()
            for case in track.cases:
                self._notifier.forget(case.report, key.namespace)
        self._tracks.clear()

    def _pause_seconds(self) -> float:
        now = self._clock.time()
        moments = [now + IDLE_SECONDS]
        for key, track in self._tracks.items():
            if track.retry_at > now:
                moments.append(track.retry_at)
                continue
            due = [self._closer.due_at(track)]
            if track.case is not None:
                report = track.case.report
                due += [next_due(report, self._settings, now=now), self._notifier.due_at(report, key.namespace)]
                unsaved = self._store.due_seconds(track.case)
                due += [now + unsaved] if unsaved is not None else []
            moments += [moment for moment in due if moment is not None]
        return max(0.05, min(moments) - now)

    async def _guarded(self, key: PolicyKey, track: Track) -> None:
        try:
            await self._work(key, track)
            track.failures, track.retry_at = 0, 0.0
        except Conflict:
            # Somebody else wrote it: read it again, and go on from what stands there.
            if track.case is not None:
                track.case, track.stale = None, track.case
            self._again(track)
        except OperatorError as error:
            self._metrics.report_error(error.reason)
            _LOG.warning("incident of %s/%s: %s", key.namespace, key.name, error, extra={"reason": error.reason})
            self._again(track)
            if track.gone and isinstance(error, NotFound) and track.failures >= GONE_FAILURES:
                track.leave()
                self._tracks.pop(key, None)  # its namespace was deleted with it
        except Exception:  # noqa: BLE001 - the last barrier: a bug in a report must not end the operator
            self._metrics.report_error(Reason.INTERNAL_ERROR)
            _LOG.exception("incident of %s/%s", key.namespace, key.name, extra={"reason": Reason.INTERNAL_ERROR})
            self._again(track)

    def _again(self, track: Track) -> None:
        track.retry_at = self._clock.time() + RETRY.seconds(track.failures)
        track.failures += 1

    async def _work(self, key: PolicyKey, track: Track) -> None:
        await self._closer.work(key, track)  # first: whatever becomes of the newest holds up none before it
        while track.pending:
            seen = track.pending[0]
            await self._take(key, track, seen)
            track.last = seen
            track.pending.popleft()
        if track.left is not None:
            await self._store.left(key.namespace, track.left)
            track.left = None
        case = track.case
        if case is not None and track.last is not None:
            if track.gone and case.report.phase is not IncidentPhase.CLOSED:
                case.report = ended(case.report, now=self._clock.time())
            await self._advance(key, case, track.last)
            track.verified = (case.report.id, counted(case.report.checklist))
            if case.gathering is None and self._is_over(key, case.report, old_too=track.gone):
                self._notifier.forget(case.report, key.namespace)
                track.case, track.finished, track.last = None, case.report.id, None
                await self._store.retention.prune(key.namespace, key.name, now=self._clock.time())
        if track.gone and track.case is None and not track.superseded:
            track.leave()
            self._tracks.pop(key, None)

    async def _take(self, key: PolicyKey, track: Track, seen: RecordedPass) -> None:
        """One pass: into the case that is open, which it may end; into a new one, where it begins one."""
        incident = seen.decision.state.incident
        followed = track.case or track.stale
        if followed is not None and (incident is None or incident.id != followed.report.id):
            await self._closer.supersede(key, track, followed, seen)
        if incident is None or incident.id == track.finished:
            return
        if track.case is None:
            lead_up = [_recording(earlier) for earlier in track.recent if earlier.now < seen.now]
            track.case = await self._store.open(key.namespace, seen, incident, lead_up=lead_up, stale=track.stale)
            track.stale = None
            if track.case is not None and self._is_over(key, track.case.report, old_too=True):
                track.case.leave()
                track.case = None
            if track.case is None:
                track.finished = incident.id
                return
            if not track.case.version:
                track.case.dropped = track.dropped
        case = track.case
        keep_it = worth_keeping(case.report, seen)
        case.report = carry_on(case.report, seen)
        if keep_it:
            case.recordings.append(_recording(seen))
            case.unsaved += 1
            pods = len(seen.observation.evaluation.pods) if seen.observation.evaluation is not None else 0
            if len(case.recordings) > max(8, min(2 * self._settings.recordings, KEPT_READINGS // max(1, pods))):
                del case.recordings[len(case.recordings) // 2]
                case.dropped += 1

    def _is_over(self, key: PolicyKey, report: Report, *, old_too: bool) -> bool:
        """Nothing is left to do of an incident; ``old_too``: what is owed of it for long is left too."""
        newest = max((parse_time(message.at) or 0.0 for message in report.messages), default=0.0)
        left = old_too and self._clock.time() - newest > PAST_SECONDS
        return report.phase is IncidentPhase.CLOSED and (left or self._notifier.due_at(report, key.namespace) is None)

    async def _advance(self, key: PolicyKey, case: Case, seen: RecordedPass) -> None:
        """Ripen, write what is due, send messages, then ask for evidence."""
        first = first_reading(case.recordings)
        case.report = ripen(
            case.report, seen, self._settings, wording=self._wording, now=self._clock.time(), first=first
        )
        if not case.report.questions:
            case.report = replace(case.report, questions=answers(case.report, seen))
        # Kept first, then sent: a new leader may send it twice, and never not at all. So what cannot be kept is sent too.
        send_at = self._notifier.due_at(case.report, key.namespace)
        try:
            await self._store.save(key.namespace, case, urgent=send_at is not None and send_at <= self._clock.time())
        except Conflict:
            raise  # somebody else may have sent it
        except OperatorError:
            case.report = self._notifier.deliver(case.report, key.namespace)
            raise
        case.report = self._notifier.deliver(case.report, key.namespace)
        await self._store.save(key.namespace, case)
        await self._gather(key, case, seen)

    async def _gather(self, key: PolicyKey, case: Case, seen: RecordedPass) -> None:
        if take_evidence(case, seen):
            await self._store.save(key.namespace, case)
        if case.gathering is None and case.asked not in (case.report.phase, IncidentPhase.VERIFYING):
            case.asked = case.report.phase
            asking = self._collector.gather(case.report, seen, now=self._clock.time())
            case.gathering = asyncio.create_task(asking, name="evidence")
            case.gathering.add_done_callback(lambda _: self._wake.set())


def _recording(seen: RecordedPass) -> Recording:
    return record(seen.policy, seen.before, seen.observation, now=seen.now, decision=seen.decision)

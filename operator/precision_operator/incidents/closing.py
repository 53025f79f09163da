"""Incidents that another one followed: each is closed, and gets the evidence that was asked for it.

None holds the next one up. What fails is logged, counted and tried again, from what memory knows. The object is read again
only where somebody else wrote it.
"""

import logging

from precision_operator.api.policy import PolicyKey
from precision_operator.core.observer import RecordedPass
from precision_operator.errors import Conflict, Forbidden, NotFound, OperatorError
from precision_operator.incidents.gathered import take_evidence
from precision_operator.incidents.notifier import Notifier
from precision_operator.incidents.passes import carry_on
from precision_operator.incidents.store import IncidentStore
from precision_operator.incidents.track import Case, Superseded, Track
from precision_operator.observability.metrics import Metrics
from precision_operator.replay.codec import RecordingError
from precision_operator.runtime.backoff import Backoff
from precision_operator.runtime.clock import Clock

_LOG = logging.getLogger(__name__)

AGAIN = Backoff(60.0, 300.0)
"""How long after each failure it is tried again."""
SUPERSEDED_LIMIT = 8
"""Incidents of one policy that may wait to be closed; of more, the oldest is left to what closes orphans."""


class Closer:
    """Closes what was superseded. Belongs to the reporter's task."""

    def __init__(self, store: IncidentStore, notifier: Notifier, *, metrics: Metrics, clock: Clock) -> None:
        self._store = store
        self._notifier = notifier
        self._metrics = metrics
        self._clock = clock

    async def supersede(self, key: PolicyKey, track: Track, case: Case, seen: RecordedPass) -> None:
        """Close the case that another one has followed, now or later; ``seen``: the pass that ended it."""
        track.superseded.append(Superseded(case, last=track.last or seen, seen=seen))
        track.finished, track.case, track.stale = case.report.id, None, None
        if len(track.superseded) > SUPERSEDED_LIMIT:
            # Of one that is closed, evidence alone is missing.
            oldest = next((one for one in track.superseded if one.closed), track.superseded[0])
            track.superseded.remove(oldest)
            later = "closed within about an hour" if oldest.case.version else "not kept"
            self._give_up(
                key, oldest, "" if oldest.closed else f"{SUPERSEDED_LIMIT} newer ones wait too; it is {later}"
            )
        await self.work(key, track)

    async def work(self, key: PolicyKey, track: Track) -> None:
        """Do all that is due of a policy. What the API server refuses is tried again later."""
        for one in list(track.superseded):
            if self._clock.time() < one.retry_at:
                continue
            try:
                finished = await self._finish(key, one, anew=not track.gone)
            except OperatorError as error:
                self._metrics.report_error(error.reason)
                _LOG.warning(
                    "%s of %s is not finished yet: %s", one.case.report.id, key, error, extra={"reason": error.reason}
                )
                one.retry_at = self._clock.time() + AGAIN.seconds(one.failures)
                one.failures += 1
            else:
                if finished:
                    track.superseded.remove(one)

    def due_at(self, track: Track) -> float | None:
        """When there is something to do; None: nothing, or the evidence wakes the reporter."""
        return min((one.retry_at for one in track.superseded if not one.waits), default=None)

    async def _finish(self, key: PolicyKey, one: Superseded, *, anew: bool) -> bool:
        """Whether nothing is left to do of it; ``anew``: its object is created where it never was."""
        take_evidence(one.case, one.last)
        if not one.closed:
            if not await self._close(key, one, anew=anew):
                return True
            one.closed, one.failures = True, 0
            return one.case.gathering is None
        if one.case.gathering is not None:
            return False
        await self._store.complete(key.namespace, one.case.report)
        return True

    async def _close(self, key: PolicyKey, one: Superseded, *, anew: bool) -> bool:
        """Whether its object is closed now; else it was given up."""
        never_was = not one.case.version
        try:
            await self._write(key, one)
        except Conflict:
            # Somebody else wrote it; or this process did, and the answer was lost.
            return await self._reopen(key, one)
        except NotFound:
            if never_was and anew:
                raise
            return self._give_up(key, one)  # somebody deleted it
        return True

    async def _reopen(self, key: PolicyKey, one: Superseded) -> bool:
        """The same from what stands in its object."""
        try:
            found = await self._store.reopen(key.namespace, one.case)
        except (Forbidden, RecordingError) as error:
            self._metrics.report_error(error.reason)
            return self._give_up(key, one, str(error))
        if found is None:
            return self._give_up(key, one)
        one.case = found
        try:
            await self._write(key, one)
        except NotFound:
            return self._give_up(key, one)  # somebody deleted it meanwhile
        return True

    async def _write(self, key: PolicyKey, one: Superseded) -> None:
        case = one.case
        report = carry_on(case.report, one.seen)
        case.report = self._notifier.deliver(report, key.namespace)
        await self._store.save(key.namespace, case, urgent=True)
        self._notifier.forget(report, key.namespace)

    def _give_up(self, key: PolicyKey, one: Superseded, why: str = "") -> bool:
        if why:
            _LOG.warning("%s of %s stays open: %s", one.case.report.id, key, why)
        one.case.leave()
        self._notifier.forget(one.case.report, key.namespace)
        return False

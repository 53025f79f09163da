"""Where the reporter's cases are kept: one PrecisionIncident each, read once and written seldom."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, replace

from precision_operator.api.incident import Incident
from precision_operator.api.wire import parse_time
from precision_operator.core.observer import RecordedPass
from precision_operator.errors import Conflict, Forbidden, NotFound
from precision_operator.incidents.cost import opened
from precision_operator.incidents.document import from_body, name_for, name_of, to_body
from precision_operator.incidents.mitigation import with_windows
from precision_operator.incidents.passes import extended, open_report
from precision_operator.incidents.report import IncidentPhase, Message, Recorded, Report, stamp
from precision_operator.incidents.retention import Retention
from precision_operator.incidents.track import Case
from precision_operator.kube.port import INCIDENTS, JsonObject, KubeApi
from precision_operator.replay.codec import RecordingError
from precision_operator.replay.recording import Recording, bounded, unpack
from precision_operator.runtime.clock import Clock
from precision_operator.settings import IncidentSettings

SAVE_SECONDS = 10.0
"""How long what has changed waits to be written. Twice as long after each write, until the incident's phase changes."""
SAVE_LIMIT_SECONDS = 60.0
"""The longest such wait for what people read."""
FLUSH_SECONDS = (60.0, 300.0)
"""The shortest and the longest wait for recordings alone: a gradual rollback is hundreds of passes."""


class IncidentStore:
    """Reads and writes the objects of cases. What it raises leaves the case as it is, to be tried again."""

    def __init__(self, api: KubeApi, *, settings: IncidentSettings, clock: Clock) -> None:
        self._api = api
        self._settings = settings
        self._clock = clock
        self.retention = Retention(api, settings)

    async def add(self, namespace: str, report: Report) -> None:
        """Create the object of a report that is closed already, once, under the name that follows from it."""
        try:
            await self._api.create(INCIDENTS, namespace, to_body(report, namespace=namespace))
        except Conflict:
            return
        await self.retention.prune(namespace, report.policy, now=self._clock.time())

    async def open(
        self,
        namespace: str,
        seen: RecordedPass,
        incident: Incident,
        *,
        lead_up: Sequence[Recording],
        stale: Case | None,
    ) -> Case | None:
        """The case of an incident, from its object where there is one, closed or not; None: too old for a new one.

        Args:
            namespace: of the policy.
            seen: the pass that knows of the incident.
            incident: it.
            lead_up: recordings from before it, for a case that is new.
            stale: the case as this process had it, before somebody else wrote the object.
        """
        try:
            body = await self._api.get(INCIDENTS, namespace, name_of(incident.id, stamp(incident.decided_at)))
        except (NotFound, Forbidden):
            if stale is not None:
                stale.leave()
            # What cannot be read may not have been told of either. Where there is one, creating it is a conflict.
            if seen.now - incident.decided_at > self._settings.long_seconds:
                return None  # pruned, or from before incidents were kept
            cost = opened(seen, incident.scope, [(r.policy, r.observation) for r in lead_up])
            report = replace(with_windows(open_report(seen, incident), seen.decision.state), cost=cost)
            return Case(report, recordings=list(lead_up))
        case = _case(from_body(body), _version(body))
        return case if stale is None else _joined(case, stale)

    async def reopen(self, namespace: str, stale: Case) -> Case | None:
        """A case whose object somebody else wrote, with what stands in it; None: it was deleted.

        Raises:
            Forbidden: the operator must not read it.
            RecordingError: it is damaged, or another version's.
        """
        try:
            body = await self._api.get(INCIDENTS, namespace, name_for(stale.report))
        except NotFound:
            return None
        return _joined(_case(from_body(body), _version(body)), stale)

    def due_seconds(self, case: Case) -> float | None:
        """In how many seconds the case is to be written; None: nothing is new in it."""
        if case.written is None or not case.version:
            return 0.0
        same = _same(case)
        if same and not case.unsaved:
            return None
        least, most = FLUSH_SECONDS if same else (SAVE_SECONDS, SAVE_LIMIT_SECONDS)
        wait = max(least, min(most, SAVE_SECONDS * 2.0**case.updates))
        if case.report.phase is not case.written.phase:
            wait = 0.0 if case.report.phase is IncidentPhase.CLOSED else SAVE_SECONDS
        return max(0.0, wait - (self._clock.monotonic() - case.saved_at))

    async def left(self, namespace: str, seen: RecordedPass) -> None:
        """Write into the object of a closed incident when its policy went back to the target, once."""
        incident = seen.decision.state.incident
        if incident is None:
            return
        found = await self.read(namespace, name_of(incident.id, stamp(incident.decided_at)))
        if found is not None and not found[0].stages.left_at:
            report, version = found
            report = replace(report, stages=replace(report.stages, left_at=stamp(seen.now)))
            await self.overwrite(namespace, report, version)

    async def complete(self, namespace: str, report: Report) -> None:
        """Write the evidence, and what follows from it, into the object of a report that was closed before they came."""
        found = await self.read(namespace, name_for(report))
        if found is not None:
            kept, version = found
            kept = replace(kept, evidence=report.evidence, cost=report.cost, questions=report.questions)
            await self.overwrite(namespace, kept, version)

    async def read(self, namespace: str, name: str) -> tuple[Report, str] | None:
        """(report, resourceVersion); None where it was pruned, or is another version's."""
        try:
            body = await self._api.get(INCIDENTS, namespace, name)
            return from_body(body), _version(body)
        except (NotFound, RecordingError):
            return None

    async def overwrite(self, namespace: str, report: Report, version: str) -> None:
        """Write the report over the version that was read; Conflict, NotFound: somebody else was faster."""
        written = to_body(report, namespace=namespace, resource_version=version)
        await self._api.replace(INCIDENTS, namespace, name_for(report), written)

    async def save(self, namespace: str, case: Case, *, urgent: bool = False) -> None:
        """Write what is due: created once under a name that follows from the incident, later a compare-and-swap.

        ``urgent``: what is new is written now; recordings alone never are.
        """
        due = self.due_seconds(case)
        if due is None or (due > 0 and not (urgent and not _same(case))):
            return
        # Packing a large fleet's tape takes a while: not on the loop that decides.
        tape, dropped = await asyncio.to_thread(
            bounded,
            list(case.recordings),
            count=self._settings.recordings,
            size_bytes=self._settings.recording_bytes,
            dropped=case.dropped,
        )
        count = len(case.recordings) + case.dropped - dropped
        report = replace(case.report, recordings=Recorded(count, dropped, tape))
        body = to_body(report, namespace=namespace, resource_version=case.version)
        new_phase = case.written is None or case.written.phase is not report.phase
        case.version = _version(await self._write(namespace, case, body))
        case.report, case.written, case.unsaved = report, report, 0
        case.saved_at = self._clock.monotonic()
        case.updates = 0 if new_phase else min(case.updates + 1, 16)

    async def _write(self, namespace: str, case: Case, body: JsonObject) -> JsonObject:
        if not case.version:
            return await self._api.create(INCIDENTS, namespace, body)
        try:
            return await self._api.replace(INCIDENTS, namespace, name_for(case.report), body)
        except NotFound:
            case.version = ""  # somebody deleted it: the next try creates it again
            raise


def _same(case: Case) -> bool:
    """Nothing is new but recordings."""
    bare = Recorded()
    return case.written is not None and replace(case.report, recordings=bare) == replace(case.written, recordings=bare)


def _asked(report: Report) -> IncidentPhase | None:
    """The phase that its evidence was asked for in: what is from before all were in the fallback is not the last."""
    if report.phase is IncidentPhase.CLOSED:
        return report.phase
    if not report.evidence:
        return None
    return IncidentPhase.ACTIVE if _asked_until(report) < (report.in_fallback_at or 0.0) else report.phase


def _case(report: Report, version: str) -> Case:
    """From its object."""
    tape = unpack(report.recordings.tape) if report.recordings.tape else None
    return Case(
        report,
        version=version,
        recordings=list(tape.recordings) if tape else [],
        dropped=tape.dropped if tape else 0,
        written=report,
        asked=_asked(report),
    )


def _joined(case: Case, stale: Case) -> Case:
    """What the object has, and what only this process has seen since; its evidence is asked for on."""
    last = case.recordings[-1].now if case.recordings else 0.0
    case.recordings += [recording for recording in stale.recordings if recording.now > last]
    case.unsaved = 1
    case.report = _together(case.report, stale.report)
    case.asked, case.gathering = _asked(case.report), stale.gathering
    if stale.gathering is not None:
        case.asked = stale.asked
    return case


def _together(kept: Report, known: Report) -> Report:
    """What stands in the object, with what this process knows beside it."""
    if _asked_until(known) > _asked_until(kept):
        kept = replace(kept, evidence=known.evidence, questions=known.questions, cost=known.cost)
    if kept.phase is IncidentPhase.CLOSED:
        return kept
    return replace(
        kept,
        stages=replace(kept.stages, **{name: at for name, at in asdict(known.stages).items() if at}),
        timeline=extended(kept.timeline, known.timeline),
        cost=known.cost,
        messages=_messages(kept.messages, known.messages),
    )


def _messages(kept: Sequence[Message], known: Sequence[Message]) -> tuple[Message, ...]:
    """Those of the object and those that a channel took, each with all channels that did: none gets one twice."""
    found = {(message.kind, message.at): message for message in kept}
    for message in known:
        if message.delivered:
            one = found.setdefault((message.kind, message.at), message)
            delivered = tuple(dict.fromkeys((*one.delivered, *message.delivered)))
            found[message.kind, message.at] = replace(one, delivered=delivered)
    return tuple(sorted(found.values(), key=lambda message: message.at))


def _asked_until(report: Report) -> float:
    """Up to when its evidence reaches."""
    return max((parse_time(evidence.end) or 0.0 for evidence in report.evidence), default=0.0)


def _version(body: JsonObject) -> str:
    metadata = body["metadata"]
    return str(metadata.get("resourceVersion", "")) if isinstance(metadata, dict) else ""

"""``history``: what happened to a fleet, and who asked for what, from the policy's status, annotations and Events."""

import argparse
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from precision_operator.api.commands import answers
from precision_operator.api.wire import format_time, integer, mapping, parse_time, sequence, text
from precision_operator.cli.flags import Commands
from precision_operator.cli.output import age, console, said, table, write_json
from precision_operator.cli.session import Session, Target
from precision_operator.cli.summary import ROLLED_BACK, UNKNOWN_PERSON, stages
from precision_operator.contract import SUSPEND_BY
from precision_operator.errors import KubeError
from precision_operator.kube.port import INCIDENTS

_STAGES = {
    "detectedAt": "the breach was detected",
    "decidedAt": "the rollback was decided",
    "expeditedAt": "it was raised, or went on from its canary to the rest",
    "lastPatchAt": "the last pod had been requested, or deleted",
    "lastAckAt": "the last workload had acknowledged",
    "recoveredAt": "training ended well again",
}


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One thing that happened."""

    at: float | None
    """Seconds since the epoch; None where nobody wrote down when."""
    source: str
    """``Event``, ``Incident`` or ``Person``."""
    reason: str
    message: str
    by: str = ""
    count: int = 1

    def as_json(self) -> dict[str, object]:
        """For programs."""
        known = {name: getattr(self, name) for name in self.__slots__}
        return {**known, "at": format_time(self.at), "by": self.by or None}


def register(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the verb."""
    verb = commands.add_parser(
        "history",
        parents=[common],
        help="what happened, when, and who asked for it",
        description="Show the policy's Events, the stages of its newest rollback and the commands that stand, oldest first. "
        "The API server keeps Events for an hour unless configured otherwise; the newest rollback and the commands stay.",
    )
    verb.add_argument("policy", nargs="?", help="default: the only one of the namespace")
    verb.set_defaults(run=_history)


async def _history(session: Session, arguments: argparse.Namespace) -> int:
    target = await session.policy(arguments.policy)
    events = await session.api.events_of(session.namespace, target.policy.uid)
    entries = timeline(target, events, costs=await _costs(session, target))
    if arguments.output == "json":
        write_json([entry.as_json() for entry in entries])
        return 0
    rows = table("AGE", "SOURCE", "REASON", "BY", "MESSAGE")
    for entry in entries:
        again = f" ({entry.count} times)" if entry.count > 1 else ""
        rows.add_row(age(entry.at), entry.source, said(entry.reason), said(entry.by), said(entry.message + again))
    console().print(rows)
    return 0


async def _costs(session: Session, target: Target) -> list[HistoryEntry]:
    """What each rollback has cost whose incident is kept, where this person may read them."""
    from precision_operator.incidents.document import from_body
    from precision_operator.incidents.markdown import cost_of
    from precision_operator.replay.codec import RecordingError

    try:
        bodies = await session.api.list(INCIDENTS, session.namespace)
    except KubeError:
        return []
    found: list[HistoryEntry] = []
    for body in bodies:
        if mapping(body.get("report")).get("policyUid") != target.policy.uid:
            continue
        try:
            report = from_body(body)
        except RecordingError:
            continue  # another version's
        newest = target.status.incident is not None and target.status.incident.id == report.id
        until = time.time() if newest and target.status.phase in ROLLED_BACK else None
        at = parse_time(report.stages.left_at) or report.in_fallback_at
        found.append(HistoryEntry(at, "Incident", report.id, f"cost: {cost_of(report, in_fallback_until=until)}"))
    return found


def timeline(
    target: Target, events: Iterable[Mapping[str, object]], *, costs: Iterable[HistoryEntry] = ()
) -> tuple[HistoryEntry, ...]:
    """Everything that is known, oldest first; what has no time comes last. ``events``: those of the policy."""
    found = [*_events(events), *_incident(target), *costs, *_commands(target)]
    return tuple(sorted(found, key=lambda entry: (entry.at is None, entry.at or 0.0)))


def _events(events: Iterable[Mapping[str, object]]) -> Iterable[HistoryEntry]:
    for event in events:
        yield HistoryEntry(
            at=parse_time(event.get("lastTimestamp")) or parse_time(event.get("eventTime")),
            source="Event",
            reason=text(event.get("reason")),
            message=text(event.get("message")),
            count=integer(event.get("count"), 1),
        )


def _incident(target: Target) -> Iterable[HistoryEntry]:
    incident = target.status.incident
    if incident is None:
        return
    for name, at in stages(incident):
        if at is not None:
            what = f"{_STAGES[name]}, {at - incident.detected_at:.1f} s after the breach"
            yield HistoryEntry(at, "Incident", incident.id, _STAGES[name] if name == "detectedAt" else what)


def _commands(target: Target) -> Iterable[HistoryEntry]:
    annotations = target.policy.annotations
    for given in answers(annotations):
        at = _written_at(target, given.annotation)
        what = f"answered transition {given.transition_id}" + (f": {given.message}" if given.message else "")
        yield HistoryEntry(at, "Person", given.name, what, given.by or UNKNOWN_PERSON)
    if SUSPEND_BY in annotations:
        what = "paused" if target.policy.spec.suspend else "resumed"
        yield HistoryEntry(_written_at(target, SUSPEND_BY), "Person", what, "", annotations[SUSPEND_BY])


def _written_at(target: Target, annotation: str) -> float | None:
    """When the annotation's manager last wrote: the API server's record, so at the latest then."""
    field = f"f:{annotation}"
    for entry in map(mapping, sequence(mapping(target.body.get("metadata")).get("managedFields"))):
        owned = mapping(mapping(mapping(entry.get("fieldsV1")).get("f:metadata")).get("f:annotations"))
        if field in owned:
            return parse_time(entry.get("time"))
    return None

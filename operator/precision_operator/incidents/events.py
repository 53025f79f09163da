"""Events of an incident's workloads and pods: what the controllers and kubelets said around it. Pure.

Read when a person exports the incident, with that person's rights: the operator has none to Events of others.
"""

from collections.abc import Iterable, Mapping

from precision_operator.api.redaction import redact
from precision_operator.api.wire import integer, mapping, parse_time, text
from precision_operator.incidents.evidence import AROUND_SECONDS
from precision_operator.incidents.report import Report, stamp
from precision_operator.kube.port import JsonObject
from precision_operator.replay.codec import RecordingError
from precision_operator.replay.recording import Recording, unpack

EVENTS_LIMIT = 500
"""Events that are kept; the newest."""


def happenings(report: Report, events: Iterable[Mapping[str, object]]) -> list[JsonObject]:
    """The Events of the policy, of its workloads and of what these own, from half an hour before the breach on, in order.

    Args:
        report: the incident; its recordings name the fleet.
        events: as the API server has them, of the incident's namespace. It forgets them after an hour by default.
    """
    since, workloads = matters_from(report), _fleet(report)
    found: list[tuple[float, JsonObject]] = []
    for event in events:
        about = mapping(event.get("involvedObject"))
        name = text(about.get("name"))
        at = parse_time(event.get("lastTimestamp")) or parse_time(event.get("eventTime"))
        ours = name == report.policy or any(name == w or name.startswith(f"{w}-") for w in workloads)
        if not ours or at is None or at < since:
            continue
        said: JsonObject = {
            "at": stamp(at),
            "object": f"{text(about.get('kind'))}/{name}",
            "type": text(event.get("type")),
            "reason": text(event.get("reason")),
            "message": redact(text(event.get("message"))),
            "count": integer(event.get("count"), 1),
        }
        found.append((at, said))
    found.sort(key=lambda entry: entry[0])
    return [said for _, said in found[-EVENTS_LIMIT:]]


def matters_from(report: Report) -> float:
    """From when on what was said matters: half an hour before the breach. Seconds since the epoch."""
    return (parse_time(report.stages.detected_at) or report.decided_at) - AROUND_SECONDS


def recordings_of(report: Report) -> tuple[Recording, ...]:
    """Its recordings; empty where they cannot be read: replay says why, and here the rest of the report is enough."""
    try:
        return unpack(report.recordings.tape).recordings if report.recordings.tape else ()
    except RecordingError:
        return ()


def _fleet(report: Report) -> frozenset[str]:
    """Names of the breached workloads, and of the fleet as it was recorded last."""
    recordings = recordings_of(report)
    fleet = recordings[-1].observation.workloads if recordings else ()
    return frozenset({*report.workloads, *(w.name for w in fleet)})

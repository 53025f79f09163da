"""Incidents for the page: the list, and one with its evidence."""

from dataclasses import replace

from precision_operator.api.incident import Incident
from precision_operator.cli.dashboard.charts import Chart, of_evidence, of_recordings
from precision_operator.cli.incident import find
from precision_operator.cli.incident import listed as rows_of
from precision_operator.cli.session import Session
from precision_operator.errors import NotFound
from precision_operator.incidents.document import from_body, name_of
from precision_operator.incidents.evidence import RUN_INFO
from precision_operator.incidents.report import Recorded, Report, stamp
from precision_operator.kube.port import INCIDENTS
from precision_operator.replay.codec import encode
from precision_operator.replay.recording import Recording, unpack


async def listed(session: Session, *, everywhere: bool) -> list[dict[str, str]]:
    """All of the namespace, or of all namespaces, newest first."""
    return rows_of(await session.api.list(INCIDENTS, "" if everywhere else session.namespace))


async def shown(session: Session, name: str) -> dict[str, object]:
    """One report, with a chart for each query that it kept."""
    report = from_body(await find(session, name))
    recordings = _recordings(report)
    policy = recordings[-1].policy if recordings else None
    charts = [of_evidence(e, report, policy) for e in report.evidence if e.name != RUN_INFO]
    plain = replace(report, evidence=(), recordings=Recorded(report.recordings.count, report.recordings.dropped))
    return {
        "name": name,
        "namespace": session.namespace,
        "report": encode(plain, Report),
        "metDeadline": report.met_deadline,
        "charts": charts or of_recordings(recordings, report),
        "passes": len(recordings),
        "replay": session.plugin("replay", name),
        "export": session.plugin("incident", "export", name, name),
    }


async def recorded(session: Session, incident: Incident) -> list[Chart]:
    """The signals around a policy's newest rollback, as its passes recorded them; none where nothing is kept."""
    try:
        body = await session.api.get(INCIDENTS, session.namespace, name_of(incident.id, stamp(incident.decided_at)))
    except NotFound:
        return []
    report = from_body(body)
    return of_recordings(_recordings(report), report)


def _recordings(report: Report) -> tuple[Recording, ...]:
    return unpack(report.recordings.tape).recordings if report.recordings.tape else ()

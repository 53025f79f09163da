"""An incident as a folder that a person can attach: Markdown, JSON, the decisions, and plots."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from precision_operator.api.state import Phase
from precision_operator.api.wire import mapping, parse_time, text
from precision_operator.incidents.document import from_body
from precision_operator.incidents.evidence import RUN_INFO, criterion_of, series_of, title_of, unit_of
from precision_operator.incidents.markdown import page
from precision_operator.incidents.report import Evidence, Report
from precision_operator.replay.codec import RecordingError
from precision_operator.replay.curves import levels_of
from precision_operator.replay.plots import FiguresMissing, Panel, Picture, draw
from precision_operator.replay.recording import Tape, to_json, unpack

_FILE = re.compile(r"[A-Za-z0-9_]{1,64}")
"""What names a signal, and so a plot's file."""


def export(body: Mapping[str, object], folder: Path) -> tuple[list[str], str]:
    """Write the folder; returns the files, and why there are no plots (empty: there are, or there is nothing to plot).

    Raises:
        RecordingError: the body is no incident, or the folder holds something already.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RecordingError(f"{folder}: expected a folder that is empty or not there, found something; name another")
    report, metadata = from_body(body), mapping(body.get("metadata"))
    tape = unpack(report.recordings.tape) if report.recordings.tape else Tape(())
    for evidence in report.evidence:
        if not _FILE.fullmatch(evidence.name):
            raise RecordingError(
                f"evidence {evidence.name!r}: expected a signal's name of letters, digits and underscores; "
                "the operator did not write this incident: see who did in its metadata.managedFields"
            )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "incident.json").write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
    lines = [json.dumps(to_json(recording)) for recording in tape.recordings]
    (folder / "recording.json").write_text("[" + ",\n".join(lines) + "]\n", encoding="utf-8")
    where, name = text(metadata.get("namespace")), text(metadata.get("name"))
    plots: list[str] = []
    missing = ""
    for evidence in report.evidence:
        if evidence.series and evidence.name != RUN_INFO:
            try:
                draw(folder / f"{evidence.name}.png", picture(report, evidence, tape, where=where))
            except FiguresMissing as error:
                missing = str(error)
                break
            plots.append(f"{evidence.name}.png")
    markdown = page(report, namespace=where, name=name, plots=tuple(plots))
    (folder / "incident.md").write_text(markdown, encoding="utf-8")
    return ["incident.md", "incident.json", "recording.json", *plots], missing


def picture(report: Report, evidence: Evidence, tape: Tape, *, where: str) -> Picture:
    """The plot of one answer: its thresholds as the last recorded policy has them, phases as the passes did.

    Raises:
        RecordingError: the data is damaged.
    """
    policy = tape.recordings[-1].policy if tape.recordings else None
    criterion = criterion_of(policy, evidence.name)
    levels = levels_of(criterion) if criterion is not None else []
    stages = (("detected", report.stages.detected_at), ("in fallback", report.stages.last_ack_at))
    moments = [(name, at) for name, stamp in stages if (at := parse_time(stamp)) is not None]
    panel = Panel(
        *(title_of(evidence.name), unit_of(evidence.name), series_of(evidence), levels),
        lower_is_worse=criterion is not None and criterion.lower_is_worse,
        left_out=evidence.dropped,
    )
    heading = f"{where}/{report.policy}, incident {report.id}: {report.severity or report.kind} {report.reason}"
    return Picture(heading, [panel], _phases(report, tape), moments)


def _phases(report: Report, tape: Tape) -> list[tuple[str, float]]:
    """Each phase with its beginning: from the one before the rollback to the one that the last recorded pass led to."""
    found: list[tuple[str, float]] = []
    before = parse_time(report.since_before)
    if before is not None:
        found.append((report.phase_before, before))
    previous = before
    for recording in tape.recordings:
        if previous is not None:
            found.append((recording.state.phase, previous))
        previous = recording.now
    if tape.recordings and previous is not None:
        last = mapping(mapping(tape.recordings[-1].decision).get("state")).get("phase", Phase.PENDING)
        found.append((str(last), previous))
    return [one for i, one in enumerate(found) if i == 0 or one[0] != found[i - 1][0]]

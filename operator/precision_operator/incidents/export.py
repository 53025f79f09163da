"""An incident as a folder that a person can attach: Markdown, JSON, the decisions, and plots."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from precision_operator.api.policy import Policy
from precision_operator.api.spec import Criterion
from precision_operator.api.wire import mapping, parse_time, text
from precision_operator.incidents.document import from_body
from precision_operator.incidents.evidence import series_of
from precision_operator.incidents.markdown import page
from precision_operator.incidents.report import Evidence, Report
from precision_operator.replay.codec import RecordingError
from precision_operator.replay.plots import FiguresMissing, Panel, draw
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
    policy = tape.recordings[-1].policy if tape.recordings else None
    plots: list[str] = []
    missing = ""
    for evidence in report.evidence:
        if evidence.series and evidence.name != "run_info":
            try:
                draw(folder / f"{evidence.name}.png", [_panel(report, evidence, policy)])
            except FiguresMissing as error:
                missing = str(error)
                break
            plots.append(f"{evidence.name}.png")
    where = text(metadata.get("namespace"))
    markdown = page(report, namespace=where, name=text(metadata.get("name")), plots=tuple(plots))
    (folder / "incident.md").write_text(markdown, encoding="utf-8")
    return ["incident.md", "incident.json", "recording.json", *plots], missing


def _panel(report: Report, evidence: Evidence, policy: Policy | None) -> Panel:
    levels: list[tuple[str, float]] = []
    criterion = _criterion(policy, evidence.name)
    if criterion is not None:
        levels = [("enter", criterion.enter), ("leave", criterion.leave)]
        if criterion.promote_below is not None:
            levels.append(("promoteBelow", criterion.promote_below))
    stages = (("detected", report.stages.detected_at), ("in fallback", report.stages.last_ack_at))
    moments = [(name, at) for name, stamp in stages if (at := parse_time(stamp)) is not None]
    return Panel(evidence.name, series_of(evidence), levels, moments)


def _criterion(policy: Policy | None, signal: str) -> Criterion | None:
    criteria = policy.spec.criteria if policy is not None else ()
    return next((c for c in criteria if c.signal.value == signal), None)

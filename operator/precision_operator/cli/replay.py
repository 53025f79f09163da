"""``replay``: decide an incident again from its recording, bit for bit, or with other thresholds side by side."""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from precision_operator.api.wire import format_time
from precision_operator.cli import session
from precision_operator.cli.flags import Commands
from precision_operator.cli.incident import find
from precision_operator.cli.output import console, said, table, write_json
from precision_operator.cli.session import Session

if TYPE_CHECKING:
    from precision_operator.replay.recording import Tape


def register(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the verb."""
    verb = commands.add_parser(
        "replay",
        parents=[common],
        help="decide an incident again, from what was recorded",
        description="Decide every recorded pass again with this version's own decide(), and compare bit for bit. "
        "Exit code 1 with the first difference. --what-if decides with other settings, side by side, and compares nothing.",
    )
    verb.add_argument("incident", help="name or id of a PrecisionIncident, or the incident.json of an export")
    verb.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the policy's spec, e.g. criteria.overflow.enter=0.4 or evaluation.failureLimit=3; repeatable",
    )
    verb.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read from a file or the cluster, and decide."""
    if Path(arguments.incident).is_file():
        return _replay(_from_file(Path(arguments.incident)), arguments)
    return session.connected(arguments, _from_cluster)


async def _from_cluster(session: Session, arguments: argparse.Namespace) -> int:
    from precision_operator.incidents.document import from_body
    from precision_operator.replay.recording import unpack

    report = from_body(await find(session, arguments.incident))
    return _replay(unpack(report.recordings.tape), arguments)


def _from_file(path: Path) -> "Tape":
    import json

    from precision_operator.incidents.document import from_body
    from precision_operator.replay.codec import RecordingError
    from precision_operator.replay.recording import unpack

    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecordingError(f"{path}: expected the incident.json of an export, found no JSON: {error}") from error
    if not isinstance(body, dict):
        raise RecordingError(f"{path}: expected the incident.json of an export, found a {type(body).__name__}")
    return unpack(from_body(body).recordings.tape)


def _replay(tape: "Tape", arguments: argparse.Namespace) -> int:
    return _what_if(tape, arguments) if arguments.what_if else _again(tape, arguments)


def _again(tape: "Tape", arguments: argparse.Namespace) -> int:
    from precision_operator.replay.recording import schema
    from precision_operator.replay.rerun import first_difference

    began = time.perf_counter()
    found = first_difference(tape.recordings)
    seconds = time.perf_counter() - began
    count = len(tape.recordings) if found is None else found.index + 1
    rate = count / seconds if seconds > 0 else 0.0
    if arguments.output == "json":
        difference = None
        if found is not None:
            difference = {
                "pass": found.index,
                "at": format_time(found.now),
                "path": found.path,
                "recorded": found.recorded,
                "decided": found.decided,
            }
        write_json(
            {
                "passes": len(tape.recordings),
                "dropped": tape.dropped,
                "recordedBy": tape.operator,
                "sameSchema": tape.schema == schema(),
                "decisionsPerSecond": round(rate),
                "difference": difference,
            }
        )
        return 0 if found is None else 1
    out = console()
    if tape.schema != schema():
        text = f"recorded by operator {tape.operator}, whose types or defaults differ from here: that may be the difference"
        out.print(said(text, "yellow"))
    if found is None:
        out.print(f"{count} decisions again, bit for bit the same ({tape.dropped} were not kept); {rate:,.0f} a second")
        return 0
    out.print(said(f"pass {found.index} at {format_time(found.now)}: {found.path}", "red"))
    out.print(said(f"  recorded: {found.recorded}"))
    out.print(said(f"  decided:  {found.decided}"))
    return 1


def _what_if(tape: "Tape", arguments: argparse.Namespace) -> int:
    from precision_operator.replay.rerun import parse_assignments, what_if

    lanes = what_if(tape.recordings, parse_assignments(arguments.what_if))
    if arguments.output == "json":
        write_json(
            [
                {
                    "at": format_time(lane.now),
                    "recorded": {"phase": lane.recorded.phase, "reason": lane.recorded.reason},
                    "whatIf": {"phase": lane.other.phase, "reason": lane.other.reason},
                }
                for lane in lanes
            ]
        )
        return 0
    rows = table("AT", "AS RECORDED", "", f"WITH {' '.join(arguments.what_if)}", "")
    last = None
    for lane in lanes:
        state = (lane.recorded.phase, lane.recorded.reason, lane.other.phase, lane.other.reason)
        if state != last:
            style = "" if lane.recorded.phase is lane.other.phase else "yellow"
            rows.add_row(format_time(lane.now), *(said(str(part), style) for part in state))
        last = state
    out = console()
    out.print(rows)
    out.print(
        "The observations are those that were recorded: after the first difference, the fleet would have gone another way."
    )
    return 0

"""``precision-trainer checkpoint verify|show``: whether checkpoints can be used, and what is in them."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from ..checkpoint.inspect import CheckpointReport
    from . import Commands

_PATH_HELP = "a directory of checkpoints, one of them (step-000000000800), or a plain file that torch.save wrote"


def register(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "checkpoint",
        help="verify checkpoints, and show what is in them",
        description="Look at checkpoints, with every check that a resume makes: size, sha256, safe reading, layout, finite "
        "FP32 weights. Changes nothing and runs nothing that is in them. Exit code 0: all are good, 1: at least one is not.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="verb")
    for verb, text in (("verify", "whether they can be used, and if not, why"), ("show", "what is in them")):
        command = verbs.add_parser(verb, help=text, description=f"Say {text}.")
        command.add_argument("path", metavar="PATH", type=Path, help=_PATH_HELP)
        command.add_argument("-o", "--output", choices=("text", "json"), default="text", help="(default text)")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    from ..checkpoint.inspect import find, inspect

    reports = [inspect(path) for path in find(parsed.path)]
    if parsed.output == "json":
        sys.stdout.write(json.dumps([report.to_wire() for report in reports]) + "\n")
    else:
        rows = _verdicts(reports) if parsed.verb == "verify" else _contents(reports)
        # Whole, and not in a column: a person copies paths and checksums out of an error.
        errors = [report.error for report in reports if report.error is not None]
        sys.stdout.write("".join(f"{line}\n" for line in [*_table(rows), *errors]))
    return EXIT_FAILED if any(report.error is not None for report in reports) else EXIT_OK


def _table(rows: list[list[str]]) -> list[str]:
    """Columns of text. By hand: an image on a vendor's build of torch need not have rich."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _verdicts(reports: list[CheckpointReport]) -> list[list[str]]:
    rows = [["checkpoint", "verdict", "step", "healthy", "bytes"]]
    for report in reports:
        verdict = "damaged" if report.error is not None else "good" if report.manifest else "good, but without manifest"
        rows.append([Path(report.path).name, verdict, *map(_cell, (report.step, report.healthy, report.size_bytes))])
    return rows


def _contents(reports: list[CheckpointReport]) -> list[list[str]]:
    names = (
        "step", "samples", "mode", "generation", "healthy", "ranks", "tensors", "parameters", "size_bytes", "time", "torch",
        "parts", "mode_changes",
    )  # fmt: skip
    found = [report.to_wire() for report in reports]
    return [
        ["", *(Path(report.path).name for report in reports)],
        *([name, *(_cell(one[name], name) for one in found)] for name in names),
    ]


def _cell(value: object, name: str = "") -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "time" and isinstance(value, float):
        from datetime import UTC, datetime

        return datetime.fromtimestamp(value, UTC).isoformat(timespec="seconds")
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    return f"{value:,}" if isinstance(value, int) else str(value)

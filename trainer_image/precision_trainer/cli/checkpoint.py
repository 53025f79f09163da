"""``precision-trainer checkpoint verify|show``: whether checkpoints can be used, and what is in them."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from rich.table import Table

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
        _print(_verdicts(reports) if parsed.verb == "verify" else _contents(reports), reports)
    return EXIT_FAILED if any(report.error is not None for report in reports) else EXIT_OK


def _print(table: Table, reports: list[CheckpointReport]) -> None:
    from rich.console import Console

    console = Console(soft_wrap=True)
    console.print(table)
    for report in reports:
        if report.error is not None:
            # Whole, and not in a column: a person copies paths and checksums out of it.
            console.print(report.error, markup=False, highlight=False)


def _verdicts(reports: list[CheckpointReport]) -> Table:
    from rich.table import Table

    table = Table("checkpoint", "verdict", "step", "healthy", "bytes", box=None)
    for report in reports:
        verdict = "damaged" if report.error is not None else "good" if report.manifest else "good, but without manifest"
        table.add_row(Path(report.path).name, verdict, *map(_cell, (report.step, report.healthy, report.size_bytes)))
    return table


def _contents(reports: list[CheckpointReport]) -> Table:
    from rich.table import Table

    names = (
        "step", "samples", "mode", "generation", "healthy", "ranks", "tensors", "parameters", "size_bytes", "time", "torch",
        "parts", "mode_changes",
    )  # fmt: skip
    table = Table("", *(Path(report.path).name for report in reports), box=None)
    for name in names:
        table.add_row(name, *(_cell(report.to_wire()[name], name) for report in reports))
    return table


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

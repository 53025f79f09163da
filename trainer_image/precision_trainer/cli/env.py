"""``precision-trainer env``: what a job would do here, and why."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from ..errors import EXIT_OK

if TYPE_CHECKING:
    from . import Commands


def register(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "env",
        help="which precision a job would start in here, and why",
        description="Say which precision a job would start in with this environment on this machine and what decided it; "
        "which requests it would take; what the device, torch and the extras are. Changes nothing.",
    )
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="(default text)")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    from ..job.environment import examine

    found = examine()
    sys.stdout.write((json.dumps(found.to_wire()) if parsed.output == "json" else found.text()) + "\n")
    return EXIT_OK

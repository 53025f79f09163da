"""``precision-trainer launch``: the ranks of a process group on one machine."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from ..names import DEFAULT_PORT

if TYPE_CHECKING:
    from . import Commands


def register(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "launch",
        help="run a command on several ranks of this machine",
        description="Run a command on several ranks of this machine, "
        "e.g.: launch --nproc-per-node 2 train transformer --steps 100",
    )
    parser.add_argument("--nproc-per-node", type=int, default=1, help="ranks (default 1)")
    parser.add_argument(
        "--master-port", type=int, default=int(DEFAULT_PORT), help=f"default {DEFAULT_PORT}; 0: any free one"
    )
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="command", help="the command and its flags")
    parser.set_defaults(run=partial(_run, parser))


def _run(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> int:
    for flag, value, low, high in (
        ("--nproc-per-node", parsed.nproc_per_node, 1, 1024),
        ("--master-port", parsed.master_port, 0, 65535),
    ):
        if not low <= value <= high:
            parser.error(f"{flag} {value}: expected a number in [{low}, {high}]")
    if not parsed.rest:
        parser.error("expected a command after the flags, e.g. launch --nproc-per-node 2 train transformer")
    from ..distributed.launch import launch

    return launch(parsed.rest, parsed.nproc_per_node, parsed.master_port)

"""The command line: one module a subcommand, heavy imports only once a command needs them.

A module of this package defines ``register(commands)``: it adds its parser and sets ``run`` (``Namespace -> exit code``) as
the parser's default. It imports torch, and whatever imports torch, inside ``run`` only: ``--help`` must be quick.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ..errors import EXIT_FAILED, TrainerError

if TYPE_CHECKING:
    Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
    Run: TypeAlias = "Callable[[argparse.Namespace], int]"

COMMANDS = ("train", "launch", "verify-fp32", "analyze", "env", "bench", "checkpoint")
"""Modules of this package, in the order of ``--help``."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="precision-trainer",
        description="Trains in FP32, mixed FP16 or mixed BF16 and switches between them while it trains.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name in COMMANDS:
        register: Callable[[Commands], None] = importlib.import_module(f".{name.replace('-', '_')}", __name__).register
        register(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code. A TrainerError is one line on stderr, without a traceback."""
    parsed = _parser().parse_args(arguments)
    run: Run = parsed.run
    try:
        return run(parsed)
    except TrainerError as error:
        sys.stderr.write(f"precision-trainer {parsed.command}: {error}\n")
        return EXIT_FAILED


def run() -> None:
    """Entry point of the process: the exit code, without waiting for threads that serve scrapes."""
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)

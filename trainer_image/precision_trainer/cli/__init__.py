"""The command line: one module a subcommand, heavy imports only once a command needs them.

A module of this package defines ``register(commands)``: it adds its parser and sets ``run`` (``Namespace -> exit code``) as
the parser's default. It imports torch, and whatever imports torch, inside ``run`` only: ``--help`` must be quick.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ..errors import EXIT_FAILED, EXIT_INTERRUPTED, TrainerError

if TYPE_CHECKING:
    Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
    Run: TypeAlias = "Callable[[argparse.Namespace], int]"

COMMANDS = ("train", "launch", "verify-fp32", "env", "checkpoint")
"""Modules of this package, in the order of ``--help``."""
TOOLS = ("analyze", "bench")
"""Modules of ``precision_tools.commands``, which a production image does not carry."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="precision-trainer",
        description="Trains in FP32, mixed FP16 or mixed BF16 and switches between them while it trains.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name in COMMANDS:
        _register(f"{__name__}.{name.replace('-', '_')}", commands)
    for name in TOOLS:
        if importlib.util.find_spec("precision_tools") is not None:
            _register(f"precision_tools.commands.{name}", commands)
        else:
            absent = commands.add_parser(name, help="not in this image: it comes with the tools", add_help=False)
            absent.set_defaults(run=_absent)
    return parser


def _register(module: str, commands: Commands) -> None:
    register: Callable[[Commands], None] = importlib.import_module(module).register
    register(commands)


def _absent(parsed: argparse.Namespace) -> int:
    raise TrainerError(
        f"expected the tools for {parsed.command}, found an image without them; use precision-trainer-tools, or a checkout"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code. A TrainerError is one line on stderr, without a traceback."""
    parser = _parser()
    parsed, unknown = parser.parse_known_args(arguments)
    run: Run = parsed.run
    if unknown and run is not _absent:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        return run(parsed)
    except TrainerError as error:
        sys.stderr.write(f"precision-trainer {parsed.command}: {error}\n")
        return EXIT_FAILED
    except KeyboardInterrupt:
        sys.stderr.write(f"precision-trainer {parsed.command}: interrupted\n")
        return EXIT_INTERRUPTED


def run() -> None:
    """Entry point of the process: ends it with the command's exit code, after every other atexit handler.

    The interpreter is not finalised: torch's own threads may still be letting go of tensors (gloo's, of the last
    collective), and a thread that asks for the lock of a finalising interpreter is ended inside C++, which aborts the
    whole process: a rank that had stopped as asked would count as crashed.
    """
    ended: list[int] = []

    def end() -> None:
        if ended:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):  # what it held is lost; the exit code is not
                    stream.flush()
            os._exit(ended[0])

    # Handlers run last in, first out: the first one registered is the last to run.
    atexit.register(end)
    ended.append(main())
    sys.exit(ended[0])

"""``kubectl precision``: what a person sees of a fleet, and what a person tells the operator.

One module a verb, or a small group of them, named with its verbs in ``MODULES``. A module defines
``register(commands, common)``: it adds its parser, with ``parents=[common]`` where it talks to a cluster, and sets ``run``
as the parser's default. ``run`` takes the command line and returns the exit code; a coroutine takes a ``Session`` before it,
and is run over a connection. What is slow to import (the Kubernetes client takes most of a second) it imports inside
``run``: help must be quick.
"""

import argparse
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence

from precision_operator import __version__
from precision_operator.cli.flags import LISTED_OUTPUTS, OUTPUTS, Parser, connection_flags, positional
from precision_operator.errors import KubeError, OperatorError

PROGRAM = "kubectl precision"

MODULES: Mapping[str, tuple[str, ...]] = {
    "get": ("get",),
    "status": ("status",),
    "wait": ("wait",),
    "explain": ("explain",),
    "history": ("history",),
    "doctor": ("doctor",),
    "onboard": ("onboard",),
    "steer": ("promote", "pause", "resume", "rollback", "drill", "retry"),
    "ack": ("ack",),
    "release": ("holds", "release", "uninstall"),
    "dashboard": ("dashboard",),
    "incident": ("incident",),
    "replay": ("replay",),
    "backtest": ("backtest",),
    "lint": ("lint",),
    "complete": (),
}
"""Modules of this package, in the order of ``--help``, with their verbs: only the module of the verb is imported."""


def parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The command line: of the verb among these words, else the whole."""
    common = connection_flags()
    root = Parser(
        prog=PROGRAM,
        description="See and steer the precision of training fleets. "
        "Every command is a write that kubectl alone can make: --dry-run prints it.",
        epilog="Exit codes: 0 done; 1 refused, with the reason and the next step; 2 wrong usage; "
        "3 (status) the fleet is, or is being, rolled back; 3 (wait) only a person can bring what is waited for.",
        parents=[connection_flags(LISTED_OUTPUTS)],
    )
    root.set_defaults(outputs=OUTPUTS)  # of verbs that have no cluster to go to
    root.add_argument("--version", action="version", version=__version__)
    commands = root.add_subparsers(dest="verb", required=True, metavar="verb")
    for name in _modules(words):
        importlib.import_module(f".{name}", __name__).register(commands, common)
    return root


def _modules(words: Sequence[str]) -> Sequence[str]:
    """The module of the verb that is meant; all of them for help, for a typo, and for completion."""
    verb = next(positional(words), "")
    return [name for name, verbs in MODULES.items() if verb in verbs] or tuple(MODULES)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; an error that was foreseen is one line on stderr, without a traceback."""
    defaults = argparse.Namespace(namespace=None, context=None, kubeconfig=None, output="text")
    words = sys.argv[1:] if argv is None else argv
    root = parser(words)
    arguments = root.parse_args(words, defaults)
    if arguments.output not in arguments.outputs:  # it stood before a verb that does not take it
        root.error(f"argument -o/--output: {arguments.verb} takes {', '.join(arguments.outputs)}")
    run: Callable[..., int] = arguments.run
    try:
        if not inspect.iscoroutinefunction(run):
            return run(arguments)
        from precision_operator.cli import session

        code: int = session.connected(arguments, run)
        return code
    except KubeError as error:
        from precision_operator.cli.refusals import in_words
        from precision_operator.cli.session import given_flags

        sys.stderr.write(f"{PROGRAM} {arguments.verb}: {in_words(error, given_flags(arguments))}\n")
        return 1
    except OperatorError as error:
        sys.stderr.write(f"{PROGRAM} {arguments.verb}: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # a pager that was closed has seen enough
        sys.stderr.close()
        return 0

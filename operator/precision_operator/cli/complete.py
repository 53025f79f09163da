"""Completion in the shell: kubectl runs ``kubectl_complete-precision``, which hands the words to ``__complete``."""

import argparse
import sys
from collections.abc import Mapping

from precision_operator.api.commands import Prerequisite
from precision_operator.cli import session
from precision_operator.cli.flags import TAKE_A_VALUE, Commands, connection_flags, positional
from precision_operator.cli.session import Session
from precision_operator.errors import OperatorError

NO_FILES = ":4"
"""What cobra's protocol calls ShellCompDirectiveNoFileComp."""


def register(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the verb; help does not list it."""
    verb = commands.add_parser("__complete", parents=[common], description="Candidates for the last of the words.")
    verb.add_argument("words", nargs=argparse.REMAINDER)
    verb.set_defaults(run=lambda arguments: run(arguments, commands.choices))


def run(arguments: argparse.Namespace, verbs: Mapping[str, argparse.ArgumentParser]) -> int:
    """One candidate a line, then the directive."""
    *before, last = arguments.words or [""]
    asked = before[-1] if before else ""
    path: list[str] = []
    parser: argparse.ArgumentParser | None = None
    for word in positional(before):
        if word in verbs:
            path.append(word)
            parser, verbs = verbs[word], _verbs_of(verbs[word])
    found: list[str] = []
    if asked in (*TAKE_A_VALUE, "-m", "--message") or last.startswith("-"):
        pass
    elif verbs:
        found = sorted(name for name in verbs if name[0] != "_")
    elif path == ["ack"] and asked != "ack":
        found = [item for item in Prerequisite if item not in before]
    elif parser is not None and _names_a_policy(parser):
        flags = connection_flags().parse_known_args(before, arguments)[0]
        try:
            found = session.connected(flags, _policies)
        except OperatorError as error:
            sys.stderr.write(f"{error}\n")  # a shell that completes shows candidates only: this is for who asks by hand
    sys.stdout.write("".join(f"{word}\n" for word in found if word.startswith(last)) + f"{NO_FILES}\n")
    return 0


def _verbs_of(verb: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """Its own verbs, as ``incident`` has them."""
    return next((action.choices for action in verb._actions if isinstance(action, argparse._SubParsersAction)), {})


def _names_a_policy(verb: argparse.ArgumentParser) -> bool:
    """Whether it takes the name of one; ``backtest`` takes a file."""
    return any(action.dest == "policy" and action.type is None for action in verb._actions)


async def _policies(session: Session, _: argparse.Namespace) -> list[str]:
    return [target.policy.name for target in await session.policies()]

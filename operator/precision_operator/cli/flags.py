"""The flags that kubectl has, too."""

import argparse
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from precision_operator.api.wire import duration_seconds

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""To which a verb adds its parser."""

OUTPUTS: Mapping[str, str] = {"text": "for people (default)", "json": "for programs"}
"""How a verb may answer, and what for."""
LISTED_OUTPUTS: Mapping[str, str] = {
    **OUTPUTS,
    "yaml": "the same as json",
    "wide": "in more detail",
    "name": "for kubectl",
}
"""Of the verbs that show what there is."""

TAKE_A_VALUE = ("-n", "--namespace", "--context", "--kubeconfig", "-o", "--output")
"""Flags of every verb."""


def positional(words: Iterable[str]) -> Iterator[str]:
    """Those that are neither flags nor the value of a flag that every verb has."""
    rest = iter(words)
    for word in rest:
        if word in TAKE_A_VALUE:
            next(rest, None)
        elif not word.startswith("-"):
            yield word


def seconds_of(word: str) -> float:
    """The value of a flag that takes a duration."""
    found = duration_seconds(word, -1.0)
    if found < 0:
        raise argparse.ArgumentTypeError(f"expected a duration like 90s or 2h, found {word!r}")
    return found


class Parser(argparse.ArgumentParser):
    """A parser that says what was probably meant."""

    def _check_value(self, action: argparse.Action, value: object) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += meant(str(value), map(str, action.choices or ()))
            raise


def meant(word: str, known: Iterable[str]) -> str:
    """A question after an error; empty where nothing is like the word."""
    import difflib

    found = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {found[0]}?" if found else ""


def connection_flags(outputs: Mapping[str, str] = OUTPUTS) -> argparse.ArgumentParser:
    """The flags that kubectl has for where to go; they may stand before or after the verb."""
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    common.set_defaults(outputs=outputs)
    where = common.add_argument_group("connection, as in kubectl")
    where.add_argument("-n", "--namespace", help="default: the context's")
    where.add_argument("--context", help="default: the current one")
    where.add_argument(
        "--kubeconfig", type=Path, help="default: $KUBECONFIG, ~/.kube/config, or the pod's service account"
    )
    output_flag(where, outputs)
    return common


def output_flag(verb: argparse._ActionsContainer, outputs: Mapping[str, str] = OUTPUTS) -> None:
    """How the verb answers; without a default, so that it may stand before the verb too."""
    meanings = "; ".join(f"{name}: {meaning}" for name, meaning in outputs.items())
    verb.add_argument("-o", "--output", choices=tuple(outputs), default=argparse.SUPPRESS, help=meanings)

"""What a suggested command must be, so that it can be pasted as it is."""

from __future__ import annotations

import re
import shlex

from precision_operator.cli import parser

_ALONE = {"api-resources", "describe", "events", "get", "top"}
"""Verbs of kubectl that take a kind alone, or nothing."""
_NAMED = {"annotate", "auth", "create", "delete", "label", "logs", "patch", "port-forward", "rollout"}
_FLAGS_WITH_VALUE = {"-n", "--namespace", "--context", "--kubeconfig", "-l", "-o", "-p"}


def check_pasted(line: str) -> None:
    """Fail where the line holds a placeholder, or lacks what its verb acts on."""
    program, *words = shlex.split(line)
    assert program in {"kubectl", "helm", "timedatectl"}, line
    for word in words:
        assert not re.fullmatch(r"[A-Z]{2,}(/[A-Z]{2,})?|.*<[a-z]+>.*|.*\{[a-z]+\}.*", word), f"a placeholder: {line}"
    if program != "kubectl":
        return
    if words[0] == "precision":
        parser(words[1:]).parse_args(words[1:])
        return
    verb, *named = _positional(words)
    assert verb in _ALONE | _NAMED, line
    selected = "-l" in words or any(word.startswith("--field-selector=metadata.name=") for word in words)
    if verb == "logs":
        assert named or selected, f"logs of nothing: {line}"
    elif verb in ("rollout", "delete", "label"):
        assert selected or len(named) >= 2 or "/" in " ".join(named), f"nothing is named: {line}"
    elif verb in _NAMED:
        assert named, line


def _positional(words: list[str]) -> list[str]:
    found, rest = list[str](), iter(words)
    for word in rest:
        if word in _FLAGS_WITH_VALUE:
            next(rest, None)
        elif not word.startswith("-"):
            found.append(word)
    return found

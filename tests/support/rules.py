"""The CEL rules of a PrecisionPolicy's spec, and which of them an answer names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from precision_operator.cli.lint import crd_schema

Rule = tuple[str, str]
"""Where it reports, with ``[]`` for any item, and how its message begins."""


def all_rules() -> set[Rule]:
    """Every rule."""
    schema: Any = crd_schema()
    return set(_rules(schema["properties"]["spec"], "spec"))


def named(said: Iterable[tuple[str, str]]) -> set[Rule]:
    """The rules among pairs of path and message."""
    return {(re.sub(r"\[\d+\]", "[]", path), message[:_HEAD]) for path, message in said} & all_rules()


def named_by_the_server(said: str) -> set[Rule]:
    """The rules that an answer of the API server names: a path, a value that is no object, the message."""

    def names(path: str, message: str) -> bool:
        where = re.escape(path).replace(re.escape("[]"), r"\[\d+\]")
        return re.search(rf"\b{where}: Invalid value: (?:.*?: )?{re.escape(message)}", said) is not None

    return {rule for rule in all_rules() if names(*rule)}


_HEAD = 20
"""Characters: of a message, what stands before any value."""


def _rules(schema: dict[str, Any], path: str) -> Iterator[Rule]:
    for rule in schema.get("x-kubernetes-validations", []):
        yield path + rule.get("fieldPath", ""), rule["message"][:_HEAD]
    for name, child in schema.get("properties", {}).items():
        yield from _rules(child, f"{path}.{name}")
    if "items" in schema:
        yield from _rules(schema["items"], f"{path}[]")

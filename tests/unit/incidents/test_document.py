"""A report is read back from what an API server keeps of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from types import NoneType
from typing import get_args, get_type_hints

from precision_operator.incidents.report import Report


def optional(kind: object) -> Iterator[tuple[str, Field[object]]]:
    """Fields that may be None, of a type and of those of its fields."""
    for argument in get_args(kind):
        yield from optional(argument)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        for field in fields(kind):
            if NoneType in get_args(hints[field.name]):
                yield f"{kind.__name__}.{field.name}", field
            yield from optional(hints[field.name])


def test_what_may_be_none_has_a_default_for_an_api_server_keeps_no_null() -> None:
    found = dict(optional(Report))
    assert "Report.severity" in found
    bare = [name for name, field in found.items() if field.default is MISSING and field.default_factory is MISSING]
    assert bare == []

"""What the codec, which reads tolerantly, would pass over: for files that people write and no API server checks.

Bounds and patterns are not looked at: the schema that is made from the same models holds them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import get_args, get_origin

from precision_operator.api.codec import UNREADABLE, coder_of, entries
from precision_operator.api.fields import Field


def objections(raw: object, kind: type, where: str, either: tuple[str, ...] = ()) -> Iterator[str]:
    """Each key that no field of the model has, each value of a wrong type, each field that is missing."""
    if not isinstance(raw, dict):
        yield f"{where}: expected a mapping, found {type(raw).__name__}"
        return
    known = {".".join(entry.path): entry for entry in entries(kind)}
    for key, value in raw.items():
        if key not in known:
            yield f"{where}.{key}: no such setting; expected one of {', '.join(sorted(known))}"
        elif value is not None or not _is_composite(known[key].kind):  # an empty section is an absent one
            yield from _value(value, known[key].kind, known[key].field, f"{where}.{key}")
    for name in (name for name, entry in known.items() if entry.default is UNREADABLE and name not in raw):
        yield f"{where}: expected {name}, found {', '.join(map(str, raw)) or 'nothing'}"
    given = [name for name in either if raw.get(name)]
    if either and len(given) != 1:
        yield f"{where}: expected either {' or '.join(either)}, found {'both' if given else 'none'}"


def _is_composite(kind: object) -> bool:
    return get_origin(kind) is not None or is_dataclass(kind)


def _value(raw: object, kind: object, field: Field, where: str) -> Iterator[str]:
    origin = get_origin(kind)
    each = field.items or Field()
    if isinstance(kind, type) and is_dataclass(kind):
        yield from objections(raw, kind, where, field.either)
    elif origin is tuple and isinstance(raw, list):
        for index, item in enumerate(raw):
            yield from _value(item, get_args(kind)[0], each, f"{where}[{index}]")
    elif isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(raw, dict):
        for key, item in raw.items():
            yield from _value(item, get_args(kind)[1], each, f"{where}.{key}")
    elif origin is not None:
        yield f"{where}: expected a {'list' if origin is tuple else 'mapping'}, found {type(raw).__name__}"
    elif coder_of(kind, field).read(raw, UNREADABLE) is UNREADABLE:
        yield f"{where}: expected {getattr(kind, '__name__', kind)}, found {type(raw).__name__} {raw!r}"
    elif field.only and raw not in field.only:
        yield f"{where}: expected one of {', '.join(field.only)}, found {raw!r}"

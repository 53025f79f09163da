"""The codec of all models: read tolerantly, written strictly, both by the fields' types and metadata (``fields.py``).

An object written by an older or a newer CRD must never crash the operator: what is absent or has a wrong type is the
default. An item of a list that lacks a field without default is left out.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from precision_operator.api import fields as meta
from precision_operator.api.wire import (
    boolean,
    camel,
    duration_seconds,
    format_duration,
    format_time,
    integer,
    mapping,
    number,
    parse_time,
)

T = TypeVar("T")

UNREADABLE = object()
"""Stands for a value that cannot be read, and has no default."""

_EMPTY: tuple[object, ...] = (None, "", [], {})


@dataclass(frozen=True, slots=True)
class Coder:
    """One kind of value."""

    read: Callable[[object, object], object]
    """Raw value and default → value; the default where it cannot be read."""
    write: Callable[[object], object]


@dataclass(frozen=True, slots=True)
class Entry:
    """One field of a model."""

    attribute: str
    kind: object
    """Its type on the wire, without metadata."""
    field: meta.Field
    path: tuple[str, ...]
    default: object
    """UNREADABLE where it has none."""
    coder: Coder
    derived: bool
    """It is made from the others: written, and not read."""
    optional: bool
    """It may be None, on the wire absent or null."""
    kept: bool
    """It is written even where it is empty."""


def decode(raw: object, base: T) -> T:
    """``raw`` as a model; what is absent or has a wrong type is as ``base`` has it."""
    return cast(T, _read_model(type(base), mapping(raw), base))


def encode(model: object) -> dict[str, object]:
    """The model as JSON values, without what is absent or empty."""
    wire: dict[str, object] = {}
    for entry in entries(type(model)):
        found = entry.coder.write(getattr(model, entry.attribute))
        if found is None or (not entry.kept and found in _EMPTY):
            continue
        node = wire
        for step in entry.path[:-1]:
            node = cast(dict[str, object], node.setdefault(step, {}))
        node[entry.path[-1]] = found
    return wire


_KNOWN: dict[type, tuple["Entry", ...]] = {}


def entries(kind: type) -> tuple[Entry, ...]:
    """The fields of a model that stand on the wire, in order: those with metadata."""
    if kind not in _KNOWN:
        _KNOWN[kind] = _entries(kind)
    return _KNOWN[kind]


def _entries(kind: type) -> tuple[Entry, ...]:
    hints = get_type_hints(kind, include_extras=True)
    found = ((f, hints[f.name]) for f in fields(kind))
    return tuple(_entry(f, *get_args(hint)[:2]) for f, hint in found if get_origin(hint) is Annotated)


def _entry(field: "Field[object]", hint: object, metadata: meta.Field) -> Entry:
    default: object = UNREADABLE
    if field.default is not MISSING:
        default = field.default
    elif field.default_factory is not MISSING:
        default = field.default_factory()
    elif metadata.absent is not None:
        default = metadata.absent
    name = field.name.removesuffix("_seconds") if isinstance(metadata, meta.Duration) else field.name
    path = tuple((metadata.name or camel(name)).split("."))
    kind = metadata.via.wire if metadata.via else hint
    optional, kind = _required(kind)
    coder = coder_of(kind, metadata)
    if metadata.via:
        coder = _converted(coder, metadata.via)
    if optional:
        coder = _optional(coder)
    kept = optional or metadata.required or default is UNREADABLE
    return Entry(field.name, kind, metadata, path, default, coder, not field.init, optional, kept)


def _required(hint: object) -> tuple[bool, object]:
    """``X | None`` → whether None is possible, and X."""
    if get_origin(hint) in (Union, UnionType):
        (kind,) = (argument for argument in get_args(hint) if argument is not NoneType)
        return True, kind
    return False, hint


def _at(body: Mapping[str, object], path: tuple[str, ...]) -> object:
    for step in path[:-1]:
        body = mapping(body.get(step))
    return body.get(path[-1], UNREADABLE)


def _read_model(kind: type, body: Mapping[str, object], base: object) -> object:
    values: dict[str, object] = {}
    for entry in entries(kind):
        if entry.derived:
            continue
        default = entry.default if base is None else getattr(base, entry.attribute)
        found = _at(body, entry.path)
        if found is None and not entry.optional:
            found = UNREADABLE
        if found is not None:
            found = default if found is UNREADABLE else entry.coder.read(found, default)
        if found is UNREADABLE:
            return UNREADABLE
        values[entry.attribute] = found
    return kind(**values) if base is None else replace(base, **values)  # type: ignore[type-var]


def coder_of(kind: object, metadata: meta.Field) -> Coder:
    """How a value of this type on the wire is read and written."""
    origin = get_origin(kind)
    if isinstance(metadata, meta.Keyed):
        return _keyed(metadata.key)
    if isinstance(metadata, meta.Duration):
        return Coder(lambda raw, default: duration_seconds(raw, cast(float, default)), _write_duration)
    if isinstance(metadata, meta.Time):
        return Coder(_read_time, lambda value: format_time(cast(float, value)))
    if origin is tuple:
        return _sequence(get_args(kind)[0], metadata.items or meta.Field())
    if origin is not None and issubclass(cast(type, origin), Mapping):
        return _map(*get_args(kind), metadata=metadata.items or meta.Field())
    if isinstance(kind, type):
        if is_dataclass(kind):
            return _model(kind)
        if issubclass(kind, StrEnum):
            return _member(kind)
        if kind in _SCALARS:
            return Coder(_SCALARS[kind], lambda value: value)
    raise TypeError(f"expected a type that stands on the wire, found {kind}; teach it to api/codec.py")


def _read_text(raw: object, default: object) -> object:
    return raw if isinstance(raw, str) else default


def _read_time(raw: object, default: object) -> object:
    found = parse_time(raw)
    return default if found is None else found


def _write_duration(value: object) -> object:
    return format_duration(cast(float, value))


_SCALARS: dict[object, Callable[[object, object], object]] = {
    str: _read_text,
    int: lambda raw, default: integer(raw, cast(int, default)),
    float: lambda raw, default: number(raw, cast(float, default)),
    bool: lambda raw, default: boolean(raw, cast(bool, default)),
    dict: lambda raw, default: raw if isinstance(raw, dict) else default,
}


def _member(kind: type[StrEnum]) -> Coder:
    members: dict[object, StrEnum] = {member.value: member for member in kind}
    return Coder(lambda raw, default: members.get(raw, default) if isinstance(raw, str) else default, _plain)


def _plain(value: object) -> object:
    return str(value)


def _model(kind: type) -> Coder:
    def read(raw: object, default: object) -> object:
        if not isinstance(raw, dict) and default is not UNREADABLE:
            return default
        found = _read_model(kind, mapping(raw), default if isinstance(default, kind) else None)
        return default if found is UNREADABLE else found

    return Coder(read, encode)


def _sequence(kind: object, metadata: meta.Field) -> Coder:
    """A list; one of an enumeration's members is a set, in the order of the enumeration."""
    each = coder_of(kind, metadata)
    members = tuple(kind) if isinstance(kind, type) and issubclass(kind, StrEnum) else ()

    def read(raw: object, default: object) -> object:
        if not isinstance(raw, list):
            return default
        if members:
            return tuple(member for member in members if member in raw)
        found = (each.read(item, UNREADABLE) for item in raw)
        return tuple(item for item in found if item is not UNREADABLE)

    return Coder(read, lambda value: [each.write(item) for item in cast(tuple[object, ...], value)])


def _map(keys: object, values: object, *, metadata: meta.Field) -> Coder:
    """A map of texts; one by an enumeration has a field for each key of its default."""
    each = coder_of(values, metadata)

    def read(raw: object, default: object) -> object:
        if not isinstance(raw, dict):
            return default
        if keys is not str:
            return {key: each.read(raw.get(key), known) for key, known in cast(dict[object, object], default).items()}
        found = {key: each.read(value, UNREADABLE) for key, value in raw.items()}
        return {key: value for key, value in found.items() if value is not UNREADABLE}

    def write(value: object) -> object:
        return {str(key): each.write(item) for key, item in cast(Mapping[object, object], value).items()}

    return Coder(read, write)


def _keyed(key: str) -> Coder:
    def read(raw: object, default: object) -> object:
        body = mapping(raw)
        return tuple(decode(body.get(getattr(base, key)), base) for base in cast(tuple[object, ...], default))

    def write(value: object) -> object:
        return {str(getattr(item, key)): encode(item) for item in cast(tuple[object, ...], value)}

    return Coder(read, write)


def _converted(coder: Coder, via: meta.Via) -> Coder:
    def read(raw: object, default: object) -> object:
        found = coder.read(raw, UNREADABLE)
        value = () if found is UNREADABLE else via.read(found)
        return default if value == () else value  # nothing that could be read in a list is no list

    return Coder(read, lambda value: coder.write(via.write(value)))


def _optional(coder: Coder) -> Coder:
    return Coder(coder.read, lambda value: None if value is None else coder.write(value))

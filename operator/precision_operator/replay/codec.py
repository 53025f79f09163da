"""Frozen values ↔ JSON, by their declared types: lossless, without what equals its default, strict about the unknown.

Non-finite floats are strings, for JSON has none. Fields are camelCase, as everywhere in the API.
"""

import base64
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from hashlib import sha256
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from precision_operator.api.wire import camel
from precision_operator.core.model import RECORDED
from precision_operator.errors import OperatorError
from precision_operator.reasons import Reason

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
T = TypeVar("T")

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TAG = "is"
"""Which class of a union follows."""
_ABSENT: object = ...
"""Of a field without a default. A fingerprint holds its repr, which must be the same in every process."""


class RecordingError(OperatorError):
    """A recording cannot be read, or a type cannot be recorded."""

    reason = Reason.RECORDING_INVALID


def unpacked(text: str, *, most_bytes: int) -> bytes:
    """What gzip in base64 holds.

    Raises:
        ValueError: it is neither, is damaged or not whole, or holds more than ``most_bytes``.
    """
    reader = zlib.decompressobj(wbits=31)
    try:
        found = reader.decompress(base64.b64decode(text, validate=True), most_bytes + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(found) > most_bytes:
        raise ValueError(f"more than {most_bytes} bytes")
    if not reader.eof:
        raise ValueError("it ends too early")
    return found


@dataclass(frozen=True, slots=True)
class _Coder:
    encode: Callable[[Any], Json]
    decode: Callable[[Any], object]


def encode(value: object, kind: type[T]) -> Json:
    """``value`` as JSON, written as a ``kind``.

    Raises:
        RecordingError: the type holds something that cannot be recorded.
    """
    return _coder(kind).encode(value)


def decode(raw: Json, kind: type[T]) -> T:
    """The ``kind`` that was encoded; a field that is absent has its default.

    Raises:
        RecordingError: not what ``encode`` writes, or written by a version with fields unknown here.
    """
    try:
        return cast(T, _coder(kind).decode(raw))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordingError(
            f"expected a recorded {kind.__name__}, found something else ({type(error).__name__}: {error}); "
            "take the incident from the cluster again"
        ) from error


def fingerprint(*kinds: type) -> str:
    """A digest of the types' fields and defaults, and of those of their fields: equal where recordings mean the same."""
    seen: dict[str, str] = {}

    def visit(kind: object) -> None:
        for argument in get_args(kind):
            visit(argument)
        if isinstance(kind, type) and is_dataclass(kind) and kind.__name__ not in seen:
            hints = get_type_hints(kind)
            seen[kind.__name__] = ", ".join(f"{f.name}: {hints[f.name]} = {_default(f)!r}" for f in fields(kind))
            for hint in hints.values():
                visit(hint)

    for kind in kinds:
        visit(kind)
    return sha256(repr(sorted(seen.items())).encode()).hexdigest()[:12]


_CODERS: dict[object, _Coder] = {}


def _coder(kind: object) -> _Coder:
    if kind not in _CODERS:
        _CODERS[kind] = _made(kind)
    return _CODERS[kind]


def _made(kind: object) -> _Coder:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _union(get_args(kind))
    if origin is tuple:
        return _tuple(get_args(kind))
    if origin is frozenset:
        return _set(*get_args(kind))
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(*get_args(kind))
    if isinstance(kind, type):
        if is_dataclass(kind):
            return _dataclass(kind)
        if issubclass(kind, Enum):
            return _Coder(lambda value: cast(Json, value.value), kind)
        if kind is float:
            return _Coder(_encode_float, lambda raw: _NON_FINITE[raw] if isinstance(raw, str) else raw)
        if kind is str:
            return _Coder(
                str, lambda raw: raw
            )  # of a StrEnum's member its text, which any writer of JSON or YAML knows
        if kind in (int, bool):
            return _Coder(lambda value: cast(Json, value), lambda raw: raw)
    raise RecordingError(f"expected a type that can be recorded, found {kind}; teach it to replay/codec.py")


def _encode_float(value: float) -> Json:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _default(field: Any) -> object:  # noqa: ANN401  a dataclasses.Field of any type
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else _ABSENT


def _dataclass(kind: type) -> _Coder:
    hints = get_type_hints(kind)
    own = fields(cast(Any, kind))
    plan = [(f.name, camel(f.name), _coder(hints[f.name]), _default(f)) for f in own if f.metadata.get(RECORDED, True)]
    # What is recorded no more is read all the same: an older operator may have written the tape.
    known = {camel(f.name): (f.name, _coder(hints[f.name])) for f in own}

    def encode_fields(value: object) -> Json:
        found: dict[str, Json] = {}
        for name, key, coder, default in plan:
            item = getattr(value, name)
            # The type too: 0 == False == 0.0, and a replay must see what the decision saw.
            if item is default or (item == default and type(item) is type(default)):
                continue
            found[key] = coder.encode(item)
        return found

    def decode_fields(raw: Mapping[str, Json]) -> object:
        values: dict[str, object] = {}
        for key, item in raw.items():
            if key == _TAG:
                continue
            if key not in known:
                raise RecordingError(
                    f"{kind.__name__}.{key} is unknown to this version; use the version that wrote the recording"
                )
            name, coder = known[key]
            values[name] = coder.decode(item)
        return kind(**values)

    return _Coder(encode_fields, decode_fields)


def _union(kinds: tuple[object, ...]) -> _Coder:
    others = [k for k in kinds if k is not NoneType]
    if len(others) == 1:
        inner = _coder(others[0])
        return _Coder(
            lambda value: None if value is None else inner.encode(value),
            lambda raw: None if raw is None else inner.decode(raw),
        )
    tagged = {cast(type, k).__name__: _coder(k) for k in others}

    def encode_one(value: object) -> Json:
        name = type(value).__name__
        return {_TAG: name, **cast(dict[str, Json], tagged[name].encode(value))}

    return _Coder(encode_one, lambda raw: tagged[raw[_TAG]].decode(raw))


def _tuple(kinds: tuple[object, ...]) -> _Coder:
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        each = _coder(kinds[0])
        return _Coder(
            lambda value: [each.encode(item) for item in value], lambda raw: tuple(each.decode(item) for item in raw)
        )
    coders = [_coder(kind) for kind in kinds]
    return _Coder(
        lambda value: [coder.encode(item) for coder, item in zip(coders, value, strict=True)],
        lambda raw: tuple(coder.decode(item) for coder, item in zip(coders, raw, strict=True)),
    )


def _set(kind: object) -> _Coder:
    """In order, so that equal sets give equal text."""
    each = _coder(kind)
    return _Coder(
        lambda value: sorted((each.encode(item) for item in value), key=str),
        lambda raw: frozenset(each.decode(item) for item in raw),
    )


def _mapping(keys: object, values: object) -> _Coder:
    key, each = _coder(keys), _coder(values)
    return _Coder(
        lambda value: {cast(str, key.encode(k)): each.encode(item) for k, item in value.items()},
        lambda raw: {key.decode(k): each.decode(item) for k, item in raw.items()},
    )

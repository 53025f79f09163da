"""What a field of a model is on the wire: its name, meaning and bounds. It stands in the field's type, as ``Annotated``.

The codec reads names and kinds; the generator of the CRDs reads all of it. A default is the dataclass's own.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """A CEL rule, judged by the API server."""

    rule: str
    message: str
    """What was expected, and what to do."""
    found: str = ""
    """The same as a CEL expression that says what was found."""
    field: str = ""
    """The field that the message is about, below the rule's own."""
    invalid: bool = False
    """The refusal's reason is FieldValueInvalid."""


@dataclass(frozen=True, slots=True)
class Via:
    """A value that has another type on the wire than in code. Neither function fails."""

    wire: object
    """The type on the wire."""
    read: Callable[..., object]
    write: Callable[..., object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field on the wire. The API server refuses what is out of its bounds; reading is tolerant."""

    text: str = dataclasses.field(default="", kw_only=False)
    """What it means. ``({default})`` stands for its default and bounds."""
    name: str = ""
    """Its path, with dots; empty: the attribute in camelCase."""
    required: bool = False
    """The API server asks for it, and it is written even where it is empty."""
    least: float | str | None = None
    """Inclusive, as ``most``; of a duration as on the wire."""
    most: float | str | None = None
    above: float | str | None = None
    """Exclusive, as ``below``."""
    below: float | None = None
    shortest: int | None = None
    """Characters of a text, or items of a list."""
    longest: int | None = None
    """The same, and entries of a map."""
    pattern: str = ""
    only: tuple[str, ...] = ()
    """The members of an enumeration, or the texts, that it takes; empty: all."""
    either: tuple[str, ...] = ()
    """Fields of the model by their names on the wire: exactly one of them must be given."""
    format: str = ""
    """Empty: that of its type."""
    rules: tuple[Rule, ...] = ()
    advice: str = ""
    """What to do about a duration that is out of bounds; empty: an example."""
    items: "Field | None" = None
    """Of each item of a list, or value of a map."""
    topology: str = ""
    """How the API server merges it: ``atomic``, ``set``, or ``map`` by ``type``."""
    groups: Mapping[str, "Field"] | None = None
    """Objects that only the wire has, by their path: the fields in them have dotted names."""
    absent: object = None
    """What is read where it is absent, of a field without default; None: the whole object cannot be read then."""
    opaque: bool = False
    """The API server stores whatever is in it."""
    via: Via | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration(Field):
    """Seconds; on the wire like ``1m30s``, and without the ``_seconds`` of the attribute's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Time(Field):
    """Seconds since the epoch; RFC 3339 on the wire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyed(Field):
    """A tuple of models; on the wire an object with one field each, named by this attribute of theirs."""

    key: str

"""Reading wire values tolerantly: an object written by an older or a newer CRD must never crash the operator."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from precision_operator.contract import MAX_GENERATION

_DURATION = re.compile(r"([0-9]{1,15})(ms|s|m|h)")
_DURATIONS = re.compile(rf"({_DURATION.pattern})+")
_DURATION_CHARACTERS = 64
"""Four times what the schema takes. Of a longer one the groups alone would take a tenth of a second."""
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MILLIS = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}


def duration_seconds(text: object, default: float) -> float:
    """``"1m30s"`` → 90.0; the default where ``text`` is no duration."""
    if not isinstance(text, str) or len(text) > _DURATION_CHARACTERS or not _DURATIONS.fullmatch(text):
        return default
    return sum(int(count) * _SECONDS[unit] for count, unit in _DURATION.findall(text))


def format_duration(seconds: float) -> str:
    """90.0 → ``"90s"``, 1800.0 → ``"30m"``: in the largest unit that gives a whole number."""
    millis = round(seconds * 1000)
    unit, size = next((unit, size) for unit, size in _MILLIS.items() if millis % size == 0) if millis else ("s", 1)
    return f"{millis // size}{unit}"


def format_time(seconds: float | None) -> str | None:
    """Seconds since the epoch → RFC 3339 with milliseconds, UTC."""
    if seconds is None:
        return None
    stamp = datetime.fromtimestamp(round(seconds, 3), tz=UTC)
    return stamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: object) -> float | None:
    """RFC 3339 → seconds since the epoch; None where it is no time, or none that ``format_time`` can write."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
        return round((found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC).timestamp(), 3)
    except (ValueError, OverflowError):
        return None


def camel(name: str) -> str:
    """``last_ack_at`` → ``lastAckAt``."""
    head, *tail = name.split("_")
    return head + "".join(part.title() for part in tail)


def mapping(value: object) -> Mapping[str, object]:
    """The value where it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def sequence(value: object) -> Sequence[object]:
    """The value where it is a list, else an empty one."""
    return value if isinstance(value, list) else ()


def text(value: object, default: str = "") -> str:
    """The value where it is a string."""
    return value if isinstance(value, str) else default


def texts(value: object) -> tuple[str, ...]:
    """The strings of a list."""
    return tuple(item for item in sequence(value) if isinstance(item, str))


def has_condition(status: object, *types: str) -> bool:
    """Whether a condition of one of these types is True in an object's status."""
    conditions = map(mapping, sequence(mapping(status).get("conditions")))
    return any(text(found.get("type")) in types and found.get("status") == "True" for found in conditions)


def integer(value: object, default: int) -> int:
    """The value where it is a whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def generation(value: object) -> int | None:
    """A request's generation; None where it is none, or nobody can have counted to it."""
    found = integer(value, -1)
    return found if 0 <= found <= MAX_GENERATION else None


def count_text(value: str | None) -> int | None:
    """A count in digits; None where it is none, or too long to be one."""
    digits = value is not None and len(value) < 20 and value.isascii() and value.isdigit()
    return int(value) if value is not None and digits else None


def generation_text(value: str | None) -> int | None:
    """A generation in digits."""
    return generation(count_text(value))


def number(value: object, default: float) -> float:
    """The value where it is a number that a float can hold."""
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default
    except OverflowError:
        return default


def boolean(value: object, default: bool) -> bool:
    """The value where it is true or false."""
    return value if isinstance(value, bool) else default

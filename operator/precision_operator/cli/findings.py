"""What ``doctor`` finds: one line a check, with what mends it."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one check."""

    check: str
    level: Level
    message: str
    mend: str = ""
    """The command that mends it, or shows more."""


def ok(check: str, message: str) -> Finding:
    """As it should be."""
    return Finding(check, Level.OK, message)


def warning(check: str, message: str, mend: str = "") -> Finding:
    """Something that will hurt later, or that could not be looked at."""
    return Finding(check, Level.WARNING, message, mend)


def error(check: str, message: str, mend: str = "") -> Finding:
    """Something that does not work."""
    return Finding(check, Level.ERROR, message, mend)

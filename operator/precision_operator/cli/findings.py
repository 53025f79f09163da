"""What ``doctor`` finds: one line a check, with what mends it."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer of one check."""

    check: str
    level: Level
    message: str
    mend: str = ""
    """The command that mends it, or shows more."""


def ok(check: str, message: str) -> Diagnosis:
    """As it should be."""
    return Diagnosis(check, Level.OK, message)


def warning(check: str, message: str, mend: str = "") -> Diagnosis:
    """Something that will hurt later, or that could not be looked at."""
    return Diagnosis(check, Level.WARNING, message, mend)


def error(check: str, message: str, mend: str = "") -> Diagnosis:
    """Something that does not work."""
    return Diagnosis(check, Level.ERROR, message, mend)

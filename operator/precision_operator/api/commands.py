"""What a person tells the operator by annotation: which command, in answer to which transition, and who said it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from precision_operator.api.text import bounded
from precision_operator.contract import ABORT, ACK, DRILL, PREFIX, PROMOTE, RETRY, ROLLBACK, STAMP, SUSPEND_BY


class Command(StrEnum):
    """A command, by the name of its annotation."""

    PROMOTE = PROMOTE
    RETRY = RETRY
    ROLLBACK = ROLLBACK
    ABORT = ABORT
    DRILL = DRILL


class Prerequisite(StrEnum):
    """What a person must acknowledge before a fleet that was rolled back starts again."""

    ROOT_CAUSE = "rootCause"
    FIX = "fix"
    STAGING_TESTED = "stagingTested"
    MONITORING = "monitoring"
    TEAM_NOTIFIED = "teamNotified"
    ROLLBACK_READY = "rollbackReady"

    @property
    def annotation(self) -> str:
        """Its annotation."""
        return f"{ACK}{self.value}"


REASON_CHARACTERS = 200
"""What is kept of a person's reason."""

NAME_CHARACTERS = 128
"""What is kept of the name of who gave a command."""

ANNOTATIONS = (*(c.value for c in Command), *(p.annotation for p in Prerequisite))
"""Every command's annotation; each has a stamp beside it."""

VERBS = {
    **dict.fromkeys(ANNOTATIONS, "retry"),
    Command.PROMOTE.value: "promote",
    Command.ROLLBACK.value: "rollback",
    Command.ABORT.value: "rollback",
    Command.DRILL.value: "drill",
}
"""The verb on the policy that each annotation needs (manifests/admission/author.yaml).

Acknowledgements make a retry possible, so they need its verb.
"""

RELEASE_VERB = "release"
"""The verb that the deletion of what a deleted policy left behind needs (manifests/admission/assignments.yaml)."""


COMMANDS = frozenset({*ANNOTATIONS, *(f"{name}{STAMP}" for name in ANNOTATIONS), SUSPEND_BY})
"""Annotations of a policy that are read: what people asked for, and who. No other decides anything."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A command as it was given."""

    annotation: str
    transition_id: int | None
    """The transition that it answers; None where the value names none. An older one than the status' is void."""
    message: str
    by: str | None
    """Who gave it, by the API server's word; None where nothing stamps commands."""

    @property
    def name(self) -> str:
        """Its short name, e.g. ``promote`` or ``ack-fix``."""
        return self.annotation.removeprefix(f"{PREFIX}/")


def commands_of(annotations: Mapping[str, object]) -> dict[str, str]:
    """The commands among an object's annotations: bounded, and without credentials; answered as the whole would be.

    A policy keeps nothing else of them. Up to 128 passes of it are recorded, and annotations may hold 256 KiB.
    """
    return {
        name: bounded(value, NAME_CHARACTERS) if name.endswith(STAMP) else _command(value)
        for name, value in annotations.items()
        if name in COMMANDS and isinstance(value, str)
    }


def _command(value: str) -> str:
    number, colon, message = value.partition(":")
    kept = bounded(number.strip(), NAME_CHARACTERS)
    return f"{kept}: {bounded(message.strip(), REASON_CHARACTERS)}" if colon else kept


def answer(annotations: Mapping[str, str], annotation: str) -> Answer | None:
    """The command that stands in this annotation, as ``<transitionId>`` or ``<transitionId>: <why>``; None where absent."""
    value = annotations.get(annotation)
    if value is None:
        return None
    number, _, message = value.partition(":")
    number = number.strip()
    known = int(number) if number.isascii() and number.isdecimal() and len(number) <= 18 else None
    by = annotations.get(f"{annotation}{STAMP}")
    text = bounded(message.strip(), REASON_CHARACTERS)
    return Answer(annotation, known, text, bounded(by, NAME_CHARACTERS) if by is not None else None)


def answered(annotations: Mapping[str, str], annotation: str, transition_id: int) -> Answer | None:
    """The command, where it answers this very transition."""
    given = answer(annotations, annotation)
    return given if given is not None and given.transition_id == transition_id else None


def answers(annotations: Mapping[str, str]) -> tuple[Answer, ...]:
    """Every command that stands in a policy's annotations."""
    return tuple(found for name in ANNOTATIONS if (found := answer(annotations, name)) is not None)


def acknowledged(annotations: Mapping[str, str], *, transition_id: int) -> frozenset[Prerequisite]:
    """The prerequisites that were acknowledged in answer to this very transition."""
    return frozenset(p for p in Prerequisite if answered(annotations, p.annotation, transition_id) is not None)

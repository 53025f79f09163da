"""Text that people and tenants write, before it is stored: bounded, without control characters or credentials."""

from functools import lru_cache

from precision_operator.api.redaction import cut, redact

_READ = 8
"""How many times as much is read as is kept: masked credentials are shorter than they were."""
MESSAGE_CHARACTERS = 1024
"""What the schemas take of a message: a rollback is never refused for its words."""


def bounded(text: str, characters: int = MESSAGE_CHARACTERS) -> str:
    """The text in printable characters, without credentials, and no longer than ``characters``; a cut shows as ``…``.

    What is blank becomes a space. Controls, changes of direction, what is invisible and lone surrogates are left out. Of a
    text that is much longer only the beginning is read: its length costs nothing.
    """
    return _clean(cut(text, _READ * characters), characters)


@lru_cache(maxsize=256)
def _clean(text: str, characters: int) -> str:
    """Of a text that was cut. A pass reads each command several times, and a hostile one takes a millisecond or two."""
    most = _READ * characters
    if not text.isprintable():
        kept = "".join(char for char in text if char.isprintable() or char.isspace())
        text = "".join(char if char.isprintable() else " " for char in redact(kept, most))
    clean = redact(text, most)  # again, for by now what stood on two lines stands on one
    return clean if len(clean) <= characters else f"{clean[: characters - 1]}…"


_NAME_CHARACTERS = 63


def names(workloads: list[str], limit: int = 5) -> str:
    """A bounded list for a message."""
    shown = ", ".join(bounded(name, _NAME_CHARACTERS) for name in sorted(workloads)[:limit])
    rest = len(workloads) - limit
    return f"{shown} and {rest} more" if rest > 0 else shown

"""Text that people and tenants write, before it is stored: bounded, and without control characters."""

import unicodedata

MESSAGE_CHARACTERS = 1024
"""What the schemas take of a message: a rollback is never refused for its words."""


def bounded(text: str, characters: int = MESSAGE_CHARACTERS) -> str:
    """The text without control characters, and no longer than ``characters``; a cut shows as ``…``."""
    if len(text) <= characters and text.isprintable():
        return text
    clean = "".join(
        " " if char in "\n\t\r" else char for char in text[: 2 * characters] if char in "\n\t\r" or _printable(char)
    )
    return clean if len(clean) <= characters else f"{clean[: characters - 1]}…"


def _printable(char: str) -> bool:
    return unicodedata.category(char)[0] != "C"

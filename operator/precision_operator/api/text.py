"""Text that people and tenants write, before it is stored: bounded, and without control characters."""

MESSAGE_CHARACTERS = 1024
"""What the schemas take of a message: a rollback is never refused for its words."""


def bounded(text: str, characters: int = MESSAGE_CHARACTERS) -> str:
    """The text in printable characters, and no longer than ``characters``; a cut shows as ``…``.

    What is blank becomes a space. Controls, changes of direction, what is invisible and lone surrogates are left out.
    """
    if len(text) <= characters and text.isprintable():
        return text
    printable = (char if char.isprintable() else " " if char.isspace() else "" for char in text[: 2 * characters])
    clean = "".join(printable)
    return clean if len(clean) <= characters else f"{clean[: characters - 1]}…"

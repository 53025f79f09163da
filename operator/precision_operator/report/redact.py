"""What must not leave the cluster in a report: credentials that an error's or an annotation's text may quote."""

import re

_SECRETS = (
    (re.compile(r"(\w+://)[^/\s:@]+:[^/\s@]+@"), r"\1***@"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), r"\1 ***"),
    (
        re.compile(r"(?i)\b(token|password|passwd|secret|api[_-]?key|access[_-]?key)(\"?\s*[=:]\s*\"?)[^\s\"&,;]+"),
        r"\1\2***",
    ),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), "***"),
)


TEXT_CHARACTERS = 4096
"""The rest of a longer text is left out: one expression reads it in quadratic time."""


def redact(text: str) -> str:
    """``text`` with user info of URLs, bearer tokens, JWTs and ``password=…`` masked, and bounded."""
    text = text[:TEXT_CHARACTERS]
    for pattern, masked in _SECRETS:
        text = pattern.sub(masked, text)
    return text

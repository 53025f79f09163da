"""Text that is read again and again is cleaned once."""

from __future__ import annotations

import pytest

from precision_operator.api.redaction import redact
from precision_operator.api.text import bounded


def test_what_was_cleaned_once_is_not_cleaned_again_however_long_its_rest_is(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(given: str, characters: int) -> str:
        read.append(given)
        return redact(given, characters)

    monkeypatch.setattr("precision_operator.api.text.redact", counted)
    begin = "this very text was never cleaned before password=abc " * 40
    found = {bounded(begin + rest * 100_000, 200) for rest in ("a", "b", "a ")}
    assert len(found) == len(read) == 1
    assert "abc" not in found.pop()

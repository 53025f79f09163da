"""Edits of a policy in every phase."""

from pathlib import Path

from lab.model.edits import table

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "edits.md"


def test_the_page_says_what_the_code_does() -> None:
    assert PAGE.read_text() == table(), "run: python -m lab.model.edits > docs/reference/edits.md"

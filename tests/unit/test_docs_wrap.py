"""Pages wrap at 100 columns: a reader of a diff sees the sentence that changed."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COLUMNS = 100
PAGES = [
    *ROOT.glob("*.md"),
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / "lab").glob("*.md"),
]
_LEAD = re.compile(r"\s*([-*]|\d+\.)?\s*")


def too_long(text: str) -> Iterator[str]:
    """Lines of prose that could have been wrapped: no tables, no code, no single long word."""
    code = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            code = not code
        prose = not code and not line.lstrip().startswith(("|", "<", "#"))
        if prose and len(line) > COLUMNS and " " in _LEAD.sub("", line[:COLUMNS], count=1):
            yield line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_wraps_at_100_columns(page: Path) -> None:
    wrong = list(too_long(page.read_text()))
    assert not wrong, f"expected lines of at most {COLUMNS} columns, found {len(wrong)} longer: {wrong[0]}"


def test_prose_that_is_too_long_is_found_and_tables_code_and_links_are_not() -> None:
    words, word = "word " * 25, "w" * 120
    assert list(too_long(f"{words}\n\n- {words}")) == [words, f"- {words}"]
    assert not list(too_long(f"| {words} |\n\n```sh\n{words}\n```\n\n- {word}\n"))

"""docs/threat-model.md claims nothing that no test shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "threat-model.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def lines() -> list[str]:
    """Every line that says what is tried, and what stops it."""
    tables = PAGE.read_text().split("| what is tried |")[1:]
    rows = (row for table in tables for row in table.split("\n\n")[0].splitlines()[2:])
    return [row for row in rows if row.startswith("|")]


@pytest.mark.parametrize("line", lines(), ids=lambda line: line.split("|")[1].strip()[:40])
def test_every_line_names_the_test_that_shows_it_or_says_why_there_is_none(line: str) -> None:
    shown = line.split("|")[-2]
    assert NAMED.search(shown) or re.search(r"not tested: \w+", shown)


def test_the_page_speaks_of_every_actor() -> None:
    assert len(lines()) > 30


@pytest.mark.parametrize(("file", "test"), sorted(set(NAMED.findall(PAGE.read_text()))))
def test_every_test_that_is_named_exists(file: str, test: str) -> None:
    assert re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(), flags=re.MULTILINE)

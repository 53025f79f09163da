"""The histories of docs/reference/histories.md, each decided again."""

from pathlib import Path

import pytest

from lab.model.histories import HISTORIES, INTRODUCTION

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "histories.md").read_text()
PARTS = [part.partition("\n") for part in PAGE.split("\n## ")[1:]]


@pytest.mark.parametrize("title", HISTORIES)
def test_a_history_goes_as_the_page_says(title: str) -> None:
    written = next((text for name, _, text in PARTS if name == title), "")
    assert HISTORIES[title]().lines == written.strip().splitlines(), (
        "python -m lab.model.histories writes the page anew"
    )


def test_the_page_has_these_histories_and_no_others() -> None:
    assert PAGE.startswith(INTRODUCTION)
    assert [name for name, _, _ in PARTS] == [*HISTORIES]

"""What `make surfaces` demands of its figures."""

from __future__ import annotations

from typing import Any

import pytest

from lab.surfaces.__main__ import out_of_bounds

Figures = dict[str, Any]


def good(**other: object) -> Figures:
    counts = {"blocks": 20, "run": 12, "by_tests": 3, "marked": 5}
    newcomer = {"minutes": 5.0, "commands": 6}
    return {"doc_commands": counts, "cli_startup_cpu_seconds": 0.5, "newcomer": newcomer} | other


def test_figures_on_their_bounds_are_good_enough() -> None:
    assert out_of_bounds(good()) == []


@pytest.mark.parametrize(
    ("found", "bound"),
    [
        (good(doc_commands={"blocks": 19, "marked": 0}), "doc_commands.blocks: at least 20, found 19"),
        (good(doc_commands={"blocks": 20, "marked": 6}), "doc_commands.marked: at most a quarter of 20, found 6"),
        (good(cli_startup_cpu_seconds=0.51), "cli_startup_cpu_seconds: at most 0.5, found 0.51"),
        (good(cli_startup_cpu_seconds=float("nan")), "cli_startup_cpu_seconds: at most 0.5, found nan"),
        (good(newcomer={"minutes": 5.1, "commands": 6}), "newcomer.minutes: at most 5, found 5.1"),
        (good(newcomer={"minutes": 5.0, "commands": 7}), "newcomer.commands: at most 6, found 7"),
    ],
)
def test_a_figure_that_is_out_of_its_bound_is_named_with_it(found: Figures, bound: str) -> None:
    assert out_of_bounds(found) == [bound]

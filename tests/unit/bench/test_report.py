"""From rounds to figures and verdicts."""

from __future__ import annotations

from typing import Any

import pytest

from lab.bench.report import budgets, show, summary


def raw(**changes: float) -> dict[str, Any]:
    def measured(patched: float, bare: float) -> dict[str, Any]:
        return {
            "breach_to_decided_seconds": 2.0,
            "decided_to_last_patch_seconds": patched,
            "api_writes": 1012,
            "bare_seconds": {16: bare + 1, 32: bare, 64: bare + 2},
        }

    steady = {"cores": 0.01, "rss_mib": 100.0, "queries_per_interval": 7.0, "metrics": 7, "writes": 0}
    zero = {
        "n": 1000,
        "rounds": [measured(2.4, 2.0), measured(9.0, 2.2), measured(2.5, 1.9)],
        "steady": {**steady, **changes},
        "takeover_seconds": [6.0, 7.0],
    }
    hot = [{"decided_to_last_patch_seconds": 1.0, "api_writes": 812}]
    return {"zero_pods": zero, "with_pods": {"n": 200, "pods": 200, "rounds": hot}}


def test_figures_are_medians_and_bare_is_the_best_number_in_flight() -> None:
    figures = summary(raw())
    assert (figures["bare_seconds"], figures["bare_inflight"]) == (2.0, 32)
    assert figures["decided_to_last_patch_seconds"] == 2.5
    assert figures["with_pods"] == {"n": 200, "pods": 200, "decided_to_last_patch_seconds": 1.0, "api_writes": 812}
    assert show(figures)


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({"cores": 0.021}, "at rest: cores"),
        ({"rss_mib": 151.0}, "at rest: resident memory"),
        ({"queries_per_interval": 14.0}, "queries a metric an interval"),
        ({"queries_per_interval": float("nan")}, "queries a metric an interval"),
        ({"writes": 1}, "at rest: writes"),
    ],
)
def test_a_budget_that_is_missed_is_named(changes: dict[str, float], missed: str) -> None:
    figures = summary(raw(**changes))
    assert [budget.what for budget in budgets(figures) if not budget.kept] == [missed]
    assert not show(figures)

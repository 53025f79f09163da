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
            "api_writes": 1009,
            "bare_seconds": {16: bare + 1, 32: bare, 64: bare + 2},
            "unfenced_seconds": {16: bare, 32: bare - 0.5, 64: bare},
        }

    steady = {"cores": 0.009, "rss_mib": 100.0, "queries_per_interval": 7.0, "metrics": 7, "writes": 0}
    rollbacks = {
        "n": 1000,
        "rounds": [measured(2.2, 2.0), measured(9.0, 2.2), measured(2.3, 1.9)],
        "steady": {**steady, **changes},
        "takeover_seconds": [6.0, 7.0],
    }
    hot = [{"decided_to_last_patch_seconds": 1.0, "api_writes": 209}]
    large = {
        "workloads": 5000,
        "name_length": 60,
        "phase": "RollingBack",
        "object_bytes": 900_000,
        "decide_seconds": 0.5,
    }
    many = {
        "workloads": 10000,
        "policies": 100,
        "interval_seconds": 15.0,
        "idle_cores": 0.04,
        "rss_mib": 300.0,
        "steady_writes": 0,
        "breach_to_decided_seconds": 12.0,
    }
    with_pods = {"n": 100, "pods": 200, "rounds": hot}
    return {"rollbacks": rollbacks, "with_pods": with_pods, "large": large, "many": many}


def test_figures_are_medians_and_bare_is_the_best_number_in_flight() -> None:
    figures = summary(raw())
    assert (figures["bare_seconds"], figures["bare_inflight"], figures["unfenced_seconds"]) == (2.0, 32, 1.5)
    assert figures["decided_to_last_patch_seconds"] == 2.3
    assert figures["with_pods"] == {"n": 100, "pods": 200, "decided_to_last_patch_seconds": 1.0, "api_writes": 209}
    assert show(figures)


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({"cores": 0.011}, "at rest: cores"),
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


@pytest.mark.parametrize(
    ("part", "figure", "value", "missed"),
    [
        ("large", "phase", "Held", "not measured in mid-rollback"),
        ("large", "object_bytes", 1_048_577, "object"),
        ("large", "decide_seconds", 1.1, "a decision"),
        ("many", "idle_cores", 0.06, "cores"),
        ("many", "steady_writes", 1, "writes"),
        ("many", "breach_to_decided_seconds", 16.5, "breach → decided"),
    ],
)
def test_a_budget_of_scale_that_is_missed_is_named(part: str, figure: str, value: float | str, missed: str) -> None:
    found = raw()
    found[part][figure] = value
    (budget,) = [budget for budget in budgets(summary(found)) if not budget.kept]
    assert budget.what.endswith(missed)

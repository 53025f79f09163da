"""What `make restarts` counts in the tests' report, and the simulator that it predicts emergencies in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab import paths, process, restarts
from lab.model import predictions
from lab.model.predictions import Prediction, drawn, predicted
from lab.model.predictions import figures as of_predictions
from lab.restarts import Figures, figures, out_of_bounds
from precision_operator.api.state import Phase
from precision_operator.core.model import RestartBy
from tests.support.recorded_kinds import RECORDED

RESTARTED = [kind for kind, row in RECORDED.items() if row.restart_by is not RestartBy.NEVER]

pytestmark = pytest.mark.slow


def case(name: str, **properties: object) -> str:
    kept = "".join(f'<property name="{key}" value="{value}"/>' for key, value in properties.items())
    return f'<testcase name="{name}"><properties>{kept}</properties></testcase>'


def test_kinds_kills_and_predictions_are_collected(tmp_path: Path) -> None:
    measured = {"restart_seconds": 4.25, "backoff_used": 0, "steps_lost": 3}
    cases = [
        case("a", restarted_kind="Deployment", completed_untrained=False, **measured),
        case("b", restarted_kind="Job", completed_untrained=True, **measured),
        case("c", killed_at="recorded", jobs_left_suspended=0),
        case("d", killed_at="resuming", jobs_left_suspended=1),
        case("e"),
    ]
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    assert figures(report, [Prediction(60.0, 50.0), Prediction(60.0, 120.0)]) == {
        "kinds": [
            {"kind": "Deployment", **measured, "completed_untrained": False},
            {"kind": "Job", **measured, "completed_untrained": True},
        ],
        "predictions": {"count": 2, "p90_error_ratio": 0.5},
        "kills": {"count": 2, "jobs_left_suspended": 1},
    }


def good(**other: object) -> Figures:
    rows = [{"kind": kind, "completed_untrained": False} for kind in RESTARTED]
    found: Figures = {
        "kinds": rows,
        "predictions": {"count": 30, "p90_error_ratio": 0.5},
        "kills": {"count": 4, "jobs_left_suspended": 0},
    }
    return found | other


def test_figures_on_their_bounds_are_good_enough() -> None:
    assert out_of_bounds(good()) == []


@pytest.mark.parametrize(
    ("found", "bound"),
    [
        (good(predictions={"count": 30, "p90_error_ratio": 0.501}), "p90_error_ratio: at most 0.5, found 0.501"),
        (good(predictions={"count": 30, "p90_error_ratio": float("nan")}), "p90_error_ratio: at most 0.5, found nan"),
        (good(predictions={"count": 29, "p90_error_ratio": 0.1}), "predictions.count: at least 30, found 29"),
        (good(kills={"count": 3, "jobs_left_suspended": 0}), "kills.count: at least 4, found 3"),
        (good(kills={"count": 4, "jobs_left_suspended": 1}), "kills.jobs_left_suspended: 0, found 1"),
        (good(kinds=[{"kind": "Job", "completed_untrained": True}]), "completed_untrained: no workload may, Job did"),
    ],
)
def test_a_figure_that_is_out_of_its_bound_is_named_with_it(found: Figures, bound: str) -> None:
    assert any(bound in line for line in out_of_bounds(found))


@pytest.mark.parametrize("kind", RESTARTED)
def test_a_kind_that_no_test_restarted_is_named(kind: str) -> None:
    rows = good()["kinds"]
    assert isinstance(rows, list)
    (line,) = out_of_bounds(good(kinds=[row for row in rows if row["kind"] != kind]))
    assert line.endswith(f"must be restarted, {kind} was not")


@pytest.mark.parametrize(("ratio", "tests", "code"), [(0.5, 0, 0), (0.6, 0, 1), (0.5, 5, 5), (0.6, 5, 5)])
def test_the_command_fails_where_a_test_does_or_a_figure_is_out_of_bounds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, ratio: float, tests: int, code: int
) -> None:
    def pytest_run(_: process.Arguments) -> int:
        (tmp_path / "restarts.xml").write_text("<testsuites/>")
        return tests

    found = good(predictions={"count": 60, "p90_error_ratio": ratio})
    monkeypatch.setattr(process, "call", pytest_run)
    monkeypatch.setattr(restarts, "REPORT", tmp_path / "restarts.xml")
    monkeypatch.setattr(restarts, "RESULT", tmp_path / "restarts.json")
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(restarts, "all_of_them", lambda seed: [seed])
    monkeypatch.setattr(restarts, "figures", lambda _, predictions: found | {"of": predictions})
    assert restarts.main(["--seed", "7"]) == code
    assert json.loads((tmp_path / "restarts.json").read_text()) == {**found, "of": [7], "seed": 7}


def test_another_seed_draws_other_fleets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "predicted", lambda seed: seed)
    first, second = (predictions.all_of_them(seed) for seed in (0, 1))
    assert len(first) == len(second) == predictions.COUNT
    assert not set(first) & set(second)


def test_an_error_is_a_share_of_what_was_measured() -> None:
    assert Prediction(30.0, 60.0).error_ratio == pytest.approx(0.5)
    assert Prediction(90.0, 60.0).error_ratio == pytest.approx(0.5)


@pytest.mark.parametrize("seed", range(6))
def test_the_duration_of_an_emergency_is_predicted(seed: int) -> None:
    assert predicted(seed) == predicted(seed), "the same fleet has the same story"
    assert of_predictions([predicted(seed)])["p90_error_ratio"] <= 1.0


def test_a_fleet_of_the_simulator_takes_its_time() -> None:
    world = drawn(0)
    world.until(Phase.HEALTHY)
    assert world.used_up == {}
    assert min(world.state.restart_seconds) >= 5.0

"""What `make restarts` counts in the tests' report, and the simulator that it predicts emergencies in."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.model.predictions import Prediction, drawn, predicted
from lab.model.predictions import figures as of_predictions
from lab.restarts import figures
from precision_operator.api.state import Phase

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

"""What `make operate` takes for missed, and what it says where it cannot measure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lab.errors import LabError
from lab.isolation.part import Figures
from lab.operate import panels, rules, webpage

ALERTS: Figures = {
    "rules": 30,
    "tested": 30,
    "runbooks": 30,
    "runbook_commands": 5,
    "runbook_commands_run": 4,
    "runbook_commands_marked": 1,
}
PAGE: Figures = {"flows": 6, "axe_violations": 0, "workloads": 2000, "first_paint_seconds": 0.4}


def test_what_is_whole_misses_nothing() -> None:
    assert rules.missed(ALERTS) == rules.missed({"rules": 3, "tested": 3}) == webpage.missed(PAGE) == []


@pytest.mark.parametrize("changed", [{"tested": 29}, {"runbooks": 29}, {"runbook_commands_run": 3}])
def test_an_alert_without_test_runbook_or_command_that_succeeds_is_missed(changed: Figures) -> None:
    assert len(rules.missed({**ALERTS, **changed})) == 1


@pytest.mark.parametrize("count", [0, rules.LEAST_ALERTS - 1])
def test_too_few_alerts_are_missed_though_each_is_tested(count: int) -> None:
    found = {**ALERTS, "rules": count, "tested": count, "runbooks": count}
    assert rules.missed(found) == [f"expected at least {rules.LEAST_ALERTS} alerts, found {count}"]


@pytest.mark.parametrize(
    "changed",
    [
        {"flows": 5},
        {"axe_violations": 1},
        {"workloads": 1999},
        *({"first_paint_seconds": value} for value in (3.1, float("inf"), float("nan"), None)),
    ],
)
def test_a_page_that_shows_less_or_later_is_missed(changed: Figures) -> None:
    assert len(webpage.missed({**PAGE, **changed})) == 1


def test_a_report_without_the_first_paint_has_none(tmp_path: Path) -> None:
    report = tmp_path / "webpage.xml"
    report.write_text("<testsuites/>")
    assert webpage.figures(report)["first_paint_seconds"] is None


def test_a_demo_that_fails_is_told_with_its_log_and_the_log_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "reports" / "demo.log"
    monkeypatch.setattr(panels, "DEMO", [sys.executable, "-c", "print('no room left'); raise SystemExit(3)"])
    monkeypatch.setattr(panels, "DEMO_LOG", log)
    monkeypatch.setattr(panels, "_numbers", lambda *_, **__: False)
    with pytest.raises(LabError, match="exit code 3: no room left") as told:
        panels.until_filled("http://nowhere")
    assert str(log) in told.value.next_step
    assert log.read_text() == "no room left\n"


def test_annotations_and_variables_are_asked_too() -> None:
    asked = {f"{each.dashboard}: {each.title}": each.queries[0] for each in panels.beside()}
    assert set(asked) == {
        "precision-fleet: annotation Rollouts",
        "precision-fleet: annotation Rollbacks",
        "precision-fleet: variable namespace",
        "precision-fleet: variable policy",
        "precision-operator: variable namespace",
    }
    info = "namespace_policy:precision_policy_info:leader"
    assert asked["precision-fleet: variable policy"] == f'{info}{{namespace=~".*", policy!=""}}'
    assert asked["precision-operator: variable namespace"] == 'precision_operator_leader{namespace!=""}'

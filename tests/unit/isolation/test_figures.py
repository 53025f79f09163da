"""What the parts of lab/isolation say of figures that miss their bound."""

import json
from pathlib import Path

import pytest

from lab.bench.decide import BUDGET_SECONDS, Row, sloped
from lab.isolation import decide, disruption_budgets, receiver, tenant_text
from lab.isolation.part import Section, late
from lab.parts import run
from precision_operator.receiver.server import BODIES


@pytest.mark.parametrize(
    ("awaited", "added_mib", "stall", "sentences"),
    [
        (BODIES, 20.0, 0.2, 0),
        (BODIES - 1, 20.0, 0.2, 1),
        (300, 20.1, 0.2, 1),
        (300, 3.0, 0.21, 1),
        (300, float("nan"), 1.0, 2),
    ],
)
def test_the_receivers_bounds(awaited: int, added_mib: float, stall: float, sentences: int) -> None:
    found = {"slow_bodies": 300, "awaited_bodies": awaited, "added_mib": added_mib, "loop_stall_seconds": stall}
    assert len(receiver.missed(found)) == sentences


@pytest.mark.parametrize(("stall", "refused", "lost", "ratio", "sentences"), [(0.2, 0, 0, 4.0, 0), (0.3, 1, 1, 4.1, 4)])
def test_the_bounds_of_tenant_text(stall: float, refused: int, lost: int, ratio: float, sentences: int) -> None:
    found = {
        "cases": 9,
        "max_loop_stall_seconds": stall,
        "refused_writes": refused,
        "objects_lost": lost,
        "command_ratio": ratio,
    }
    assert len(tenant_text.missed(found)) == sentences


@pytest.mark.parametrize(("stall", "sentences"), [(0.2, 0), (0.201, 1)])
def test_the_bound_of_disruption_budgets(stall: float, sentences: int) -> None:
    assert len(disruption_budgets.missed({"cases": 6, "max_loop_stall_seconds": stall})) == sentences


def test_each_decision_is_reported_with_the_power_by_which_its_signals_cost_grows() -> None:
    costs = {("speed", 1000): 0.01, ("speed", 5000): 0.05, ("memory", 1000): 0.01, ("memory", 5000): 0.25}
    rows = [
        Row(signal=signal, unit="Workload", workloads=size, pods=size, cpu_seconds=cost)
        for (signal, size), cost in costs.items()
    ]
    found = sloped(rows)
    assert [(row["signal"], row["pods"], row["cpu_seconds"], row["slope"]) for row in found] == [
        (signal, size, cost, {"speed": 1.0, "memory": 2.0}[signal]) for (signal, size), cost in costs.items()
    ]
    assert decide.missed([dict(row) for row in found]) == []


def test_a_decision_over_its_budget_is_named() -> None:
    slow = {"signal": "speed", "unit": "Workload", "pods": 1000, "cpu_seconds": BUDGET_SECONDS[1000] + 0.01}
    (sentence,) = decide.missed([slow, {**slow, "cpu_seconds": BUDGET_SECONDS[1000]}])
    assert sentence.startswith("speed, unit Workload: expected at most 0.15 s of CPU for 1000 pods")


@pytest.mark.parametrize(
    ("found", "sentences"),
    [
        ({"breach_to_decided_seconds": 6.0}, 0),
        ({"breach_to_decided_seconds": 6.001}, 1),
        ({"breach_to_decided_seconds": float("nan")}, 1),
        ({"breach_to_decided_seconds": None}, 1),
        ({}, 1),
        ([], 1),
    ],
)
def test_a_breach_that_was_decided_late_or_never_is_said(found: Section, sentences: int) -> None:
    assert len(late(found, 6.0)) == sentences


class Broken:
    """A part that fails in a way nobody thought of."""

    def measure(self, directory: Path) -> Section:
        raise ValueError("no figure")

    def missed(self, found: Section) -> list[str]:
        raise AssertionError("it has none")


class Fine:
    def measure(self, directory: Path) -> Section:
        return {"cases": 1}

    def missed(self, found: Section) -> list[str]:
        return []


def test_a_part_that_fails_is_said_and_costs_no_other_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["lab.isolation"])
    monkeypatch.setattr("lab.parts.take_sigterm_as_interrupt", lambda: None)
    result = tmp_path / "isolation.json"
    result.write_text('{"broken": {"cases": 9}}')
    assert (
        run("isolation", "", there={"broken": Broken(), "fine": Fine()}, order=("broken", "fine"), result=result) == 1
    )
    assert json.loads(result.read_text()) == {"fine": {"cases": 1}}
    assert "broken: ValueError: no figure" in capsys.readouterr().err

"""What the parts of lab/isolation say of figures that miss their bound."""

import pytest

from lab.bench.decide import Row, sloped
from lab.isolation import decide, disruption_budgets, receiver, tenant_text


@pytest.mark.parametrize(
    ("added_mib", "stall", "sentences"), [(20.0, 0.2, 0), (20.1, 0.2, 1), (3.0, 0.21, 1), (float("nan"), 1.0, 2)]
)
def test_the_receivers_bounds(added_mib: float, stall: float, sentences: int) -> None:
    found = {"slow_bodies": 300, "added_mib": added_mib, "loop_stall_seconds": stall}
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

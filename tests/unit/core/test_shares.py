"""Shares of a fleet, as people write them: in decimals."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.model.policies import FAST, policy
from lab.model.world import NAN, World
from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase
from precision_operator.core.cohorts.shares import at_least, at_most


@given(percent=st.integers(1, 100), count=st.integers(0, 10_000))
def test_a_share_of_a_fleet_is_what_arithmetic_says(percent: int, count: int) -> None:
    exact = Fraction(percent, 100) * count
    assert at_least(percent / 100, count) == -(-exact.numerator // exact.denominator)
    assert at_most(percent / 100, count) == exact.numerator // exact.denominator


@pytest.mark.parametrize(("breached", "phase"), [(6, Phase.DEGRADED), (7, Phase.ROLLING_BACK)])
def test_seven_percent_of_a_hundred_workloads_are_seven(breached: int, phase: Phase) -> None:
    world = World(policy(**{**FAST, "strategy": {"steps": [{"setWeight": 100}]}, "rollback": {"fleetShare": 0.07}}))
    for number in range(100):
        world.add(f"trainer-{number:02}", mode=Mode.FP16)
    world.run(2)
    world.bad = {f"trainer-{number:02}": NAN for number in range(breached)}
    world.step()
    assert world.state.phase is phase

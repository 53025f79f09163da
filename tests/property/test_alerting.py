"""Breaches that alert and hold promotions, and are never rolled back (P3)."""

from dataclasses import replace

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.conditions import Condition
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from precision_operator.core.actions import Notify
from precision_operator.core.alerting import ALERTING
from tests.support.fleets import condition, member_names, respec

STEPS = {**FAST, "strategy": {"steps": [{"setWeight": 50}, {"pause": {"duration": "30s"}}, {"setWeight": 100}]}}


def fleet(*, count: int = 4, **spec: object) -> World:
    world = World(policy(**{**STEPS, **spec}))
    for index in range(count):
        world.add(f"hot-{index}")
    return world


def breach(world: World, values: dict[Signal, float]) -> None:
    world.bad = dict.fromkeys(world.workloads, values)


def alert(world: World) -> Condition:
    return condition(world, ALERTING)


MILD = [
    (Signal.MEMORY, 0.85, 900.0, "MemoryRatioHigh"),
    (Signal.DIVERGENCE, 0.12, 1800.0, "LossDiverging"),
]


@pytest.mark.parametrize(("signal", "value", "seconds", "reason"), MILD)
def test_a_mild_breach_alerts_after_its_time_once_and_rolls_nothing_back(
    signal: Signal, value: float, seconds: float, reason: str
) -> None:
    world = fleet()
    world.run(12)
    assert world.state.phase is Phase.HEALTHY
    breach(world, {signal: value})
    world.step()
    began, notices = world.now - 15.0, []
    while world.now < began + seconds + 600.0:
        decision = world.step()
        notices += [a for a in decision.actions if isinstance(a, Notify)]
        assert (alert(world).status == "True") is (world.now - 15.0 - began >= seconds)
    assert world.state.phase is Phase.HEALTHY
    assert [notice.reason for notice in notices] == [reason]
    assert "hot-0, hot-1, hot-2, hot-3" in notices[0].message
    breach(world, {})
    world.step()
    assert alert(world).status == "False"


@pytest.mark.parametrize(("signal", "value", "seconds", "reason"), MILD)
def test_a_mild_breach_holds_the_next_step_from_its_first_evaluation_on(
    signal: Signal, value: float, seconds: float, reason: str
) -> None:
    world = fleet()
    breach(world, {signal: value})
    world.run(20)
    assert (world.state.phase, world.state.step_index) == (Phase.PROGRESSING, 0)
    assert condition(world, "Progressing").reason == "EvidenceInsufficient"
    breach(world, {})
    world.run(8)
    assert world.state.phase is Phase.HEALTHY


def test_a_standing_alert_costs_no_write() -> None:
    world = fleet()
    world.run(12)
    breach(world, {Signal.MEMORY: 0.9})
    world.run(80)
    assert alert(world).status == "True"
    writes = world.commits + world.summaries + world.writes
    world.run(20)
    assert world.commits + world.summaries + world.writes == writes


def test_a_standing_alert_is_not_told_again_with_what_else_changes() -> None:
    world = fleet()
    world.run(12)
    breach(world, {Signal.MEMORY: 0.9})
    world.run(80)
    respec(world, progress_deadline_seconds=700.0)
    decision = world.step()
    assert decision.state.observed_generation == 2
    assert [a.reason for a in decision.actions if isinstance(a, Notify)] == []


def test_new_workloads_join_no_fleet_whose_alert_stands() -> None:
    world = fleet()
    world.run(12)
    breach(world, {Signal.MEMORY: 0.9})
    world.run(80)
    world.add("hot-9")
    world.run(4)
    assert "hot-9" not in member_names(world)
    breach(world, {})
    world.run(4)
    assert "hot-9" in member_names(world)


def test_the_severity_of_a_mild_breach_is_a_setting() -> None:
    criteria = {"divergence": {"warnSeverity": "P2"}}
    rollback = {"gradual": {"sustain": "1m"}, "mitigation": {"overflow": {"window": "0s"}, "speed": {"window": "0s"}}}
    world = fleet(criteria=criteria, rollback=rollback)
    world.run(12)
    breach(world, {Signal.DIVERGENCE: 0.12})
    world.run(12)
    assert world.state.phase in (Phase.ROLLING_BACK, Phase.HELD)


def test_worse_divergence_is_rolled_back_although_milder_was_only_told() -> None:
    world = fleet()
    world.run(12)
    breach(world, {Signal.DIVERGENCE: 0.12})
    world.run(5)
    breach(world, {Signal.DIVERGENCE: 0.3})
    world.run(2)
    assert world.state.phase in (Phase.ROLLING_BACK, Phase.HELD)
    assert world.state.incident is not None
    assert world.state.incident.reason == "LossDiverged"


def test_missing_memory_data_promotes_nothing() -> None:
    world = fleet()
    breach(world, {Signal.MEMORY: float("nan")})
    world.run(12)
    assert (world.state.phase, world.state.step_index) == (Phase.PROGRESSING, 0)


def test_an_alert_names_each_signals_level_time_and_workloads() -> None:
    world = fleet()
    world.run(12)
    world.bad = {"hot-0": {Signal.MEMORY: 0.85}, "hot-1": {Signal.DIVERGENCE: 0.12}}
    world.run(130)
    assert set(alert(world).message.partition(": nothing")[0].split("; ")) == {
        "memory beyond 0.8 for 900 s or longer in hot-0",
        "divergence beyond 0.05 for 1800 s or longer in hot-1",
    }


def test_an_alert_that_stands_for_another_workload_too_is_told_again() -> None:
    world = fleet()
    world.run(12)
    told: list[str] = []
    for name in ("hot-0", "hot-1"):
        world.bad[name] = {Signal.MEMORY: 0.85}
        told += [a.message for _ in range(80) for a in world.step().actions if isinstance(a, Notify)]
    assert [message.partition(": nothing")[0].rpartition(" in ")[2] for message in told] == ["hot-0", "hot-0, hot-1"]


@pytest.mark.parametrize(("listed", "named"), [(0, "workloads without data"), (1, "hot-0")])
def test_an_alert_of_workloads_that_are_not_seen_names_those_that_were_not_too_many_to_list(
    listed: int, named: str
) -> None:
    world = fleet()
    world.run(12)
    breach(world, {Signal.MEMORY: 0.85})
    world.run(80)
    (first, *_) = found = world.state.failing
    rest = replace(first, key="", measured="")
    world.state, world.unobservable = replace(world.state, failing=(rest, *found[:listed])), set(world.workloads)
    world.step()
    assert f" or longer in {named}: " in alert(world).message


@pytest.mark.parametrize(
    ("signal", "value", "level"), [("divergence", 0.12, "0.05"), ("divergence", 0.5, "0.05"), ("overflow", 0.6, "0.3")]
)
def test_an_alert_names_the_level_from_which_on_nothing_is_rolled_back(signal: str, value: float, level: str) -> None:
    """Divergence alerts from its lower tier on, of whatever severity the upper one is; overflow's lower tier is P2."""
    world = fleet(criteria={signal: {"severity": "P3"}})
    world.run(12)
    breach(world, {Signal(signal): value})
    world.run(130)
    assert alert(world).message.startswith(f"{signal} beyond {level} for ")

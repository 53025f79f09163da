"""Backtests over history made by hand: what is met once, what is not believed, and what is never invented."""

from collections.abc import Iterator

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import GOOD
from precision_operator.api.incident import Scope
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity
from precision_operator.api.state import Phase
from precision_operator.core.model import Evaluation, PodSignals
from precision_operator.replay.backtest import Backtest, Simulation, workload_of

pytestmark = pytest.mark.slow

PODS = [f"trainer-{i}-5d9c7b6f4-abcde" for i in range(4)]
HOUR = 3600.0
BEGAN = 1_700_000_000.0


def past(
    hours: float,
    *,
    bad: dict[str, tuple[float, float]] | None = None,
    mode: Mode = Mode.FP16,
    unseen: tuple[float, float] = (0, 0),
    overflow: float = 0.8,
) -> Iterator[Evaluation]:
    """A reading each 15 s; ``bad`` pods overflow from an hour to an hour, ``unseen`` is a time without data."""
    for step in range(int(hours * HOUR / 15)):
        at = step * 15.0
        now = BEGAN + at
        pods = {}
        for pod in PODS if not unseen[0] * HOUR <= at < unseen[1] * HOUR else []:
            begin, end = (bad or {}).get(pod, (0.0, 0.0))
            wrong = {Signal.OVERFLOW: overflow} if begin * HOUR <= at < end * HOUR else {}
            values = {**GOOD, **wrong} if mode is not Mode.FP32 else {Signal.NON_FINITE: 0.0, Signal.FAILURES: 0.0}
            pods[pod] = PodSignals(mode, 3, now, 500.0, values)
        yield Evaluation(at=now, continuous_since=0.0, pods=pods)


def backtest(readings: Iterator[Evaluation], *, guard: bool = True) -> Backtest:
    simulation = Simulation(policy(**FAST), guard=guard)
    for reading in readings:
        simulation.take(reading)
    return simulation.result()


def test_a_calm_month_shows_no_rollback() -> None:
    result = backtest(past(2))
    assert result.incidents == ()
    assert result.seconds_in == {Phase.HEALTHY: 2 * HOUR - 15}
    assert result.workloads == tuple(f"trainer-{i}" for i in range(4))
    assert result.decisions == 480


def test_each_breach_of_history_is_met_once_and_dated() -> None:
    bad = {PODS[0]: (0.5, 0.75), PODS[1]: (0.5, 0.75)}
    result = backtest(past(3, bad=bad))
    (incident,) = result.incidents
    assert (incident.scope, incident.reason) == (Scope.FLEET, "OverflowRateHigh")
    assert 0.0 <= incident.decided_at - (BEGAN + 0.5 * HOUR) <= 30.0
    edges = [(c.before, c.after) for c in result.changes]
    assert edges == [
        (Phase.HEALTHY, Phase.ROLLING_BACK),
        (Phase.ROLLING_BACK, Phase.HELD),
        (Phase.HELD, Phase.PENDING),
    ]
    assert result.seconds_in[Phase.HELD] > 0.25 * HOUR


def test_a_mild_breach_of_history_is_rolled_back_once_nothing_is_left_to_try() -> None:
    bad = {PODS[0]: (0.5, 2.0), PODS[1]: (0.5, 2.0)}
    (incident,) = backtest(past(3, bad=bad, overflow=0.25)).incidents
    assert incident.severity is Severity.P2
    assert "HalveScale: 0.25, GrowthInterval: 0.25" in incident.message, "BF16 is nothing that history could judge"


def test_two_breaches_are_two_rollbacks() -> None:
    bad = {PODS[0]: (0.5, 0.75), PODS[1]: (0.5, 0.75), PODS[2]: (2.0, 2.1), PODS[3]: (2.0, 2.1)}
    result = backtest(past(3, bad=bad))
    assert [i.workloads for i in result.incidents] == [("trainer-0", "trainer-1"), ("trainer-2", "trainer-3")]
    assert len({i.id for i in result.incidents}) == 2


def test_one_bad_workload_is_held_by_itself() -> None:
    result = backtest(past(2, bad={PODS[0]: (0.5, 0.75)}))
    assert [(i.scope, i.workloads) for i in result.incidents] == [(Scope.WORKLOAD, ("trainer-0",))]


def test_a_gap_in_the_data_is_unknown_and_no_rollback() -> None:
    result = backtest(past(2, unseen=(0.5, 1.0)))
    assert result.incidents == ()
    assert 0.5 * HOUR - 60 <= result.unknown_seconds <= 0.5 * HOUR + 60


def test_a_rollout_is_not_promoted_on_metrics_of_another_precision() -> None:
    """History in FP32 says nothing of how FP16 would have gone."""
    result = backtest(past(2, mode=Mode.FP32), guard=False)
    assert {c.after for c in result.changes} == {Phase.PROGRESSING}
    assert result.unknown_seconds > HOUR
    promoted = backtest(past(2), guard=False)
    assert promoted.changes[-1].after is Phase.HEALTHY


def test_a_pods_name_gives_its_workload() -> None:
    assert workload_of("trainer-5d9c7b6f4-abcde") == "trainer"
    assert workload_of("world-model-12") == "world-model"
    assert workload_of("bare") == "bare"

"""Which Events are sent, and which of them ask for a person's eyes: a Warning."""

from collections.abc import Callable

import pytest

from lab.model.world import NAN, World
from precision_operator.api.incident import Incident
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Strategy
from precision_operator.api.state import Phase
from precision_operator.core.actions import Notify
from tests.support.fleets import answer, emergency, fleet, promoted, restart_only, until
from tests.support.rollbacks import by_canary

AT_ONCE = {"gradual": {"sustain": "0s"}, "mitigation": {"speed": {"window": "0s"}}}


def rolled_back() -> World:
    world = promoted()
    world.bad = {"hot-1": NAN, "hot-3": NAN}
    until(world, lambda w: w.state.phase is Phase.HELD)
    return world


def one_breached() -> World:
    world = promoted()
    world.bad = {"hot-2": NAN}
    return world


def unresponsive() -> World:
    world = promoted()
    world.bad, world.unresponsive = {"hot-1": NAN, "hot-3": NAN}, set(world.workloads)
    return world


def worsening() -> World:
    """A gradual rollback that one workload does not follow; the weights of the others, back in FP32, are NaN."""
    world = promoted(rollback=AT_ONCE)
    world.bad, world.unresponsive = {"hot-1": {Signal.SPEED: 0.5}, "hot-3": {Signal.SPEED: 0.5}}, {"hot-4"}
    until(world, lambda w: w.really_in(Mode.FP16) == {"hot-4"}, seconds=15.0)
    assert incident(world).strategy is Strategy.GRADUAL
    world.poisoned, world.bad["hot-4"] = set(world.workloads) - {"hot-4"}, NAN
    return world


def incident(world: World) -> Incident:
    assert world.state.incident is not None
    return world.state.incident


def retried() -> World:
    world = rolled_back()
    world.bad = {}
    world.run(30)
    answer(world, "retry")
    return world


def lost() -> World:
    world = rolled_back()
    world.run(10)
    world.lose_assignment()
    return world


def deleted() -> World:
    world = rolled_back()
    world.delete_policy()
    return world


def no_verdict() -> World:
    world = by_canary({"window": "10m", "limit": "20m"})
    world.metrics_away = True
    return world


def drifting() -> World:
    world = promoted()
    world.bad = {name: {Signal.MEMORY: 0.85} for name in world.workloads}
    return world


@pytest.mark.parametrize(
    ("history", "passes", "events"),
    [
        (fleet, 30, {"RolloutStarted": False, "StepPromoted": False, "Promoted": False}),
        (one_breached, 4, {"LossNotFinite": True}),
        (unresponsive, 60, {"LossNotFinite": True, "RollbackEscalated": True, "RolledBack": False}),
        (worsening, 2, {"RollbackExpedited": True}),
        (retried, 3, {"Retried": False, "RolloutStarted": False}),
        (lost, 2, {"StateLost": True, "RolledBack": False}),
        (deleted, 3, {"PolicyDeleted": False}),
        (no_verdict, 100, {"CanaryInconclusive": True}),
        (drifting, 80, {"MemoryRatioHigh": True}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_somebody_should_look_at_is_a_warning(
    history: Callable[[], World], passes: int, events: dict[str, bool]
) -> None:
    world = history()
    said = [a for _ in range(passes) for a in world.step().actions if isinstance(a, Notify)]
    assert {notice.reason: notice.warning for notice in said} == events


@pytest.mark.parametrize("breached", [["hot-1"], ["hot-1", "hot-2", "hot-3"]])
def test_a_deadline_that_passes_is_a_warning_once(breached: list[str]) -> None:
    world = promoted()
    world.bad, world.unobservable = dict.fromkeys(breached, NAN), set()
    until(world, lambda w: w.state.incident is not None)
    world.unobservable = {"hot-1"}
    said = [a for _ in range(60) for a in world.step(15.0).actions if isinstance(a, Notify)]
    assert [(n.reason, n.warning) for n in said if n.reason == "DeadlineExceeded"] == [("DeadlineExceeded", True)]
    (late,) = (n for n in said if n.reason == "DeadlineExceeded")
    assert "hot-1" in late.message


@pytest.mark.parametrize(("restart", "announced"), [("5m", False), ("301s", True)])
def test_a_deadline_that_is_met_to_the_second_is_not_announced(restart: str, *, announced: bool) -> None:
    rules = {"ackTimeout": "10m", "deadlines": {"P0": "5m"}, "emergency": {"expectedRestart": restart}}
    decision = emergency(restart_only(1, rollback=rules)).decide()
    said = {a.reason for a in decision.actions if isinstance(a, Notify)}
    assert ("DeadlineUnreachable" in said) is announced


def test_an_approval_is_asked_for_once() -> None:
    world = fleet(strategy={"steps": [{"setWeight": 40}, {"pause": {}}, {"setWeight": 100}]})
    said = [a for _ in range(30) for a in world.step(15.0).actions if isinstance(a, Notify)]
    assert world.state.phase is Phase.PAUSED
    assert [n.reason for n in said] == ["RolloutStarted", "AwaitingApproval"]


def test_a_window_that_opens_is_a_warning_and_its_good_end_is_none() -> None:
    world = promoted(rollback={"gradual": {"sustain": "0s"}})
    world.bad = {"hot-0": {Signal.SPEED: 0.5}}
    opened = [a for _ in range(2) for a in world.step().actions if isinstance(a, Notify)]
    world.bad = {}
    closed = [a for _ in range(30) for a in world.step().actions if isinstance(a, Notify)]
    assert {n.reason: n.warning for n in opened + closed} == {"Investigating": True, "Mitigated": False}


def test_what_was_rolled_back_is_no_evidence_that_a_breach_is_not_the_precisions() -> None:
    world = worsening()
    world.step()
    assert incident(world).strategy is Strategy.EMERGENCY

"""What calls for a rollback when several things ask for one at once, or nothing is known."""

from dataclasses import replace

import pytest

from lab.model.world import NAN, OVERFLOWS, World
from precision_operator.api.incident import Scope
from precision_operator.api.mitigation import Mitigation, MitigationResult
from precision_operator.api.signals import Signal
from precision_operator.api.spec import PolicyEnforcement, Severity, Strategy
from precision_operator.api.state import Failing, Phase
from precision_operator.contract import ROLLBACK
from precision_operator.core.decide import decide
from precision_operator.core.derive import derive_facts
from precision_operator.core.rollback.triggers import Trigger, find_trigger
from tests.support.fleets import answer, promoted, respec
from tests.support.views import key

MILD = {Signal.OVERFLOW: 0.25}
AT_ONCE = {"gradual": {"sustain": "0s"}, "mitigation": {"overflow": {"window": "0s"}}}


def trigger(world: World) -> Trigger:
    found = find_trigger(derive_facts(world.policy, world.state, world.observe(), world.now))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("values", "answered", "severity", "strategy"),
    [
        ({}, "Canary", Severity.P2, Strategy.GRADUAL),
        (MILD, "Canary", Severity.P2, Strategy.GRADUAL),
        (MILD, "Gradual", Severity.P2, Strategy.GRADUAL),
        (NAN, "Canary", Severity.P0, Strategy.EMERGENCY),
    ],
    ids=["no breach", "mild, by canary", "mild, gradually", "an emergency"],
)
def test_a_rollback_that_a_person_asked_for_reaches_the_fleet_as_fast_as_its_worst_breach_asks(
    values: dict[Signal, float], answered: str, severity: Severity, strategy: Strategy
) -> None:
    world = promoted(rollback={**AT_ONCE, "strategies": {"P2": answered}})
    world.bad = {"hot-1": values}
    answer(world, ROLLBACK.rpartition("/")[2])
    found = trigger(world)
    assert (found.scope, found.severity, found.strategy) == (Scope.FLEET, severity, strategy)


@pytest.mark.parametrize("command", ["abort", "rollback"])
def test_a_command_that_is_refused_calls_for_no_rollback(command: str) -> None:
    world = promoted()
    answer(world, command)
    respec(world, enforcement=PolicyEnforcement.OBSERVE)
    assert find_trigger(derive_facts(world.policy, world.state, world.observe(), world.now)) is None


def silent_for(seconds: float) -> World:
    """A promoted fleet without believable metrics for so long, whose policy rolls back after 60 s of that."""
    rules = {"interval": "15s", "failureLimit": 0, "minSamples": 1, "noDataLimit": "60s", "onNoData": "Rollback"}
    world = promoted(evaluation=rules)
    world.metrics_away = True
    world.state = replace(world.state, silent=dict.fromkeys(world.state.members, world.now - seconds))
    return world


def test_metrics_that_nobody_asked_for_are_no_silence() -> None:
    """A policy that names an unknown query is not evaluated at all: that says nothing of its trainers."""
    world = silent_for(3600.0)
    assert world.decide().state.reason == "NoData"
    unread = replace(world.observe(), evaluation=None)
    assert decide(world.policy, world.state, unread, world.now).state.phase is Phase.HEALTHY
    answer(world, ROLLBACK.rpartition("/")[2])
    asked = decide(world.policy, world.state, unread, world.now).state
    assert (asked.phase, asked.reason) == (Phase.ROLLING_BACK, "RollbackRequested")


def test_of_several_silences_the_longest_says_since_when() -> None:
    world = silent_for(100.0)
    longest = world.now - 200.0
    world.state = replace(world.state, silent={**world.state.silent, key("hot-2"): longest})
    assert trigger(world).detected_at == longest


@pytest.mark.parametrize(
    ("severity", "result", "until", "counts_from"),
    [
        (Severity.P2, MitigationResult.OPEN, 700.0, 700.0),
        (Severity.P2, MitigationResult.OPEN, 300.0, 500.0),
        (Severity.P2, MitigationResult.OPEN, 2000.0, 1000.0),
        (Severity.P2, MitigationResult.MITIGATED, 700.0, 500.0),
        (Severity.P2, MitigationResult.FAILED, 2000.0, 500.0),
        (Severity.P1, MitigationResult.OPEN, 700.0, 500.0),
    ],
)
def test_only_a_window_that_is_open_moves_a_mild_breachs_deadline_and_never_to_before_it_or_into_the_future(
    severity: Severity, result: MitigationResult, until: float, counts_from: float
) -> None:
    """Seconds: the breach stands since 500, now is 1000."""
    world = promoted(rollback=AT_ONCE)
    world.bad = {"hot-1": MILD if severity is Severity.P2 else OVERFLOWS}
    began, hot_1 = world.now - 1000.0, key("hot-1")
    breach = Failing(hot_1, Signal.OVERFLOW, severity, began + 500.0, count=5)
    window = Mitigation(hot_1, Signal.OVERFLOW, since=began, until=began + until, result=result)
    world.state = replace(world.state, failing=(breach,), mitigations=(window,))
    assert trigger(world).detected_at == began + counts_from


def test_a_milder_breach_that_stands_for_longer_takes_nothing_of_the_time_in_which_a_graver_one_is_answered() -> None:
    rules = {"gradual": {"sustain": "100s"}, "mitigation": {"overflow": {"window": "0s"}}}
    world = promoted(rollback={**rules, "strategies": {"P1": "Gradual"}})
    world.bad = {"hot-1": MILD, "hot-2": OVERFLOWS, "hot-3": OVERFLOWS}
    mild = Failing(key("hot-1"), Signal.OVERFLOW, Severity.P2, world.now - 1000.0, count=5)
    grave = Failing(key("hot-2"), Signal.OVERFLOW, Severity.P1, world.now - 110.0, count=5)
    later = replace(grave, key=key("hot-3"), since=world.now - 105.0)
    world.state = replace(world.state, failing=(mild, grave, later))
    found = trigger(world)
    assert (found.severity, found.detected_at, found.due_from) == (Severity.P1, world.now - 110.0, world.now - 10.0)

"""A wall clock that is set, forward or back: what was good, or bad, before that has not been so for any longer."""

from dataclasses import replace

import pytest

from lab.model.world import NAN, OVERFLOWS, World
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity
from precision_operator.api.state import Failing, Phase
from precision_operator.core.model import Observation
from tests.support.fleets import fleet, held_names, promoted, until
from tests.support.mitigations import breached, window
from tests.support.rollbacks import by_canary, compared
from tests.support.views import key

SOAK = {"strategy": {"steps": [{"setWeight": 50}, {"pause": {"duration": "10m"}}, {"setWeight": 100}]}}
STEPS = pytest.mark.parametrize("seconds", [3600.0, -3600.0], ids=["forward", "back"])


def set_clock(world: World, seconds: float) -> None:
    """As the evaluator shows it from the next reading on."""
    world.now += seconds
    world.continuous_since = stepped = world.now
    observe = world.observe

    def seen() -> Observation:
        found = observe()
        assert found.evaluation is not None
        return replace(found, evaluation=replace(found.evaluation, clock_since=stepped))

    world.observe = seen  # type: ignore[method-assign]


@STEPS
def test_a_step_is_promoted_on_evidence_of_its_whole_length_after_the_clock_was_set(seconds: float) -> None:
    world = fleet(**SOAK)
    until(world, lambda w: w.state.evidence_since is not None)
    world.run(8, 60.0)
    set_clock(world, seconds)
    began = world.now
    world.run(10, 60.0)
    assert world.state.phase is Phase.PROGRESSING
    until(world, lambda w: w.state.phase is Phase.HEALTHY, passes=20)
    assert world.now - began < 660.0


@STEPS
def test_a_mild_breach_has_stood_for_its_time_only_after_the_clock_was_set(seconds: float) -> None:
    world = promoted(rollback={"gradual": {"sustain": "10m"}, "mitigation": {"speed": {"window": "0s"}}})
    world.bad = {"hot-1": {Signal.SPEED: 0.5}}
    world.run(8, 60.0)
    set_clock(world, seconds)
    began = world.now
    until(world, lambda w: w.state.held, seconds=60.0, passes=20)
    assert 600.0 <= world.now - began <= 720.0


def test_a_breach_that_was_seen_in_what_is_the_future_now_stands_since_now() -> None:
    world = promoted(rollback={"gradual": {"sustain": "10m"}, "mitigation": {"speed": {"window": "0s"}}})
    world.bad = {"hot-1": {Signal.SPEED: 0.5}}
    breach = Failing(key("hot-1"), Signal.SPEED, Severity.P2, world.now + 3600.0, 9, world.now + 3600.0)
    world.state = replace(world.state, failing=(breach,))
    world.step()
    assert [f.since for f in world.state.failing] == [world.now - 15.0]


def test_trainers_that_have_not_answered_yet_are_not_restarted_for_a_clock_that_was_set_forward() -> None:
    world = promoted()
    world.unresponsive = set(world.workloads)
    world.bad = {f"hot-{number}": NAN for number in range(5)}
    world.run(2, 5.0)
    assert world.state.phase is Phase.ROLLING_BACK
    taken = dict(world.restarts)
    set_clock(world, 3600.0)
    world.run(3, 5.0)
    assert world.restarts == taken
    world.run(10)
    assert {name for name in world.restarts if name.startswith("hot")} == {f"hot-{number}" for number in range(5)}


@STEPS
def test_what_is_tried_against_overflow_gets_its_whole_chance_after_the_clock_was_set(seconds: float) -> None:
    world = breached(
        rollback={"mitigation": {"overflow": {"window": "24h", "dwell": "5m"}}, "gradual": {"sustain": "0s"}}
    )
    until(world, lambda w: window(w).acknowledged_at is not None, seconds=15.0, passes=10)
    rung = window(world).rung
    set_clock(world, seconds)
    world.run(4, 60.0)
    assert window(world).rung is rung


@pytest.mark.slow
@STEPS
def test_a_canary_is_looked_at_a_window_after_the_clock_was_set(seconds: float) -> None:
    world = compared(by_canary())
    before = world.state.comparison
    assert before is not None
    set_clock(world, seconds)
    world.step(1.0)
    after = world.state.comparison
    assert after is not None
    assert after.looks == before.looks
    until(world, lambda w: w.state.comparison is not None and w.state.comparison.looks > before.looks, passes=900)


def test_an_emergency_does_not_wait_for_the_clock() -> None:
    world = promoted()
    world.bad = {"hot-1": OVERFLOWS}
    set_clock(world, 3600.0)
    world.run(1)
    assert held_names(world) == {"hot-1"}

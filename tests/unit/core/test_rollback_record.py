"""What a rollback finds in the state, and what it leaves there, to the second."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from lab.model.world import NAN, OVERFLOWS, World
from precision_operator.api.incident import Incident
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity
from precision_operator.api.state import Phase
from tests.support.fleets import answer, held, incident_of, phase_of, promoted, respec, rolling_back
from tests.support.rollbacks import gradually
from tests.support.views import key


def incident(world: World) -> Incident:
    assert world.state.incident is not None
    return world.state.incident


def test_a_rollback_whose_record_was_lost_keeps_the_fleet_in_fallback_until_a_person_retries() -> None:
    world = promoted()
    world.unresponsive, world.bad = set(world.workloads), dict.fromkeys(("hot-1", "hot-3"), NAN)
    world.commit(world.decide())  # and the operator is replaced before it has written anything to a pod
    world.state, world.unresponsive = replace(world.state, incident=None), set()
    world.step(1.0)
    assert phase_of(world) is Phase.HELD
    world.run(10, 1.0)
    assert (world.state.phase, world.state.modes) == (Phase.HELD, {})
    assert world.really_in(Mode.FP32) == set(world.workloads)
    world.bad = {}
    answer(world, "retry")
    world.run(60)
    assert phase_of(world) is Phase.HEALTHY


def test_after_a_rollback_every_workload_is_assigned_the_fallback_and_starts_in_it() -> None:
    world = promoted()
    world.bad = dict.fromkeys(("hot-1", "hot-3"), NAN)
    world.run(6)
    assert (world.state.phase, world.state.modes, world.state.fallback) == (Phase.HELD, {}, Mode.FP32)
    for name in world.workloads:
        world.templates[name] = Mode.FP16
        world.replace_pods(name)
    world.add("late", mode=Mode.FP16)
    world.run(3)
    assert world.really_in(Mode.FP32) == set(world.workloads)
    assert world.state.assigned(key("late")) is Mode.FP32


@pytest.mark.parametrize(("seconds", "attempts"), [(3599.999, 3), (3600.0, 1), (7200.0, 1)])
@pytest.mark.parametrize("phase", [Phase.HEALTHY, Phase.DEGRADED])
def test_attempts_are_forgotten_once_a_fleet_was_guarded_for_the_time_that_proves_it(
    phase: Phase, seconds: float, attempts: int
) -> None:
    world = promoted(reenable={"prerequisites": [], "stable": "1h"})
    world.bad = dict.fromkeys(("hot-1", "hot-3"), NAN)
    world.state = replace(world.state, phase=phase, attempts=2, step_since=round(world.now - seconds, 3))
    assert world.step().state.attempts == attempts


def test_a_fleet_of_which_it_is_not_known_since_when_it_is_guarded_has_proved_nothing() -> None:
    world = promoted(reenable={"prerequisites": [], "stable": "1h"})
    world.bad = dict.fromkeys(("hot-1", "hot-3"), NAN)
    world.now += 7200.0
    world.state = replace(world.state, attempts=2, step_since=None)
    assert world.step().state.attempts == 3


@pytest.mark.parametrize(("values", "severity"), [(NAN, Severity.P0), (OVERFLOWS, Severity.P1)])
def test_a_deadline_counts_from_the_first_reading_that_showed_the_breach_not_from_the_decision(
    values: dict[Signal, float], severity: Severity
) -> None:
    """Whoever confirms a breach by several evaluations has used up some of the promised time."""
    world = promoted(evaluation={"interval": "15s", "failureLimit": 2, "minSamples": 1})
    world.now = round(world.now + 0.123, 3)
    world.bad = dict.fromkeys(("hot-1", "hot-3"), values)
    seen = world.now
    world.run(3)
    assert world.state.phase is Phase.ROLLING_BACK
    found = incident(world)
    assert (found.severity, found.detected_at, found.decided_at) == (severity, seen, seen + 30.0)
    assert found.deadline_at == round(seen + world.policy.spec.rollback.deadlines_seconds[severity], 3)
    assert world.state.step_since == found.decided_at


@pytest.mark.parametrize("begun", [rolling_back, held])
def test_an_edit_of_the_fallback_reaches_a_fleet_that_is_rolled_back(begun: Callable[[], World]) -> None:
    world = begun()
    phase = world.state.phase
    respec(world, fallback=Mode.BF16)
    state = world.step(1.0).state
    assert (state.phase, state.precision, state.fallback) == (phase, Mode.BF16, Mode.BF16)


def test_a_rollback_whose_policy_was_deleted_is_made_no_graver_by_thresholds_that_went_with_it() -> None:
    world = gradually()
    before = incident_of(world)
    world.delete_policy()
    world.bad = dict.fromkeys(world.workloads, NAN)
    world.step()
    assert (world.state.phase, incident_of(world)) == (Phase.ROLLING_BACK, before)


@pytest.mark.parametrize("command", ["abort", "rollback"])
def test_a_rollback_that_is_asked_for_of_a_fleet_that_is_rolled_back_already_is_no_news(command: str) -> None:
    world = held()
    answer(world, command)
    decision = world.decide()
    assert (decision.actions, decision.state) == ((), world.state)

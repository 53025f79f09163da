"""What a rollback finds in the state, and what it leaves there and on the workloads, to the second."""

from dataclasses import replace

import pytest

from precision_operator.api.incident import Incident
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity
from precision_operator.api.state import Phase
from tests.property.test_awkward_histories import NAN, OVERFLOWS, answer, change
from tests.property.test_story import fleet, promoted
from tests.property.world import World


def incident(world: World) -> Incident:
    assert world.state.incident is not None
    return world.state.incident


def latches(world: World) -> set[str]:
    return {name for name, w in world.workloads.items() if w.latch is Mode.FP32}


def written_to(world: World) -> set[str]:
    return {name for name, w in world.workloads.items() if w.touched}


def member_that_shows_nothing_of_it() -> World:
    """The canary took the request; before its template was settled its pod was replaced by one without a request."""
    world = fleet()
    world.step()
    world.step()
    (name,) = (m.name for m in world.state.members)
    change(world, name, template_mode=Mode.FP32, template_request=None, has_original=False, settle=None, paused=False)
    world._start_pods(name)
    assert not written_to(world)
    return world


def test_a_member_is_latched_though_nothing_on_it_shows_that_it_was_moved() -> None:
    """The latch outlives the policy: made again, it must not move the same canary without a person's word."""
    world = member_that_shows_nothing_of_it()
    (name,) = (m.name for m in world.state.members)
    answer(world, "abort")
    world.run(8, 1.0)
    assert world.state.phase is Phase.HELD
    assert latches(world) == {name}


def test_a_workload_that_was_moved_before_it_left_the_cohort_is_latched_and_one_that_never_was_is_not() -> None:
    world = promoted()
    world.add("late")
    change(world, "hot-1", template_mode=Mode.FP32, template_request=None)  # asked, and never settled
    left = tuple(m for m in world.state.members if m.name != "hot-1")
    world.state = replace(world.state, members=left)
    answer(world, "abort")
    world.run(10, 1.0)
    assert world.state.phase is Phase.HELD
    assert latches(world) == set(world.workloads) - {"late"}


def test_a_rollback_whose_record_was_lost_keeps_the_fleet_down_until_a_person_retries() -> None:
    world = promoted()
    world.deaf, world.bad = set(world.workloads), dict.fromkeys(("hot-1", "hot-3"), NAN)
    world.commit(world.decide())  # and the operator is replaced before it has written anything to a workload
    world.state, world.deaf = replace(world.state, incident=None), set()
    world.step(1.0)
    assert world.state.phase is Phase.HELD
    world.run(10, 1.0)
    assert (world.state.phase, world.state.gate_closed) == (Phase.HELD, True)
    assert world.really_in(Mode.FP32) == latches(world) == set(world.workloads)
    world.bad = {}
    answer(world, "retry")
    world.run(60)
    assert world.state.phase is Phase.HEALTHY


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

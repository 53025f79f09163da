"""A person's commands, decided."""

from lab.model.world import NAN, OVERFLOWS
from precision_operator.api.incident import Scope
from precision_operator.api.modes import Mode
from precision_operator.api.spec import Severity
from precision_operator.api.state import Phase
from tests.support.fleets import answer, promoted, until


def test_a_rollback_that_is_asked_for_reaches_the_whole_fleet_as_a_p2() -> None:
    world = promoted()
    answer(world, "rollback")
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=15.0)
    incident = world.state.incident
    assert incident is not None
    assert (incident.severity, incident.scope, incident.reason) == (Severity.P2, Scope.FLEET, "RollbackRequested")
    assert incident.deadline_at - incident.detected_at == world.policy.spec.rollback.deadlines_seconds[Severity.P2]
    assert world.really_in(Mode.FP16) == set()


def test_an_emergency_that_is_asked_for_is_a_p0() -> None:
    world = promoted()
    answer(world, "abort")
    world.step()
    assert world.state.incident is not None
    assert (world.state.incident.severity, world.state.incident.reason) == (Severity.P0, "Aborted")


def test_a_rollback_that_answers_an_earlier_transition_does_nothing() -> None:
    world = promoted()
    answer(world, "rollback")
    world.policy.annotations["precision.genesis.ai/rollback"] = str(world.state.transition_id - 1)  # type: ignore[index]
    world.run(3)
    assert world.state.phase is Phase.HEALTHY


def test_a_rollback_is_decided_while_prometheus_is_away() -> None:
    world = promoted()
    world.metrics_away = True
    answer(world, "rollback")
    world.step()
    assert world.state.phase is Phase.ROLLING_BACK


def test_a_breach_of_one_workload_does_not_cut_the_rollback_that_a_person_asked_for() -> None:
    world = promoted()
    world.bad["hot-1"] = OVERFLOWS
    answer(world, "rollback")
    world.step()
    assert world.state.phase is Phase.ROLLING_BACK
    assert world.state.incident is not None
    assert (world.state.incident.severity, world.state.incident.scope) == (Severity.P1, Scope.FLEET)


def test_what_is_more_severe_gives_the_rollback_its_deadline() -> None:
    world = promoted()
    world.bad["hot-1"] = NAN
    answer(world, "rollback")
    world.step()
    assert world.state.incident is not None
    assert (world.state.incident.severity, world.state.incident.reason) == (Severity.P0, "LossNotFinite")

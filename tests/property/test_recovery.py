"""After a rollback: when training has recovered, and what the state says of processes and checks."""

from dataclasses import replace

import pytest

from lab.model.cluster import Room
from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.incident import Incident, Scope
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from precision_operator.api.summary import UNACKNOWLEDGED_LIMIT
from precision_operator.api.verification import Checks
from precision_operator.core.decide import decide

WINDOW = {"evaluation": {"interval": "15s", "failureLimit": 0, "minSamples": 1, "window": "2m"}}


def healthy(*, count: int = 4, **spec: object) -> World:
    world = World(policy(**{**FAST, **WINDOW, "strategy": {"steps": [{"setWeight": 100}]}, **spec}))
    for index in range(count):
        world.add(f"hot-{index}")
    world.run(8)
    assert world.state.phase is Phase.HEALTHY
    return world


def incident(world: World) -> Incident:
    assert world.state.incident is not None
    return world.state.incident


def rolled_back(*, broken: int = 4, **spec: object) -> World:
    world = healthy(count=4, **spec)
    world.bad = {f"hot-{index}": {Signal.NON_FINITE: 1.0} for index in range(broken)}
    while world.state.incident is None or world.state.incident.last_ack_at is None:
        world.step()
    return world


def test_a_fleet_has_recovered_when_its_runs_end_well_over_a_window_that_does_not_reach_back() -> None:
    world = rolled_back()
    acknowledged = incident(world).last_ack_at
    assert acknowledged is not None
    world.run(40)
    at = incident(world).recovered_at
    assert at is not None
    assert 120.0 <= at - acknowledged < 120.0 + 60.0


@pytest.mark.parametrize(
    ("share", "success", "recovered"), [(0.049, 0.95, True), (0.05, 0.95, False), (0.2, 0.7, True)]
)
def test_the_share_of_runs_that_must_end_well_is_a_setting(share: float, success: float, recovered: bool) -> None:
    world = rolled_back(rollback={"recoverySuccess": success})
    world.everywhere = {Signal.FAILURES: share}
    world.run(20)
    assert (incident(world).recovered_at is not None) is recovered


def test_who_has_no_samples_has_not_recovered() -> None:
    world = rolled_back()
    world.unobservable = {"hot-1"}
    world.run(20)
    assert incident(world).recovered_at is None
    world.unobservable = set()
    world.run(8)
    assert incident(world).recovered_at is not None


def test_a_share_of_no_runs_is_no_recovery() -> None:
    world = rolled_back()
    world.everywhere = {Signal.FAILURES: float("nan")}
    world.run(20)
    assert incident(world).recovered_at is None


def test_a_workload_that_was_rolled_back_by_itself_recovers_by_itself() -> None:
    world = rolled_back(broken=1)
    assert incident(world).scope is Scope.WORKLOAD
    world.run(20)
    assert incident(world).recovered_at is not None


def test_who_was_rolled_back_before_by_itself_holds_back_nobodys_recovery() -> None:
    world = rolled_back(broken=1, rollback={"fleetShare": 0.9})
    first = incident(world)
    world.unobservable, world.bad = {"hot-0"}, {"hot-1": {Signal.NON_FINITE: 1.0}}
    world.run(20)
    assert incident(world).id != first.id
    assert incident(world).recovered_at is not None


def test_a_pod_that_waits_for_a_node_holds_back_no_recovery() -> None:
    world = rolled_back()
    (pod,) = world.workloads["hot-0"].pods
    waits = replace(pod, name="late", uid="uid-late", pending=True, ready=False)
    world.workloads["hot-0"] = replace(world.workloads["hot-0"], pods=(pod, waits), replicas=2)
    world.room, world.unobservable = {"hot-0": Room.NONE}, {"late"}
    world.run(20)
    assert incident(world).recovered_at is not None


def test_the_status_names_whose_own_process_does_not_say_that_it_moved() -> None:
    world = healthy()
    assert (world.state.phase, world.summary.unacknowledged) == (Phase.HEALTHY, ())
    world.unresponsive = {"hot-2"}
    world.bad = {f"hot-{index}": {Signal.NON_FINITE: 1.0} for index in range(4)}
    world.run(2)
    assert world.summary.unacknowledged == ("hot-2",)


def test_of_a_large_fleet_it_names_so_many_and_no_more() -> None:
    world = World(policy(**{**FAST, "strategy": {"steps": [{"setWeight": 100}]}}))
    for index in range(UNACKNOWLEDGED_LIMIT + 20):
        world.add(f"hot-{index:03}")
    world.unresponsive = set(world.workloads)
    world.run(3)
    assert (world.summary.moved, len(world.summary.unacknowledged)) == (0, UNACKNOWLEDGED_LIMIT)


def test_the_checklists_counts_are_shown_of_their_own_incident_only_and_change_nothing_else() -> None:
    world = rolled_back()
    world.run(20)
    checks = Checks(passed=3, failed=1, unknown=2, pending=6)
    seen = replace(world.observe(), verified=(incident(world).id, checks))
    decision = decide(world.policy, world.state, seen, world.now)
    assert decision.actions == ()
    assert decision.state.incident == replace(incident(world), checks=checks)
    stale = replace(world.observe(), verified=("another", checks))
    assert decide(world.policy, world.state, stale, world.now).state == world.state


def test_a_line_that_is_passed_alone_is_not_worth_a_write_and_the_last_one_is() -> None:
    world = rolled_back()
    world.run(20)
    passed = replace(world.observe(), verified=(incident(world).id, Checks(passed=3, unknown=2, pending=6)))
    assert decide(world.policy, world.state, passed, world.now).state == world.state
    known = replace(world.state, incident=replace(incident(world), checks=Checks(passed=2, failed=1, pending=9)))
    again = replace(world.observe(), verified=(incident(world).id, Checks(passed=3, failed=1, pending=8)))
    assert decide(world.policy, known, again, world.now).state == known, "nor is one that was known to have failed"
    done = replace(world.observe(), verified=(incident(world).id, Checks(passed=9, unknown=2)))
    assert decide(world.policy, world.state, done, world.now).state.incident == replace(
        incident(world), checks=Checks(passed=9, unknown=2)
    )


def test_without_a_pod_nobody_has_recovered() -> None:
    world = rolled_back()
    for name in world.workloads:
        world.scale(name, 0)
    world.run(20)
    assert world.state.phase is Phase.HELD
    assert incident(world).recovered_at is None

"""Which part of a gradual rollback is under way: what was requested, and what one batch leaves room for."""

from dataclasses import replace

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.modes import Mode
from precision_operator.api.spec import Strategy
from precision_operator.api.state import Phase, Restart, State
from precision_operator.core.derive import derive_facts
from precision_operator.core.model import Request
from precision_operator.core.rollback.batches import awaits_checkpoints, under_way
from precision_operator.core.rollback.whole import everything
from tests.support.fleets import change, until
from tests.support.rollbacks import MILD, QUICK, gradually
from tests.support.views import key

HOT = [f"hot-{index}" for index in range(5)]


def requested(world: World, *, ago: float = 3600.0) -> list[str]:
    """Whom a gradual rollback that was decided so many seconds ago asks for something, in its order."""
    assert world.state.incident is not None
    incident = replace(world.state.incident, decided_at=world.now - ago, workloads=())
    facts = derive_facts(world.policy, world.state, world.observe(), world.now)
    return [desired.workload.name for desired in under_way(facts, incident, everything(facts))]


def begun(*, batch: float) -> World:
    """A fleet of six in FP16, of which a gradual rollback has asked nobody yet."""
    world = gradually(gradual={"sustain": "0s", "inFlight": "60s", "batchShare": batch})
    assert world.state.phase is Phase.ROLLING_BACK
    for name in world.workloads:
        trains_in(world, name, Mode.FP16)
    world.state = replace(world.state, breached=(), restarts={})
    return world


def trains_in(world: World, name: str, mode: Mode) -> None:
    """New pods of a workload, which nobody has asked for anything."""
    pods = [pod for pod in world.workloads[name].pods if not pod.terminating]
    change(world, name, pods=tuple(replace(pod, request=None, started_mode=mode, pending=False) for pod in pods))
    world.modes.update({pod.name: (mode, world.state.generation) for pod in pods})


def test_a_batch_is_at_least_one_workload_and_restarts_join_it_once_their_runs_had_their_time() -> None:
    world = begun(batch=0.01)
    assert requested(world) == ["hot-0"]
    world = begun(batch=1.0)
    assert requested(world, ago=59.0) == HOT
    assert requested(world, ago=60.0) == [*HOT, "literal"]


def test_a_restart_joins_its_batch_as_soon_as_a_checkpoint_is_younger_than_the_decision() -> None:
    world = begun(batch=1.0)
    world.checkpoints = {"literal": world.now - 30.0}
    assert requested(world, ago=30.0) == HOT, "that checkpoint is no younger"
    assert requested(world, ago=31.0) == [*HOT, "literal"]


@pytest.mark.parametrize(("world_size", "waited_for"), [(0, True), (1, True), (2, False)])
def test_a_pod_without_a_checkpoint_is_waited_for_unless_another_rank_of_its_group_saves_it(
    world_size: int, *, waited_for: bool
) -> None:
    world = begun(batch=1.0)
    world.add("wide", hot=False, pods=2)
    trains_in(world, "wide", Mode.FP16)
    world.world_sizes = {"wide": world_size}
    world.checkpoints = {world.workloads["wide"].pods[0].name: world.now}
    assert ("wide" not in requested(world, ago=30.0)) is waited_for


def test_where_no_pod_of_a_group_reports_a_checkpoint_it_is_waited_for() -> None:
    world = begun(batch=1.0)
    world.world_sizes = {"literal": 4}
    assert requested(world, ago=59.0) == HOT


def test_a_gradual_rollback_restarts_what_has_saved_a_checkpoint_long_before_in_flight_is_over() -> None:
    world = gradually(gradual={"sustain": "0s", "inFlight": "1h", "batchShare": 1.0})
    for _ in range(20):
        world.step(1.0)
    assert world.restarts == {"literal": 1}, "of the rollout"
    world.checkpoints = {"literal": world.now}
    until(world, lambda w: w.state.phase is Phase.HELD)
    assert world.restarts == {"literal": 2}


@pytest.mark.parametrize(
    ("ago", "awaited"), [(0.0, True), (59.0, True), (60.0, False), (-1.0, False)], ids=["now", "near", "over", "clock"]
)
def test_checkpoints_are_asked_for_only_while_work_in_flight_is_waited_for(ago: float, *, awaited: bool) -> None:
    world = begun(batch=1.0)
    incident = world.state.incident
    assert incident is not None
    assert awaits_checkpoints(world.policy, world.state, incident.decided_at + ago) is awaited
    emergency = replace(world.state, incident=replace(incident, strategy=Strategy.EMERGENCY))
    ended = replace(world.state, phase=Phase.HELD)
    for state in (emergency, ended, State(), State(phase=Phase.ROLLING_BACK)):
        assert not awaits_checkpoints(world.policy, state, incident.decided_at + ago)


def test_a_job_that_ends_while_it_is_waited_for_is_not_restarted() -> None:
    rollback = {**QUICK, "gradual": {"sustain": "0s", "inFlight": "60s", "batchShare": 1.0}}
    world = World(policy(**{**FAST, "strategy": {"steps": [{"setWeight": 100}]}, "rollback": rollback}))
    for name in ("ends", "goes-on"):
        world.add_job(name, hot=False, mode=Mode.FP16)
    world.run(3)
    world.bad = dict.fromkeys(world.workloads, MILD)
    until(world, lambda w: w.state.phase is Phase.ROLLING_BACK)
    for _ in range(30):
        world.step(1.0)
    assert world.restarts == {}
    del world.workloads["ends"]
    until(world, lambda w: w.state.phase is Phase.HELD)
    assert world.restarts == {"goes-on": 1}


def test_the_breached_go_first() -> None:
    world = begun(batch=0.2)
    world.state = replace(world.state, breached=(key("hot-3"),))
    assert requested(world) == ["hot-3"]


def test_a_restart_takes_up_room_in_its_batch_until_its_new_pods_have_acknowledged() -> None:
    world = begun(batch=0.2)
    newest = max(pod.created_at for pod in world.workloads["literal"].pods)
    world.state = replace(world.state, restarts={key("literal"): Restart(1, world.now - 5.0, newest)})
    assert requested(world) == ["literal", "hot-0"], "nothing of it was taken away yet"
    world.replace_pods("literal")
    assert requested(world) == ["literal"]
    trains_in(world, "literal", Mode.FP32)
    assert requested(world) == ["literal", "hot-0"]


@pytest.mark.parametrize(
    ("moved", "changed", "asked"), [(True, False, []), (False, True, []), (False, False, ["hot-1"])]
)
def test_who_was_moved_or_had_another_mode_takes_up_room_until_it_has_acknowledged(
    *, moved: bool, changed: bool, asked: list[str]
) -> None:
    world = begun(batch=0.2)
    view, world.unobservable = world.workloads["hot-0"], {"hot-0"}
    change(world, "hot-0", pods=tuple(replace(pod, request=Request(99, Mode.FP32)) for pod in view.pods))
    members = {view.key} if moved else set(world.state.members) - {view.key}
    world.state = replace(world.state, members=tuple(members), changed={view.key: 99} if changed else {})
    assert requested(world) == ["hot-0", *asked]


def test_a_change_of_its_template_brings_nobody_forward_who_is_not_restarted() -> None:
    world = begun(batch=0.2)
    change(world, "hot-1", pending_revision=True)
    assert requested(world) == ["hot-0"]


def test_while_one_of_its_pods_cannot_be_asked_for_a_checkpoint_a_restart_waits_and_what_is_flipped_does_not() -> None:
    world = begun(batch=1.0)
    world.add("mixed", hot=False, pods=2)
    trains_in(world, "mixed", Mode.FP16)
    asks, cannot = world.workloads["mixed"].pods
    change(world, "mixed", pods=(replace(asks, hot=True), cannot))
    assert "mixed" not in requested(world, ago=59.0)
    change(world, "mixed", literal=False)  # nothing can restart it, but a part of it can be asked
    assert "mixed" in requested(world, ago=59.0)


def test_who_was_never_moved_takes_up_no_room_though_nothing_is_known_of_it() -> None:
    world = begun(batch=0.2)
    world.add("bystander")
    world.unobservable = {"bystander"}
    assert requested(world) == ["bystander", "hot-0"]

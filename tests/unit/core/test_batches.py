"""Which part of a gradual rollback is under way: what was requested, and what one batch leaves room for."""

from dataclasses import replace

from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase, Restart
from precision_operator.core.derive import derive_facts
from precision_operator.core.rollback.batches import under_way
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
    (view,) = [pod for pod in world.workloads[name].pods if not pod.terminating]
    change(world, name, pods=(replace(view, request=None, started_mode=mode, pending=False),))
    world.modes[view.name] = (mode, world.state.generation)


def test_a_batch_is_at_least_one_workload_and_restarts_join_it_once_their_runs_had_their_time() -> None:
    world = begun(batch=0.01)
    assert requested(world) == ["hot-0"]
    world = begun(batch=1.0)
    assert requested(world, ago=59.0) == HOT
    assert requested(world, ago=60.0) == [*HOT, "literal"]


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


def test_who_was_never_moved_takes_up_no_room_though_nothing_is_known_of_it() -> None:
    world = begun(batch=0.2)
    world.add("bystander")
    world.unobservable = {"bystander"}
    assert requested(world) == ["bystander", "hot-0"]

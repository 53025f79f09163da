"""Which part of a gradual rollback is under way: what has been told, and what one batch leaves room for."""

from dataclasses import replace

from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase
from precision_operator.core.batches import under_way
from precision_operator.core.facts import look
from precision_operator.core.phases.rollback import everything_down
from tests.property.test_awkward_histories import change
from tests.property.test_strategies import gradually
from tests.property.world import World


def told(world: World, *, ago: float = 3600.0) -> list[str]:
    """Whom a gradual rollback that was decided so many seconds ago asks for something, in its order."""
    assert world.state.incident is not None
    incident = replace(world.state.incident, decided_at=world.now - ago, workloads=())
    facts = look(world.policy, world.state, world.observe(), world.now)
    return [desired.workload.name for desired in under_way(facts, incident, everything_down(facts))]


def begun(*, batch: float) -> World:
    """A fleet of six in FP16, of which a gradual rollback has told nobody yet."""
    world = gradually(gradual={"sustain": "0s", "inFlight": "60s", "batchShare": batch})
    for name, workload in world.workloads.items():
        pods = tuple(replace(p, request=None, started_mode=Mode.FP16) for p in workload.pods)
        change(world, name, pods=pods, template_mode=Mode.FP16, template_request=None, settle=None)
        world.modes.update({pod.name: (Mode.FP16, 0) for pod in pods})
    assert world.state.phase is Phase.ROLLING_BACK
    return world


def test_a_restart_takes_up_room_in_its_batch_while_its_old_pods_still_train() -> None:
    world = begun(batch=0.2)
    assert told(world) == ["hot-0"]
    change(world, "literal", template_mode=Mode.FP32)
    assert told(world) == ["literal"]


def test_a_template_in_the_fallback_is_no_word_to_the_running_pods_of_a_hot_workload() -> None:
    world = begun(batch=0.2)
    for index in range(5):
        change(world, f"hot-{index}", template_mode=Mode.FP32)
    assert told(world) == ["hot-0"]


def test_a_batch_is_at_least_one_workload_and_restarts_join_it_once_their_runs_had_their_time() -> None:
    world = begun(batch=0.01)
    assert told(world) == ["hot-0"]
    world = begun(batch=1.0)
    assert told(world, ago=59.0) == [f"hot-{index}" for index in range(5)]
    assert told(world, ago=60.0) == [*(f"hot-{index}" for index in range(5)), "literal"]

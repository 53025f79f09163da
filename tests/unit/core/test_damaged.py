"""Records that a person has written, or that lost something: a pass goes on, and does no harm."""

import json
from dataclasses import replace

from lab.model.world import World
from precision_operator.core.actions import DeleteAssignment
from tests.support.fleets import rolling_back


def resettle(world: World, **changes: object) -> None:
    """Write other settings into the record."""
    settings = {**json.loads(world.state.settings), **changes}
    world.state = replace(world.state, settings=json.dumps(settings, sort_keys=True, separators=(",", ":")))


def test_what_a_damaged_record_calls_suspended_is_not_written_to_after_the_deletion() -> None:
    world = rolling_back()
    resettle(world, suspend=True)
    world.delete_policy()
    before = len(world.log)
    world.run(10)
    assert world.log[before:] == []


def test_a_rollback_whose_incident_was_lost_asks_for_the_fallback_before_its_assignment_goes() -> None:
    world = rolling_back()
    resettle(world, deletionPolicy="Release")
    world.state = replace(world.state, incident=None, hold_on_delete=False)
    world.delete_policy()
    assert not [action for action in world.step().actions if isinstance(action, DeleteAssignment)]
    world.run(1)
    assert world.gone

"""Records that a person has written, or that lost something: a pass goes on, and does no harm."""

import json
from dataclasses import replace

from tests.support.fleets import rolling_back


def test_what_a_damaged_record_calls_suspended_is_not_written_to_after_the_deletion() -> None:
    world = rolling_back()
    settings = {**json.loads(world.state.settings), "suspend": True}
    world.state = replace(world.state, settings=json.dumps(settings, sort_keys=True, separators=(",", ":")))
    world.delete_policy()
    before = len(world.log)
    world.run(10)
    assert world.log[before:] == []

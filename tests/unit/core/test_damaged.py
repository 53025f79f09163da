"""Records that a person has written, or that lost something: a pass goes on, and does no harm."""

import json
from dataclasses import replace

from precision_operator.api.state import Phase
from tests.support.fleets import NAN, promoted


def test_what_a_damaged_record_calls_suspended_is_not_written_to_after_the_deletion() -> None:
    world = promoted()
    world.bad = dict.fromkeys(("hot-1", "hot-3"), NAN)
    world.unresponsive = {"hot-4"}
    world.step(1.0)
    assert world.state.phase is Phase.ROLLING_BACK
    settings = {**json.loads(world.state.settings), "suspend": True}
    world.state = replace(world.state, settings=json.dumps(settings, sort_keys=True, separators=(",", ":")))
    world.delete_policy()
    before = len(world.log)
    world.run(10)
    assert world.log[before:] == []

"""The benchmark of the webhook in small: however busy the machine is, no new pod of a small fleet is missed."""

from __future__ import annotations

from pathlib import Path

from lab.bench.webhook import run


async def test_no_new_pod_is_missed_while_the_process_that_serves_rolls_a_fleet_back(tmp_path: Path) -> None:
    found = await run(tmp_path, 30)
    assert (found["at_rest"]["missed"], found["rollback"]["missed"]) == (0, 0)
    assert min(found["at_rest"]["pods"], found["rollback"]["pods"]) > 0

"""Two ranks on a volume that takes longer than their collectives may."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.training.process_group import ProcessGroup
from tests.support.training.slow_volume import TIMEOUT_SECONDS

FIRST, SECOND = "step-000000000003", "step-000000000004"


@pytest.fixture
def impatient() -> Iterator[ProcessGroup]:
    """Two ranks whose collectives fail after a short time."""
    group = ProcessGroup(2, timeout_seconds=TIMEOUT_SECONDS)
    yield group
    group.kill()


@pytest.mark.parametrize(
    ("work", "step", "saved"),
    [
        ("finish", 3, [FIRST]),
        ("save_as_asked", 4, [FIRST, SECOND]),
        ("resume", 3, [FIRST]),
        ("rewind", 3, [FIRST]),
    ],
)
def test_all_ranks_wait_for_the_volume_however_long_it_takes(
    impatient: ProcessGroup, work: str, step: int, saved: list[str]
) -> None:
    for result in impatient.run(f"slow_volume.{work}"):
        assert result == {"result": step, "saved": saved}


THIRD = "step-000000000005"


@pytest.mark.parametrize(
    ("what", "left"),
    [
        ("reading_hangs_on_rank_1", [FIRST, SECOND, THIRD]),
        # What hung comes to its end; no other rename follows it.
        ("a_rename_hangs", [FIRST, SECOND]),
    ],
)
def test_a_rewind_on_a_volume_that_hangs_fails_on_all_ranks_alike_and_changes_nothing_later(
    process_group: ProcessGroup, what: str, left: list[str]
) -> None:
    for result in process_group.run(f"slow_volume.rewind_while_{what}"):
        assert result == {
            "first": None,
            "again": None,
            "untouched": True,
            "step": 5,
            "left": left,
            "result": 3,
            "saved": [FIRST],
        }

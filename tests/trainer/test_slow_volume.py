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

"""The CPU time of one decision, for each signal, unit and size of a fleet: a slow one holds up every other policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.bench import decide


def measure(directory: Path) -> Sequence[Mapping[str, object]]:
    """``[{signal, unit, workloads, pods, cpu_seconds, slope}]`` of fleets in mid-rollout; all that moved is in breach."""
    return [dict(row) for row in decide.sloped(decide.measure())]


def missed(found: Mapping[str, object] | Sequence[Mapping[str, object]]) -> list[str]:
    """The decisions that are over their budget."""
    rows = [found] if isinstance(found, Mapping) else found
    sentences = []
    for row in rows:
        pods, seconds = row["pods"], row["cpu_seconds"]
        assert isinstance(pods, int)
        assert isinstance(seconds, float)
        budget = decide.BUDGET_SECONDS[pods]
        if seconds > budget:
            sentences.append(
                f"{row['signal']}, unit {row['unit']}: expected at most {budget:g} s of CPU for {pods} pods, "
                f"found {seconds:g}"
            )
    return sentences

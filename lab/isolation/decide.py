"""The CPU time of one decision, for each signal and size of a fleet: a slow one holds up every other policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.bench import decide


def measure(directory: Path) -> Sequence[Mapping[str, object]]:
    """``[{signal, workloads, cpu_seconds, slope}]`` of fleets in mid-rollout of which every moved workload is in breach."""
    return [dict(row) for row in decide.sloped(decide.measure())]


def missed(found: Mapping[str, object] | Sequence[Mapping[str, object]]) -> list[str]:
    """The decisions that are over their budget."""
    rows = [found] if isinstance(found, Mapping) else found
    sentences = []
    for row in rows:
        workloads, seconds = row["workloads"], row["cpu_seconds"]
        assert isinstance(workloads, int)
        assert isinstance(seconds, float)
        budget = decide.BUDGET_SECONDS[workloads]
        if seconds > budget:
            sentences.append(
                f"{row['signal']}: expected at most {budget:g} s of CPU for {workloads} workloads, found {seconds:g}"
            )
    return sentences

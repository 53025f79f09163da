"""What a part of ``lab.isolation`` is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

Figures = Mapping[str, object]
Section = Figures | Sequence[Figures]
"""The value of a part's key in build/isolation.json."""


class Part(Protocol):
    """A module of this package that measures one section."""

    def measure(self, directory: Path) -> Section:
        """Measure; ``directory`` is an empty folder for logs.

        Raises:
            LabError: something could not be measured.
        """
        ...

    def missed(self, found: Section) -> list[str]:
        """The bounds that ``found`` misses, one sentence each."""
        ...


def late(found: Section, limit_seconds: float) -> list[str]:
    """Says so where a breach was decided after the limit."""
    seconds = found.get("breach_to_decided_seconds") if isinstance(found, Mapping) else None
    if isinstance(seconds, float | int) and seconds <= limit_seconds:
        return []
    return [f"expected breach_to_decided_seconds <= {limit_seconds:g}, found {seconds}"]

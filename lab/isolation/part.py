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

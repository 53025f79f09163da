"""What was answered last, for the next answer to be compared with: at rest most say the same again.

Bounded by bytes and by age: a tenant who edits a window again and again makes new queries without end.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from precision_operator.signals.port import Sample

KEPT_BYTES = 64 * 1024 * 1024
"""Of one endpoint: twice what 10,000 workloads have at rest."""
LARGEST_SHARE = 1 / 8
"""Of these bytes; what is larger is not kept, for it would take the place of all others."""
KEPT_SECONDS = 600.0
"""An answer that was not asked for so long is forgotten: twice the longest interval."""

_ENTRY_BYTES = 512
"""What an answer takes beside its texts and samples, at most."""
_SAMPLE_BYTES = 256
"""What a sample takes: 254 were measured of a pod whose name has 60 characters."""


@dataclass(frozen=True, slots=True)
class Vector:
    """One vector."""

    samples: Sequence[Sample]
    text: bytes
    """As it came, less the times of its samples; empty where these differ, so that no other answer is like it."""


class NewestVectors:
    """The newest answer to each query. Belongs to one event loop."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Vector, float, int]] = {}
        """By query: the answer, when it came, and what it takes; what was asked longest ago comes first."""
        self._bytes = 0

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept)

    def get(self, query: str) -> Vector | None:
        """The last answer to this query, if it is kept."""
        found = self._kept.get(query)
        return found[0] if found is not None else None

    def keep(self, query: str, vector: Vector, *, now: float) -> None:
        """Keep an answer in the place of the one before. ``now``: seconds, by the monotonic clock."""
        self._forget(query)
        taken = _ENTRY_BYTES + len(query) + len(vector.text) + _SAMPLE_BYTES * len(vector.samples)
        if vector.text and taken <= LARGEST_SHARE * KEPT_BYTES:
            self._kept[query] = vector, now, taken
            self._bytes += taken
        while self._kept:
            oldest = next(iter(self._kept))
            if self._bytes <= KEPT_BYTES and now - self._kept[oldest][1] <= KEPT_SECONDS:
                break
            self._forget(oldest)

    def _forget(self, query: str) -> None:
        found = self._kept.pop(query, None)
        if found is not None:
            self._bytes -= found[2]

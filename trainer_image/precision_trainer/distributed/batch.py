"""How large a batch to train with on so many ranks. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

BASE = 32
"""Samples a rank, while the whole step stays small enough."""
LIMIT = 256
"""Samples of all ranks in one micro-batch; a larger step is made of several."""


@dataclass(frozen=True, slots=True)
class BatchAdvice:
    """A place to begin, not a law: beyond it the learning rate wants to be looked at as well."""

    world_size: int
    batch_size: int
    """Samples a micro-batch and rank (``--batch-size``)."""
    accumulation: int
    """Micro-batches a step (``--accumulation``)."""

    @property
    def effective(self) -> int:
        """Samples a step, of all ranks."""
        return self.world_size * self.batch_size * self.accumulation

    def text(self) -> str:
        """For a person, one line."""
        ranks = f"{self.world_size} rank{'s' if self.world_size > 1 else ''}"
        flags = f"--batch-size {self.batch_size} --accumulation {self.accumulation}"
        return f"{flags} to begin with, on {ranks}: {self.effective} samples a step"


def advise(world_size: int) -> BatchAdvice:
    """32 samples a rank; once that is more than 256 together, 256 a micro-batch and as many of them as it takes.

    Raises:
        ValueError: ``world_size`` is below 1.
    """
    if world_size < 1:
        raise ValueError(f"world_size={world_size}: expected a whole number from 1 up")
    effective = BASE * world_size
    if effective <= LIMIT:
        return BatchAdvice(world_size, BASE, 1)
    return BatchAdvice(world_size, max(1, LIMIT // world_size), effective // LIMIT)

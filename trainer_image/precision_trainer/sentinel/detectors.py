"""Has the loss left its FP32 baseline? A one-sided detector over block means of the relative excess (signal S4).

It takes ``excess = (block mean - baseline) / baseline`` of one block of steps after the other, with ``sigma``, the standard
deviation of that number among blocks of FP32 training itself. ``python -m precision_tools.noise`` compares it with others on
measured noise; docs/sentinel.md has the figures and the choice.
"""

from __future__ import annotations

import itertools
import math
from collections import deque

MARGIN = 0.05
"""Excess that is allowed: H0 is "at most 5 % above FP32", never "equal"."""


class Cusum:
    """Page's cumulative sum of what exceeds the margin by more than one sigma; alarm at ``height`` sigmas, or the margin.

    The sigma of slack keeps a loss that stays *at* the margin, which is allowed, from walking up to the alarm.
    """

    def __init__(self, sigma: float, height: float = 5.0) -> None:
        self._slack = MARGIN + sigma
        self._limit = max(height * sigma, MARGIN)
        self._sum = 0.0

    def observe(self, excess: float) -> bool:
        """Take one block in; True is the alarm."""
        self._sum = max(0.0, self._sum + excess - self._slack)
        return self._sum > self._limit


class LossBaseline:
    """Level and spread of the loss in the last FP32 stretch, in blocks; then the watch over low precision."""

    MIN_BLOCKS = 4
    """With fewer, FP32 was too short to say anything: Unknown, no alarm."""

    def __init__(self, block_steps: int, blocks: int = 16) -> None:
        """Blocks of ``block_steps`` steps; at most ``blocks`` remembered."""
        self._block_steps = block_steps
        self._blocks: deque[float] = deque(maxlen=blocks)
        self._sum, self._count = 0.0, 0
        self._in_fp32 = True
        self._detector: Cusum | None = None
        self.level: float | None = None
        """Mean loss of the last FP32 stretch; None before one that was long enough."""

    def observe(self, loss: float, *, fp32: bool) -> bool:
        """Take a step's finite loss in; True if low precision has left the baseline."""
        if fp32 is not self._in_fp32:
            self._switch(fp32)
        self._sum += loss
        self._count += 1
        if self._count < self._block_steps:
            return False
        mean = self._sum / self._count
        self._sum, self._count = 0.0, 0
        if fp32:
            self._blocks.append(mean)
            return False
        if self._detector is None or self.level is None:
            return False
        return self._detector.observe((mean - self.level) / self.level)

    def _switch(self, fp32: bool) -> None:
        self._in_fp32 = fp32
        self._sum, self._count = 0.0, 0
        if fp32:
            self._blocks.clear()
            return
        recent = list(self._blocks)[-self.MIN_BLOCKS :]
        if len(recent) < self.MIN_BLOCKS or min(recent) <= 0:
            return
        # The trend goes out with differences of neighbours; for independent noise they have twice its variance.
        self.level = sum(recent) / len(recent)
        blocks = list(self._blocks)
        steps = [(b - a) / self.level for a, b in itertools.pairwise(blocks)]
        centre = sum(steps) / len(steps)
        sigma = math.sqrt(sum((step - centre) ** 2 for step in steps) / max(len(steps) - 1, 1) / 2)
        self._detector = Cusum(sigma)

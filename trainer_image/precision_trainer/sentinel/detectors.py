"""Has the loss left its FP32 baseline? One-sided detectors over block means of the relative excess (signal S6).

All take ``excess = (block mean - baseline) / baseline`` of one block of steps after the other, with ``sigma``, the standard
deviation of that number among blocks of FP32 training itself. They are compared on measured noise by
``python -m precision_tools.noise``; docs/sentinel.md has the figures and the choice.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

MARGIN = 0.05
"""Excess that is allowed: H0 is "at most 5 % above FP32", never "equal"."""


class Detector(Protocol):
    """Judges blocks in their order."""

    def observe(self, excess: float) -> bool:
        """Take one block in; True is the alarm."""


class Threshold:
    """The naive rule: the last ``blocks`` block means were all above the margin."""

    def __init__(self, sigma: float, blocks: int = 1) -> None:
        self._last: deque[bool] = deque(maxlen=blocks)

    def observe(self, excess: float) -> bool:
        """See Detector."""
        self._last.append(excess > MARGIN)
        return len(self._last) == self._last.maxlen and all(self._last)


class Cusum:
    """Page's cumulative sum of what exceeds the margin by more than one sigma; alarm at ``height`` sigmas, or the margin.

    The sigma of slack keeps a loss that stays *at* the margin, which is allowed, from walking up to the alarm.
    """

    def __init__(self, sigma: float, height: float = 5.0) -> None:
        self._slack = MARGIN + sigma
        self._limit = max(height * sigma, MARGIN)
        self._sum = 0.0

    def observe(self, excess: float) -> bool:
        """See Detector."""
        self._sum = max(0.0, self._sum + excess - self._slack)
        return self._sum > self._limit


class EDetector:
    """Restarted mixture e-process (Shiryaev-Roberts form): evidence against "mean excess <= margin", normal with ``sigma``.

    Controls the average run length to a false alarm, 1/alpha blocks or more, not a probability for all time.
    """

    def __init__(self, sigma: float, alpha: float = 0.01) -> None:
        self._sigma = max(sigma, 1e-6)
        self._limit = 1.0 / alpha
        self._bets = [0.25 / self._sigma, 0.5 / self._sigma, 1.0 / self._sigma]
        self._wealth = [0.0] * len(self._bets)

    def observe(self, excess: float) -> bool:
        """See Detector."""
        distance = excess - MARGIN
        for index, bet in enumerate(self._bets):
            # E[exp(bet x - bet^2 sigma^2 / 2)] <= 1 for a normal x with mean <= 0.
            gain = math.exp(min(bet * distance - 0.5 * (bet * self._sigma) ** 2, 50.0))
            self._wealth[index] = min((self._wealth[index] + 1.0) * gain, 1e12)
        return sum(self._wealth) / len(self._wealth) > self._limit


CANDIDATES: dict[str, Callable[[float], Detector]] = {
    "block above margin": Threshold,
    "3 blocks above margin": lambda sigma: Threshold(sigma, 3),
    "CUSUM, 5 sigma": Cusum,
    "e-detector, alpha 0.01": EDetector,
}


class LossBaseline:
    """Level and spread of the loss in the last FP32 stretch, in blocks; then the watch over low precision."""

    MIN_BLOCKS = 4
    """With fewer, FP32 was too short to say anything: Unknown, no alarm."""

    def __init__(self, block_steps: int, make: Callable[[float], Detector], blocks: int = 16) -> None:
        """Blocks of ``block_steps`` steps; judged by what ``make(sigma)`` gives; at most ``blocks`` remembered."""
        self._block_steps, self._make = block_steps, make
        self._blocks: deque[float] = deque(maxlen=blocks)
        self._sum, self._count = 0.0, 0
        self._in_fp32 = True
        self._detector: Detector | None = None
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
        self._detector = self._make(sigma)

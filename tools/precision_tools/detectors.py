"""The detectors that ``python -m precision_tools.noise`` compares: the sentinel's own, and those that were not chosen."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

from precision_trainer.sentinel.detectors import MARGIN, Cusum


class Detector(Protocol):
    """Judges blocks in their order (precision_trainer.sentinel.detectors)."""

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
